"""A shard whose entries are copies of those on a server: what a read asks, and where a write goes.

It spells all that an operation on a key asks of a `Store`, and nothing else: what it does not know raises
AttributeError, where the shard below would change this machine alone.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, NamedTuple, cast

from ..coherence import counts, futex
from ..coherence.generations import unread_marks
from ..disk.contract import Disk
from ..encoding.record import Record
from ..entries.row_codec import RowCodec
from ..errors import RemoteError, Timeout, named
from ..storage.store import REMOVE, Change, Decide, Row, Store, Touch
from ..system.blocking import may_block
from ..system.signals import suppress
from .copies import OURS, Copies
from .link import ABSENT, Reply
from .scripts import DELETE, ELSEWHERE, RECORD, WRITE
from .server import Call
from .state import Word, fresh
from .tier import Tier
from .words import Place, SharedWords


class _Asked(NamedTuple):
    """What the server is asked for, and the words that were noted before."""

    place: Place
    copy: Record | None
    word: int
    tags: int


class _Write(NamedTuple):
    """What the server is asked to store."""

    place: Place
    record: Record
    version: bytes  # of the copy
    call: Call


class TieredStore:
    """Read and write one shard and the server."""

    displaced = False  # a record is found by its key: which of several at one place it is, is settled below

    def __init__(self, local: Store, rows: RowCodec, tier: Tier) -> None:
        self._local = local
        self._rows = rows
        self._tier = tier
        self._state = tier.state
        self._link = tier.link
        self._copies = Copies(local, rows, tier)
        self._deciding = threading.local()  # the version that the running `update` of this thread has read
        self.directory = local.directory
        marks = unread_marks()
        if (own := local.config.counts) is not None:
            marks.count_in(own.counters, own.spaces)
        self.shard = SharedWords(tier.state, local.shard.ready, marks)
        self.refers_to, self.make_room = local.refers_to, local.make_room  # value files are this machine's

    @property
    def disk(self) -> Disk:
        """Return what encodes values, and keeps value files on this machine."""
        return self._local.disk

    # -- reading ------------------------------------------------------------------------------------------------------

    def read(self, place: Place, stored_key: bytes) -> Record | None:
        """Return the record of a place: that of the copy here if it counts, else as the server says."""
        return self.read_many([(place, stored_key)]).get(place)

    def read_versioned(self, place: Place, stored_key: bytes) -> tuple[Record | None, int]:
        """Return the record of a place and its version; 0 for one that nobody has confirmed."""
        record = self.read(place, stored_key)
        return record, 0 if place.stamp is None else self._copies.number_of(place, record)

    def version(self, _: int, __: bytes) -> int:
        """Return the version that the running `update` has read, 0 for no entry."""
        return int(getattr(self._deciding, "version", 0))

    def read_many(self, keys: Sequence[tuple[Place, bytes]]) -> dict[Place, Record]:
        """Return the records of those places that have an entry; the server is asked once for all that do not count."""
        found: dict[Place, Record] = {}
        asked: list[_Asked] = []
        for place, _ in keys:
            word, tags = self._state.words[place.index], self._state.header[Word.TAGS]
            copy = self._copies.find(place)
            if not self._copies.counts(place, copy):
                asked.append(_Asked(place, copy, word, tags))
            elif copy is not None:
                found[place] = copy
        if asked:
            self._ask(asked, found)
        return found

    def _ask(self, asked: list[_Asked], found: dict[Place, Record]) -> None:
        try:
            replies = self._link.read([self._call(each.place, self._copies.version_of(each.copy)) for each in asked])
        except RemoteError as error:
            for each in asked:
                self._without_answer(each.place, each.copy, found, error)
            return
        for (place, copy, word, tags), reply in zip(asked, replies, strict=True):
            place.was_asked = True
            if reply.same and copy is not None:
                self._state.count("confirmed")
                record: Record | None = copy
            else:
                record = self._copies.take_over(place, copy, reply)
            if record is None and reply.content is not None:  # not to be trusted
                self._copies.forget(place)
                continue
            self._copies.note(place, record, word, tags)
            if record is not None:
                found[place] = record

    def _without_answer(self, place: Place, copy: Record | None, found: dict[Place, Record], error: Exception) -> None:
        """Do what `on_error` says for a place that the server has said nothing of."""
        remote = self._tier.remote
        # What was heard to have changed, or was never confirmed here, may be of any age.
        stands = self._copies.stands(place, copy)
        place.stamp = None
        if remote.on_error == "raise":
            raise RemoteError(f"{self.directory!r}: key {named(place.key)}: {error}") from error
        if remote.on_error == "local" and stands and copy is not None and self._tier.may_be_stale():
            self._state.count("stale_served")
            found[place] = copy

    # -- writing ------------------------------------------------------------------------------------------------------

    def put(self, place: Place, stored_key: bytes, row: Row | bytes, timeout: float | None, known: bool = False) -> int:
        """Store a row on the server, then here."""
        self.put_many([(place, stored_key, row)])
        return 1

    def put_many(self, rows: Sequence[tuple[Any, bytes, Row | bytes]]) -> None:
        """Store rows on the server in one round trip, and here; raise RemoteError, Timeout or DiskFull."""
        may_block()
        writes = [(self._to_write(place, row, b""), row) for place, _, row in rows]
        for write, row in writes:
            if write.version == OURS:  # nobody else has it, so it is stored before anybody is told
                self._copies.write(write.place, row, write.record, OURS)
        try:
            self._send(writes)
        finally:  # also if what became of it is not known
            for write, _ in writes:
                self._state.change(write.place.index)
        for place, _, _ in rows:
            self._count(place, counts.SET)

    def _count(self, place: Place, kind: int) -> None:
        self.shard.marks.of(place.stored_key)[place] = kind

    def _to_write(self, place: Place, change: Row | Touch | bytes, expected: bytes) -> _Write:
        """Return what the server is to store if the entry has the `expected` version; empty for any."""
        record = self._rows.unpacked(
            self._local, place.stored_key, change if isinstance(change, bytes) else change.packed
        )
        content = self._travelling(place, record)
        version = self._state.machine if content is None else fresh()
        until = record.metadata.remove_at
        left = None if until is None else until - self._rows.clock()
        milliseconds = b"" if left is None or left > 1e12 else b"%d" % max(int(left * 1000), 1)
        kind, content = (ELSEWHERE, b"") if content is None else (RECORD, content)
        wire = self._tier.wire
        tags = wire.tags, version[:8], *wire.tag_digests(record.metadata.tags)
        call = wire.entry_name(place.digest), (expected, version, milliseconds, kind, content, *tags)
        return _Write(place, record, OURS if kind == ELSEWHERE else version, call)

    def _travelling(self, place: Place, record: Record) -> bytes | None:
        """Return a record as it travels; None for one whose value stays on this machine."""
        if record.file is not None and not self.disk.own_values:
            return None  # a `Disk` of the user's own may keep anything in its files
        if max(record.size, len(record.payload)) > self._tier.remote.max_value:
            self._state.count("too_large")
            return None
        return self._tier.wire.pack(place.canonical, self.disk.carried(record))

    def _send(self, writes: Sequence[tuple[_Write, Row | Touch | bytes]]) -> list[Reply | None]:
        """Store entries on the server; return, for each, the one that is in the way, or None if it is stored.

        A copy of a whole row does not count before the server has confirmed it, so it is stored before that answers.
        """
        copies = [
            (write.place, row, write.record, write.version)
            for write, row in writes
            if write.version != OURS and not isinstance(row, Touch)
        ]
        calls = [write.call for write, _ in writes]
        return self._link.change(WRITE, calls, partial(self._copies.write_all, copies))

    def remove(self, place: Place, stored_key: bytes, timeout: float | None, seen: int = 0) -> int:
        """Remove an entry from the server, then here; return 0 if there was none, whatever was `seen` here."""
        return self.remove_many([(place, stored_key)], timeout)

    def remove_many(self, keys: Sequence[tuple[Any, bytes]], timeout: float | None) -> int:
        """Remove entries from the server in one round trip, then here; return how many there were."""
        may_block()
        places: list[Place] = [place for place, _ in keys]
        for place in places:
            self._copies.find(place)
        try:
            found = self._link.change(DELETE, [self._call(place) for place in places])
        finally:
            for place in places:
                self._state.change(place.index)
        for place, refused in zip(places, found, strict=True):
            self._copies.remove(place)
            if refused is None:
                self._count(place, counts.DELETE)
        return found.count(None)

    def _call(self, place: Place, version: bytes = b"") -> Call:
        """Return the call that reads or removes an entry of this version, or of any."""
        return self._tier.wire.entry_name(place.digest), (version, self._tier.wire.tags)

    # -- changes that depend on the entry -----------------------------------------------------------------------------

    def update(
        self,
        place: Place,
        stored_key: bytes,
        decide: Decide,
        timeout: float | None,
        early: bool = False,
        missing: int = 0,
    ) -> int:
        """Let `decide` say what becomes of an entry, and write that if the entry is still what it was decided on.

        The first decision is on the copy here, whatever that is worth: the server compares its version. If it is to
        change nothing, or raises an error, it is made again on what the server says. After a conflict it is made on
        what is there now, until `timeout` seconds are over; then this raises Timeout. Whether `decide` may be asked
        `early`, or nothing was found here, makes no difference.
        """
        may_block()
        deadline = None if timeout is None else time.monotonic() + timeout
        record = self._copies.find(place)
        expected = self._copies.version_of(record) or ABSENT
        change: Change = None
        with suppress(Exception):  # which may be due to an old copy
            change = self._decided(place, record, decide)
        if change is None or (change is REMOVE and expected == ABSENT):
            record, expected = self._ask_to_write(place, record)
            change = self._decided(place, record, decide)
        while change is not None:
            reply = self._try(place, expected, change)
            if reply is None:
                self._count(place, counts.DELETE if change is REMOVE else counts.SET)
                break
            self._state.count("conflicts")
            if deadline is not None and time.monotonic() >= deadline:
                raise Timeout(f"{self.directory!r}: key {named(place.key)} is being written by others all the time")
            record, expected = self._copies.take_over(place, None, reply), reply.version or ABSENT
            change = self._decided(place, record, decide)
        return 1

    def _decided(self, place: Place, record: Record | None, decide: Decide) -> Change:
        self._deciding.version = self._copies.number_of(place, record)
        try:
            return decide(cast("Any", record))
        finally:
            self._deciding.version = 0

    def _ask_to_write(self, place: Place, copy: Record | None) -> tuple[Record | None, bytes]:
        """Return what the server has, and its version; raise RemoteError if it does not say.

        What cannot be trusted there counts as no entry, and is replaced.
        """
        version = self._copies.version_of(copy)
        (reply,) = self._link.read([self._call(place, version)])
        if reply.same:
            return copy, version
        return self._copies.take_over(place, copy, reply), reply.version or ABSENT

    def _try(self, place: Place, expected: bytes, change: Change) -> Reply | None:
        """Make a change if the entry still has the expected version; else return what is there."""
        if change is REMOVE and expected == ABSENT:
            return None
        try:
            if not isinstance(change, Row | Touch | bytes):
                (reply,) = self._link.change(DELETE, [self._call(place, expected)])
                if reply is None:
                    self._copies.remove(place)
                return reply
            write = self._to_write(place, change, expected)
            (reply,) = self._send([(write, change)])
            if reply is None and isinstance(change, Touch):
                self._copies.touch(place, write.record, write.version)
            elif reply is None and write.version == OURS:  # not before: what is refused must never be read
                self._copies.write(place, cast("Row | bytes", change), write.record, OURS)
            return reply
        finally:  # last, so that nothing from before counts
            self._state.change(place.index)

    # -- what is atomic on the server, not here -----------------------------------------------------------------------

    def transaction(self, _: float | None) -> AbstractContextManager[None]:
        """Do nothing: each write is one step on the server."""
        return nullcontext()

    def attempts(self, removes: bool = False) -> Iterator[AbstractContextManager[None]]:
        """Yield one attempt."""
        yield nullcontext()

    def in_transaction(self) -> bool:
        """Return False: there are none."""
        return False

    # -- waiting ------------------------------------------------------------------------------------------------------

    def generation(self, place: Place) -> int:
        """Return the word to sleep on."""
        return self._state.words[place.index]

    def was_missed(self, place: Place) -> bool:
        """Tell whether this machine asked for a key, or evicted its entry, a short while ago."""
        return self._local.was_missed(place.home)

    def was_evicted(self, place: Place) -> bool:
        """Tell the same, and remember nothing."""
        return self._local.was_evicted(place.home)

    def sleep(self, place: Place, stamp: int, seconds: float) -> None:
        """Sleep until the entry may have changed, on any machine."""
        futex.sleep(self._state.words, place.index, stamp, seconds)

    def wake(self, place: Place) -> None:
        """Wake those on this machine who sleep; those elsewhere wake by the server's message."""
        futex.wake(self._state.words, place.index)

    def hold(self, place: Place, owner: object) -> bool | None:
        """Hold a key on this machine by a lock of the kernel's, and among machines by a lease on the server."""
        held = self._local.hold(place.home, owner)
        if held and not self._tier.listener.take(self._tier.wire.lease_name(place.digest), secrets.token_bytes(16)):
            self._local.let_go(place.home, owner)
            return False
        return held

    def let_go(self, place: Place, owner: object) -> None:
        """Let go of a key if this owner holds it."""
        self._tier.listener.drop(self._tier.wire.lease_name(place.digest))
        self._local.let_go(place.home, owner)
