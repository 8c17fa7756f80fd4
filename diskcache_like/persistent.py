"""Deque and Index: a sequence and a mapping on disk, shared by threads and processes.

The items of a deque are the queue without prefix of a cache that is the deque's alone: their order is the order of the
queue's numbers, which may have gaps, and their number is the cache's. So every operation is one of the cache's or a
transaction over several, and holds between processes as those do. The entries of an index are the cache's own.

What they hold cannot be computed again, as a cached value can. So nothing is evicted from them, and damage is an error.
"""

from __future__ import annotations

import math
import operator
import os
from collections import OrderedDict, abc
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import AbstractContextManager
from functools import partialmethod
from itertools import islice, zip_longest
from typing import TYPE_CHECKING, Any, Final, Self, Unpack

from .cache import Cache, batches, without_face
from .disk.contract import Constant, Disk
from .entries.loading import ENOVAL
from .entries.options import Arguments
from .entries.session import Opening
from .errors import DiskFull
from .misuse import Spelled, in_pairs, several, whole
from .operations import awaited
from .operations.memoize import Memoized, P, R
from .operations.queues import Side
from .operations.views import Items, Keys, Values
from .settings import DEFAULT_SETTINGS, checked

if TYPE_CHECKING:
    from .aio import AsyncDeque, AsyncIndex

MAXLEN: Final = "deque_maxlen"  # the setting that holds a deque's length limit: as an entry it would be an item
BATCH: Final = 1000  # items per transaction when many are added at once
_END = Constant("END")


class DurableCache(Cache):
    """A cache of what cannot be computed again: it raises CorruptDatabase or DecodeError for damage."""

    _OPENING = Opening(recover=False)

    def __init__(
        self,
        directory: str | bytes | os.PathLike[str] | None = None,
        timeout: float = 60,
        disk: type[Disk] = Disk,
        **options: Unpack[Arguments],
    ) -> None:
        given = os.fsdecode(directory) if isinstance(directory, bytes) else directory
        durable: Arguments = {"eviction_policy": "none", "strict": True, **options}
        super().__init__(given, timeout, disk, **durable)


class _InCache(Spelled):
    """A collection that keeps its items in a cache."""

    _ASSIGNED = dict.fromkeys(DEFAULT_SETTINGS, "a setting is assigned to its cache, as in x.cache.{name} = ...")
    _cache: Cache

    @property
    def cache(self) -> Cache:
        """Return the cache that holds the items."""
        return self._cache

    @property
    def directory(self) -> str:
        """Return the absolute path of the directory."""
        return self._cache.directory

    def transact(self) -> AbstractContextManager[None]:
        """Make the body one transaction: others see all of its writes or none, and wait to write; see `Cache`."""
        return self._cache.transact(retry=True)

    def __getstate__(self) -> Any:
        return self._cache  # by directory: the items stay where they are

    def __setstate__(self, state: Any) -> None:
        self._cache = state


