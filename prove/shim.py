"""The layer in front of the C library (shim.c): how it is built, and how the process that runs with it controls it."""

from __future__ import annotations

import ctypes
import enum
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .proof import CannotRun

SOURCE = Path(__file__).with_name("shim.c")


class Call(enum.IntEnum):
    """The classes of calls that can be refused, in the order of `enum class` in shim.c."""

    OPEN = 0
    READ = 1
    WRITE = 2
    TRUNCATE = 3
    SYNC = 4
    LOCK = 5
    MAP = 6
    UNLINK = 7
    RENAME = 8
    MKDIR = 9
    LINK = 10


def build(directory: Path) -> Path:
    """Compile the layer and return its path; raise CannotRun without a C compiler."""
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None:
        raise CannotRun("needs a C compiler: apt-get install gcc libc6-dev")
    target = directory / "shim.so"
    command = [compiler, "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-pthread"]
    made = subprocess.run([*command, "-o", target, SOURCE], capture_output=True, text=True, check=False)
    if made.returncode:
        raise CannotRun(f"needs a C compiler that compiles {SOURCE.name}: {made.stderr.strip().splitlines()[-1:]}")
    return target


class Shim:
    """The layer in front of this process, minding what lies below one directory."""

    def __init__(self, directory: Path) -> None:
        """Mind `directory`; raise CannotRun if this process was not started with the layer preloaded."""
        self._library = ctypes.CDLL(None)
        if not hasattr(self._library, "shim_watch"):
            raise CannotRun("runs with the layer preloaded only; start it through python -m prove")
        self._library.shim_calls.restype = ctypes.c_long
        self._library.shim_watch(os.fsencode(directory.resolve()))

    @contextmanager
    def recording(self, log: Path) -> Iterator[None]:
        """Append every change of the directory's files to `log` while the block runs."""
        if failed := self._library.shim_record(os.fsencode(log)):
            raise OSError(failed, os.strerror(failed), str(log))
        try:
            yield
        finally:
            self._library.shim_record(None)

    @contextmanager
    def refusing(self, call: Call, at: int, error: int, *, sticky: bool = False, part: int = 0) -> Iterator[None]:
        """Refuse the `at`-th call of a class (from 1; 0: none, only count), or with `sticky` all from then on.

        With `part` a write is made short instead, to that many thousandths of its bytes.
        """
        self._library.shim_fail(int(call), ctypes.c_long(at), error, int(sticky), part)
        try:
            yield
        finally:
            self._library.shim_forgive()

    @contextmanager
    def read_only(self) -> Iterator[None]:
        """Refuse every change of the directory's files, as a file system does that the kernel has made read-only."""
        self._library.shim_read_only(1)
        try:
            yield
        finally:
            self._library.shim_read_only(0)

    def calls(self, call: Call) -> int:
        """Return how many calls of a class there were since the last `refusing` began."""
        return int(self._library.shim_calls(int(call)))
