"""Value files: large values that live beside the database, one file each.

A row holds a 128-bit id and the path is derived from it (``ab/cd/<28 hex>.val``), so that nothing stored can point
outside the directory. A file is written whole under its final, unique name before its row is committed and is never
renamed or rewritten; the row is the commit point. Directories are entered one component at a time with O_NOFOLLOW.
"""

from __future__ import annotations

import errno
import io
import os
import re
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from .errors import CacheError, DecodeError, UnsafeDirectory, refused
from .interrupts import let_through, suppress

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

Buffer = bytes | bytearray | memoryview

SUFFIX = ".val"
CHUNK = 1 << 20  # bytes read or written at a time, so that no value is held twice
_ID_NAME = re.compile(r"([0-9a-f]{2})/([0-9a-f]{2})/([0-9a-f]{28})\.val")
_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
_RESERVED = re.compile(r"cache\.(db|gen|board|lock|\d+\.db)", re.IGNORECASE)
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_UNNAMED = os.O_WRONLY | os.O_TMPFILE | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK  # NONBLOCK: a planted FIFO must not hang a reader


def new_name() -> str:
    """Return a fresh relative file name made from 128 random bits."""
    return name_of(os.urandom(16))


def name_of(identifier: bytes) -> str:
    """Return the relative file name of a 16-byte id."""
    digits = identifier.hex()
    return f"{digits[:2]}/{digits[2:4]}/{digits[4:]}{SUFFIX}"


def to_column(name: str) -> bytes | str:
    """Return what a row holds for `name`: the id where the name is derived from one, else the name itself."""
    match = _ID_NAME.fullmatch(name)
    return bytes.fromhex("".join(match.groups())) if match else checked(name)


def from_column(column: object) -> str:
    """Return the relative file name that a row's `file` column stands for, or raise DecodeError."""
    if isinstance(column, bytes) and len(column) == 16:
        return name_of(column)
    if isinstance(column, str):
        return checked(column)
    raise DecodeError(f"file column holds {type(column).__name__}, expected a 16-byte id or a relative name")


def checked(name: str) -> str:
    """Return `name` if it is a plain relative path below the directory that is not one of the cache's own files."""
    parts = name.split("/")
    if len(parts) > 8 or not all(_PART.fullmatch(part) for part in parts) or _RESERVED.match(parts[-1]):
        raise DecodeError(f"file name {name!r} is not a plain relative name below the cache directory")
    return name


@contextmanager
def naming(path: str, *passing: type[OSError]) -> Iterator[None]:
    """Turn the system's errors in the body into the package's, which name `path`; those of `passing` pass."""
    try:
        yield
    except OSError as error:
        if isinstance(error, (CacheError, *passing)):
            raise
        raise refused(error, path) from error


class _NamedFile(io.FileIO):
    """A value file that is read, whose errors name it."""

    def readinto(self, buffer: WriteableBuffer, /) -> int | None:
        with naming(str(self.name)):
            return super().readinto(buffer)

    def readall(self) -> bytes:
        with naming(str(self.name)):
            return super().readall()


def _parent(root: str, parts: list[str], create: bool) -> int:
    """Open the directory that holds the file, entering each component without following links."""
    handle = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    for part in parts:
        try:
            try:
                inner = os.open(part, _DIRECTORY, dir_fd=handle)
            except FileNotFoundError:
                if not create:
                    raise
                _mkdir(part, handle)
                inner = os.open(part, _DIRECTORY, dir_fd=handle)
        finally:
            os.close(handle)
        handle = inner
    return handle


def _mkdir(part: str, dir_fd: int) -> None:
    try:
        os.mkdir(part, 0o700, dir_fd=dir_fd)
    except FileExistsError:
        return  # another writer made it; opening it decides whether it is a real directory


def _parent_for_writing(root: str, parents: list[str]) -> int:
    try:
        return _parent(root, parents, create=True)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENOTDIR):
            raise
        path = os.path.join(root, *parents)
        raise UnsafeDirectory("is a link or a file where value files belong; remove it", path) from error


def create(root: str, name: str) -> int:
    """Create the value file `name` exclusively (0600) and return its descriptor, open for writing."""
    *parents, last = checked(name).split("/")
    for attempt in range(10):
        try:
            handle = _parent_for_writing(root, parents)
            try:
                return os.open(last, _CREATE, 0o600, dir_fd=handle)
            finally:
                os.close(handle)
        except FileNotFoundError:
            # `remove` took an emptied directory away between mkdir and open; each try needs a new such meeting.
            if attempt == 9 or not Path(root).is_dir():
                raise
    raise AssertionError("unreachable")


