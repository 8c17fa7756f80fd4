"""See what this process does with files and with code, as Python's audit hooks tell, and what becomes of files outside."""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .inspection import descriptors

PATHS = {"open", "sqlite3.connect", "os.listdir", "os.scandir"} | {
    f"os.{name}"
    for name in (
        "remove",
        "rmdir",
        "rename",
        "link",
        "symlink",
        "mkdir",
        "truncate",
        "chmod",
        "chown",
        "utime",
        "mkfifo",
    )
}
CODE = {"exec", "import", "pickle.find_class", "marshal.loads", "code.__new__", "subprocess.Popen", "ctypes.dlopen"} | {
    *("sqlite3.load_extension", "sqlite3.enable_load_extension", "socket.connect", "socket.bind", "os.system"),
    *("os.exec", "os.posix_spawn", "os.spawn", "os.fork", "os.putenv", "os.kill"),
}
ALLOWED = ("/proc/", "/dev/fd", "/dev/urandom")


class Watch:
    """See every path that this process uses and all code that it comes to run, while it is on."""

    def __init__(self) -> None:
        self.on = False
        self.seen: list[str] = []
        self.ran: list[str] = []
        sys.addaudithook(self)  # a hook stays for the life of the process

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.on:
            return
        if event in PATHS:
            self.seen += [os.fsdecode(path) for path in arguments[:2] if isinstance(path, str | bytes)]
        elif event in CODE:
            self.ran.append(f"{event} {arguments[:1]!r}")

    @contextlib.contextmanager
    def watching(self, directory: Path) -> Iterator[None]:
        """Assert that the body runs no code of others, and that what it touches lies in the directory.

        A plain name is relative to a directory that is open, and is let pass.
        """
        self.seen.clear()
        self.ran.clear()
        self.on = True
        try:
            yield
        finally:
            self.on = False
            self._judge(directory)

    def _judge(self, directory: Path) -> None:
        assert not self.ran, sorted(set(self.ran))
        inside = (str(directory), f"file://{directory}", *ALLOWED)
        for path in set(self.seen) - {"r", "w", "rb", "wb"}:
            plain = "/" not in path and path not in (".", "..", "outside")
            assert plain or path.startswith(inside), path


class Openings:
    """See what this process itself opens of a database that it has open through SQLite, while it is on.

    Closing any descriptor of such a file drops all locks that SQLite has on it, which belong to the process.
    """

    NAMES = (".db", "-wal", "-shm", "-journal")

    def __init__(self) -> None:
        self.on = False
        self.seen: list[str] = []
        sys.addaudithook(self)  # SQLite's own openings raise no event

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.on or event != "open" or not isinstance(arguments[0], str | bytes):
            return
        name, flags = os.fsdecode(arguments[0]), arguments[2]
        if flags & os.O_EXCL or not name.endswith(self.NAMES):
            return
        if any(path == name or path.endswith(f"/{name}") for path in descriptors()):  # or relative to a directory
            self.seen.append(f"{name} is opened while SQLite has it open:\n{''.join(traceback.format_stack(limit=6))}")

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Assert that the body opens none."""
        self.seen.clear()
        self.on = True
        try:
            yield
        finally:
            self.on = False
        assert not self.seen, self.seen[0]


class Outside:
    """A directory beside the cache that must stay as it is, down to the time of its last reading."""

    READ, WRITTEN = 1_000_000_000, 2_000_000_000  # ns since 1970; the first is moved on by a reading of what is newer

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir()
        self._before: dict[Path, tuple[object, ...]] = {}

    def file(self, name: str, content: bytes = b"precious") -> Path:
        """Put a file there."""
        path = self.directory / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
        return path

    def settle(self) -> None:
        """Remember everything as it is now."""
        for path in self._paths():
            os.utime(path, ns=(self.READ, self.WRITTEN))
        self._before = {path: self._state(path) for path in self._paths()}

    def changes(self) -> list[str]:
        """Return what was read, changed, added or removed since."""
        now = {path: self._state(path) for path in self._before if os.path.lexists(path)}
        found = [
            f"{path}: {now.get(path)} instead of {state}"
            for path, state in self._before.items()
            if now.get(path) != state
        ]
        return found + [f"{path} was made" for path in self._paths() if path not in self._before]

    def _paths(self) -> list[Path]:
        return [self.directory, *self.directory.rglob("*")]

    @staticmethod
    def _state(path: Path) -> tuple[object, ...]:
        status = path.lstat()
        return status.st_mode, status.st_uid, status.st_size, status.st_mtime_ns, status.st_atime_ns
