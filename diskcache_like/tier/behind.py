"""Writes that are stored here at once, and sent to the server later: `Remote(write="behind")`.

Such an entry has a hidden tag until it is sent, so the index of tags is the queue, and the row that a caller is told of
is the row that will be sent: both are there or neither. The tag also keeps it from eviction. The last write of a key is
the one that is sent. A removal leaves a row without a value, which no reader takes for an entry. What expires before it
is sent is not sent.

An entry that has not been sent counts on this machine, whatever the server has. When it is sent it is the newest, so of
two machines that write the same key the last to arrive wins.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from ..coherence.control_files import open_control_file
from ..encoding.made_keys import PINNED
from ..encoding.record import MODE_NONE, VERSION_SIZE, Metadata, Record
from ..encoding.tags import index_name, is_pinned, join_hidden, split_tags
from ..errors import CacheError, DecodeError
from ..storage.store import REMOVE, Change, Decide, Row, Store, Touch
from ..system.signals import reraise_signal
from .state import fresh

if TYPE_CHECKING:
    from .store import Place, TieredRows, TieredStore
    from .tier import Tier

OURS: Final = b"\xff" * VERSION_SIZE  # version of a row whose value stays on this machine: the server has its name
SLICE: Final = 100  # entries that are sent in one round trip
PAUSE: Final = 0.05  # seconds between two looks at the queue
LONGEST_PAUSE: Final = 2.0  # the same while the server cannot be reached
FAR: Final = 1e11  # a moment that never comes, in seconds since 1970


def is_unsent(record: Record) -> bool:
    """Tell whether a record has not been sent yet."""
    return is_pinned(record.metadata.tags)


def unsent(metadata: Metadata, version: bytes) -> Metadata:
    """Return the metadata of an entry that is to be sent with a version."""
    return metadata._replace(tags=join_hidden({PINNED, *split_tags(metadata.tags)}), version=version)


def sent(metadata: Metadata) -> Metadata:
    """Return the metadata of an entry when it has been sent."""
    return metadata._replace(tags=join_hidden(set(split_tags(metadata.tags)) - {PINNED}))


class _MustAsk(Exception):
    """A decision depends on an entry that only the server knows."""


class Here:
    """Write entries of one shard here, atomically on this machine; `Behind` and `Invalidating` tell the server."""

    def __init__(self, local: Store, rows: TieredRows, store: TieredStore, tier: Tier) -> None:
        self._local = local
        self._rows = rows
        self._store = store
        self._tier = tier

    def _marked(self, metadata: Metadata) -> Metadata:
        """Return the metadata of an entry that is written here."""
        raise NotImplementedError

    def _removal(self, place: Place, copy: Record | None) -> Change:
        """Return what takes an entry away here."""
        raise NotImplementedError

    def _tell(self, place: Place, record: Record | None) -> None:
        """Tell the server of what is about to be written here, None for a removal."""

    def store(self, place: Place, row: Row | bytes) -> None:
        """Store a row; raise Timeout or DiskFull if this machine cannot, RemoteError if the server cannot be told."""
        self._commit(place, lambda _: row, self._store.timeout)

    def remove(self, place: Place, timeout: float | None) -> bool:
        """Remove an entry, and return whether there was a live one."""
        was_there = False

        def decide(record: Any) -> Change:
            nonlocal was_there
            was_there = record is not None and self._rows.is_live(record)
            return REMOVE

        self.compute(place, cast("Decide", decide), timeout)
        return was_there

    def compute(self, place: Place, decide: Decide, timeout: float | None) -> int:
        """Do what `Store.compute` does, atomic on this machine; an entry that does not count here is fetched first."""
        asked = False

        def choose(copy: Record | None) -> Change:
            if not asked and not self._store.counts(place, copy):
                raise _MustAsk
            record = None if copy is None or copy.mode == MODE_NONE else copy
            with self._store.deciding(place, record):
                return decide(cast("Any", record))

        while True:
            try:
                self._commit(place, choose, timeout)
            except _MustAsk:
                self._store.read(place)
                asked = True  # if there was no answer, what is here decides
            else:
                return 1

    def _commit(self, place: Place, choose: Callable[[Record | None], Change], timeout: float | None) -> None:
        """Under the write lock, let `choose` say what becomes of the copy, tell the server, and store that."""
        is_change = False

        def decide(blob: bytes | None) -> Change:
            nonlocal is_change
            copy = self._rows.verified_own(place.key, (place.stored, place.home, self._local), blob)
            change = choose(copy)
            is_change = change is not None
            if change is None:
                return None
            if change is REMOVE:
                self._tell(place, None)
                return self._removal(place, copy)
            marked, record = self._marked_change(place, cast("Row | Touch | bytes", change))
            self._tell(place, record)  # before it is stored: a removal of what the server does not know spares it
            return marked

        try:
            self._local.update(place.home, place.stored, decide, timeout)
        finally:
            if is_change:
                self._store.changed(place)

    def _marked_change(self, place: Place, change: Row | Touch | bytes) -> tuple[Row | Touch, Record]:
        plain = Row(change) if isinstance(change, bytes) else change
        record = self._rows.unpacked(self._local, place.stored, plain.v)
        marked = record._replace(metadata=self._marked(record.metadata))
        touch = self._rows.changed((place.stored, place.home, self._local), record, marked.metadata)
        return (plain._replace(v=touch.v, tags=touch.tags) if isinstance(plain, Row) else touch), marked


class Invalidating(Here):
    """Values stay on their machine, and the others are told to forget theirs: `Remote(write="invalidate")`.

    The server knows which machine has written last, and a copy counts only there. It is told under the write lock, so
    that the last one to be told has written last; a writer waits for its answer, or for the breaker.
    """

    def _marked(self, metadata: Metadata) -> Metadata:
        return sent(metadata)._replace(version=OURS)

    def _removal(self, place: Place, copy: Record | None) -> Change:
        return None if copy is None else REMOVE

    def _tell(self, place: Place, record: Record | None) -> None:
        link = self._tier.link
        if record is None:
            link.delete([(place.digest, b"")])
        else:
            link.write([(place.digest, self._store.arguments(record, None, self._tier.state.machine, b""))])


class Behind(Here):
    """Write entries of one shard here, to be sent later."""

    def _marked(self, metadata: Metadata) -> Metadata:
        return unsent(metadata, fresh())

    def _removal(self, place: Place, copy: Record | None) -> Change:
        """Return a row that has expired for every reader, and stays until it is sent."""
        if copy is None and self._store.counts(place, None):
            return None
        location = place.stored, place.home, self._local
        metadata = unsent(Metadata(0.0, b"", FAR), fresh())
        return self._rows.row(place.key, location, (MODE_NONE, b"", None, 0), metadata)

    # -- sending ------------------------------------------------------------------------------------------------------

    def waiting(self) -> Iterator[list[tuple[Place, Record]]]:
        """Yield what has not been sent, some at a time, each entry once, however often it is written meanwhile."""
        places = self._local.reader.tagged(index_name(PINNED), ())
        while page := list(itertools.islice(places, SLICE)):
            yield self._unsent_at(page)

    def _unsent_at(self, places: Sequence[int]) -> list[tuple[Place, Record]]:
        found = []
        for _, stored, original, blob in self._local.reader.rows_at(places):
            with contextlib.suppress(DecodeError):
                record = self._rows.unpacked(self._local, stored, blob)
                if is_unsent(record):
                    found.append((self._rows.locate(self._local.disk.user_key(stored, original))[1], record))
        return found

    def send(self, page: list[tuple[Place, Record]]) -> None:
        """Send entries; raise RemoteError if there is no answer."""
        tier = self._tier
        now = self._rows.clock()
        removals = [pair for pair in page if pair[1].mode == MODE_NONE]
        entries = [pair for pair in page if pair[1].mode != MODE_NONE]
        late = [pair for pair in entries if (until := pair[1].metadata.remove_at) is not None and until <= now]
        entries = [pair for pair in entries if pair not in late]
        if removals:  # an empty request would ask nothing, and close the breaker
            tier.link.delete([(place.digest, b"") for place, _ in removals])
        writes = []
        for place, record in entries:
            as_sent = record._replace(metadata=sent(record.metadata))
            content = self._store.travelling(place, as_sent)
            writes.append((place.digest, self._store.arguments(as_sent, content, record.metadata.version, b"")))
        if writes:
            tier.link.write(writes)
        tier.state.count("sent_later", len(removals) + len(entries))
        tier.state.count("dropped", len(late))
        for place, record in page:
            self._settle(place, record)

    def _settle(self, place: Place, sent_record: Record) -> None:
        """Take an entry out of the queue, unless it was written again."""
        location = place.stored, place.home, self._local

        def decide(blob: bytes | None) -> Change:
            record = self._rows.verified_own(place.key, location, blob)
            if record is None or record.metadata.version != sent_record.metadata.version:
                return None
            if record.mode == MODE_NONE:
                return REMOVE
            return self._rows.changed(location, record, sent(record.metadata))

        self._local.update(place.home, place.stored, decide, None)
        self._store.changed(place)


class Sender:
    """A thread that sends what waits in all shards; a lock on a file decides which process's."""

    def __init__(self, tier: Tier, shards: list[Behind], path: str, shared: bool) -> None:
        self._tier = tier
        self._shards = shards
        self._path = path
        self._shared = shared
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="diskcache_like sender", daemon=True)

    def start(self) -> None:
        """Begin to send."""
        self._thread.start()

    def stop(self, wait: bool) -> None:
        """Stop; what waits is sent by another process, or after the next opening."""
        self._stopped.set()
        if wait and self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(self._tier.remote.timeout + 1)

    def _run(self) -> None:
        pause = PAUSE
        while not self._stopped.wait(pause):
            try:
                self.flush()
                pause = PAUSE
            except (CacheError, OSError) as error:
                reraise_signal(error)
                pause = min(2 * pause, LONGEST_PAUSE)

    def flush(self) -> None:
        """Send all that waits, if no other process does so now; raise RemoteError if there is no answer."""
        descriptor = open_control_file(Path(self._path), create=True, shared=self._shared)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for shard in self._shards:
                for page in shard.waiting():
                    shard.send(page)
        except BlockingIOError:
            return
        finally:
            os.close(descriptor)