def write(root: str, name: str, chunks: Iterable[bytes], sync: bool) -> int:
    """Write a new value file whole and return its size in bytes; on any failure no file is left.

    With `sync` the file and its directory are on stable storage when this returns.
    Raises DiskFull when there is no room, DirectoryError for whatever else the system refuses.
    """
    path = os.path.join(root, name)
    with naming(path):
        descriptor = create(root, name)
    try:
        size = 0
        with open(descriptor, "wb", buffering=0) as writer:
            for chunk in chunks:  # outside `naming`: they may be read from a file of the caller's
                with naming(path):
                    size += _write_all(writer.fileno(), chunk)
            with naming(path):
                if sync:
                    os.fdatasync(descriptor)
        with naming(path):
            if sync:
                _sync_parents(root, name)
    except BaseException:
        with suppress(OSError):  # the first error tells more; what stays is an unknown file to `check`
            remove(root, name)
        raise
    return size


class NewFile:
    """A value file that is written piece by piece and has no name until it is finished.

    What is not finished goes with its descriptor, however the process ends. Where the file system cannot do that the
    file has its name from the start, and is what `check` calls an unknown file if the process is killed.
    """

    def __init__(self, root: str, name: str) -> None:
        self._root = root
        self.name = name
        self.size = 0
        self._process = os.getpid()
        self._path = os.path.join(root, name)
        with naming(self._path):
            self._descriptor = _open_unnamed(root)
            self._is_named = self._descriptor < 0
            if self._is_named:
                self._descriptor = create(root, name)

    def write(self, piece: Buffer) -> None:
        """Append a piece; raise DiskFull where there is no room for it, what was written of it being taken back."""
        with naming(self._path):
            try:
                self.size += _write_all(self._descriptor, piece)
            except OSError:
                os.ftruncate(self._descriptor, self.size)
                os.lseek(self._descriptor, self.size, os.SEEK_SET)
                raise

    def finish(self, sync: bool) -> None:
        """Give the file its name; with `sync` file and directory are on stable storage when this returns."""
        with naming(self._path):
            if sync:
                os.fdatasync(self._descriptor)
            if not self._is_named:
                link_unnamed(self._descriptor, self._root, self.name)
                self._is_named = True
            if sync:
                _sync_parents(self._root, self.name)
        descriptor, self._descriptor = self._descriptor, -1
        os.close(descriptor)

    def discard(self) -> None:
        """Drop what was written, unless it was finished."""
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            os.close(descriptor)
            if self._is_named and self._process == os.getpid():  # a forked child has no part in it
                with suppress(OSError):  # it is an unknown file to `check` then
                    remove(self._root, self.name)


def _open_unnamed(root: str) -> int:
    """Return the descriptor of a new file without a name, -1 where there are none or they cannot be given one."""
    if not is_directory("/proc/self/fd"):
        return -1
    try:
        return os.open(root, _UNNAMED, 0o600)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL):
            raise
        return -1


def link_unnamed(descriptor: int, root: str, name: str) -> None:
    """Give a file without a name the name of a value file."""
    *parents, last = checked(name).split("/")
    for attempt in range(10):
        handle = _parent_for_writing(root, parents)
        try:
            # Python calls linkat with AT_SYMLINK_FOLLOW only where it is given a directory.
            return os.link(f"/proc/self/fd/{descriptor}", last, dst_dir_fd=handle, follow_symlinks=True)
        except FileNotFoundError:
            # As in `create`: the directory was emptied, and taken away, since it was made.
            if attempt == 9 or not Path(root).is_dir():
                raise
        finally:
            os.close(handle)
    raise AssertionError("unreachable")


def _write_all(descriptor: int, chunk: Buffer) -> int:
    view = memoryview(chunk).cast("B")
    done = 0
    while done < len(view):
        done += os.write(descriptor, view[done : done + CHUNK])
    return done


