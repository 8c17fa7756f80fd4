"""Create, open and remove value files safely: large values that lie beside the database, one file each.

A row holds a 128-bit id and the path is derived from it (``ab/<30 hex>.val``), so nothing in a row can point outside
the directory. A file is complete under its final, unique name before its row is committed, and is never renamed or
rewritten; the row is the commit point. Directories are entered one component at a time with O_NOFOLLOW.
"""

from __future__ import annotations

import errno
import io
import os
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, TypeVar

from ..coherence import _native
from ..encoding.file_names import checked
from ..errors import CacheError, DecodeError, UnsafeDirectory, file_error
from ..system.blocking import may_block
from ..system.paths import (
    PRIVATE_FILE,
    PRIVATE_FOLDER,
    SHARED_ATTEMPTS,
    SHARED_FILE,
    SHARED_FOLDER,
    SHARED_PAUSE,
    is_directory,
    mode_of,
    set_mode,
    sync_directory,
    sync_entries,
    sync_file,
)
from ..system.signals import reraise_signal, suppress

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

Buffer = bytes | bytearray | memoryview
T = TypeVar("T")

CHUNK = 1 << 20  # bytes read or written at a time, so that no value is in memory twice
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_UNNAMED = os.O_WRONLY | os.O_TMPFILE | os.O_CLOEXEC if hasattr(os, "O_TMPFILE") else None
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK  # NONBLOCK: a planted FIFO must not block a reader


class translated_errors:  # noqa: N801 - used as a function
    """Turn the system's errors in the body, except those of types in `passing`, into the package's, naming `path`."""

    __slots__ = ("_passing", "_path")

    def __init__(self, path: str, *passing: type[OSError]) -> None:
        self._path, self._passing = path, passing

    def __enter__(self) -> None:
        return

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, OSError) and not isinstance(error, (CacheError, *self._passing)):
            raise file_error(error, self._path) from error


class _NamedFile(io.FileIO):
    """A value file that is open for reading, and whose errors name it."""

    def readinto(self, buffer: WriteableBuffer, /) -> int | None:
        with translated_errors(str(self.name)):
            return super().readinto(buffer)

    def readall(self) -> bytes:
        with translated_errors(str(self.name)):
            return super().readall()


def _parent(root: str, parts: list[str], create: bool) -> int:
    """Open the directory that holds the file, entering each component below `root` without following links."""
    if len(parts) == 1:  # as in all names that are made here: in one step
        try:
            return os.open(f"{root}/{parts[0]}", _DIRECTORY)
        except FileNotFoundError:
            if not create:
                raise
    handle = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    for part in parts:
        try:
            try:
                inner = os.open(part, _DIRECTORY, dir_fd=handle)
            except FileNotFoundError:
                if not create:
                    raise
                inner = _made_folder(part, handle)
        finally:
            os.close(handle)
        handle = inner
    return handle


def _made_folder(part: str, parent: int) -> int:
    """Make a folder and open it."""
    is_ours = True
    try:
        os.mkdir(part, PRIVATE_FOLDER, dir_fd=parent)
    except FileExistsError:
        is_ours = False  # another writer made it; opening it decides whether it is a real directory
    handle = os.open(part, _DIRECTORY, dir_fd=parent)
    try:
        if is_ours and _is_shared(parent):
            set_mode(handle, SHARED_FOLDER)
    except BaseException:
        os.close(handle)
        raise
    return handle


def _is_shared(folder: int) -> bool:
    """Tell whether a group may write an open folder, and so what is made in it: only `shared` caches have such."""
    return bool(os.fstat(folder).st_mode & stat.S_IWGRP)


def _parent_for_writing(root: str, parents: list[str]) -> int:
    try:
        return _parent(root, parents, create=True)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENOTDIR):
            raise
        path = os.path.join(root, *parents)
        raise UnsafeDirectory("is a link or a file where value files belong; remove it", path) from error


def create(root: str, name: str) -> FileIO:
    """Create the value file `name` exclusively and return it, open for writing.

    Its mode is 0600, in a folder that a group may write 0660. The file object owns the descriptor from the moment that
    the system has made it: no signal handler runs in between, so an interrupted write leaves none open.
    """

    def created(last: str, parent: int) -> FileIO:
        file = FileIO(last, "xb", opener=partial(os.open, mode=PRIVATE_FILE, dir_fd=parent))  # O_EXCL follows no link
        if _is_shared(parent):
            set_mode(file.fileno(), SHARED_FILE)
        return file

    return _in_new_parent(root, name, created)


