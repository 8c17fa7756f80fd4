"""Tagging: find, count and remove entries by their tags, and list keys in pages.

The index offers places, and the record that lies there decides: an index that was damaged or forged can hide an entry
or offer another one, which is passed over.
"""

from __future__ import annotations

import heapq
import itertools
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple, Unpack

from ..encoding.keys import sort_key
from ..encoding.made_keys import HIDDEN, NamespacedKey, Path, is_flight
from ..encoding.record import Metadata, Record
from ..encoding.tags import index_name, join_tags, pack_tags, split_tags, tags_of
from ..entries.loading import ENOVAL
from ..errors import DecodeError, TagError, Timeout
from ..settings.misuse import NoOthers, unexpected
from ..storage.store import REMOVE, Change, Store
from .parts import Parts

Match = Literal["any", "all"]
MATCHES = ("any", "all")
PAGE = 100  # entries that are read at once
SOFT_BATCH = 100  # entries that one transaction of a soft eviction changes


def checked_match(match: Match) -> Match:
    """Return `match`; raise TagError for another word."""
    if match not in MATCHES:
        raise TagError(f"match is {match!r}, expected 'any' or 'all'")
    return match


class TagUsage(NamedTuple):
    """What `tags` yields for each tag."""

    name: Any
    entries: int
    bytes: int  # of their values, as `Entry.size` has them


class Found(NamedTuple):
    """An entry that a selection found."""

    key: Any
    stored_key: bytes
    place: int
    record: Record
    store: Store


class Selection(NamedTuple):
    """Which entries are wanted."""

    tags: frozenset[bytes] = frozenset()  # encoded; empty for entries with any tags or none
    match: Match = "any"
    prefix: str | None = None  # of a key that is text
    start: str = ""  # what all such keys begin with
    pattern: re.Pattern[str] | None = None  # that they match
    within: Path | None = None  # the namespace; None for all entries of the cache

    @classmethod
    def of(
        cls, tags: Iterable[Any] | None, match: Match, prefix: str | None = None, glob: str | None = None
    ) -> Selection:
        """Return the selection that a caller asks for; raise TagError or TypeError for one that cannot be."""
        for name, text in (("prefix", prefix), ("glob", glob)):
            if not isinstance(text, str | None):
                raise TypeError(f"{name} is {text!r}, expected text or None")
        packed = pack_tags(tags=tags)
        if tags is not None and not packed:
            raise TagError("tags is empty, expected at least one tag; leave it out for all entries")
        pattern, start = None, prefix or ""
        if glob is not None:
            from ..encoding.globs import head_of, pattern_of  # late: few need it

            pattern, start = pattern_of(glob), prefix or head_of(glob)
        return cls(frozenset(split_tags(packed)), checked_match(match), prefix, start, pattern)

    def has(self, metadata: Metadata) -> bool:
        """Tell whether an entry has the tags that are wanted."""
        own = split_tags(metadata.tags)
        return self.tags.issubset(own) if self.match == "all" else not self.tags or not self.tags.isdisjoint(own)

    def takes(self, key: Any) -> bool:
        """Tell whether a key is in the namespace, and has the prefix, that is wanted."""
        if self.within is not None:
            if type(key) is not NamespacedKey or key.path is not self.within:
                return False
            key = key.key
        elif is_flight(key):
            return False
        if self.prefix is None and self.pattern is None:
            return True
        return (
            type(key) is str
            and key.startswith(self.prefix or "")
            and (self.pattern is None or self.pattern.match(key) is not None)
        )