def _sync_parents(root: str, name: str) -> None:
    parents = name.split("/")[:-1]
    for depth in range(len(parents), -1, -1):
        handle = _parent(root, parents[:depth], create=False)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def sync_directory(path: str) -> None:
    """Put the entries of a directory on stable storage."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def open_read(root: str, name: str) -> BinaryIO:
    """Open a value file for reading; raise FileNotFoundError when it is gone, DecodeError when it is not ours.

    A link, a directory, a device or a second hard link is refused. Raises DirectoryError for whatever else the system
    refuses, then and when it is read.
    """
    with naming(os.path.join(root, name), FileNotFoundError):
        descriptor = _open_value(root, name)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
            raise DecodeError(f"value file {name!r} in {root!r} is not a regular file with one name")
        path = os.path.join(root, name)
    except BaseException:
        os.close(descriptor)
        raise
    # By path only for the reader's `name`, which programs hand on to others; what is read is the descriptor. The reader
    # takes it over in C, so that a signal handler that raises finds it either the reader's or nobody's.
    return io.BufferedReader(_NamedFile(path, "rb", opener={path: descriptor}.get), io.DEFAULT_BUFFER_SIZE)


def _open_value(root: str, name: str) -> int:
    *parents, last = checked(name).split("/")
    try:
        handle = _parent(root, parents, create=False)
        try:
            return os.open(last, _READ, dir_fd=handle)
        finally:
            os.close(handle)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.ENXIO):
            raise DecodeError(f"value file {name!r} in {root!r} is not a regular file") from error
        raise


def chunks(reader: BinaryIO) -> Iterator[bytes]:
    """Yield the rest of `reader` in pieces of `CHUNK` bytes."""
    while piece := reader.read(CHUNK):
        yield piece


def remove(root: str, name: str) -> None:
    """Unlink a value file and the directories that it leaves empty; what is already gone is not an error.

    Raises DirectoryError if the system does not let it go.
    """
    *parents, last = checked(name).split("/")
    with naming(os.path.join(root, name)):
        try:
            handle = _parent(root, parents, create=False)
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            if error.errno == errno.ELOOP:
                return
            raise
        try:
            os.unlink(last, dir_fd=handle)
        except (FileNotFoundError, IsADirectoryError, PermissionError):
            return
        finally:
            os.close(handle)
    _prune(root, parents)


def _prune(root: str, parents: list[str]) -> None:
    for depth in range(len(parents), 0, -1):
        handle = None
        try:
            handle = _parent(root, parents[: depth - 1], create=False)
            os.rmdir(parents[depth - 1], dir_fd=handle)
        except OSError as error:
            let_through(error)
            return  # not empty, or gone already: both are the wished-for end
        finally:
            if handle is not None:
                os.close(handle)


def unlink_found(root: str, name: str) -> None:
    """Unlink what was found under any name below `root`; raise FileNotFoundError if it is gone, or elsewhere now."""
    *parents, last = name.split("/")
    with _found_parent(root, parents, name) as handle:
        os.unlink(last, dir_fd=handle)


def rmdir_found(root: str, name: str) -> None:
    """Remove an empty directory that was found below `root`, in the same way."""
    *parents, last = name.split("/")
    with _found_parent(root, parents, name) as handle:
        os.rmdir(last, dir_fd=handle)


@contextmanager
def _found_parent(root: str, parents: list[str], name: str) -> Iterator[int]:
    """Open where something was found. Not by its path: another program may have put a link into that since."""
    try:
        handle = _parent(root, parents, create=False)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENOTDIR):
            raise
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), os.path.join(root, name)) from error
    try:
        yield handle
    finally:
        os.close(handle)


def mode_of(path: str | os.PathLike[str], follow: bool = True) -> int:
    """Return the mode of what is at a path, 0 if nothing is or it cannot be seen.

    `os.path` tells less: its functions take what a signal handler raises for an error of the system.
    """
    try:
        return os.stat(path, follow_symlinks=follow).st_mode
    except (OSError, ValueError) as error:
        let_through(error)
        return 0


def is_directory(path: str) -> bool:
    """Tell whether a path leads to a directory."""
    return stat.S_ISDIR(mode_of(path))


def is_link(path: str) -> bool:
    """Tell whether a path is a symbolic link."""
    return stat.S_ISLNK(mode_of(path, follow=False))


def folders(root: str) -> Iterator[tuple[str, list[str], list[str]]]:
    """Yield what `os.walk` does, never following links, and pass on what a signal handler raises."""
    inner: list[str] = []
    names: list[str] = []
    with suppress(OSError), os.scandir(root) as entries:
        for entry in entries:
            is_folder = is_directory(entry.path) if entry.is_symlink() else entry.is_dir()
            (inner if is_folder else names).append(entry.name)
    yield root, inner, names
    for path in [os.path.join(root, name) for name in inner]:
        if not is_link(path):
            yield from folders(path)


def names_below(root: str) -> Iterator[str]:
    """Yield the relative name of every file below `root`, never following links."""
    for path, directories, names in folders(root):
        directories.sort()
        relative = os.path.relpath(path, root)
        yield from (name if relative == "." else f"{relative}/{name}" for name in names)
