"""Open a shard's control files, the ones that the package itself maps or locks, and refuse what others may control.

Their blocks are allocated before they are mapped: storing into a hole on a full disk kills the process with SIGBUS.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from pathlib import Path

from ..errors import UnsafeDirectory, file_error
from ..system.paths import PRIVATE_FILE, SHARED_ATTEMPTS, SHARED_FILE, SHARED_PAUSE, set_mode
from ..system.signals import suppress


def open_control_file(path: Path, *, create: bool, shared: bool = False) -> int:
    """Open a control file and return its descriptor, or raise UnsafeDirectory; see `check_control_file`.

    A file of this user gets mode 0660 if it is `shared`, whatever the umask; a new one that is not gets 0600.
    """
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | (os.O_CREAT if create else 0)
    try:
        descriptor = _open_shared(path, flags) if shared else os.open(path, flags, PRIVATE_FILE)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EMLINK):
            raise UnsafeDirectory("is a symbolic link, not a file of the cache; remove it", path) from error
        raise file_error(error, path) from error
    try:
        check_control_file(os.fstat(descriptor), path, shared)
        if shared:
            set_mode(descriptor, SHARED_FILE)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _open_shared(path: Path, flags: int) -> int:
    """Open a file that another user may be making just now, and is about to let this one's group have."""
    for _ in range(SHARED_ATTEMPTS - 1):
        with suppress(PermissionError):
            return os.open(path, flags, SHARED_FILE)
        time.sleep(SHARED_PAUSE)
    return os.open(path, flags, SHARED_FILE)


def allocate(descriptor: int, size: int, first: int = 0) -> bool:
    """Allocate the blocks of a file's bytes from `first` to `size`; return False where that is not possible at all."""
    if not hasattr(os, "posix_fallocate"):
        return False
    try:
        os.posix_fallocate(descriptor, first, size - first)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
            raise
        return False
    return True


def fill_holes(descriptor: int, size: int) -> None:
    """Allocate the first `size` bytes of a file if a copy left holes there; some file systems cannot do that.

    Nothing is rewritten, since others may be changing what is there. Blocks behind these bytes say nothing about them.
    """
    if os.fstat(descriptor).st_blocks * 512 < size or os.lseek(descriptor, 0, os.SEEK_HOLE) < size:
        allocate(descriptor, size)


def extend(descriptor: int, size: int) -> bool:
    """Write zeros to the end of a file until it has `size` bytes; tell whether it has.

    Nobody else may write the file meanwhile.
    """
    found = os.fstat(descriptor).st_size
    return found + os.pwrite(descriptor, bytes(max(0, size - found)), found) >= size


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
