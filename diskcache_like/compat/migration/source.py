"""Find the caches in a directory of DiskCache 5, and decode the keys and values of their rows.

Anyone may have made the rows, file names and pickles: each is checked before it is used, and a DecodeError says what is
wrong with it. Nothing outside the directory is opened.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

from ...disk import file_io
from ...disk.json_disk import expand_json
from ...encoding.pickling import loads_pickle
from ...errors import CorruptDatabase, DecodeError, SettingError
from ...system import paths
from .old_database import DATABASE, OldDatabase, OldRow
from .plain_pickle import loads_plain

MAX_IN_MEMORY: Final = 1 << 30  # bytes of a text or pickle; binary values are copied in pieces

_RAW, _BINARY, _TEXT, _PICKLE = 1, 2, 3, 4  # modes of DiskCache's rows
_SAMPLE = 10  # entries of a database that decide whether JSONDisk wrote it
_SHARD = re.compile(r"[0-9]{3}")


class Part(NamedTuple):
    """A cache of the old directory: its kind, its name within a FanoutCache, and its databases, once they are open."""

    kind: str
    name: str
    folders: tuple[str, ...]
    databases: tuple[OldDatabase, ...] = ()


class Decoder(NamedTuple):
    """Decode the keys and values of rows. `trusts`: unpickle what is not plain data, which can run code."""

    json: bool
    trusts: bool

    def key(self, row: OldRow) -> Any:
        """Return the key as DiskCache would return it."""
        if row.raw == 1 and not isinstance(row.key, bytes) and row.key is not None:
            return checked_text(row.key)
        if not isinstance(row.key, bytes) or row.raw not in (0, 1):
            raise DecodeError("a key that is neither raw nor a pickle")
        if self.json:
            return expand_json(row.key)
        return row.key if row.raw == 1 else self._unpickled(row.key, "key: ")

    def value(self, database: OldDatabase, row: OldRow) -> tuple[Any, bool]:
        """Return the value and False, or an open file with its bytes and True."""
        if row.mode == _RAW:
            value = checked_text(row.value)
            if not self.json or not isinstance(value, bytes):
                return value, False
            return expand_json(value), False
        if row.mode == _PICKLE:
            content = row.value if row.value is not None else self._content(database, row)
            if not isinstance(content, bytes):
                raise DecodeError("a pickle that is not bytes")
            return self._unpickled(content, ""), False
        if row.mode == _TEXT:
            try:
                return self._content(database, row).decode(), False  # not read in text mode, which changes line ends
            except UnicodeDecodeError:
                raise DecodeError("a value file that is not UTF-8") from None
        if row.mode != _BINARY:
            raise DecodeError(f"mode {row.mode!r:.20}, which DiskCache 5 does not have")
        if self.json:
            with suppress(DecodeError):  # what was stored with read=True is not JSON, and stays as it is
                return expand_json(self._content(database, row)), False
        return self._opened(database, row), True

    def _opened(self, database: OldDatabase, row: OldRow) -> Any:
        """Open the value file, which must be a regular file below the old directory and have the stored size."""
        name = row.filename
        if not isinstance(name, str):
            raise DecodeError("a value file without a name")
        try:
            reader = file_io.open_read(database.directory, name)
        except FileNotFoundError:
            raise DecodeError(f"its value file {name!r} is missing") from None
        except PermissionError:
            raise DecodeError(f"its value file {name!r} may not be read by this user") from None
        except OSError as error:
            if error.errno not in (errno.ELOOP, errno.ENOTDIR, errno.ENAMETOOLONG, errno.EIO):
                raise
            raise DecodeError(f"its value file {name!r} cannot be opened ({error.strerror})") from None
        size = os.fstat(reader.fileno()).st_size
        if size != row.size:
            reader.close()
            raise DecodeError(f"its value file {name!r} has {size:,} bytes, expected {row.size!r:.30}")
        return reader

    def _content(self, database: OldDatabase, row: OldRow) -> bytes:
        with self._opened(database, row) as reader:
            if row.size > MAX_IN_MEMORY:
                raise DecodeError(f"a text or pickle of more than {MAX_IN_MEMORY:,} bytes")
            content: bytes = reader.read()
            return content

    def _unpickled(self, data: bytes, what: str) -> Any:
        try:
            return loads_plain(data)
        except DecodeError as error:
            if self.trusts:
                return loads_pickle(data)
            raise DecodeError(f"{what}{error}") from error


def find_layout(old: str, kind: str) -> list[Part]:
    """Return the caches in the old directory: the main one, and the named ones of a FanoutCache."""
    if not paths.is_directory(old):
        raise FileNotFoundError(errno.ENOENT, "no such directory", old)
    alone = paths.mode_of(os.path.join(old, DATABASE), follow=False) != 0
    shards = [
        os.path.join(old, name)
        for name in sorted(os.listdir(old))
        if _SHARD.fullmatch(name) and paths.mode_of(os.path.join(old, name, DATABASE), follow=False)
    ]
    if kind == "auto" and alone and shards:
        raise SettingError(f"{old!r} holds a Cache and a FanoutCache: say which with --kind cache or --kind fanout")
    if kind == "fanout" or (kind == "auto" and shards):
        if shards:
            children = [child for below in ("cache", "deque", "index") for child in _named_children(old, below)]
            return [Part("fanout", "", tuple(shards)), *children]
    elif alone:
        return [Part("cache" if kind == "auto" else kind, "", (old,))]
    raise FileNotFoundError(errno.ENOENT, "no cache of DiskCache in this directory", old)


def _named_children(old: str, kind: str) -> Iterator[Part]:
    """Yield the named caches, deques or indexes of a FanoutCache."""
    top = os.path.join(old, kind)
    for folder, inner, names in paths.walk(top):
        inner.sort()
        if DATABASE in names and folder != top and not paths.is_link(top):
            yield Part(kind, os.path.relpath(folder, top), (folder,))


def is_json(databases: Sequence[OldDatabase]) -> bool:
    """Tell from the first entries of each database whether DiskCache's JSONDisk wrote them."""
    answers = set()
    for database in databases:
        with suppress(CorruptDatabase):
            rows = database.rows()
            for row, _ in zip(rows, range(_SAMPLE), strict=False):
                if isinstance(row.key, bytes) and row.raw == 1:
                    answers.add(_is_compressed_json(row.key))
                elif row.mode == _RAW:  # the value decides, because the key of a queue's item is never JSON
                    answers.add(isinstance(row.value, bytes) and _is_compressed_json(row.value))
                else:
                    answers.add(row.mode == _BINARY and type(row.key) is int)
            rows.close()  # type: ignore[attr-defined]  # a generator
    return answers == {True}


def _is_compressed_json(data: bytes) -> bool:
    with suppress(DecodeError):
        expand_json(data)
        return True
    return False


def checked_text(value: Any) -> Any:
    """Return the content of a column; raise DecodeError for text that is not UTF-8."""
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            raise DecodeError("text that is not UTF-8") from None
    return value
