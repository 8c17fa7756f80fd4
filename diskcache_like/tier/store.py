"""A shard whose entries are copies of those on a server: what a read asks, and where a write goes.

It has the interface of a `Store`, so the operations of a cache need not know of it. What differs is the place of a key:
its number comes from the name of the entry on the server, and is the same on every machine, so that its slot among the
words can be told from the server's messages.

A read notes the word, then looks at the copy here or asks the server, and what it found may be kept in memory if the
word is still the same: the rule for generations (docs/coherence.md), with a word instead. A copy counts while the lease
is valid and its words are what they were before the request by which it came, or was confirmed.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
import time
from array import array
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, cast

from ..coherence import futex
from ..coherence.generations import Words
from ..disk.contract import Disk
from ..disk.value_files import Stored
from ..encoding import keys
from ..encoding.record import MODE_BINARY, MODE_BYTES, MODE_NONE, MODE_PICKLE, MODE_RAW, NO_METADATA, Metadata, Record
from ..entries.hot import HotLayer
from ..entries.row_codec import Location, RowCodec, discard
from ..errors import DecodeError, DiskFull, RemoteError, Timeout, ValueTooLarge, named, refused_with_remote
from ..storage.store import REMOVE, Change, Decide, Row, Store, Touch
from ..system.blocking import may_block
from ..system.signals import suppress
from .behind import OURS, Behind, Invalidating, is_unsent
from .link import ABSENT, Link
from .server import Reply, Unreachable
from .state import ABSENT as NO_VERSION
from .state import SLOTS, TierState, Word, boot_seconds, fresh
from .wire import index_of

if TYPE_CHECKING:
    from .tier import Tier

_IN_ROWS: Final = frozenset({MODE_RAW, MODE_PICKLE, MODE_BYTES})  # modes of values that a row may hold
_QUEUE_KEYS: Final = keys.QueueKey, keys.PrefixedQueueKey


class Place(int):
    """The place of a key: a number made from the name of its entry, with what else a request needs."""

    stored: bytes
    digest: bytes
    canonical: bytes
    key: Any
    home: int  # the place in this machine's database
    index: int  # of the word of the entry
    # What was found last: the words that it depends on, and their stamp, None if it must not be kept.
    indices: frozenset[int]
    stamp: int | None = None
    tick: int = 0  # the write that stored the copy here when it was looked at

    @property
    def number(self) -> int:
        """Return the part of the digest that a cell has."""
        return int.from_bytes(self.digest[8:], "big")


def _number(version: bytes) -> int:
    """Return a version as a cell has it; never that of an entry that is absent."""
    return int.from_bytes(version[:8], "big") | 1


class WordsOfTags:
    """The words of an entry with tags, as those of a hot entry: one number, which changes with any of them."""

    __slots__ = ("_indices", "_state")

    def __init__(self, state: TierState, indices: frozenset[int]) -> None:
        self._state = state
        self._indices = indices

    def __getitem__(self, _: int, /) -> int:
        return self._state.stamp(self._indices)

    def __setitem__(self, _: int, __: int, /) -> None:
        raise TypeError("these words are only read")

    def __len__(self) -> int:
        return SLOTS


class SharedWords:
    """What stands for an open shard where a hit or a load asks for its slots: the words of all machines' entries.

    Hits leave no marks for the database's eviction, since its slots are others; what they write goes nowhere.
    """

    slot_prime = SLOTS
    uses: Words = memoryview(array("Q", bytes(8 * SLOTS)))
    header: Words = memoryview(array("Q", [1] * 512))  # a tick that never changes

    def __init__(self, local: Store, state: TierState) -> None:
        self._local = local
        self._state = state

    @property
    def slots(self) -> Words:
        """Return the words."""
        return self._state.words

    def __getattr__(self, name: str) -> Any:
        return getattr(self._local.session, name)

    def slot_of(self, h: int) -> int:
        """Return the index of the word of a place."""
        return h % SLOTS


class TierHotLayer(HotLayer):
    """A hot layer whose entries count until the lease ends, by a clock that goes on while the machine is suspended."""

    def __init__(self, tier: Tier, *args: Any) -> None:
        super().__init__(*args)
        self._tier = tier

    def keep(self, key: Any, location: Any, stamp: int, expire: float | None, loaded: Any, size: int) -> None:
        """Keep what was found at a place, if its stamp could be told, until it expires or the lease ends."""
        _, place, store = location
        if type(place) is not Place or place.stamp is None:
            return
        until = self._tier.lease_ends()
        if expire is not None:
            until = min(until, boot_seconds() + expire - self._tier.clock())
        if len(place.indices) > 1:
            words = store.session
            slots = WordsOfTags(self._tier.state, place.indices)
            session = SimpleNamespace(slots=slots, slot_prime=SLOTS, uses=words.uses, header=words.header)
            store = SimpleNamespace(session=session)
        super().keep(key, (place.stored, place, store), place.stamp, until, loaded, size)


class TieredRows(RowCodec):
    """Rows whose keys have places of the server's, and whose records may come from there, verified."""

    keeps_versions = True

    def __init__(self, session: Any, tier: Tier) -> None:
        super().__init__(session)
        self._tier = tier
        self.tiered = {store: TieredStore(store, self, tier) for store in session.shards.stores}
        self._sealed = session.sealer is not None

    @property
    def stores(self) -> Sequence[Any]:
        """Return what reads and writes the shards."""
        return list(self.tiered.values())

    def behind(self) -> list[Behind]:
        """Return what sends from each shard: all if writes are sent later, else those where something has waited."""
        senders = [Behind(local, self, store, self._tier) for local, store in self.tiered.items()]
        return senders if self._tier.remote.write == "behind" else [one for one in senders if any(one.waiting())]

    def local(self, key: Any) -> Location:
        """Return where the key lives on this machine."""
        return super().locate(key)

    def locate(self, key: Any) -> Any:
        """Return the stored key, its place, and the store that it lives in."""
        if isinstance(key, _QUEUE_KEYS):
            raise refused_with_remote("a queue")
        stored, home, store = super().locate(key)
        canonical = keys.encode_key(key) if self._sealed else stored
        digest = self._tier.wire.digest(canonical)
        place = Place(int.from_bytes(digest[:8], "big"))
        place.stored, place.digest, place.canonical, place.key, place.home = stored, digest, canonical, key, home
        place.index = index = place % SLOTS  # `index_of(digest)`
        place.indices = frozenset((index,))
        return stored, place, self.tiered[store]

    def queue_store(self, prefix: str | None) -> Store:
        """Refuse: a queue's order is one index of one database."""
        raise refused_with_remote("a queue")

    def verified(self, key: Any, location: Any, blob: Any) -> Record | None:
        """Return a record that was verified already, or do what `RowCodec.verified` does."""
        return blob if type(blob) is Record or blob is None else super().verified(key, location, blob)

    def verified_own(self, key: Any, location: Any, blob: Any) -> Record | None:
        """Return a record that was verified already, or do what `RowCodec.verified_own` does."""
        return blob if type(blob) is Record or blob is None else super().verified_own(key, location, blob)

    def signs(self, record: Record) -> bool:
        """Tell whether the row of a record is authenticated on this machine."""
        return self._signs_all or (record.mode == MODE_PICKLE and self._signs_pickles)


