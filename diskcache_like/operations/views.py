"""Views: the keys, values and items of a cache or an index, as a dictionary has them.

They look at the entries anew each time. Their `len` is that of the cache: it counts expired entries that are not
removed yet, since to leave those out means to read them all.
"""

from __future__ import annotations

from collections import abc
from collections.abc import Iterable, Iterator
from typing import Any, Protocol

from ..entries.loading import ENOVAL


class Entries(Protocol):
    """What a view looks at."""

    def get(self, key: Any, default: Any = ...) -> Any:
        """Return the value of `key`, or `default` if it has no live entry."""

    def __getitem__(self, key: Any) -> Any: ...
    def __contains__(self, key: Any) -> bool: ...
    def __iter__(self) -> Iterator[Any]: ...
    def __reversed__(self) -> Iterator[Any]: ...
    def __len__(self) -> int: ...


def pairs(entries: Entries, keys: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
    """Yield key and value of each key that is still there when its turn comes."""
    for key in keys:
        value = entries.get(key, ENOVAL)
        if value is not ENOVAL:
            yield key, value


class _View:
    _mapping: Any  # an Entries; the views of collections.abc set it, and ask for a Mapping

    def __init__(self, entries: Entries) -> None:
        super().__init__(entries)  # type: ignore[call-arg]


class Keys(_View, abc.KeysView[Any]):
    """The keys, those of expired entries that are not removed yet among them."""

    def __reversed__(self) -> Iterator[Any]:
        yield from reversed(self._mapping)


class LiveKeys(_View, abc.KeysView[Any]):
    """The keys of live entries."""

    def __iter__(self) -> Iterator[Any]:
        return (key for key in self._mapping if key in self._mapping)

    def __reversed__(self) -> Iterator[Any]:
        return (key for key in reversed(self._mapping) if key in self._mapping)


class Values(_View, abc.ValuesView[Any]):
    """The values of live entries."""

    def __contains__(self, value: object) -> bool:
        # The base class's raises KeyError if an entry is removed or expires before its turn comes.
        return any(found is value or found == value for found in self)

    def __iter__(self) -> Iterator[Any]:
        return (value for _, value in pairs(self._mapping, self._mapping))

    def __reversed__(self) -> Iterator[Any]:
        return (value for _, value in pairs(self._mapping, reversed(self._mapping)))


class Items(_View, abc.ItemsView[Any, Any]):
    """The (key, value) pairs of live entries."""

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        return pairs(self._mapping, self._mapping)

    def __reversed__(self) -> Iterator[tuple[Any, Any]]:
        return pairs(self._mapping, reversed(self._mapping))
