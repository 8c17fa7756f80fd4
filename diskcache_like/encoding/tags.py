"""Tags: as users give them, as records keep them, and as the index names them.

A record keeps the encoded tags in sorted order, each behind a byte with its length, so equal sets of tags are equal
bytes. The index has a row for each of them, under its name there: the encoded tag in hexadecimal digits, which SQL can
take out of a list. In an encrypted cache it is that of a keyed digest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any, Final

from ..errors import DecodeError, KeyEncodeError, TagError, named
from .keys import decode_key, encode_key, sort_key
from .made_keys import HIDDEN, Path

TAG_LIMIT: Final = 255  # bytes of an encoded tag
MOST_TAGS: Final = 64  # of one entry
_NO_KEY: Final = object()
_COLLECTIONS: Final = (list, tuple, set, frozenset, dict)
MOST_JOINED: Final = (1 << 16) - 1  # bytes that a record has room for
_CACHED: Final = 4096  # sets of tags whose bytes are kept, since few sets serve many entries


def pack_tags(tag: Any = None, tags: Iterable[Any] | None = None, key: object = _NO_KEY) -> bytes:
    """Return what a record keeps of one tag, or of several; `key`: whose they are, for the error.

    Raises TagError for too many or too long ones and for `tag` together with `tags`, KeyEncodeError for what cannot be
    a tag.
    """
    if tags is None:
        if tag is None:
            return b""
        return _pack_texts((tag,)) if type(tag) is str else _pack((encode_tag(tag, key),))
    if tag is not None:
        raise TagError(f"{_tag(key)} is {tag!r}, and tags= is given too: put all of them into tags")
    kind = type(tags)
    if kind is not list and kind is not tuple and (isinstance(tags, str | bytes) or not isinstance(tags, Iterable)):
        raise TagError(f"tags is {tags!r}, expected a list of tags")
    given = tuple(tags)
    for each in given:
        if type(each) is not str:
            return _pack(encode_tag(each, key) for each in given)
    return _pack_texts(given)


def encode_tag(tag: Any, key: object = _NO_KEY) -> bytes:
    """Encode one tag like a key.

    No original is stored beside a tag, so a tag that could not be rebuilt without one is refused. So is a collection,
    which would be one tag, and not several.
    """
    if tag is None or isinstance(tag, _COLLECTIONS):
        hint = "use text, bytes or a number, or tags=[...] for several"
        raise KeyEncodeError(f"{_tag(key)} is a {type(tag).__qualname__}; {hint}")
    encoded = encode_key(tag)
    try:
        decode_key(encoded)
    except DecodeError as error:
        kind = type(tag)
        raise KeyEncodeError(
            f"{_tag(key)} of type {kind.__module__}.{kind.__qualname__} could not be read back; use text, a number or"
            " another plain value that identifies it"
        ) from error
    if len(encoded) > TAG_LIMIT:
        raise TagError(f"{_tag(key)} is {tag!r:.80} and takes {len(encoded)} bytes; it may have {TAG_LIMIT}")
    return encoded


def _tag(key: object) -> str:
    return "tag" if key is _NO_KEY else f"tag of key {named(key)}"


@lru_cache(_CACHED)
def _pack_texts(tags: tuple[str, ...]) -> bytes:
    return _pack(map(encode_tag, tags))


def _pack(encoded: Iterable[bytes]) -> bytes:
    return join_tags(set(encoded))


def join_tags(encoded: set[bytes]) -> bytes:
    """Return what a record keeps of encoded tags; raise TagError for too many."""
    if len(encoded) > MOST_TAGS and sum(tag[0] != HIDDEN for tag in encoded) > MOST_TAGS:
        raise TagError(f"{len(encoded)} tags are given, an entry may have {MOST_TAGS}")
    return join_hidden(encoded)


def join_hidden(encoded: set[bytes]) -> bytes:
    """Do what `join_tags` does for any number of tags; raise TagError if a record has no room for them."""
    joined = b"".join([bytes((len(tag),)) + tag for tag in sorted(encoded)])
    if len(joined) > MOST_JOINED:
        raise TagError(
            f"tags and those of the namespace take {len(joined):,} bytes together, more than {MOST_JOINED:,}"
        )
    return joined


def split_tags(packed: bytes) -> list[bytes]:
    """Return the encoded tags that a record keeps."""
    found, start = [], 0
    while start < len(packed):
        end = start + 1 + packed[start]
        found.append(packed[start + 1 : end])
        start = end
    return found


def tags_of(packed: bytes) -> tuple[Any, ...]:
    """Return the tags that the user gave, in the order of `sort_key`; raise DecodeError for what cannot be a tag."""
    if not packed:
        return ()
    found = [decode_key(tag) for tag in split_tags(packed) if tag[0] != HIDDEN]
    if any(tag is None or isinstance(tag, _COLLECTIONS) for tag in found):
        raise DecodeError("a tag is None or a collection")
    return tuple(sorted(found, key=sort_key))


def tag_or_tags(packed: bytes) -> Any:
    """Return the one tag that the user gave, None for none, a tuple of several."""
    found = tags_of(packed)
    return found if len(found) > 1 else found[0] if found else None


@lru_cache(_CACHED)
def with_hidden(packed: bytes, path: Path) -> bytes:
    """Return the tags of an entry together with those of its namespace."""
    return join_hidden(path.tags.union(split_tags(packed)))


@lru_cache(_CACHED)
def without_hidden(packed: bytes, path: Path) -> bytes:
    """Return the tags of an entry without those of its namespace."""
    return join_hidden(set(split_tags(packed)) - path.tags)


def index_name(encoded: bytes, blind: Callable[[bytes], bytes] | None = None) -> str:
    """Return the name of an encoded tag in the index; `blind`: makes the keyed digest of an encrypted cache."""
    return (encoded if blind is None else blind(encoded)).hex()


def tags_column(packed: bytes, blind: Callable[[bytes], bytes] | None = None) -> str | None:
    """Return what the row says of its tags, from which the index is made: their names there, with spaces between."""
    if not packed:
        return None
    return _plain_column(packed) if blind is None else _column(packed, blind)


@lru_cache(_CACHED)
def _plain_column(packed: bytes) -> str:
    return _column(packed, None)


def _column(packed: bytes, blind: Callable[[bytes], bytes] | None) -> str:
    return " ".join([index_name(tag, blind) for tag in split_tags(packed)])
