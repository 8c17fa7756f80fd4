"""Make the directory of a cache, and refuse one that others could tamper with."""

from __future__ import annotations

import errno
import os
import stat

from ...errors import DirectoryError, DiskFull, UnsafeDirectory, file_error
from ...system import paths
from ...system.signals import reraise_signal


def ensure_directory(path: str, shared: bool, sync: bool = False) -> None:
    """Make the directory and its parents where missing, and refuse one that others could tamper with.

    Each that is made has mode 0700, or 2770 if it is `shared`. A shared directory of this user that a group may write
    gets setgid if it lacks it, so that its files belong to that group, whoever makes them.
    With `sync` what is made is on stable storage when this returns.
    Raises DirectoryError for what is not a usable directory and UnsafeDirectory for a foreign or writable one, unless
    `shared`, and for one that a link of somebody else's leads to.
    """
    _refuse_links(path)
    try:
        _make(path, shared, sync)
        if shared:
            _keep_group(path)
    except FileExistsError as error:
        raise DirectoryError(errno.ENOTDIR, "the cache directory is a file; choose another path", path) from error
    except NotADirectoryError as error:
        raise DirectoryError(errno.ENOTDIR, "a parent of the cache directory is a file", path) from error
    except OSError as error:
        reraise_signal(error)
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DiskFull("no room to make the cache directory", path) from error
        raise DirectoryError(
            error.errno or errno.EIO, f"cannot make the cache directory ({error.strerror})", path
        ) from error
    try:
        status = os.stat(path)
    except OSError as error:
        raise file_error(error, path) from error
    if not shared:
        _refuse_unsafe(path, status)
    if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
        raise DirectoryError(errno.EACCES, "the cache directory must be readable and writable for this user", path)


def _make(path: str, shared: bool, sync: bool) -> None:
    """Make a directory, and the missing ones above it; `os.makedirs` gives a mode to the last only."""
    parent = os.path.dirname(path)
    if not paths.mode_of(parent, follow=False):
        _make(parent, shared, sync)
    try:
        os.mkdir(path, paths.PRIVATE_FOLDER)
    except FileExistsError:  # perhaps another process made it just now
        if not paths.is_directory(path):
            raise
        return
    if shared:
        with paths.opened_directory(path, os.O_NOFOLLOW) as folder:
            paths.set_mode(folder, paths.SHARED_FOLDER)
    if sync:
        paths.sync_directory(parent)


def _keep_group(path: str) -> None:
    """Have what is made in a directory belong to its group, if this user owns it and only a group may write it too."""
    others = stat.S_IWGRP | stat.S_IWOTH
    if paths.mode_of(path) & (others | stat.S_ISGID) == stat.S_IWGRP:
        with paths.opened_directory(path) as folder:
            paths.set_mode(folder, stat.S_IMODE(os.fstat(folder).st_mode) | stat.S_ISGID)


def _refuse_links(path: str) -> None:
    """Refuse a path through a link that neither this user nor the system's administrator made."""
    part = path
    while part != os.path.dirname(part):
        try:
            status = os.lstat(part)
        except OSError as error:  # not there yet, or not to be seen: making the directory will tell
            reraise_signal(error)
        else:
            if stat.S_ISLNK(status.st_mode) and status.st_uid not in (os.geteuid(), 0):
                raise UnsafeDirectory(f"the cache directory is reached by a link of user {status.st_uid}", part)
        part = os.path.dirname(part)


def refuse_link(path: str) -> None:
    """Refuse a link within a cache directory, whoever made it: one that came in an archive may lead anywhere."""
    if paths.is_link(path):
        raise UnsafeDirectory("is a symbolic link within a cache directory; replace it by what it leads to", path)


def _refuse_unsafe(path: str, status: os.stat_result) -> None:
    """Refuse a directory of somebody else, or one that others may write to; say what to do about it."""
    is_own, mode = status.st_uid == os.geteuid(), stat.S_IMODE(status.st_mode)
    if is_own and not mode & (stat.S_IWGRP | stat.S_IWOTH):
        return
    whose = "can be written by others" if is_own else f"belongs to user {status.st_uid}, not to user {os.geteuid()}"
    advice = _advice(path, is_own, mode)
    raise UnsafeDirectory(f"the cache directory {whose} (mode {mode:04o}); {advice}", path)


def _advice(path: str, is_own: bool, mode: int) -> str:
    """Return what to do where a directory is refused."""
    inside = f"use a directory within it, such as {os.path.join(path, 'cache')!r}, which will be this user's alone"
    if mode & stat.S_IWOTH and not (is_own and not mode & stat.S_ISVTX):  # for everybody: /tmp, or a container's volume
        return inside
    if is_own:
        return "chmod it to 0700, or pass shared=True if its whole group may change what is cached"
    if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
        return "choose another directory, or have its owner give it to this user (chown)"
    shared = "pass shared=True if its owner and its whole group may change what is cached"
    is_cache = paths.mode_of(os.path.join(path, "cache.lock"), follow=False) != 0
    return shared if is_cache else f"{inside}, or {shared}"
