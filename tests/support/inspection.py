"""See what a process has open and locked, and what a cache takes on disk and says of itself."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from diskcache_like import Cache
from diskcache_like.system import paths

from .leaks import open_descriptors


def descriptors(pid: int | str = "self") -> list[str]:
    """Return what the open file descriptors of a process refer to."""
    return sorted(open_descriptors(pid).values())


def cache_descriptors(directory: Path, pid: int | str = "self") -> list[str]:
    """Return the open descriptors of a process that refer to something in `directory`, deleted or not."""
    return [name for name in descriptors(pid) if name.startswith(f"{directory}/")]


def posix_locks(pid: int, path: Path) -> set[str]:
    """Return the record locks that a process holds on a file, as the kernel lists them.

    It gives the list in pieces. Locks of others that come and go between two pieces make it repeat a line or leave one
    out, so it is read until two readings agree.
    """
    found = _posix_locks(pid, path)
    while (again := _posix_locks(pid, path)) != found:
        found = again
    return found


def _posix_locks(pid: int, path: Path) -> set[str]:
    inode = path.stat().st_ino
    found = set()
    for line in Path("/proc/locks").read_text(encoding="ascii").splitlines():
        fields = line.split()
        if fields[1] == "POSIX" and fields[4] == str(pid) and fields[5].rpartition(":")[2] == str(inode):
            found.add(" ".join(fields[1:]))  # without its number in the list
    return found


def problems(cache: Cache, fix: bool = False) -> list[str]:
    """Return what `check` says, as text."""
    return [str(problem.message) for problem in cache.check(fix=fix)]


def bytes_on_disk(cache: Cache) -> int:
    """Return the bytes on the disk of everything but SQLite's journals, which come and go, and the disk reserve."""
    passing = ("-wal", "-shm", ".lock")
    total = 0
    for name in paths.files_below(cache.directory):
        with contextlib.suppress(FileNotFoundError):
            status = os.lstat(os.path.join(cache.directory, name))
            total += 0 if name.endswith(passing) else min(status.st_size, 512 * status.st_blocks)  # some are sparse
    return total
