"""Namespaces: views of a cache that have a key space of their own, in the same files and the same memory.

A view is the cache's own class, with the same parts, whose operations on keys take them for keys of the namespace:
those whose first parameter is called `key`, so a new one needs no mention here. The cache's own operations do not ask
an object what a key means: that would make a hit in memory a tenth slower.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NoReturn

from ..encoding.made_keys import FLIGHTS, NamespacedKey, Path, path_of
from ..encoding.record import Metadata
from ..encoding.tags import index_name, without_hidden
from ..entries.loading import ENOVAL
from ..errors import CacheError
from ..settings.misuse import several
from .tagging import Found, Selection

NOT_OF_KEYS = ("reset", "_namespaced")  # one takes the name of a setting as `key`; the other makes the keys
QUEUES = ("push", "pull", "peek", "peekitem", "iterqueue")
WHOLE = ("stats", "volume", "expire", "cull")  # which would tell, or remove, what other namespaces have
_PACKAGE = f"{__name__.partition('.')[0]}."
_new_key = tuple.__new__  # half the time of the class's own, which is written in Python
PARTS = ("_handle", "_shards", "_rows", "_hot", "_loader", "_hot_get", "_hot_clock", "_clock", "_tier")


class Namespace:
    """What a view changes of its cache's class."""

    _cache: Any  # the cache itself
    _within: Path  # the path of this one

    def _namespaced(self, key: Any) -> NamespacedKey:
        """Return the key as the cache has it; an operation that calls another one gives it such a key.

        Flights are the cache's. A key of another namespace, as a copied cache has some, is in one within this one.
        """
        if type(key) is not NamespacedKey:
            return _new_key(NamespacedKey, (self._within, key))
        path, own = key
        if path is self._within or path is FLIGHTS:
            return key
        return NamespacedKey(path_of((*self._within.names, *path.names)), own)

    def namespace(self, name: str) -> Any:
        """Return the namespace called `name` within this one; `clear` of this one clears it too."""
        return view(self._cache, path_of((*self._within.names, name)))

    # -- many keys ----------------------------------------------------------------------------------------------------

    def get_many(self, keys_: Iterable[Any]) -> dict[Any, Any]:
        """Do what `Cache.get_many` does."""
        found = super().get_many(map(self._namespaced, several("keys_", keys_, "a list of keys")))  # type: ignore[misc]
        return {key.key: value for key, value in found.items()}

    def delete_many(self, keys_: Iterable[Any], *args: Any, **kwargs: Any) -> int:
        """Do what `Cache.delete_many` does."""
        own = map(self._namespaced, several("keys_", keys_, "a list of keys"))
        return int(super().delete_many(own, *args, **kwargs))  # type: ignore[misc]

    def _set_batch(self, items: Iterable[tuple[Any, Any, Metadata]], wait: float | None) -> int:
        own = ((self._namespaced(key), value, metadata) for key, value, metadata in items)
        return int(super()._set_batch(own, wait))  # type: ignore[misc]

    def _items(self, keys_: Iterable[Any]) -> Iterator[tuple[Any, Any, Metadata]]:
        for own, value, metadata in super()._items(map(self._namespaced, keys_)):  # type: ignore[misc]
            yield own.key, value, metadata._replace(tags=without_hidden(metadata.tags, self._within))

    # -- the whole namespace ------------------------------------------------------------------------------------------

    def _select(self, selection: Selection, after: Any = ENOVAL) -> Iterator[Found]:
        start = after if after is ENOVAL else self._namespaced(after)
        for found in super()._select(selection, start):  # type: ignore[misc]
            yield found._replace(key=found.key.key)

    def clear(self, retry: bool = False) -> int:
        """Remove every entry of this namespace and of those in it; return how many there were. Goes in batches."""
        removed: int = self._cache._evict_hidden(self._within.within, self._within.below, retry=retry)
        return removed

    def __iter__(self) -> Iterator[Any]:
        """Yield the keys of live entries, in an order of its own."""
        yield from (found.key for found in self._select(Selection()))

    def __reversed__(self) -> Iterator[Any]:
        """Yield the keys of live entries from the other end."""
        yield from reversed(list(self))

    def _iterate(self, reverse: bool) -> Iterator[Any]:
        return reversed(self) if reverse else iter(self)

    def __len__(self) -> int:
        """Return the number of entries, including expired ones that are not removed yet."""
        cache = self._cache
        name = index_name(self._within.within, cache._rows.blind)
        return sum(store.count_tagged(name) for store in cache._shards.stores)

    # -- the handle ---------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close the cache around it."""
        self._cache.close()

    def __getattr__(self, name: str) -> Any:
        """Return what a subclass of `Cache` keeps in an attribute of its own, such as the children of a FanoutCache."""
        return getattr(object.__getattribute__(self, "_cache"), name)  # not by __dict__, see `Cache._open`

    def __reduce__(self) -> Any:
        return view, (self._cache, self._within)

    def __repr__(self) -> str:
        return f"{self._cache!r}.namespace({self._within!r})"


def _keyed(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def of_namespace(self: Namespace, key: Any, *args: Any, **kwargs: Any) -> Any:
        own = _new_key(NamespacedKey, (self._within, key)) if type(key) is not NamespacedKey else self._namespaced(key)
        # A call with stars costs as much as two without.
        return method(self, own, *args, **kwargs) if args or kwargs else method(self, own)

    return of_namespace


def _refused(name: str, instead: str) -> Callable[..., NoReturn]:
    def refuse(self: Namespace, *_: Any, **__: Any) -> NoReturn:
        raise CacheError(f"{name}() is not there in a namespace: {instead}")

    return refuse


_REFUSED = {
    "_end_item": _refused("popitem", "it is about all entries of the cache"),
    "_push": _refused("append", "call that of the cache"),
    **{name: _refused(name, "call that of the cache, with a prefix for a queue") for name in QUEUES},
    **{name: _refused(name, "it is about all entries of the cache, so call that of the cache") for name in WHOLE},
}


def _takes_key(member: object) -> bool:
    code = getattr(member, "__code__", None)
    return code is not None and code.co_argcount > 1 and code.co_varnames[1] == "key"


@functools.cache
def _kind(kind: Any) -> Any:
    """Return the class of views of a class of caches; methods that a program's subclass adds call these."""
    own = [vars(base) for base in kind.__mro__ if base.__module__.startswith(_PACKAGE)]
    keyed = {name for members in own for name, member in members.items() if _takes_key(member)}
    methods = {name: _keyed(getattr(kind, name)) for name in keyed.difference(NOT_OF_KEYS)} | _REFUSED
    return type(kind.__name__, (Namespace, kind), methods)


def view(cache: Any, path: Path) -> Any:
    """Return the view of a cache that `Cache.namespace` promises."""
    kind = _kind(cache.__class__)
    made = kind.__new__(kind)
    for name in PARTS:
        setattr(made, name, getattr(cache, name))
    made._cache, made._within = cache, path
    return made
