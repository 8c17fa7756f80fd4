"""Inspect paths and walk directories without swallowing what a signal handler raises.

`os.path` and `os.walk` treat any error as "no"; these functions do so only for errors of the system.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
from collections.abc import Iterator

from .signals import reraise_signal, suppress

# Modes of what a cache makes: for its user alone, or also for a group that shares it. Setgid has whatever is made in a
# folder belong to the folder's group, whoever makes it.
PRIVATE_FILE, SHARED_FILE = 0o600, 0o660
PRIVATE_FOLDER, SHARED_FOLDER = 0o700, 0o2770
# For one of a group that meets a file or folder between its making and `set_mode`: tries, and seconds between them.
SHARED_ATTEMPTS, SHARED_PAUSE = 10, 0.001

# What macOS has instead of fsync, which there leaves all in the memory of the disk, where a power loss finds it.
FULL_SYNC: int | None = getattr(fcntl, "F_FULLFSYNC", None)

_UNKNOWN = 1 << 64  # bytes, where a disk does not say how many it has left


def mode_of(path: str | os.PathLike[str], follow: bool = True) -> int:
    """Return the mode of the file at a path, or 0 if there is none or it cannot be seen."""
    try:
        return os.stat(path, follow_symlinks=follow).st_mode
    except (OSError, ValueError) as error:
        reraise_signal(error)
        return 0


def left_on_disk(directory: str) -> int:
    """Return the bytes that the disk of a directory has left; as many as can be where it does not say."""
    try:
        disk = os.statvfs(directory)
    except OSError as error:
        reraise_signal(error)
        return _UNKNOWN
    return disk.f_bavail * disk.f_frsize if disk.f_blocks else _UNKNOWN


def is_directory(path: str) -> bool:
    """Tell whether a path is a directory, or a link to one."""
    return stat.S_ISDIR(mode_of(path))


@contextlib.contextmanager
def opened_directory(path: str | os.PathLike[str], flags: int = 0) -> Iterator[int]:
    """Open a directory for the body, which gets its descriptor."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | flags)
    try:
        yield handle
    finally:
        os.close(handle)


def is_link(path: str) -> bool:
    """Tell whether a path is a symbolic link."""
    return stat.S_ISLNK(mode_of(path, follow=False))


def walk(root: str) -> Iterator[tuple[str, list[str], list[str]]]:
    """Yield what `os.walk` yields; links are not followed."""
    inner: list[str] = []
    names: list[str] = []
    with suppress(OSError), os.scandir(root) as entries:
        for entry in entries:
            is_folder = is_directory(entry.path) if entry.is_symlink() else entry.is_dir()
            (inner if is_folder else names).append(entry.name)
    yield root, inner, names
    for path in [os.path.join(root, name) for name in inner]:
        if not is_link(path):
            yield from walk(path)


def files_below(root: str) -> Iterator[str]:
    """Yield the relative name of every file below `root`; links are not followed."""
    for path, directories, names in walk(root):
        directories.sort()
        relative = os.path.relpath(path, root)
        yield from (name if relative == "." else f"{relative}/{name}" for name in names)


def set_mode(descriptor: int, mode: int) -> None:
    """Give a file or folder of this user its mode; the umask takes from it when it is made, and mkdir no setgid."""
    status = os.fstat(descriptor)
    if status.st_uid == os.geteuid() and stat.S_IMODE(status.st_mode) != mode:
        with suppress(PermissionError):  # on a file system without modes
            os.fchmod(descriptor, mode)


def sync_file(descriptor: int) -> None:
    """Bring what is in a file to stable storage."""
    if not _synced_fully(descriptor):
        getattr(os, "fdatasync", os.fsync)(descriptor)


def sync_entries(descriptor: int) -> None:
    """Bring the entries of an open directory to stable storage."""
    if not _synced_fully(descriptor):
        os.fsync(descriptor)


def _synced_fully(descriptor: int) -> bool:
    """Do what macOS needs; return False where fsync is to do it."""
    if FULL_SYNC is None:
        return False
    try:
        fcntl.fcntl(descriptor, FULL_SYNC)
    except OSError as error:
        if error.errno not in (errno.ENOTSUP, errno.EINVAL, errno.ENOTTY):
            raise
        return False  # the file system knows no other way than fsync
    return True


def sync_directory(path: str) -> None:
    """Bring the entries of the directory at a path to stable storage."""
    with opened_directory(path) as handle:
        sync_entries(handle)