class Deque(_InCache, abc.MutableSequence[Any]):
    """A sequence on disk that is quick at both ends, shared by threads and processes.

    Every operation is atomic unless it says otherwise, and waits for other writers without limit; reads never wait.
    `in`, `count`, `index` and comparisons look at one item after another, as iteration does, and may miss one that
    moves meanwhile: use them within `transact()` if others rotate, reverse or insert. Values are copies: to store a
    change to one, assign it. `directory`: made if missing, a temporary one if None. `maxlen`:
    when the deque is full, adding at one end drops at the other; kept across reopening, None for what is kept there.
    Raises what `Cache` raises, CorruptDatabase for a damaged database and DecodeError for a damaged item.
    """

    _ASSIGNED = _InCache._ASSIGNED | {"maxlen": "did you mean 'maxlen'?"}

    def __init__(
        self,
        iterable: Iterable[Any] = (),
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
    def aio(self) -> AsyncDeque:
        """Return this deque for coroutines; see `AsyncDeque`."""
        found: AsyncDeque = awaited.face("AsyncDeque", self)
        return found

    # -- the ends -------------------------------------------------------------------------------------------------

    def append(self, value: Any) -> None:
        """Add `value` at the back; a full deque drops its front. Raises ValueEncodeError, DiskFull."""
        self._add((value,), "back", "front")

    def appendleft(self, value: Any) -> None:
        """Add `value` in front; a full deque drops its back. Raises ValueEncodeError, DiskFull."""
        self._add((value,), "front", "back")

    def extend(self, iterable: Iterable[Any]) -> None:
        """Add values at the back: from a collection in atomic batches of 1,000, from an iterator one by one."""
        self._add_all(iterable, "back", "front")

    def extendleft(self, iterable: Iterable[Any]) -> None:
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
        with self.transact():  # so that nobody sees the deque with more than `maxlen` items
            for value in values:
                self._cache.push(value, side=side, retry=True)
            self._trim(other)

    def _trim(self, side: Side) -> None:
        """Drop items until the limit holds, within the caller's transaction."""
        limit = self.maxlen
        while limit < math.inf and len(self._cache) > limit:
            self._pull(side)

    def pop(self) -> Any:  # type: ignore[override]  # as in DiskCache and collections.deque, without an index
        """Remove and return the item at the back; raise IndexError if there is none."""
        return self._pull("back")

    def popleft(self) -> Any:
        """Remove and return the item in front; raise IndexError if there is none."""
        return self._pull("front")

    def _pull(self, side: Side) -> Any:
        found = self._cache.pull(default=None, side=side, retry=True)
        if found is None:
            raise IndexError("pop from an empty deque")
        return found[1]

    def peek(self) -> Any:
        """Return the item at the back; raise IndexError if there is none."""
        return self._find(-1, "peek from an empty deque")[1]

    def peekleft(self) -> Any:
        """Return the item in front; raise IndexError if there is none."""
        return self._find(0, "peek from an empty deque")[1]

    # -- positions ------------------------------------------------------------------------------------------------

    def _find(self, index: Any, complaint: str = "deque index out of range") -> tuple[Any, Any]:
        """Return key and value of the item at a position. One statement finds and reads it, so it is atomic."""
        number = whole("index", index, "the position of one item, a whole number; for several use itertools.islice")
        side: Side = "front" if number >= 0 else "back"
        for found in self._cache.iterqueue(side=side, skip=number if number >= 0 else -1 - number):
            return found
        raise IndexError(complaint)

    def __getitem__(self, index: int) -> Any:  # type: ignore[override]  # no slices, as in collections.deque
        return self._find(index)[1]

    def __setitem__(self, index: int, value: Any) -> None:  # type: ignore[override]
        with self.transact():
            self._cache[self._find(index)[0]] = value

    def __delitem__(self, index: int) -> None:  # type: ignore[override]
        with self.transact():
            del self._cache[self._find(index)[0]]

    def insert(self, index: int, value: Any) -> None:
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

    def remove(self, value: Any) -> None:
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

    def __iter__(self) -> Iterator[Any]:
        """Yield the items from front to back, without those that are appended or removed meanwhile."""
        return (value for _, value in self._cache.iterqueue())

    def __reversed__(self) -> Iterator[Any]:
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

    def __iadd__(self, iterable: Iterable[Any]) -> Self:
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
        for mine, theirs in zip_longest(self, other, fillvalue=_END):
            if mine is _END or theirs is _END:
                return decide(mine is not _END, theirs is not _END)  # the shorter one is less
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


class Index(_InCache, abc.MutableMapping[Any, Any]):
    """A mapping on disk that keeps the order of insertion, shared by threads and processes.

    Keys are found by their stored bytes: keys that are equal are one entry, and they need not be hashable. Every
    operation is atomic but for those that say otherwise, and waits for other writers without limit; reads of keys
    never wait. Values are copies. The first argument may be a directory (text, bytes or a path), which is made if
    missing; without one it is a temporary directory. The others are what `dict` takes. Raises what `Cache` raises,
    CorruptDatabase for a damaged database and DecodeError for a damaged entry.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        directory = None
        if args and (args[0] is None or isinstance(args[0], str | bytes | os.PathLike)):
            directory, args = args[0], args[1:]
        self._cache = DurableCache(directory)
        self.update(*args, **kwargs)

    @classmethod
    def fromcache(cls, cache: Cache, *args: Any, **kwargs: Any) -> Self:
        """Return an index of all entries of `cache`, which decides about damage and eviction."""
        self = cls.__new__(cls)
        self._cache = without_face(cache)
        self.update(*args, **kwargs)
        return self

    @property
    def aio(self) -> AsyncIndex:
        """Return this index for coroutines; see `AsyncIndex`."""
        found: AsyncIndex = awaited.face("AsyncIndex", self)
        return found

    def __getitem__(self, key: Any) -> Any:
        return self._cache[key]

    def get(self, key: Any, default: Any = None) -> Any:
        """Return the value of `key`, or `default` if there is none."""
        return self._cache.get(key, default)

    def __contains__(self, key: Any) -> bool:
        return key in self._cache

    def __setitem__(self, key: Any, value: Any) -> None:
        self._cache[key] = value

    def __delitem__(self, key: Any) -> None:
        del self._cache[key]

    def setdefault(self, key: Any, default: Any = None) -> Any:
        """Return the value of `key` after storing `default` if there was none."""
        if (value := self._cache.get(key, ENOVAL)) is not ENOVAL:
            return value
        with self.transact():
            if (value := self._cache.get(key, ENOVAL)) is not ENOVAL:
                return value
            self._cache[key] = default
            return self._cache[key]

    def update(self, other: Any = (), /, **kwds: Any) -> None:
        """Store what `dict.update` takes: from a collection in atomic batches of 1,000, from an iterator one by one."""
        for pairs in (other, kwds):
            if isinstance(pairs, Mapping):
                self._set_all(pairs.items(), BATCH)
            elif hasattr(pairs, "keys"):
                self._set_all(((key, pairs[key]) for key in pairs.keys()), BATCH)  # noqa: SIM118 - no mapping otherwise
            else:
                several("other", pairs, "a mapping, or an iterable of (key, value) pairs")
                self._set_all(pairs, BATCH if isinstance(pairs, Sized) else 1)

    def _set_all(self, pairs: Iterable[tuple[Any, Any]], size: int) -> None:
        for batch in batches(pairs, size):
            with self.transact():
                for key, value in in_pairs("other", batch):
                    self._cache[key] = value

    def pop(self, key: Any, default: Any = ENOVAL) -> Any:
        """Remove `key` and return its value; if there is none, `default`, or raise KeyError without one."""
        value = self._cache.pop(key, ENOVAL, retry=True)
        if value is not ENOVAL:
            return value
        if default is ENOVAL:
            raise KeyError(key)
        return default

    def peekitem(self, last: bool = True) -> tuple[Any, Any]:
        """Return the (key, value) inserted last, or first; raise KeyError if the index is empty."""
        found: tuple[Any, Any] = self._cache.peekitem(last, retry=True)
        return found

    def popitem(self, last: bool = True) -> tuple[Any, Any]:
        """Remove and return the (key, value) inserted last, or first; raise KeyError if the index is empty."""
        try:
            return self._popitem(last)
        except DiskFull:  # a removal failed; the next transaction begins by making room
            return self._popitem(last)

    def _popitem(self, last: bool) -> tuple[Any, Any]:
        with self.transact():
            found = self.peekitem(last)
            del self._cache[found[0]]
        return found

    def push(self, value: Any, prefix: str | None = None, side: Side = "back") -> Any:
        """Append `value` to one side of the queue called `prefix` and return its key; see `Cache.push`."""
        return self._cache.push(value, prefix, side, retry=True)

    def pull(self, prefix: str | None = None, default: Any = (None, None), side: Side = "front") -> Any:
        """Remove and return the (key, value) at one side of a queue, or `default` if it is empty."""
        return self._cache.pull(prefix, default, side, retry=True)

    def clear(self) -> None:
        """Remove every entry, in atomic batches."""
        self._cache.clear(retry=True)

    def __len__(self) -> int:
        return len(self._cache)

    def __iter__(self) -> Iterator[Any]:
        """Yield the keys in order of insertion; entries added meanwhile are left out."""
        return iter(self._cache)

    def __reversed__(self) -> Iterator[Any]:
        """Yield the keys from the newest to the oldest."""
        return reversed(self._cache)

    def keys(self) -> abc.KeysView[Any]:
        """Return a view of the keys that behaves as a set."""
        return Keys(self)

    def values(self) -> abc.ValuesView[Any]:
        """Return a view of the values."""
        return Values(self)

    def items(self) -> abc.ItemsView[Any, Any]:
        """Return a view of the (key, value) pairs that behaves as a set."""
        return Items(self)

    def memoize(
        self, name: str | None = None, typed: bool = False, ignore: Iterable[int | str] = (), **options: Any
    ) -> Callable[[Callable[P, R]], Memoized[P, R]]:
        """Return a decorator that keeps a function's results in the index; `options` as for `Cache.memoize`."""
        return self._cache.memoize(name, typed, ignore=ignore, **options)

    def _ipython_key_completions_(self) -> list[Any]:
        return self._cache._ipython_key_completions_()

    def __eq__(self, other: object) -> bool:
        """Compare with a mapping; order counts only if that is an Index or OrderedDict."""
        if not isinstance(other, Mapping):
            return NotImplemented
        if len(self) != len(other):
            return False
        if isinstance(other, Index | OrderedDict):
            pairs = zip_longest(self.items(), other.items(), fillvalue=_END)
            return all(mine == theirs for mine, theirs in pairs)
        return all(_value_of(other, key) == value for key, value in self.items())

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.directory!r})"


def _value_of(mapping: Mapping[Any, Any], key: Any) -> Any:
    """Return the value of `key`, or ENOVAL, also if the mapping hashes its keys and this one cannot be hashed."""
    try:
        return mapping.get(key, ENOVAL)
    except TypeError:
        try:
            hash(key)
        except TypeError:
            return ENOVAL
        raise


def _limit(maxlen: float | None) -> int | None:
    """Return a length limit as it is stored; raise SettingError for anything else."""
    limit: int | None = checked(MAXLEN, None if maxlen == math.inf else maxlen)
    return limit
