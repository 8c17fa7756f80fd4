"""Open a cache that is there: a command never makes one by mistake, and one that only looks needs no right to write."""

from __future__ import annotations

import argparse
import errno
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from ..cache import Cache
from ..entries.session import Opening
from ..errors import CacheError, DirectoryError
from ..storage.opening.identity import is_database
from ..system.paths import files_below, is_directory
from ..system.signals import reraise_signal
from .terminal import shown

COPIES = 5  # attempts at a copy of a directory that others write to


class WithoutRecovery(Cache):
    """A cache that keeps using a damaged database: quarantining it would leave a `Deque` or `Index` empty."""

    _OPENING = Opening(recover=False)


def existing(directory: str, kind: type[Cache] = Cache) -> Cache:
    """Open the cache in `directory`; raise FileNotFoundError rather than create one."""
    path = Path(directory)
    if not path.exists():
        raise FileNotFoundError(2, "no such directory", directory)
    # Not just any database: beside another program's database, or above a cache, opening would create a new cache.
    databases = (name for each in (path, *path.glob("[0-9][0-9][0-9]")) for name in each.glob("cache*.db"))
    if path.is_dir() and not any(is_database(name.name) for name in databases):
        raise FileNotFoundError(2, "no cache in this directory", directory)
    return kind(directory)


def add_namespace(command: argparse.ArgumentParser) -> None:
    """Add the option that `namespace_of` reads."""
    text = "what is in this namespace; repeat it for one within that"
    command.add_argument("--namespace", action="append", default=[], metavar="NAME", help=text)


def namespace_of(cache: Cache, options: argparse.Namespace) -> Cache:
    """Return the namespace that the options name, or the cache itself."""
    for name in options.namespace:
        cache = cache.namespace(name)
    return cache


@contextmanager
def to_look_at(directory: str, values: bool = True) -> Iterator[Cache]:
    """Open a cache that the body only reads, or a temporary copy of it; see `readable`."""
    with readable(directory, values) as path, existing(path, WithoutRecovery) as cache:
        yield cache


@contextmanager
def readable(directory: str, values: bool = True) -> Iterator[str]:
    """Yield a directory with what `directory` holds: itself, or a temporary copy where it cannot be written.

    SQLite writes beside a database in order to read it, and so do the generations, so a copy is the way to read a
    volume that is mounted read-only, or somebody else's cache. Errors name the original. `values`: the body reads
    value files too. Raises DirectoryError if somebody writes faster than the copy is made.
    """
    if not is_directory(directory) or os.access(directory, os.W_OK):
        yield directory
        return
    with tempfile.TemporaryDirectory(prefix="diskcache-") as folder:
        print(shown(f"{directory}: cannot be written, so this looks at a temporary copy"), file=sys.stderr)
        copy = os.path.join(folder, "cache")
        _copy_settled(os.path.realpath(directory), copy, values)
        try:
            yield copy
        except (CacheError, OSError) as error:
            original = os.path.abspath(directory)
            error.args = tuple(part.replace(copy, original) if isinstance(part, str) else part for part in error.args)
            if isinstance(error, OSError) and isinstance(error.filename, str):
                error.filename = error.filename.replace(copy, original)
            raise


def _copy_settled(directory: str, copy: str, values: bool) -> None:
    """Copy a directory until no database in it changed meanwhile: one copied in pieces of two times is damaged."""
    for _ in range(COPIES):
        before = _states(directory)
        _copy(directory, copy, values)
        if _states(directory) == before:
            return
        shutil.rmtree(copy)
    raise DirectoryError(errno.EBUSY, "is written to faster than it can be copied; try again later", directory)


def _states(directory: str) -> dict[str, tuple[int, int, int]]:
    """Return what changes when a database or its log is written, by path."""
    found = {}
    for name in files_below(directory):
        if name.endswith((".db", ".db-wal")):
            with suppress(FileNotFoundError):  # the log is removed when the last process closes the cache
                status = os.lstat(os.path.join(directory, name))
                found[name] = (status.st_ino, status.st_size, status.st_mtime_ns)
    return found


def _copy(directory: str, copy: str, values: bool) -> None:
    """Copy directories and regular files, for this user alone; a cache reads nothing through a link or a pipe."""
    for path, _, names, handle in os.fwalk(directory, onerror=_raise):
        folder = os.path.join(copy, os.path.relpath(path, directory))
        os.makedirs(folder, 0o700, exist_ok=True)
        for name in names:
            if not values and name.endswith(".val"):
                continue
            # Looked at once it is open, and by its name in the open directory: its owner may put a link there any time.
            try:
                source = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=handle)
            except OSError as error:
                reraise_signal(error)
                if error.errno in (errno.ELOOP, errno.ENXIO, errno.ENOENT):  # a link, a socket, or gone
                    continue
                raise DirectoryError(error.errno or errno.EIO, "cannot be read", os.path.join(path, name)) from error
            with open(source, "rb") as reader:
                if stat.S_ISREG(os.fstat(source).st_mode):
                    _write_private(reader, os.path.join(folder, name))


def _write_private(reader: BinaryIO, path: str) -> None:
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as writer:
        shutil.copyfileobj(reader, writer)


def _raise(error: OSError) -> None:
    raise error
