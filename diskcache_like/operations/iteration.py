"""Iteration: the entries of a cache one after the other, all of them or those that a selection finds."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterable, Iterator
from typing import Any, Unpack, overload

from ..encoding import keys
from ..encoding.made_keys import NamespacedKey, is_flight
from ..entries.loading import ENOVAL
from ..errors import DecodeError
from ..settings.misuse import NoOthers, unexpected
from ..system.signals import suppress
from .tagging import Match, Selection, Tagging
from .views import Items, LiveKeys, Values, pairs

COMPLETIONS = 1000  # keys at most that are offered for completion


class Iteration(Tagging):
    """The operations that go over entries."""

    @property
    def _entries(self) -> Any:
        """Return this cache as a view looks at it: with the operations on keys, which its class adds."""
        return self

    def __iter__(self) -> Iterator[Any]:
        """Yield the keys in order of insertion, also expired ones, but not those that are added meanwhile.

        Where eviction moves entries meanwhile, they come last, and some that were added may come, too.

        Flushes the write buffer first if more than a little waits there. Raises Timeout if it cannot within `timeout`
        seconds or a minute, whichever is longer.
        """
        return self._iterate(reverse=False)

    def __reversed__(self) -> Iterator[Any]:
        """Yield the keys from the newest to the oldest, otherwise like iteration."""
        return self._iterate(reverse=True)

    def _iterate(self, reverse: bool) -> Iterator[Any]:
        stores = self._shards.stores
        scans = [(store, store.scan(reverse)) for store in (reversed(stores) if reverse else stores)]
        key_at = self._rows.key_at
        for store, scan in scans:
            for place, stored_key, original in scan:
                try:
                    key = key_at(store, place, stored_key, original)
                except DecodeError as error:
                    self._rows.report_corrupt(error, stored_key)
                    continue
                if type(key) is not NamespacedKey or not is_flight(key):
                    yield key

    def iterkeys(self, reverse: bool = False) -> Iterator[Any]:
        """Yield the keys, also expired ones, sorted (numbers, text, bytes, the rest); holds all of them in memory."""
        yield from sorted(self._iterate(reverse=False), key=keys.sort_key, reverse=bool(reverse))

    @overload
    def keys(self) -> LiveKeys: ...
    @overload
    def keys(
        self,
        tags: Iterable[Any] | None = ...,
        match: Match = ...,
        prefix: str | None = ...,
        after: Any = ...,
        *,
        glob: str | None = ...,
    ) -> Iterator[Any]: ...
    def keys(
        self,
        tags: Iterable[Any] | None = None,
        match: Match = "any",
        prefix: str | None = None,
        after: Any = ENOVAL,
        *,
        glob: str | None = None,
        **others: Unpack[NoOthers],
    ) -> LiveKeys | Iterator[Any]:
        """Return a view of the keys of live entries, for `dict(cache)`, which raises KeyError for one that vanishes.

        With arguments, an iterator in an order of its own: of the keys with any or all of `tags`, and of those that are
        text, begin with `prefix` and match `glob`, from behind the key `after`, so that a list can be shown page by
        page. In a glob `*` is any characters, `?` one, `[a-f]` one of these, `[^a-f]` one of the others, and a
        backslash takes the next character as it is, all as Redis has it. What is there all the time is in the list,
        what comes or goes meanwhile may be. Without tags it takes time for every key there is, though it reads only the
        entries that it yields, unless keys are encrypted or encoded by a `Disk` of your own.
        """
        if others:
            raise unexpected(Iteration.keys, others)
        if tags is None and prefix is None and glob is None and after is ENOVAL:
            return LiveKeys(self._entries)
        return (found.key for found in self._select(Selection.of(tags, match, prefix, glob), after))

    def values(self) -> Values:
        """Return a view of the values of live entries."""
        return Values(self._entries)

    @overload
    def items(self) -> Items: ...
    @overload
    def items(
        self,
        tags: Iterable[Any] | None = ...,
        match: Match = ...,
        prefix: str | None = ...,
        after: Any = ...,
        *,
        glob: str | None = ...,
    ) -> Iterator[tuple[Any, Any]]: ...
    def items(
        self,
        tags: Iterable[Any] | None = None,
        match: Match = "any",
        prefix: str | None = None,
        after: Any = ENOVAL,
        *,
        glob: str | None = None,
        **others: Unpack[NoOthers],
    ) -> Items | Iterator[tuple[Any, Any]]:
        """Return a view of the (key, value) pairs of live entries; `dict(cache.items())` never raises KeyError.

        With arguments, an iterator over some of them, as for `keys`.
        """
        if others:
            raise unexpected(Iteration.items, others)
        if tags is None and prefix is None and glob is None and after is ENOVAL:
            return Items(self._entries)
        return pairs(self._entries, self.keys(tags, match, prefix, after, glob=glob))

    def _ipython_key_completions_(self) -> list[Any]:
        """Return the newest keys, for the tab key in IPython, where an error would be in the way."""
        found: list[Any] = []
        with suppress(Exception):
            found.extend(itertools.islice(self._iterate(reverse=True), COMPLETIONS))
        return found

    def _page(self, after: int, most: int) -> tuple[list[Any], int | None]:
        """Return the keys of live entries at the next `most` places behind one, of all shards, and the last of these.

        The place is None if there is none behind it. It needs no memory, and finds what is there all the time.
        """
        stores = self._shards.stores
        merged = heapq.merge(
            *(zip(store.places(after), itertools.repeat(number)) for number, store in enumerate(stores))
        )
        page = list(itertools.islice(merged, most))
        keys_ = [
            found.key
            for number, store in enumerate(stores)
            for found in self._verified(store, [place for place, its in page if its == number])
            if not is_flight(found.key)
        ]
        return keys_, page[-1][0] if len(page) == most else None

    def __len__(self) -> int:
        """Return the number of entries, including expired ones that are not removed yet.

        Flushes the write buffer, as iteration does, if more than a little waits there.
        """
        return sum(store.count() for store in self._shards.stores)
