"""Small file systems of their own, for tests that fill a disk or make it read-only; mounting needs to be permitted."""

from __future__ import annotations

import ctypes
import gc
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

MEBIBYTE = 1 << 20
_NEW_MOUNTS = 0x20000  # CLONE_NEWNS of <sched.h>; `os.unshare` came with Python 3.12


class NotPermitted(Exception):
    """File systems may not be mounted here; the text is what `mount` said."""


class Disk:
    """A small file system of its own, with a file on it that takes up room."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.junk = path / "junk"

    def free(self) -> int:
        status = os.statvfs(self.path)
        return status.f_bavail * status.f_frsize

    def fill(self, leave: int = 0) -> None:
        """Take up all room but `leave` bytes."""
        with self.junk.open("ab", buffering=0) as file:
            for size in (1 << 16, 1 << 12, 1):
                with suppress(OSError):
                    while True:
                        file.write(b"j" * size)
        os.truncate(self.junk, max(0, self.junk.stat().st_size - leave))
        assert self.free() <= leave

    def empty(self) -> None:
        """Give the room back."""
        self.junk.unlink(missing_ok=True)

    def remount(self, how: str) -> None:
        """Mount it anew, `how` being "ro" or "rw"; nothing on it may be open for writing."""
        subprocess.run(["mount", "-o", f"remount,{how}", str(self.path)], check=True, capture_output=True, text=True)


@contextmanager
def mounted(path: Path, size: int) -> Iterator[Disk]:
    """Mount an empty disk of `size` bytes at `path` for the length of a with-block; raise NotPermitted."""
    path.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size},mode=700", "none", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        assert os.geteuid() != 0 or "permission denied" in done.stderr.lower(), done.stderr
        raise NotPermitted(f"mount is not permitted: {done.stderr.strip()}")
    try:
        yield Disk(path)
    except BaseException:
        subprocess.run(["umount", "--lazy", str(path)], check=True)  # the traceback holds what is open
        raise
    gc.collect()  # a traceback that is over may hold a mapped file
    subprocess.run(["umount", str(path)], check=True)


@cache
def mount_privately() -> None:
    """Have this process's mounts end with it, however it ends, and be seen by nobody else; raise NotPermitted."""
    if ctypes.CDLL(None, use_errno=True).unshare(_NEW_MOUNTS):
        raise NotPermitted(f"mount is not permitted: {os.strerror(ctypes.get_errno())}")
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)