class TieredStore:
    """Read and write one shard and the server, by the interface of `Store`; what is not here is the shard's own."""

    displaced = False  # a record is found by its key: which of several at one place it is, is settled below

    def __init__(self, local: Store, rows: TieredRows, tier: Tier) -> None:
        self._local = local
        self._rows = rows
        self._tier = tier
        kinds = {"behind": Behind, "invalidate": Invalidating}
        self.here = kinds[tier.remote.write](local, rows, self, tier) if tier.remote.write in kinds else None
        self._deciding = threading.local()  # the version that the running `compute` of this thread has read
        self.session: Any = SharedWords(local, tier.state)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._local, name)

    @property
    def _link(self) -> Link:
        return self._tier.link

    @property
    def _state(self) -> TierState:
        return self._tier.state

    # -- reading ------------------------------------------------------------------------------------------------------

    def read(self, place: Place, stored: bytes = b"") -> Record | None:
        """Return the record of a place: that of the copy here if it counts, else as the server says."""
        return self.read_many([(place, stored)]).get(place)

    def find(self, place: Place, _: bytes) -> Record | None:
        """Do what `read` does."""
        return self.read(place)

    def read_versioned(self, place: Place, _: bytes) -> tuple[Record | None, int]:
        """Return the record of a place and its version; 0 for one that nobody has confirmed."""
        record = self.read(place)
        return record, 0 if place.stamp is None else self._as_number(place, record)

    def version(self, _: int, __: bytes) -> int:
        """Return the version that the running `compute` has read, 0 for no entry."""
        return int(getattr(self._deciding, "version", 0))

    def read_many(self, keys: Sequence[tuple[Place, bytes]]) -> dict[Place, Record]:
        """Return the records of those places that have an entry; the server is asked once for all that do not count."""
        found: dict[Place, Record] = {}
        asked: list[tuple[Place, Record | None, int, int]] = []
        for place, _ in keys:
            word, tags = self._state.words[place.index], self._state.header[Word.TAGS]
            record = self._copy(place)
            counts = self.counts(place, record)
            if counts and record is not None and record.mode != MODE_NONE:
                found[place] = record
            elif not counts:
                asked.append((place, record, word, tags))
        if asked:
            self._ask(asked, found)
        return found

    def _version_of(self, copy: Record | None) -> bytes:
        """Return the version that the server has if a copy is what it knows of; empty for none."""
        if copy is None:
            return b""
        return self._state.machine if copy.metadata.version == OURS else copy.metadata.version

    def _copy(self, place: Place) -> Record | None:
        """Return the record of the copy on this machine, and note which write has stored it."""
        blob, place.tick = self._local.read_versioned(place.home, place.stored)
        return self._rows.verified_own(place.key, (place.stored, place.home, self._local), blob)

    def counts(self, place: Place, record: Record | None) -> bool:
        """Tell whether the copy, or that there is none, may be believed without asking."""
        place.stamp = None
        if record is not None and is_unsent(record):
            return True
        if self._tier.lease_ends() <= boot_seconds():
            return False
        return self._stands(place, record)

    def _stands(self, place: Place, record: Record | None) -> bool:
        """Tell whether nothing has been heard that contradicts the copy, or that there is none, since it was noted."""
        state, index = self._state, place.index
        noted = state.noted(index, place.number)
        if noted is None:
            return False
        version, stamp = noted
        if version == NO_VERSION:
            counts = record is None and stamp == state.words[index]
            place.stamp = stamp if counts else None
            return counts
        if record is None or _number(record.metadata.version) != version or not self._rows.is_live(record):
            return False
        place.indices = self._indices(place, record)
        counts = stamp == state.stamp(place.indices)
        place.stamp = stamp if counts else None
        return counts

    def _indices(self, place: Place, record: Record) -> frozenset[int]:
        """Return the indices of the words that an entry depends on: its own and those of its tags."""
        tags = record.metadata.tags
        own = place.index
        return frozenset((own, *map(index_of, self._tier.wire.tag_digests(tags)))) if tags else frozenset((own,))

    def _ask(self, asked: list[tuple[Place, Record | None, int, int]], found: dict[Place, Record]) -> None:
        wanted = [(place.digest, self._version_of(copy)) for place, copy, _, _ in asked]
        try:
            replies = self._link.read(wanted)
        except (Unreachable, RemoteError) as error:
            for place, copy, _, _ in asked:
                self._without_answer(place, copy, found, error)
            return
        for (place, copy, word, tags), reply in zip(asked, replies, strict=True):
            if reply.same and copy is not None:
                self._state.count("confirmed")
                self._note(place, copy, word, tags)
                found[place] = copy
                continue
            record = self._take_over(place, copy, reply)
            if record is not None:
                found[place] = record
                self._note(place, record, word, tags)
            elif reply.content is None:
                self._note(place, None, word, tags)
            else:
                self._forget(place)

    def _note(self, place: Place, record: Record | None, word: int, tags: int) -> None:
        """Note that a copy, or that there is none, counts under the word that was there before the request.

        Its tags are known only now. Their words are those of before the request if the word for all tags is the same.
        """
        state, index = self._state, place.index
        version = NO_VERSION
        place.indices = frozenset((index,))
        if record is not None:
            version = _number(record.metadata.version)
            place.indices = self._indices(place, record)
        stamp = state.stamp(place.indices, index, word)  # before TAGS is looked at
        if len(place.indices) > 1 and state.header[Word.TAGS] != tags:
            place.stamp = None
            return
        place.stamp = stamp
        state.note(index, place.number, version, stamp)

    def _forget(self, place: Place) -> None:
        """Let nothing be kept that was read here now."""
        place.stamp = None
        self._state.change(place.index)

    def _without_answer(self, place: Place, copy: Record | None, found: dict[Place, Record], error: Exception) -> None:
        """Do what `on_error` says for a place that the server has said nothing of."""
        remote = self._tier.remote
        # What was heard to have changed, or was never confirmed here, may be of any age.
        stands = copy is not None and self._stands(place, copy)
        place.stamp = None
        if remote.on_error == "raise":
            raise RemoteError(f"{self._local.directory!r}: key {named(place.key)}: no answer: {error}") from error
        if remote.on_error == "local" and stands and copy is not None and self._tier.may_be_stale():
            self._state.count("stale_served")
            found[place] = copy

    # -- copies -------------------------------------------------------------------------------------------------------

    def _take_over(self, place: Place, copy: Record | None, reply: Reply) -> Record | None:
        """Make a copy of what the server has, and return its record; None for nothing, or what is not to be trusted."""
        if reply.content is None:
            if copy is not None:
                self._remove_copy(place)
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
        return self._store_copy(place, record._replace(metadata=metadata))

    def _store_copy(self, place: Place, record: Record) -> Record:
        """Store a record that has come from the server, if nobody is writing here now; return it as it is stored."""
        disk: Disk = self._local.disk
        encoded: Stored = record.mode, record.payload, None, 0
        if record.mode not in _IN_ROWS or len(record.payload) >= max(disk.min_file_size, 1):
            encoded = disk.write_value(record.mode, record.payload, place.key)
        mode, payload, file, size = encoded
        stored = record._replace(mode=mode, payload=payload, file=file, size=size)
        row = self._rows.row(place.key, (place.stored, place.home, self._local), encoded, record.metadata)
        only_in_file = record.mode not in (*_IN_ROWS, MODE_BINARY)
        try:
            if self._rows.is_oversize(row):
                raise self._rows.too_large(place.key)
            if isinstance(row, Row) and row == Row(row.v):
                row = row.v  # a row of nothing else is written faster
            self._local.put(place.home, place.stored, row, self.timeout if only_in_file else 0)
        except (Timeout, DiskFull, ValueTooLarge):
            if file is not None:
                discard(self._local, encoded)
            if only_in_file:
                raise
            self._state.count("local_failures")
            stored = record
            if record.mode == MODE_BINARY:  # which only a file may hold
                stored = record._replace(mode=MODE_RAW, payload=disk.value_codec.encode(record.payload))
        return stored._replace(signed=self._rows.signs(record))

    def _remove_copy(self, place: Place) -> None:
        """Remove the copy, unless somebody here has written since it was looked at."""

        def decide(blob: bytes | None) -> Change:
            return REMOVE if blob is not None and self._local.version(place.home, place.stored) == place.tick else None

        with contextlib.suppress(Timeout, DiskFull):  # it does not count, whether it is there or not
            self._local.update(place.home, place.stored, decide, 0)

    def _write_copies(self, copies: list[tuple[Place, Row | bytes, Record, bytes]]) -> None:
        """Store here what is being written to the server.

        It does not count before the server has confirmed it, so it may be stored before the server answers. What cannot
        be stored here is read from there.
        """
        for place, row, record, version in copies:
            try:
                self._write_copy(place, row, record, version)
            except (Timeout, DiskFull):
                self._state.count("local_failures")
                if record.file is not None:
                    discard(self._local, (record.mode, record.payload, record.file, record.size))
        copies.clear()  # once, though the request may be made again

    def _write_copy(self, place: Place, row: Row | bytes, record: Record, version: bytes) -> None:
        location = place.stored, place.home, self._local
        metadata = record.metadata
        versioned = Metadata(version=version) if metadata == NO_METADATA else metadata._replace(version=version)
        v = self._rows.repacked(location, record._replace(metadata=versioned))
        copy = row._replace(v=v) if isinstance(row, Row) else v
        self._local.put(place.home, place.stored, copy, self.timeout)

    # -- writing ------------------------------------------------------------------------------------------------------

    def put(self, place: Place, stored: bytes, row: Row | bytes, timeout: float | None, known: bool = False) -> int:
        """Store a row on the server, then here."""
        self.put_many([(place, stored, row)])
        return 1

    def put_many(self, rows: Sequence[tuple[Any, bytes, Row | bytes]]) -> None:
        """Store rows on the server in one round trip, then here."""
        may_block()
        if self.here is not None:
            for place, _, row in rows:
                self.here.store(place, row)
            return
        copies, writes = [], []
        for place, _, row in rows:
            record = self._record_of(place, row if isinstance(row, bytes) else row.v)
            content = self.travelling(place, record)
            version = self._state.machine if content is None else fresh()
            if content is None:  # nobody else has it, so it is stored before anybody is told
                self._write_copy(place, row, record, OURS)
            else:
                copies.append((place, row, record, version))
            writes.append((place.digest, self.arguments(record, content, version, b"")))
        try:
            self._link.write(writes, partial(self._write_copies, copies))
        finally:  # also if what became of it is not known
            for place, *_ in rows:
                self._state.change(place.index)

    def _record_of(self, place: Place, v: bytes) -> Record:
        return self._rows.unpacked(self._local, place.stored, v)

    def arguments(self, record: Record, content: bytes | None, version: bytes, expected: bytes) -> tuple[bytes, ...]:
        """Return the arguments of the request that writes a record; `content`: as it travels, None if it does not."""
        until = record.metadata.remove_at
        left = None if until is None else until - self._rows.clock()
        digests = self._tier.wire.tag_digests(record.metadata.tags)
        return self._link.write_arguments(expected, version, left, content, digests)

    def travelling(self, place: Place, record: Record) -> bytes | None:
        """Return a record as it travels; None for one whose value stays on this machine."""
        if record.file is not None and not self._local.disk.own_values:
            return None  # a `Disk` of the user's own may keep anything in its files
        if max(record.size, len(record.payload)) > self._tier.remote.max_value:
            self._state.count("too_large")
            return None
        return self._tier.wire.pack(place.canonical, self._local.disk.carried(record))

    def remove(self, place: Place, stored: bytes, timeout: float | None, seen: int = 0) -> int:
        """Remove an entry from the server, then here; return 0 if there was none, whatever was `seen` here."""
        return self.remove_many([(place, stored)], timeout)

    def remove_many(self, keys: Sequence[tuple[Any, bytes]], timeout: float | None) -> int:
        """Remove entries from the server in one round trip, then here; return how many there were."""
        may_block()
        if self.here is not None:
            return sum(self.here.remove(place, timeout) for place, _ in keys)
        places: list[Place] = [place for place, _ in keys]
        for place in places:
            self._copy(place)
        try:
            outcomes = self._link.delete([(place.digest, b"") for place in places])
        finally:
            for place in places:
                self._state.change(place.index)
        for place in places:
            self._remove_copy(place)
        return sum(was_there for was_there, _ in outcomes)

    def update(self, place: Place, stored: bytes, decide: Decide, timeout: float | None, early: bool = False) -> int:
        """Let `decide` say what becomes of an entry, and write that if the entry is still what it was decided on.

        The first decision is on the copy here, whatever that is worth: the server compares its version. If it is to
        change nothing, or raises an error, it is made again on what the server says. After a conflict it is made on
        what is there now, until `timeout` seconds are over; then this raises Timeout. Whether `decide` is `pure` makes
        no difference.
        """
        may_block()
        if self.here is not None:
            return self.here.compute(place, decide, timeout)
        deadline = None if timeout is None else time.monotonic() + timeout
        record = self._copy(place)
        if record is not None and is_unsent(record):  # from when writes were sent later; whether it was is not known
            record = None
        expected = self._version_of(record) or ABSENT
        change = self._guessed(place, record, decide)
        if change is None or (change is REMOVE and expected == ABSENT):
            record, expected = self._ask_to_write(place, record)
            change = self._decided(place, record, decide)
        while change is not None:
            reply = self._try(place, expected, change)
            if reply is None:
                break
            self._state.count("conflicts")
            if deadline is not None and time.monotonic() >= deadline:
                raise Timeout(
                    f"{self._local.directory!r}: key {named(place.key)} is being written by others all the time"
                )
            record, expected = self._take_over(place, None, reply), reply.version or ABSENT
            change = self._decided(place, record, decide)
        return 1

    def _decided(self, place: Place, record: Record | None, decide: Decide) -> Change:
        with self.deciding(place, record):
            return decide(cast("Any", record))

    def _guessed(self, place: Place, record: Record | None, decide: Decide) -> Change:
        """Decide on a copy that may be old; return None for an error, which may be due to that."""
        with suppress(Exception):
            return self._decided(place, record, decide)
        return None

    def _ask_to_write(self, place: Place, copy: Record | None) -> tuple[Record | None, bytes]:
        """Return what the server has, and its version; raise RemoteError if it does not say.

        What cannot be trusted there counts as no entry, and is replaced.
        """
        version = self._version_of(copy)
        (reply,) = self._link.surely(partial(self._link.read, [(place.digest, version)]))
        if reply.same:
            return copy, version
        return self._take_over(place, copy, reply), reply.version or ABSENT

    def _try(self, place: Place, expected: bytes, change: Change) -> Reply | None:
        """Make a change if the entry still has the expected version; else return what is there."""
        try:
            if change is REMOVE:
                return self._try_to_remove(place, expected)
            v = change.v if isinstance(change, Row | Touch) else cast("bytes", change)
            record = self._record_of(place, v)
            content = self.travelling(place, record)
            version = self._state.machine if content is None else fresh()
            copy = place, cast("Row | bytes", change), record, OURS if content is None else version
            copies = [] if isinstance(change, Touch) or content is None else [copy]
            write = place.digest, self.arguments(record, content, version, expected)
            (reply,) = self._link.write([write], partial(self._write_copies, copies))
            if reply is None and isinstance(change, Touch):
                self._touch_copy(place, record, OURS if content is None else version)
            elif reply is None and content is None:
                self._write_copy(*copy)
            return reply
        finally:
            self._state.change(place.index)

    def _try_to_remove(self, place: Place, expected: bytes) -> Reply | None:
        if expected == ABSENT:
            return None
        ((removed, reply),) = self._link.delete([(place.digest, expected)])
        if removed:
            self._remove_copy(place)
            return None
        return Reply() if reply is None else reply  # somebody else has removed it: `decide` has to know

    def _touch_copy(self, place: Place, record: Record, version: bytes) -> None:
        """Give the copy here other metadata, if it is the one that the change was made from."""
        location = place.stored, place.home, self._local
        before = record.metadata.version
        changed = self._rows.changed(location, record, record.metadata._replace(version=version))

        def decide(blob: bytes | None) -> Change:
            copy = self._rows.verified_own(place.key, location, blob)
            return changed if copy is not None and copy.metadata.version == before else None

        with contextlib.suppress(Timeout, DiskFull):
            self._local.update(place.home, place.stored, decide, self._tier.timeout)

    @contextlib.contextmanager
    def deciding(self, place: Place, record: Record | None) -> Iterator[None]:
        """Let `version` answer for a record in the body, which decides what becomes of it."""
        self._deciding.version = self._as_number(place, record)
        try:
            yield
        finally:
            self._deciding.version = 0

    def _as_number(self, place: Place, record: Record | None) -> int:
        """Return the version of an entry as `Entry.version` has it, 0 for none.

        All entries whose values stay on this machine have the machine's for the server; here their rows have others.
        """
        if record is None:
            return 0
        if record.metadata.version == OURS:
            return self._local.read_versioned(place.home, place.stored)[1]
        return int.from_bytes(record.metadata.version, "big")

    def changed(self, place: Place) -> None:
        """Let nothing count any more that was read of an entry before."""
        self._state.change(place.index)

    @property
    def timeout(self) -> float:
        """Return the seconds that a write waits for the lock of this machine's database."""
        return self._tier.timeout

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

    def sleep(self, place: Place, stamp: int, seconds: float) -> None:
        """Sleep until the entry may have changed, on any machine."""
        futex.sleep(self._state.words, place.index, stamp, seconds)

    def wake(self, place: Place) -> None:
        """Wake those on this machine who sleep; those elsewhere wake by the server's message."""
        futex.wake(self._state.words, place.index)

    def hold(self, place: Place, owner: object) -> bool | None:
        """Hold a key on this machine by a lock of the kernel's, and among machines by a lease on the server."""
        held: bool | None = self._local.hold(place.home, owner)
        if held and not self._tier.listener.take(self._tier.wire.lease_name(place.digest), secrets.token_bytes(16)):
            self._local.let_go(place.home, owner)
            return False
        return held

    def let_go(self, place: Place, owner: object) -> None:
        """Let go of a key if this owner holds it."""
        self._tier.listener.drop(self._tier.wire.lease_name(place.digest))
        self._local.let_go(place.home, owner)