class Tagging(Parts):
    """The operations on tags."""

    _within: Path | None = None  # the namespace that they are about

    def evict(
        self,
        tag: Any = None,
        retry: bool = False,
        *,
        tags: Iterable[Any] | None = None,
        match: Match = "any",
        soft: bool = False,
        prefix: str | None = None,
        glob: str | None = None,
        **others: Unpack[NoOthers],
    ) -> int:
        """Remove every entry with this tag, or with any or all of `tags`, and return how many live ones there were.

        `prefix` and `glob`: only those that `keys` finds by them; without a tag, all of them. With `soft` those that
        have a stale window (`get_or_set`) are kept until it ends, as if they had just expired. In batches, like
        `clear`: what gets the tag meanwhile may stay or go. Without any of these, or with `tags=[]`, nothing is
        removed. Raises TagError, and Timeout, which carries the count so far.
        """
        if others:
            raise unexpected(Tagging.evict, others)
        packed, by_key = pack_tags(tag, tags), not (prefix is None and glob is None)
        if not packed and (tags is not None or not by_key):
            return 0
        selection = Selection.of(None, match, prefix, glob)
        selection = selection._replace(tags=frozenset(split_tags(packed)), within=self._within)
        if self._tier is not None:
            if soft or match == "all" or by_key:
                what = "prefix= or glob=" if by_key else "soft=True" if soft else "match='all'"
                self._here_only(f"evict({what})")
            self._tier.evict(selection.tags, b"" if self._within is None else self._within.within)
        wait = self._wait_for_all(retry)
        if soft or by_key:
            return self._remove_from_all(lambda store: self._remove_found(store, selection, wait, soft))
        return self._remove_from_all(lambda store: self._remove_tagged(store, selection, wait))

    def _remove_tagged(self, store: Store, selection: Selection, wait: float | None) -> int:
        names, within = self._names(selection)
        if selection.match == "all":
            first, *others = store.smallest_first([*names, *within])
            return self._remove_named(store, first, others, wait)
        removed = 0
        for name in names:
            try:
                removed += self._remove_named(store, name, within, wait)
            except Timeout as error:
                error.count = removed + getattr(error, "count", 0)  # type: ignore[attr-defined]
                raise
        return removed

    def _remove_named(self, store: Store, name: str, others: Sequence[str], wait: float | None) -> int:
        """Remove what has a tag that the index names, and all `others`; return how many live entries went."""
        return store.remove_selected("tagged", lambda: (self._rows.clock(), name, json.dumps(others)), wait)

    def _remove_found(self, store: Store, selection: Selection, wait: float | None, soft: bool) -> int:
        """Remove live entries of one shard; with `soft` those that can be had stale expire now. Return how many."""
        rows, now = self._rows, self._rows.clock()
        evicted = 0

        def decide(found: Found, ended: set[int], packed: bytes | None) -> Change:
            location = found.stored_key, found.place & ~3, store
            record = rows.verified_own(found.key, location, packed)
            if record is None or not rows.is_live(record) or not selection.has(record.metadata):
                return None
            ended.add(found.place)
            if not soft or record.metadata.retain_until is None:
                return REMOVE
            return rows.changed(location, record, record.metadata._replace(expire=now))

        entries = self._found(store, selection, self._offered(store, selection))
        while batch := list(itertools.islice(entries, SOFT_BATCH)):
            try:
                for attempt in store.attempts(removes=not soft):
                    with attempt, store.transaction(wait):
                        ended: set[int] = set()
                        for found in batch:
                            store.update(found.place & ~3, found.stored_key, partial(decide, found, ended), wait)
            except Timeout as error:
                error.count = evicted  # type: ignore[attr-defined]
                raise
            evicted += len(ended)
        return evicted

    def count(
        self,
        tags: Iterable[Any] | None = None,
        match: Match = "any",
        prefix: str | None = None,
        *,
        glob: str | None = None,
        **others: Unpack[NoOthers],
    ) -> int:
        """Return the number of live entries that `keys` finds with these arguments.

        It reads them all, or all of one tag; `len` counts at once, expired entries included.
        """
        if others:
            raise unexpected(Tagging.count, others)
        return sum(1 for _ in self._select(Selection.of(tags, match, prefix, glob)))

    def tags(self, prefix: str | None = None) -> list[TagUsage]:
        """Return each tag with the number and the bytes of its live entries, sorted; `prefix`: of tags that are text.

        It reads every tagged entry.
        """
        selection = Selection.of(None, "any", prefix)
        sets: dict[bytes, list[int]] = {}  # the sizes of all entries with the same tags, since few sets serve many
        for store in self._shards.stores:
            for record in self._tagged_records(store):
                sets.setdefault(record.metadata.tags, []).append(record.value_size)
        sums: dict[bytes, tuple[int, int]] = {}
        for packed, sizes in sets.items():
            for tag in split_tags(packed):
                entries, total = sums.get(tag, (0, 0))
                sums[tag] = entries + len(sizes), total + sum(sizes)
        found = []
        for tag, usage in sums.items():
            if tag[0] != HIDDEN:
                with self._rows.reporting(tag):
                    found.append(TagUsage(tags_of(join_tags({tag}))[0], *usage))
        return sorted(filter(lambda usage: selection.takes(usage.name), found), key=lambda usage: sort_key(usage.name))

    def _tagged_records(self, store: Store) -> Iterator[Record]:
        """Yield the records of live entries of this namespace that have tags."""
        blind, within = self._rows.blind, self._within
        if within is None:
            # In an encrypted cache nothing tells the names of hidden tags from others.
            places = iter(store.tagged_places("" if blind else f"{HIDDEN:02x}*"))
        else:
            places = store.tagged(index_name(within.within, blind), ())
        while page := list(itertools.islice(places, PAGE)):
            for _, _, _, record in self._live_at(store, page):
                if within is None or within.within in split_tags(record.metadata.tags):
                    yield record

    # -- listing ------------------------------------------------------------------------------------------------------

    def _select(self, selection: Selection, after: Any = ENOVAL) -> Iterator[Found]:
        """Yield the live entries that are wanted, from behind the key `after`; no read transaction stays open.

        What is there all the time is yielded, what comes or goes meanwhile may be, and an entry may come twice if it
        was moved.
        """
        selection = selection._replace(within=self._within)
        stores: Sequence[Store] = self._shards.stores
        position = None
        if after is not ENOVAL:
            _, position, store = self._rows.local(after)
            stores = stores[stores.index(store) :]
        for store in stores:
            for found in self._found(store, selection, self._offered(store, selection, position)):
                if after is ENOVAL or found.key != after:
                    yield found
            position = None

    def _found(self, store: Store, selection: Selection, places: Iterator[int]) -> Iterator[Found]:
        while page := list(itertools.islice(places, PAGE)):
            for found in self._verified(store, page):
                if selection.has(found.record.metadata) and selection.takes(found.key):
                    yield found

    def _offered(self, store: Store, selection: Selection, position: int | None = None) -> Iterator[int]:
        """Yield the places that the index offers, in order."""
        names, within = self._names(selection)
        if not names:
            if within:
                return store.tagged(within[0], (), position)
            tells = store.disk.own_keys and self._rows.blind is None  # a stored key has the text of the key in it
            return store.begun(selection.start, position) if selection.start and tells else store.places(position)
        if selection.match == "all":
            first, *others = store.smallest_first([*names, *within])
            return store.tagged(first, others, position)
        merged = heapq.merge(*(store.tagged(name, within, position) for name in names))
        return (place for place, _ in itertools.groupby(merged))

    def _names(self, selection: Selection) -> tuple[list[str], list[str]]:
        """Return the names in the index of the tags that are wanted, and of that of the namespace."""
        blind, path = self._rows.blind, selection.within
        names = [index_name(tag, blind) for tag in sorted(selection.tags)]
        return names, [] if path is None else [index_name(path.within, blind)]

    def _verified(self, store: Store, places: Sequence[int]) -> Iterator[Found]:
        """Yield the live entries at these places that this handle can read."""
        rows = self._rows
        for place, stored_key, original, record in self._live_at(store, places):
            try:
                key = store.disk.user_key(stored_key, original)
            except DecodeError as error:
                rows.report_corrupt(error, stored_key)
                continue
            yield Found(key, stored_key, place, record, store)

    def _live_at(self, store: Store, places: Sequence[int]) -> Iterator[tuple[int, bytes, bytes | None, Record]]:
        """Yield (place, stored key, original key, record) of live entries."""
        rows = self._rows
        for place, stored_key, original, packed in store.rows_at(places):
            try:
                rows.check_place(place, stored_key)
                record = rows.unpacked(store, stored_key, packed)
            except DecodeError as error:
                rows.report_corrupt(error, stored_key)
                continue
            if rows.is_live(record):
                yield place, stored_key, original, record
