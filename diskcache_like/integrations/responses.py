"""Responses of servers in a cache: a head, which is plain data and found by its tag, and a body, which is a stream."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, NamedTuple, TypeVar

from ..cache import Cache
from ..entries.row_codec import KEEP
from ..errors import CacheError
from ..system.signals import reraise_signal
from .hosts import tag_of

GRACE = 180  # seconds that a body is kept longer than its head, for whoever is about to read it
UNFINISHED = 86_400  # seconds after which nobody can still be saving a response
Found = TypeVar("Found")
_log = logging.getLogger(__name__)


class Head(NamedTuple):
    """What is known of a response beside its body."""

    deadline: float | None  # seconds since 1970
    idle: float | None  # seconds that it is kept after a look-up
    told: Any  # plain data

    def left(self, now: float) -> float | None:
        """Return the seconds that it is kept from now, if it is looked up now; None for ever."""
        ends = [end for end in (self.deadline, None if self.idle is None else now + self.idle) if end is not None]
        return max(min(ends) - now, 0.0) if ends else None


class Responses:
    """Responses by key, several for each. Where the cache fails, that is logged, and there is no response."""

    def __init__(self, cache: Cache, largest: int | None) -> None:
        self.cache = cache
        self.largest = largest  # bytes of a body

    def open(self, id: bytes) -> BinaryIO:
        """Return a body, all of which can be read from then on; raise KeyError if it is gone."""
        return self.cache.open(("body", id))

    def find(self, key: str, read: Callable[..., Found]) -> list[Found]:
        """Return what `read` makes of the id of each complete response and what was told of it.

        A head that is none, in a directory that somebody else wrote, is passed over.
        """
        found: list[Found] = []
        with _softly():
            for place in self.cache.keys(tags=[tag_of(key)]):
                with _softly(TypeError, ValueError, AttributeError, LookupError):
                    self._find(place, read, found)
        return found

    def _find(self, place: Any, read: Callable[..., Found], found: list[Found]) -> None:
        packed, expires = self.cache.get(place, expire_time=True)
        if packed is None or ("body", place[1]) not in self.cache:
            return
        head, now = Head(*packed), time.time()
        left = head.left(now)
        found.append(read(place[1], *head.told))
        if head.idle and left and expires and now + left - expires >= head.idle / 2:
            self.cache.touch(("body", place[1]), left + GRACE, retry=True)
            self.cache.touch(place, left, retry=True)

    def change(self, id: bytes, change: Callable[[Any], Any]) -> None:
        """Tell something else of a response, unless it is gone, or another one does so at the same time."""
        with _softly():
            entry = self.cache.get_entry(("head", id))
            if entry is not None and entry.value is not None:
                head = Head(*entry.value)
                new = tuple(head._replace(told=change(head.told)))
                self.cache.set(("head", id), new, KEEP, tags=entry.tags, if_version=entry.version, retry=True)

    def remove(self, id: bytes) -> None:
        """Remove a response; whoever is reading it goes on."""
        with _softly():
            self.cache.delete(("head", id), retry=True)
            self.cache.touch(("body", id), GRACE, retry=True)


class Saving:
    """A response that is being saved: found when it is complete, unless it was removed by then."""

    def __init__(self, responses: Responses, id: bytes, key: str, head: Head) -> None:
        self._responses, self._id, self._tag, self._head = responses, id, tag_of(key), head
        self._size = 0
        self._writer: Any = None
        with _softly():
            cache, left = responses.cache, head.left(time.time())
            cache.set(("head", id), None, UNFINISHED, retry=True)
            placed = cache.get_entry(("head", id))
            if placed is not None:  # the cache has room, and nobody has cleared it meanwhile
                self._version = placed.version
                self._writer = cache.open(("body", id), "wb", None if left is None else left + GRACE, retry=True)

    def write(self, piece: bytes) -> None:
        """Append to the body, if that can still be saved."""
        self._size += len(piece)
        if self._writer is not None:
            largest = self._responses.largest
            with _softly():
                if largest is None or self._size <= largest:
                    self._writer.write(piece)
                    return
            self.close()

    def finish(self) -> None:
        """Let the response be found."""
        if self._writer is not None:
            with _softly():
                self._writer.close()
                head, left = tuple(self._head), self._head.left(time.time())
                if self._responses.cache.set(
                    ("head", self._id), head, left, tag=self._tag, if_version=self._version, retry=True
                ):
                    self._writer = None  # or else `close` takes the body away again

    def close(self) -> None:
        """Forget what is not complete."""
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.discard()
            self._responses.remove(self._id)


@contextlib.contextmanager
def _softly(*others: type[Exception]) -> Iterator[None]:
    failures: tuple[type[Exception], ...] = (CacheError, OSError, *others)
    try:
        yield
    except failures as error:
        reraise_signal(error)
        _log.exception("the cache of responses failed")
