"""Open a shard's control files, the ones that the package itself maps or locks, and refuse what others may control."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from ..errors import UnsafeDirectory, file_error


def open_control_file(path: Path, *, create: bool, shared: bool = False) -> int:
    """Open a control file and return its descriptor, or raise UnsafeDirectory; see `check_control_file`."""
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | (os.O_CREAT if create else 0)
    try:
        descriptor = os.open(path, flags, 0o660 if shared else 0o600)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EMLINK):
            raise UnsafeDirectory("is a symbolic link, not a file of the cache; remove it", path) from error
        raise file_error(error, path) from error
    try:
        check_control_file(os.fstat(descriptor), path, shared)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def check_control_file(status: os.stat_result, path: str | os.PathLike[str], shared: bool) -> None:
    """Raise UnsafeDirectory unless this is a regular file with one name that we own and nobody else can write.

    `shared` allows another owner and other writers. `status` comes from fstat or lstat.
    """
    if not stat.S_ISREG(status.st_mode):
        kind = "a symbolic link" if stat.S_ISLNK(status.st_mode) else "not a regular file"
        raise UnsafeDirectory(f"is {kind}, not a file of the cache; remove it", path)
    if status.st_nlink > 1:
        raise UnsafeDirectory("has a second name elsewhere, so writing it would change another directory", path)
    if shared:
        return
    if status.st_uid != os.geteuid():
        raise UnsafeDirectory(f"belongs to user {status.st_uid}, not to us", path)
    if status.st_mode & 0o022:
        raise UnsafeDirectory("can be written by other users", path)
