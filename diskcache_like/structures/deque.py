"""Deque: a sequence on disk.

Its items are the queue without prefix of a cache that is the deque's alone: their order is the order of the queue's
numbers, which may have gaps, and their number is the cache's. So every operation is one of the cache's or a transaction
over several, and holds between processes as those do.
"""

from __future__ import annotations

import math
import operator
import os
from collections import abc
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from contextlib import suppress
from functools import partialmethod
from itertools import islice, zip_longest
from typing import TYPE_CHECKING, Any, Final, Self

from ..cache import Cache, batches, without_face
from ..encoding.record import NO_METADATA
from ..operations import awaited
from ..operations.queues import Side
from ..settings.definitions import checked
from ..settings.misuse import several, whole
from ..system.generics import T
from .durable import BATCH, END, DurableCache, InCache

if TYPE_CHECKING:
    from ..operations.awaited import AsyncDeque

MAXLEN: Final = "deque_maxlen"  # the setting that holds a deque's length limit: as an entry it would be an item


class _Limited(Exception):
    """A deque has a limit."""


class Deque(InCache, abc.MutableSequence[T]):
    """A sequence on disk that is quick at both ends, shared by threads and processes.

    Every operation is atomic unless it says otherwise, and waits for other writers without limit; reads never wait.
    `in`, `count`, `index` and comparisons look at one item after another, as iteration does, and may miss one that
    moves meanwhile: use them within `transact()` if others rotate, reverse or insert. Values are copies: to store a
    change to one, assign it. `directory`: made if missing, a temporary one if None. `maxlen`:
    when the deque is full, adding at one end drops at the other; kept across reopening, None for what is kept there.
    Raises what `Cache` raises, CorruptDatabase for a damaged database and DecodeError for a damaged item.
    """

    _ASSIGNED = InCache._ASSIGNED | {"maxlen": "did you mean 'maxlen'?"}

    def __init__(
        self,
        iterable: Iterable[T] = (),
        directory: str | os.PathLike[str] | None = None,
        maxlen: float | None = None,
    ) -> None:
        _limit(maxlen)
        self._set_up(DurableCache(directory), iterable, maxlen)

    def _set_up(self, cache: Cache, iterable: Iterable[Any], maxlen: float | None) -> None:
        self._cache = cache
        if maxlen is not None and maxlen != self.maxlen:
            self.maxlen = maxlen
        self.extend(iterable)

    @classmethod
    def fromcache(cls, cache: Cache, iterable: Iterable[Any] = (), maxlen: float | None = None) -> Self:
        """Return a deque in `cache`, which must hold nothing else and decides about damage and eviction."""
        _limit(maxlen)
        self = cls.__new__(cls)
        self._set_up(without_face(cache), iterable, maxlen)
        return self

    @property
    def maxlen(self) -> float:
        """Return the length limit as it is stored now, infinity for none."""
        stored = self._cache.reset(MAXLEN)
        return math.inf if stored is None else int(stored)

    @maxlen.setter
    def maxlen(self, value: float | None) -> None:
        """Store another length limit for every user of the deque, and drop surplus items from the front."""
        limit = _limit(value)
        with self.transact():
            self._cache.reset(MAXLEN, limit)
            self._trim("front")

    @property
    def aio(self) -> AsyncDeque[T]:
        """Return this deque for coroutines; see `AsyncDeque`."""
        found: AsyncDeque[T] = awaited.face("AsyncDeque", self)
        return found

    # -- the ends -------------------------------------------------------------------------------------------------

    def append(self, value: T) -> None:
        """Add `value` at the back; a full deque drops its front. Raises ValueEncodeError, DiskFull."""
        self._add((value,), "back", "front")

    def appendleft(self, value: T) -> None:
        """Add `value` in front; a full deque drops its back. Raises ValueEncodeError, DiskFull."""
        self._add((value,), "front", "back")

    def extend(self, iterable: Iterable[T]) -> None:
        """Add values at the back: from a collection in atomic batches of 1,000, from an iterator one by one."""
        self._add_all(iterable, "back", "front")

    def extendleft(self, iterable: Iterable[T]) -> None:
        """Add values in front one by one, so that the last one ends up first; otherwise like `extend`."""
        self._add_all(iterable, "front", "back")

    def _add_all(self, iterable: Iterable[Any], side: Side, other: Side) -> None:
        if isinstance(iterable, Deque) and iterable.directory == self.directory:
            iterable = list(iterable)  # items dropped meanwhile count, items added do not
        iterable = several("iterable", iterable, "values to add, such as a list", characters=True)
        size = BATCH if isinstance(iterable, Sized) else 1  # an iterator may wait between two values
        for values in batches(iterable, size):
            self._add(values, side, other)

    def _add(self, values: Sequence[Any], side: Side, other: Side) -> None:
        if len(values) == 1:
            with suppress(_Limited):
                self._cache._push((values[0], False), None, side, NO_METADATA, True, self._refuse_limit)
                return
        with self.transact():  # so that nobody sees the deque with more than `maxlen` items
            for value in values:
                self._cache.push(value, side=side, retry=True)
            self._trim(other)

    def _refuse_limit(self) -> None:
        # As it is stored, whatever is in force: `maxlen` may take the lock, which may be held here.
        if self._cache._shards.stores[0].stored_setting(MAXLEN) is not None:
            raise _Limited

    def _trim(self, side: Side) -> None:
        """Drop items until the limit holds, within the caller's transaction."""
        limit = self.maxlen
        while limit < math.inf and len(self._cache) > limit:
            self._pull(side)

    def pop(self) -> T:  # type: ignore[override]  # as in DiskCache and collections.deque, without an index
        """Remove and return the item at the back; raise IndexError if there is none."""
        return self._pull("back")

    def popleft(self) -> T:
        """Remove and return the item in front; raise IndexError if there is none."""
        return self._pull("front")

    def _pull(self, side: Side) -> T:
        found: tuple[Any, T] | None = self._cache.pull(default=None, side=side, retry=True)
        if found is None:
            raise IndexError("pop from an empty deque")
        return found[1]

    def peek(self) -> T:
        """Return the item at the back; raise IndexError if there is none."""
        return self._find(-1, "peek from an empty deque")[1]

    def peekleft(self) -> T:
        """Return the item in front; raise IndexError if there is none."""
        return self._find(0, "peek from an empty deque")[1]

    # -- positions ------------------------------------------------------------------------------------------------

    def _find(self, index: Any, complaint: str = "deque index out of range") -> tuple[Any, T]:
        """Return key and value of the item at a position. One statement finds and reads it, so it is atomic."""
        number = whole("index", index, "the position of one item, a whole number; for several use itertools.islice")
        side: Side = "front" if number >= 0 else "back"
        for found in self._cache.iterqueue(side=side, skip=number if number >= 0 else -1 - number):
            return found
        raise IndexError(complaint)

    def __getitem__(self, index: int) -> T:  # type: ignore[override]  # no slices, as in collections.deque
        return self._find(index)[1]

    def __setitem__(self, index: int, value: T) -> None:  # type: ignore[override]
        with self.transact():
            self._cache[self._find(index)[0]] = value

    def __delitem__(self, index: int) -> None:  # type: ignore[override]
        with self.transact():
            del self._cache[self._find(index)[0]]

    def insert(self, index: int, value: T) -> None:
        """Put `value` in front of the item at `index`, moving the shorter side; a full deque raises IndexError."""
        wanted = whole("index", index)
        with self.transact():
            length = len(self)
            if length >= self.maxlen:
                raise IndexError("deque already at its maximum size")
            wanted = max(wanted + length, 0) if wanted < 0 else min(wanted, length)
            side: Side = "front" if wanted <= length // 2 else "back"
            free = self._cache.push(None, side=side, retry=True)
            for key, item in islice(self._cache.iterqueue(side=side, skip=1), min(wanted, length - wanted)):
                self._cache[free] = item  # each item moves to where its neighbour was
                free = key
            self._cache[free] = value

    def remove(self, value: T) -> None:
        """Remove the first item that equals `value`; raise ValueError if there is none."""
        with self.transact():
            for key, item in self._cache.iterqueue():
                if item is value or item == value:
                    del self._cache[key]
                    return
        raise ValueError(f"{value!r} is not in the deque")

    def index(self, value: Any, start: int = 0, stop: int | None = None) -> int:
        """Return the position of the first item between two positions that equals `value`; ValueError if none does."""
        length, start = len(self), whole("start", start)
        first = max(start + length, 0) if start < 0 else start
        stop = length if stop is None else whole("stop", stop, "a whole number, or None")
        end = stop + length if stop < 0 else min(stop, length)
        items = islice(self._cache.iterqueue(skip=first), max(end - first, 0))
        for position, (_, item) in enumerate(items, first):
            if item is value or item == value:
                return position
        raise ValueError(f"{value!r} is not in the deque")

    # -- the whole ------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._cache)

    def __iter__(self) -> Iterator[T]:
        """Yield the items from front to back, without those that are appended or removed meanwhile."""
        return (value for _, value in self._cache.iterqueue())

    def __reversed__(self) -> Iterator[T]:
        """Yield the items from back to front, otherwise like iteration."""
        return (value for _, value in self._cache.iterqueue(side="back"))

    def clear(self) -> None:
        """Remove every item, in atomic batches."""
        self._cache.clear(retry=True)

    def copy(self) -> Self:
        """Return another object for the same deque: the items are not copied."""
        return type(self).fromcache(self._cache)

    def reverse(self) -> None:
        """Reverse the order of the items in place."""
        with self.transact():  # each pass writes behind both iterators, so neither sees what was written
            ends = zip(self._cache.iterqueue(), self._cache.iterqueue(side="back"), strict=False)
            for (key, value), (other_key, other_value) in ends:
                if key >= other_key:
                    break
                self._cache[key] = other_value
                self._cache[other_key] = value

    def rotate(self, steps: int = 1) -> None:
        """Move items from the back to the front, or the other way if `steps` is negative."""
        wanted = whole("steps", steps)
        with self.transact():
            length = len(self)
            right = wanted % length if length else 0
            here, there, turns = ("back", "front", right) if right <= length // 2 else ("front", "back", length - right)
            for _ in range(turns):
                self._cache.push(self._pull(here), side=there, retry=True)  # type: ignore[arg-type]

    def __iadd__(self, iterable: Iterable[T]) -> Self:
        self.extend(iterable)
        return self

    def __imul__(self, times: int) -> Self:
        wanted = whole("times", times)
        with self.transact():
            items = list(self)
            if wanted <= 0:
                self.clear()
            for _ in range(wanted - 1 if items else 0):
                self.extend(items)
        return self

    def _compare(self, other: object, decide: Callable[[Any, Any], Any]) -> Any:
        """Compare item by item, as sequences do."""
        if not isinstance(other, Sequence):
            return NotImplemented
        if decide is operator.eq and len(self) != len(other):
            return False
        for mine, theirs in zip_longest(self, other, fillvalue=END):
            if mine is END or theirs is END:
                return decide(mine is not END, theirs is not END)  # the shorter one is less
            if not (mine is theirs or mine == theirs):
                return decide(mine, theirs)
        return decide(0, 0)

    def __eq__(self, other: object) -> Any:
        return self._compare(other, operator.eq)

    __hash__ = None  # type: ignore[assignment]

    __lt__ = partialmethod(_compare, decide=operator.lt)
    __le__ = partialmethod(_compare, decide=operator.le)
    __gt__ = partialmethod(_compare, decide=operator.gt)
    __ge__ = partialmethod(_compare, decide=operator.ge)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(directory={self.directory!r})"


def _limit(maxlen: float | None) -> int | None:
    """Return a length limit as it is stored; raise SettingError for anything else."""
    limit: int | None = checked(MAXLEN, None if maxlen == math.inf else maxlen)
    return limit
