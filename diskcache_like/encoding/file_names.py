"""Names of value files: made from 128 random bits, stored in a row as 16 bytes, and checked before any use."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress

from ..errors import DecodeError

SUFFIX = ".val"
_ID_NAME = re.compile(r"([0-9a-f]{2})/([0-9a-f]{30})\.val")
_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
_RESERVED = re.compile(r"cache\.(db|gen|buffer|lock|\d+\.db)", re.IGNORECASE)


def new_name() -> str:
    """Return a new relative file name made from 128 random bits."""
    return name_of(os.urandom(16))


def name_of(identifier: bytes) -> str:
    """Return the relative file name for a 16-byte id."""
    digits = identifier.hex()
    return f"{digits[:2]}/{digits[2:]}{SUFFIX}"


def to_column(name: str) -> bytes | str:
    """Return what a row holds for `name`: the id if the name is derived from one, else the name itself."""
    match = _ID_NAME.fullmatch(name)
    return bytes.fromhex("".join(match.groups())) if match else checked(name)


def from_column(column: object) -> str:
    """Return the relative file name that a row's `file` column stands for, or raise DecodeError."""
    if isinstance(column, bytes) and len(column) == 16:
        return name_of(column)
    if isinstance(column, str):
        if _ID_NAME.fullmatch(column):  # such names are stored as ids, so no file has two spellings
            raise DecodeError("file column spells out a name that is stored as an id")
        return checked(column)
    raise DecodeError(f"file column holds {type(column).__name__}, expected a 16-byte id or a relative name")


def readable(rows: Iterable[tuple[object]]) -> Iterator[str]:
    """Yield the names that rows of one `file` column each stand for, without those that are damaged."""
    for (column,) in rows:
        with suppress(DecodeError):
            yield from_column(column)


def checked(name: str) -> str:
    """Return `name` if it is a plain relative path and not one of the cache's own files; else raise DecodeError."""
    if _ID_NAME.fullmatch(name):
        return name
    parts = name.split("/")
    if len(parts) > 8 or not all(_PART.fullmatch(part) for part in parts) or _RESERVED.match(parts[-1]):
        raise DecodeError(f"file name {name!r} is not a plain relative name below the cache directory")
    return name
