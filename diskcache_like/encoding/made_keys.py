"""The keys that the package makes itself: of items in queues, and of entries in namespaces.

The stored key of an entry in a namespace is the start of the namespace, which no other key begins with, and the stored
key of the user's key. Such an entry has hidden tags, by which the index finds it: one for its own namespace and one for
each that this lies in.
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import Any, Final, NamedTuple, Self

from ..errors import DecodeError, KeyEncodeError
from .values import decode_value, encode_value

HIDDEN: Final = 0xC1  # begins the stored keys and the tags of namespaces; MessagePack never begins with it
START: Final = bytes((HIDDEN,))
PATH_LIMIT: Final = 200  # bytes of all names of a path
WITHIN: Final = START + b"\x00"  # begins the tag of the entries in a namespace,
BELOW: Final = START + b"\x01"  # and that of those in the namespaces that it contains
OF_NAMESPACES: Final = (WITHIN, BELOW)
_known: weakref.WeakValueDictionary[tuple[str, ...], Path] = weakref.WeakValueDictionary()


class QueueKey(int):
    """The key of an item in the queue without a prefix; equal only to the same queue key, not to an integer."""

    __slots__ = ()
    prefix: Final = None

    @property
    def number(self) -> int:
        """Return the position in the queue."""
        return int.__int__(self)

    def __eq__(self, other: object) -> bool:
        return type(other) is QueueKey and int.__eq__(self, other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash((QueueKey, int.__int__(self)))

    def __reduce__(self) -> tuple[type[Self], tuple[int]]:
        return type(self), (int.__int__(self),)


class PrefixedQueueKey(str):
    """The key of an item in the queue called `prefix`; equal only to the same queue key, not to a text."""

    __slots__ = ("number", "prefix")
    prefix: str
    number: int

    def __new__(cls, prefix: str, number: int) -> Self:
        """Make the key of the item with that number."""
        self = super().__new__(cls, f"{prefix}-{number:015d}")
        self.prefix = prefix
        self.number = number
        return self

    def __eq__(self, other: object) -> bool:
        return type(other) is PrefixedQueueKey and self.number == other.number and self.prefix == other.prefix

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash((PrefixedQueueKey, self.prefix, self.number))

    def __reduce__(self) -> tuple[type[Self], tuple[str, int]]:
        return type(self), (self.prefix, self.number)


class Path:
    """The names that lead to a namespace. There is one object for each path, so that to compare two is cheap."""

    __slots__ = ("__weakref__", "below", "names", "start", "tags", "within")

    def __init__(self, names: tuple[str, ...]) -> None:
        encoded = encode_value(list(names))
        if len(encoded) > PATH_LIMIT:
            raise KeyEncodeError(f"the names of namespace {'/'.join(names)[:80]!r} take more than {PATH_LIMIT} bytes")
        self.names = names
        self.start = START + bytes((len(encoded),)) + encoded
        self.within = WITHIN + encoded  # the tag of the entries in it
        self.below = BELOW + encoded  # the tag of those in the namespaces that it contains
        outer = [BELOW + encode_value(list(names[:length])) for length in range(1, len(names))]
        self.tags = {self.within, *outer}  # of each entry in it

    def __reduce__(self) -> Any:
        return path_of, (self.names,)

    def __repr__(self) -> str:
        return repr("/".join(self.names))


def path_of(names: tuple[str, ...]) -> Path:
    """Return the path with these names; raise KeyEncodeError for what is no name."""
    if not names or not all(type(name) is str and name for name in names):
        raise KeyEncodeError(f"a namespace is called {names[-1:]!r}, expected text that is not empty")
    found = _known.get(names)
    if found is None:
        with _making:  # `setdefault` of a dictionary of weak references is several steps
            found = _known.setdefault(names, Path(names))
    return found


def _after_fork() -> None:
    global _making
    _making = threading.RLock()  # the thread that may hold the old one does not exist in the child


_making = threading.RLock()  # a signal handler may ask for a path, too
os.register_at_fork(after_in_child=_after_fork)
FLIGHTS: Final = path_of(("\0flights",))  # the keys of computations under way, which have no tags
FLIGHTS.tags.clear()


def is_flight(key: object) -> bool:
    """Tell whether a key is one of `FLIGHTS`, which no listing has."""
    return type(key) is NamespacedKey and key.path is FLIGHTS


class NamespacedKey(NamedTuple):
    """The key of an entry in a namespace, as the cache around it lists it."""

    path: Path
    key: Any


def space_name(start: bytes) -> str | None:
    """Return what keys are counted as whose stored keys begin like this: a namespace, which ends with a slash, or text.

    None for the package's own keys. A text with a slash is none, since it could be taken for a namespace.
    """
    if start[:1] != START:
        return "" if b"/" in start else start.decode("utf-8", "replace")
    try:
        path, _ = split_key(start)
    except DecodeError:
        return ""
    return None if path is None or path is FLIGHTS else "/".join((*path.names, ""))


def split_key(stored_key: bytes) -> tuple[Path | None, bytes]:
    """Return the path of the namespace that a stored key is in, and what the stored key is there."""
    if stored_key[:1] != START:
        return None, stored_key
    end = 2 + stored_key[1] if len(stored_key) > 2 else 0
    names = decode_value(stored_key[2:end])
    if not isinstance(names, list) or not names or not all(type(name) is str and name for name in names):
        raise DecodeError("a stored key begins like one in a namespace, and names none")
    try:
        path = path_of(tuple(names))
    except KeyEncodeError as error:
        raise DecodeError(str(error)) from error
    inner = stored_key[end : end + 1] == START and (path is not FLIGHTS or stored_key[end:].startswith(FLIGHTS.start))
    if path.start != stored_key[:end] or inner:
        raise DecodeError("a stored key is not in its canonical form")
    return path, stored_key[end:]