def _in_new_parent(root: str, name: str, step: Callable[[str, int], T]) -> T:
    """Create the directories of a value file, and call `step` with the last part of its name and its directory."""
    *parents, last = checked(name).split("/")
    for attempt in range(SHARED_ATTEMPTS):
        try:
            parent = _parent_for_writing(root, parents)
            try:
                return step(last, parent)
            finally:
                os.close(parent)
        except FileNotFoundError:
            # After it was made, `remove` deleted the directory because it was empty; that is unlikely to repeat.
            if attempt == SHARED_ATTEMPTS - 1 or not Path(root).is_dir():
                raise
        except PermissionError:
            # Another user of the group makes the directory just now.
            if attempt == SHARED_ATTEMPTS - 1 or not stat.S_IMODE(mode_of(root)) & stat.S_IWGRP:
                raise
            time.sleep(SHARED_PAUSE)
    raise AssertionError("unreachable")


def write(root: str, name: str, chunks: Iterable[bytes], sync: bool) -> int:
    """Write a new value file and return its size in bytes; if that fails, no file is left.

    With `sync` the file and its directory are on stable storage when this returns.
    Raises DiskFull if there is no room, DirectoryError for any other error of the system.
    """
    may_block()
    path = os.path.join(root, name)
    try:
        size = 0
        with translated_errors(path):
            writer = create(root, name)
        with writer:
            for chunk in chunks:  # outside `translated_errors`: the chunks may come from a file of the caller
                with translated_errors(path):
                    size += _write_all(writer.fileno(), chunk)
            with translated_errors(path):
                if sync:
                    sync_file(writer.fileno())
        with translated_errors(path):
            if sync:
                _sync_parents(root, name)
    except BaseException as error:
        if getattr(error, "errno", None) != errno.EEXIST:  # else it is another entry's
            with suppress(OSError):  # the first error tells more; `check` reports a file that stays as unknown
                remove(root, name)
        raise
    return size


class NewFile:
    """A value file that is written piece by piece and has no name until it is finished.

    A file that is not finished vanishes with its descriptor, however the process ends. If the file system cannot do
    that, the file has its name from the start, and `check` reports it as unknown if the process is killed.
    """

    def __init__(self, root: str, name: str) -> None:
        may_block()
        self._root = root
        self.name = name
        self.size = 0
        self._process = os.getpid()
        self._path = os.path.join(root, name)
        self._owner: FileIO | None = None  # of the descriptor, where the file has a name
        with translated_errors(self._path):
            self._descriptor = _open_unnamed(root)
            self._is_named = self._descriptor < 0
            if self._is_named:
                self._owner = create(root, name)
                self._descriptor = self._owner.fileno()

    def write(self, piece: Buffer) -> None:
        """Append a piece; if there is no room, remove what was written of it and raise DiskFull."""
        with translated_errors(self._path):
            try:
                self.size += _write_all(self._descriptor, piece)
            except OSError:
                os.ftruncate(self._descriptor, self.size)
                os.lseek(self._descriptor, self.size, os.SEEK_SET)
                raise

    def finish(self, sync: bool) -> None:
        """Give the file its name; with `sync`, file and directory are on stable storage when this returns."""
        with translated_errors(self._path):
            if sync:
                sync_file(self._descriptor)
            if not self._is_named:
                link_unnamed(self._descriptor, self._root, self.name)
                self._is_named = True
            if sync:
                _sync_parents(self._root, self.name)
        self._close()

    def _close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if self._owner is not None:
            self._owner.close()
        else:
            os.close(descriptor)

    def discard(self) -> None:
        """Delete the file, unless it was finished."""
        if self._descriptor >= 0:
            self._close()
            if self._is_named and self._process == os.getpid():  # the file belongs to the parent of a forked child
                with suppress(OSError):  # `check` will report it as unknown
                    remove(self._root, self.name)


def _open_unnamed(root: str) -> int:
    """Return the descriptor of a new file without a name, or -1 if the system has none or cannot name them later."""
    if _UNNAMED is None or not is_directory("/proc/self/fd"):
        return -1
    try:
        return os.open(root, _UNNAMED, PRIVATE_FILE)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL):
            raise
        return -1


def link_unnamed(descriptor: int, root: str, name: str) -> None:
    """Give a file without a name the name of a value file."""
    source = f"/proc/self/fd/{descriptor}"

    def link(last: str, parent: int) -> None:
        if _is_shared(parent):
            set_mode(descriptor, SHARED_FILE)
        # Python calls linkat with AT_SYMLINK_FOLLOW only if it is given a directory descriptor.
        os.link(source, last, dst_dir_fd=parent, follow_symlinks=True)

    _in_new_parent(root, name, link)


