"""Index: a mapping on disk, whose entries are those of a cache."""

from __future__ import annotations

import os
from collections import OrderedDict, abc
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Self

from ..cache import Cache, batches, without_face
from ..entries.loading import ENOVAL
from ..memoizing.memoize import Memoized, P, R
from ..operations import awaited
from ..operations.queues import Side
from ..operations.views import Items, Keys, Values
from ..settings.misuse import in_pairs, several
from ..system.generics import K, V
from .durable import BATCH, END, DurableCache, InCache

if TYPE_CHECKING:
    from ..operations.awaited import AsyncIndex


class Index(InCache, abc.MutableMapping[K, V]):
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
    def aio(self) -> AsyncIndex[K, V]:
        """Return this index for coroutines; see `AsyncIndex`."""
        found: AsyncIndex[K, V] = awaited.face("AsyncIndex", self)
        return found

    def __getitem__(self, key: K) -> V:
        found: V = self._cache[key]
        return found

    def get(self, key: K, default: Any = None) -> V | Any:
        """Return the value of `key`, or `default` if there is none."""
        return self._cache.get(key, default)

    def __contains__(self, key: Any) -> bool:
        return key in self._cache

    def __setitem__(self, key: K, value: V) -> None:
        self._cache[key] = value

    def __delitem__(self, key: K) -> None:
        del self._cache[key]

    def setdefault(self, key: K, default: Any = None) -> V | Any:
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

    def pop(self, key: K, default: Any = ENOVAL) -> V | Any:
        """Remove `key` and return its value; if there is none, `default`, or raise KeyError without one."""
        value = self._cache.pop(key, ENOVAL, retry=True)
        if value is not ENOVAL:
            return value
        if default is ENOVAL:
            raise KeyError(key)
        return default

    def peekitem(self, last: bool = True) -> tuple[K, V]:
        """Return the (key, value) inserted last, or first; raise KeyError if the index is empty."""
        found: tuple[K, V] = self._cache.peekitem(last, retry=True)
        return found

    def popitem(self, last: bool = True) -> tuple[K, V]:
        """Remove and return the (key, value) inserted last, or first; raise KeyError if the index is empty."""
        found: tuple[K, V] = self._cache._end_item(last, (False, False), retry=True, remove=True)
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

    def __iter__(self) -> Iterator[K]:
        """Yield the keys in order of insertion; entries added meanwhile are left out."""
        return iter(self._cache)

    def __reversed__(self) -> Iterator[K]:
        """Yield the keys from the newest to the oldest."""
        found: Iterator[K] = reversed(self._cache)
        return found

    def keys(self) -> abc.KeysView[K]:
        """Return a view of the keys that behaves as a set."""
        return Keys(self)

    def values(self) -> abc.ValuesView[V]:
        """Return a view of the values."""
        return Values(self)

    def items(self) -> abc.ItemsView[K, V]:
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
            pairs = zip_longest(self.items(), other.items(), fillvalue=END)
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
