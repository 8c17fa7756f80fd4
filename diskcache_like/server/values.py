"""Keys and values as clients see them: bytes over RESP, bytes with a media type over HTTP.

A key that is UTF-8 is a `str` to Python, any other one is `bytes`. What clients store is `bytes`. What Python stores
they see as it is (bytes), as UTF-8 (text), or as JSON (other plain data). Nothing is unpickled.
"""

from __future__ import annotations

import json
from typing import Any, Final, NamedTuple

BYTES: Final = "application/octet-stream"
TEXT: Final = "text/plain; charset=utf-8"
JSON: Final = "application/json"


class Content(NamedTuple):
    """A value as clients see it."""

    media_type: str
    data: bytes


class NotPlain(ValueError):
    """A value that only Python can use, such as an object, a set or an array."""


def key_of(name: bytes) -> str | bytes:
    """Return the cache's key for the name that a client gave."""
    try:
        return name.decode()
    except UnicodeDecodeError:
        return name


def name_of(key: object) -> bytes | None:
    """Return the name by which clients know a key; None for one that they cannot name."""
    if type(key) is bytes:
        return key if type(key_of(key)) is bytes else None  # else the name would mean another key, a text
    if type(key) is not str:
        return None
    try:
        return key.encode()
    except UnicodeEncodeError:  # a lone surrogate
        return None


def content_of(value: Any) -> Content:
    """Return what clients see of a value; raise NotPlain for one that only Python can use."""
    if type(value) is bytes:
        return Content(BYTES, value)
    try:
        if type(value) is str:
            return Content(TEXT, value.encode())
        return Content(JSON, json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode())
    except (TypeError, ValueError, RecursionError):
        raise NotPlain(type(value).__name__) from None