def _write_all(descriptor: int, chunk: Buffer) -> int:
    view = memoryview(chunk).cast("B")
    done = 0
    while done < len(view):
        done += os.write(descriptor, view[done : done + CHUNK])
    return done


def sync(root: str, names: Iterable[str]) -> None:
    """Bring value files and their directories to stable storage, whoever wrote them; what is gone or not ours stays."""
    may_block()
    folders: dict[str, str] = {}
    for name in names:
        with suppress(FileNotFoundError, DecodeError), open_read(root, name) as file, translated_errors(root):
            sync_file(file.fileno())
            folders[name.rpartition("/")[0]] = name
    with translated_errors(root):
        for name in folders.values():
            _sync_parents(root, name)


def sync_folder(path: str) -> None:
    """Bring the entries of a directory to stable storage; one that may not be read is left out."""
    with suppress(PermissionError), translated_errors(path, PermissionError):
        sync_directory(path)


def _sync_parents(root: str, name: str) -> None:
    parents = name.split("/")[:-1]
    for depth in range(len(parents), -1, -1):
        handle = _parent(root, parents[:depth], create=False)
        try:
            sync_entries(handle)
        finally:
            os.close(handle)


def open_read(root: str, name: str, size: int | None = None) -> io.BufferedReader:
    """Open a value file for reading; raise FileNotFoundError if it is gone, DecodeError if it cannot be ours.

    A link, a directory, a device, a file with a second hard link, or one of another size than `size` is refused. Any
    other error of the system, here or when the file is read, is raised as DirectoryError.
    """
    may_block()
    path = f"{root}/{name}"
    with translated_errors(path, FileNotFoundError):
        descriptor = _open_value(root, name, size)
    # The path is only for the reader's `name`, which programs pass on; what is read is the descriptor. The reader takes
    # it over in C, so that if a signal handler raises, either the reader owns it or nobody does.
    return io.BufferedReader(_NamedFile(path, "rb", opener={path: descriptor}.get), io.DEFAULT_BUFFER_SIZE)


def read(root: str, name: str, into: int | memoryview) -> bytes | memoryview:
    """Return the content of a value file; raise what `open_read` and its reader do.

    `into`: its size in bytes, or memory of that size, of which the part that was filled is returned. A file that was
    cut meanwhile gives less.
    """
    may_block()
    folder, _, last = checked(name).rpartition("/")
    content = None if "/" in folder else _native.read_file(f"{root}/{folder}", last, into)
    if content is not None:
        return content
    with open_read(root, name, into if isinstance(into, int) else len(into)) as reader:  # it says what is wrong
        return reader.read(into) if isinstance(into, int) else into[: reader.readinto(into)]


def _open_value(root: str, name: str, size: int | None) -> int:
    *parents, last = checked(name).split("/")
    try:
        handle = _parent(root, parents, create=False)
        try:
            descriptor = os.open(last, _READ, dir_fd=handle)
        finally:
            os.close(handle)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.ENXIO):
            raise DecodeError(f"value file {name!r} in {root!r} is not a regular file") from error
        raise
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
            raise DecodeError(f"value file {name!r} in {root!r} is not a regular file with one name")
        if size not in (None, status.st_size):
            raise DecodeError(f"value file {name!r} in {root!r} does not have the {size} bytes of its entry")
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def chunks(reader: BinaryIO) -> Iterator[bytes]:
    """Yield the rest of `reader` in pieces of `CHUNK` bytes."""
    while piece := reader.read(CHUNK):
        yield piece


def remove(root: str, name: str) -> None:
    """Remove a value file and the directories that it leaves empty; it is no error if they are gone already.

    Raises DirectoryError if the system fails to remove it.
    """
    *parents, last = checked(name).split("/")
    with translated_errors(os.path.join(root, name)):
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
            reraise_signal(error)
            return  # it is not empty, or gone already
        finally:
            if handle is not None:
                os.close(handle)


def remove_found(root: str, name: str, remove: Callable[..., None] = os.unlink) -> None:
    """Remove a file, or by `os.rmdir` an empty directory, that was found below `root`, whatever its name.

    Its directory is opened step by step, since the path may lead through a link by now. Raises FileNotFoundError if it
    is not there any more.
    """
    *parents, last = name.split("/")
    try:
        handle = _parent(root, parents, create=False)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENOTDIR):
            raise
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), os.path.join(root, name)) from error
    try:
        remove(last, dir_fd=handle)
    finally:
        os.close(handle)
