"""Copies: what one shard of this machine has of the entries on a server, and whether it may be believed.

A reader notes the words of an entry before it asks for it. What it got counts while the lease is valid and the words
are the same: the rule for generations (docs/coherence.md), with a word instead.
"""

from __future__ import annotations

import contextlib
from typing import Final

from ..disk.value_files import Encoded
from ..encoding.record import MODE_BINARY, MODE_BYTES, MODE_PICKLE, MODE_RAW, VERSION_SIZE, Record
from ..entries.row_codec import Location, RowCodec, discard
from ..errors import DecodeError, DiskFull, Timeout, ValueTooLarge
from ..storage.store import REMOVE, Change, Row, Store
from .link import Reply
from .state import ABSENT, Word, boot_seconds
from .tier import Tier
from .wire import index_of
from .words import Place

OURS: Final = b"\xff" * VERSION_SIZE  # version of a row whose value stays here: the server has the machine's name
_IN_ROWS: Final = frozenset({MODE_RAW, MODE_PICKLE, MODE_BYTES})  # modes of values that a row may hold


def _number(version: bytes) -> int:
    """Return a version as a cell has it; never that of an entry that is absent."""
    return int.from_bytes(version[:8], "big") | 1


class Copies:
    """Look at the copies on one shard, believe them, and store and remove them."""

    def __init__(self, local: Store, rows: RowCodec, tier: Tier) -> None:
        self._local = local
        self._rows = rows
        self._tier = tier
        self._state = tier.state

    def _location(self, place: Place) -> Location:
        return place.stored_key, place.home, self._local

    def find(self, place: Place) -> Record | None:
        """Return the record of the copy; None for no row, or one that did not come by way of a server."""
        packed, place.tick = self._local.read_versioned(place.home, place.stored_key)
        record = self._rows.verified_own(place.key, self._location(place), packed)
        return record if record is not None and record.metadata.version else None

    def version_of(self, copy: Record | None) -> bytes:
        """Return the version that the server has if a copy is what it knows of; empty for none."""
        if copy is None:
            return b""
        return self._state.machine if copy.metadata.version == OURS else copy.metadata.version

    def number_of(self, place: Place, copy: Record | None) -> int:
        """Return the version of an entry as `Entry.version` has it, 0 for none.

        All whose values stay here have one version on the server, and others in their rows.
        """
        if copy is None:
            return 0
        return place.tick if copy.metadata.version == OURS else int.from_bytes(copy.metadata.version, "big")

    # -- belief -------------------------------------------------------------------------------------------------------

    def counts(self, place: Place, copy: Record | None) -> bool:
        """Tell whether the copy, or that there is none, may be believed without asking."""
        place.stamp = None
        return self._tier.lease_ends() > boot_seconds() and self.stands(place, copy)

    def stands(self, place: Place, copy: Record | None) -> bool:
        """Tell whether nothing has been heard that contradicts the copy, or that there is none, since it was noted."""
        state, index = self._state, place.index
        place.stamp = None
        noted = state.noted(index, place.number)
        if noted is None:
            return False
        version, stamp = noted
        indices = frozenset((index,))
        if version == ABSENT:
            if copy is not None:
                return False
        elif copy is None or _number(copy.metadata.version) != version or not self._rows.is_live(copy):
            return False
        else:
            indices = self._indices(place, copy)
        if stamp != state.stamp(indices):
            return False
        place.indices, place.stamp = indices, stamp
        return True

    def _indices(self, place: Place, record: Record | None) -> frozenset[int]:
        """Return the indices of the words that an entry depends on: its own and those of its tags."""
        if record is None or not record.metadata.tags:
            return frozenset((place.index,))
        return frozenset((place.index, *map(index_of, self._tier.wire.tag_digests(record.metadata.tags))))

    def note(self, place: Place, record: Record | None, word: int, tags: int) -> None:
        """Note that a copy, or that there is none, counts under the word that was there before the request.

        Its tags are known only now. Their words are those of before the request if the word for all tags is the same.
        """
        state, index = self._state, place.index
        place.indices = self._indices(place, record)
        stamp = state.stamp(place.indices, index, word)  # before TAGS is looked at
        if len(place.indices) > 1 and state.header[Word.TAGS] != tags:
            place.stamp = None
            return
        place.stamp = stamp
        state.note(index, place.number, ABSENT if record is None else _number(record.metadata.version), stamp)

    def forget(self, place: Place) -> None:
        """Let nothing be kept that was read of a place now."""
        place.stamp = None
        self._state.change(place.index)

    # -- what the server has said -------------------------------------------------------------------------------------

    def take_over(self, place: Place, copy: Record | None, reply: Reply) -> Record | None:
        """Make a copy of what the server has, and return its record; None for nothing, or what is not to be trusted."""
        if reply.content is None:
            if copy is not None:
                self.remove(place)
            return None
        try:
            version, record = self._tier.wire.unpack(place.canonical, reply.content)
        except DecodeError as error:
            self._state.count("unverifiable")
            self._rows.report_corrupt(error, place.key)
            return None
        metadata = record.metadata._replace(version=version)
        if reply.left >= 0:  # by this machine's clock
            retain = reply.asked + reply.left / 1000
            window = 0.0
            if metadata.retain_until is not None and metadata.expire is not None:
                window = metadata.retain_until - metadata.expire
            metadata = metadata._replace(expire=retain - window, retain_until=retain if window else None)
        return self._store(place, record._replace(metadata=metadata))

    def _store(self, place: Place, record: Record) -> Record:
        """Store a record that has come from the server, if nobody is writing here now; return it as it is stored."""
        disk = self._local.disk
        encoded: Encoded = record.mode, record.payload, None, 0
        if record.mode not in _IN_ROWS or len(record.payload) >= max(disk.min_file_size, 1):
            encoded = disk.write_value(record.mode, record.payload, place.key)
        mode, payload, file, size = encoded
        stored = record._replace(mode=mode, payload=payload, file=file, size=size)
        row = self._rows.row(place.key, self._location(place), encoded, record.metadata)
        only_in_file = record.mode not in (*_IN_ROWS, MODE_BINARY)
        try:
            if self._rows.is_oversize(row):
                raise self._rows.too_large(place.key)
            if isinstance(row, Row) and row == Row(row.packed):
                row = row.packed  # a row of nothing else is written faster
            self._local.put(place.home, place.stored_key, row, self._tier.timeout if only_in_file else 0)
        except (Timeout, DiskFull, ValueTooLarge):
            if file is not None:
                discard(self._local, encoded)
            if only_in_file:
                raise
            self._state.count("local_failures")
            stored = record
            if record.mode == MODE_BINARY:  # which only a file may hold
                stored = record._replace(mode=MODE_RAW, payload=disk.value_codec.encode(record.payload))
        return stored._replace(signed=self._rows.signs(record.mode))

    # -- what is written ----------------------------------------------------------------------------------------------

    def write(self, place: Place, row: Row | bytes, record: Record, version: bytes) -> None:
        """Store what gets this version on the server, where it counts as soon as that has it."""
        versioned = record._replace(metadata=record.metadata._replace(version=version))
        packed = self._rows.repacked(self._location(place), versioned)
        copy = row._replace(packed=packed) if isinstance(row, Row) else packed
        self._local.put(place.home, place.stored_key, copy, self._tier.timeout)

    def write_all(self, copies: list[tuple[Place, Row | bytes, Record, bytes]]) -> None:
        """Do so for several, once, though the request may be made again; what cannot be stored is read from there."""
        for place, row, record, version in copies:
            try:
                self.write(place, row, record, version)
            except (Timeout, DiskFull):
                self._state.count("local_failures")
                if record.file is not None:
                    discard(self._local, (record.mode, record.payload, record.file, record.size))
        copies.clear()

    def touch(self, place: Place, record: Record, version: bytes) -> None:
        """Give the copy other metadata, unless somebody here has written since it was looked at."""
        changed = self._rows.changed(self._location(place), record, record.metadata._replace(version=version))
        self._change(place, changed, self._tier.timeout)

    def remove(self, place: Place) -> None:
        """Remove the copy, unless somebody here has written since it was looked at, or is writing now."""
        self._change(place, REMOVE, 0)

    def _change(self, place: Place, change: Change, wait: float) -> None:
        def decide(packed: bytes | None) -> Change:
            same = packed is not None and self._local.version(place.home, place.stored_key) == place.tick
            return change if same else None

        with contextlib.suppress(Timeout, DiskFull):  # what is left does not count
            self._local.update(place.home, place.stored_key, decide, wait)
