"""Inspect paths and walk directories without swallowing what a signal handler raises.

`os.path` and `os.walk` treat any error as "no"; these functions do so only for errors of the system.
"""

from __future__ import annotations

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


def mode_of(path: str | os.PathLike[str], follow: bool = True) -> int:
    """Return the mode of the file at a path, or 0 if there is none or it cannot be seen."""
    try:
        return os.stat(path, follow_symlinks=follow).st_mode
    except (OSError, ValueError) as error:
        reraise_signal(error)
        return 0


def is_directory(path: str) -> bool:
    """Tell whether a path is a directory, or a link to one."""
    return stat.S_ISDIR(mode_of(path))


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


def sync_directory(path: str) -> None:
    """Bring the entries of a directory to stable storage."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
