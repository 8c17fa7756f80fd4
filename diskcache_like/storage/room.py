"""Room: expired entries, eviction, trash and checkpoints, in rounds that ride on writes.

Every function here runs under the store's write lock unless it says otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from typing import TYPE_CHECKING

from .. import files
from ..coherence.generations import NEVER, UNKNOWN, WORD, Header, microseconds
from ..errors import CacheError, DecodeError, DiskFull
from ..interrupts import suppress
from . import schema, share
from . import statements as sql
from .connection import FAILURES, FULL, NORMAL, PAGE_SIZE, mapped, synchronous
from .scopes import scope

if TYPE_CHECKING:
    from .holding import Holder

SMALL_BATCH = 20  # the same where the disk is full and little WAL fits
BATCH = 1000  # rows removed per transaction, so that nobody waits long for the lock
CHECKPOINT_BYTES = 16 << 20  # of WAL between checkpoints; 20 % faster sets than with 1,000 pages
FRAME = PAGE_SIZE + 24  # bytes of a page in the WAL
MOST_GROWTH = 16 * 16
WAL_LIMIT = (64 << 20) // PAGE_SIZE  # frames beyond which a checkpoint also truncates
GRACE = 10.0  # seconds that a replaced file stays for readers that hold its row
SWEEP_FILES = 4096  # files chosen per round: more than writes can add between two rounds
UNLINK_FILES = 16  # files unlinked after one write, so that no caller waits long
VACUUM_PAGES = 4096  # at once, which takes some tens of milliseconds


def evicts(store: Holder) -> bool:
    """Tell whether live entries are removed for room at all."""
    return store.policy.evicts and store.settings["cull_limit"] > 0


def housekeeping(store: Holder, incoming: int, makes_room: bool = True) -> None:
    """Keep house before a write of `incoming` bytes; on a full disk give it up, for the write itself will tell."""
    try:
        _checkpoint_and_sweep(store)
        if makes_room:
            _look_at_volume(store, incoming)
    except DiskFull as error:
        store.verify_open(error)
    except FAILURES as error:
        problem = mapped(error, store.path)
        if not isinstance(problem, DiskFull):
            raise problem from error
        store.verify_open(problem)


def _checkpoint_and_sweep(store: Holder) -> None:
    header = store.header
    if store.txn is None:
        if checkpoint_is_due(store):
            checkpoint(store)
        if header[Header.FILES]:
            sweep(store)


def _between_checkpoints(store: Holder) -> int:
    """Return by how much WRITTEN may grow until the WAL has grown by CHECKPOINT_BYTES, as it did the last time."""
    return CHECKPOINT_BYTES * 16 // max(store.header[Header.GROWTH], 16)


def checkpoint_is_due(store: Holder) -> bool:
    """Tell whether the WAL has grown enough, or damage to the counts keeps that from being known; the lock is held."""
    header = store.header
    return not 0 <= header[Header.WRITTEN] - header[Header.CHECKPOINTED] <= _between_checkpoints(store)


def _look_at_volume(store: Holder, incoming: int) -> None:
    """Make room if that is due, and set the mark at which this is looked at again.

    The mark counts bytes written into the WAL, which is more than the database grows by. It is never set further ahead
    than CHECKPOINT_BYTES, so that a write takes one that is for damaged.
    """
    header = store.header
    written = header[Header.WRITTEN]
    due = (header[Header.CHECKPOINTED] if store.txn is None else written) + _between_checkpoints(store)
    if evicts(store):
        # Looked at again when the shard's part of what is left may be used up, and at least after half a percent.
        due = min(due, written + _room_for(store, incoming))
    _mark(store, due)


def _mark(store: Holder, due: int) -> None:
    written = store.header[Header.WRITTEN]
    store.header[Header.MARK] = min(max(due, written), written + CHECKPOINT_BYTES, WORD)


def _room_for(store: Holder, incoming: int) -> int:
    """Make room for `incoming` bytes if there is none; return the bytes that may be written before the next look.

    First go the entries beyond this shard's even share, then those by which others exceed theirs. Where these could
    not be asked the limit comes first, and more of its own have to go.
    """
    slack = share.slack(store)
    share.announce(store, incoming)
    volume = live_volume(store) + incoming
    free = share.left(store, volume)
    if free < slack and volume > store.limit:
        volume, free = _shrunk(store, incoming, volume + free - 2 * slack, store.limit - 2 * slack)
    if free < slack:
        free += take_back(store, 2 * slack - free)
    if free < slack:
        volume, free = _shrunk(store, incoming, volume + free - 2 * slack, 0)
    give_back(store, share.part(store, free), slack)
    return share.claim(store, volume, free)


def _shrunk(store: Holder, incoming: int, target: int, least: int) -> tuple[int, int]:
    """Make room until this shard, with what comes in, uses `target` or, if that is more, `least` bytes.

    Returns what it uses then and what is left for all.
    """
    volume = make_room(store, max(0, max(target, least) - incoming)) + incoming
    return volume, share.left(store, volume)


def take_back(store: Holder, wanted: int) -> int:
    """Make room in shards that use more than their even share; return how many bytes they gave back.

    Their locks are only tried: this shard's is held, and two that waited for each other would wait for ever. A shard
    that is locked is being written, and looks for itself before long.
    """
    given = 0
    for other in sorted(store.siblings, key=share.claimed, reverse=True):
        if given >= wanted or share.claimed(other) <= other.limit:
            break
        try:
            given += _given_by(other, wanted - given)
        except CacheError as error:
            other.verify_open(error)
    return given


def _given_by(store: Holder, wanted: int) -> int:
    """Make room in another shard, if its lock is free; return how many bytes it gave back."""
    with store.locked(0):
        before = store.header[Header.CLAIM]
        least = max(store.limit, before - max(wanted, 8 * share.slack(store)))
        volume = make_room(store, least)
        give_back(store, 0, share.slack(store))
        share.claim(store, volume, 0)
        _mark(store, store.header[Header.WRITTEN] + share.slack(store))
        return max(before - store.header[Header.CLAIM], 0)


def live_volume(store: Holder) -> int:
    """Return the bytes in use, seen through the writing connection."""
    used, trash = store.usage(store.select_writer)
    return used + (0 if store.txn is not None else trash)


def make_room(store: Holder, target: int) -> int:
    """Remove expired entries, then live ones by rank, until the volume is at most `target`; return the volume."""
    locked = store.txn is None
    if locked:
        flush_trash(store, everything=True)
    volume = live_volume(store)
    more_expired = True  # as far as is known
    while volume > target:
        doomed = store.places(store.select_writer(sql.SELECT_EXPIRED, (store.now(), BATCH))) if more_expired else []
        more_expired = len(doomed) == BATCH
        doomed = doomed or victims(store, volume - target, locked)
        if not doomed:
            break
        delete_rows(store, doomed, locked)
        if locked:
            flush_trash(store, everything=True)
        elif store.txn is not None:
            store.txn.evicted = True
        volume = live_volume(store)
    return volume


def unlink_removed(store: Holder) -> None:
    """Unlink the files of what was removed, now that it is committed; a failure is none of the removal's."""
    with suppress(OSError):
        flush_trash(store, everything=True)


def victims(store: Holder, excess: int, locked: bool) -> list[int]:
    """Return the places of the entries of lowest rank whose removal should free about `excess` bytes.

    On a full disk, which takes neither an index nor ranks, the ranks that are stored have to do.
    """
    try:
        _ensure_rank_index(store)
    except DiskFull as error:
        store.verify_open(error)
    count = known_count(store)
    if not count:
        return []
    average = max(live_volume(store) // count, 1)
    wanted = min(max(excess // average + 1, 1), BATCH, max(count // 2, 1))
    for _ in range(count // wanted + 2):  # each round gives a hit entry its true rank, so this ends
        rows = store.select_writer(sql.SELECT_VICTIMS, (wanted,))
        places = store.places(rows)
        fresh, doomed = _second_look(store, rows)
        try:
            if fresh:
                _rank(store, fresh, locked)
        except DiskFull as error:
            store.verify_open(error)
            break
        if doomed or not rows:
            return doomed
    return places


def known_count(store: Holder) -> int:
    """Return the number of entries, counting them if the header does not know."""
    header = store.header
    if store.txn is not None or header[Header.COUNT] == UNKNOWN:
        ((number,),) = store.select_writer(sql.COUNT)
        if store.txn is None:
            header[Header.COUNT] = number
        return int(number)
    return header[Header.COUNT]


def _second_look(store: Holder, rows: Sequence[tuple[int, int, int]]) -> tuple[list[tuple[int, int, int]], list[int]]:
    """Split candidates into those used since their rank was written, with the new rank, and those to remove."""
    policy = store.policy
    if not policy.marks:
        return [], [h for h, _, _ in rows]
    fresh, doomed = [], []
    for h, rank, base in rows:
        mark = store.uses[(h & ~3) % store.slot_prime] & NEVER  # which is what SQLite takes
        if policy.marks_recency and mark > rank:
            fresh.append((mark, 0, h))
        elif policy.marks_frequency and mark > base:
            fresh.append((min(rank + mark - base, NEVER), mark, h))
        else:
            doomed.append(h)
    return fresh, doomed


def _rank(store: Holder, fresh: list[tuple[int, int, int]], locked: bool) -> None:
    """Write new ranks. Values do not change, so no slot is marked."""
    if not locked:
        _write_many(store, sql.UPDATE_RANK, fresh)
        return
    with store.batch():
        _write_many(store, sql.UPDATE_RANK, fresh)


def _ensure_rank_index(store: Holder) -> None:
    """Make the index on rank the first time that somebody has to go."""
    if store.has_rank_index:
        return
    store.walk(schema.CREATE_RANK_INDEX)
    store.has_rank_index = True


def delete_rows(store: Holder, places: Sequence[int], locked: bool) -> None:
    """Delete rows by place in one transaction, their slots odd until it has ended."""
    if not locked:
        store.delete_places(places)
        return
    try:
        with store.batch():
            store.delete_places(places)
    except DiskFull:
        if not relieve(store, _files_of(store, places)):
            raise
        for start in range(0, len(places), SMALL_BATCH):
            with store.batch():
                store.delete_places(places[start : start + SMALL_BATCH])


def _files_of(store: Holder, places: Sequence[int]) -> list[object]:
    """Return the file columns of the rows at `places`, seen through the writer."""
    found: list[object] = []
    for start in range(0, len(places), sql.MANY):
        batch = list(places[start : start + sql.MANY])
        batch += batch[-1:] * (sql.MANY - len(batch))
        found += [column for (column,) in store.select_writer(sql.SELECT_FILES, batch)]
    return found


def relieve(store: Holder, columns: Sequence[object], for_file: bool = False) -> bool:
    """On a full disk, unlink the files in the trash and those of rows about to go; tell whether a write may fit now.

    Even a DELETE needs room in the WAL, so files are what can go first: until its row has gone, an entry without its
    file reads as missing. A checkpoint, if it gets through, lets the WAL start anew in the room that it has, or give
    that room to a value file. The lock is held, no transaction is open.
    """
    doomed = [*columns, *(column for (column,) in store.select_writer(sql.SELECT_ALL_TRASH))]
    for column in doomed:
        _unlink(store, column)
    try:
        checkpoint(store, shrink=for_file)
    except DiskFull:
        return bool(doomed)
    return True


def cull_due(store: Holder) -> None:
    """Remove some expired entries if one may have expired; at most `cull_limit`, so that a write stays short."""
    header = store.header
    limit = store.settings["cull_limit"]
    now = store.now()
    if limit == 0 or now * 1e6 < header[Header.NEXT_EXPIRE]:
        return
    places = store.places(store.select_writer(sql.SELECT_EXPIRED, (now, limit)))
    if places:
        delete_rows(store, places, locked=True)
    ((earliest,),) = store.select_writer(sql.MIN_EXPIRE)
    header[Header.NEXT_EXPIRE] = NEVER if earliest is None else microseconds(earliest)


def remove_selected(store: Holder, select: str, parameters: tuple[object, ...], timeout: float | None) -> int:
    """Remove everything that `select` finds, one batch per hold of the lock; return how many entries went.

    Takes the lock itself. A Timeout carries in `count` what was removed before it.
    """
    removed = 0
    while True:
        try:
            with store.locked(timeout) as locked:
                if locked:
                    store.tidy()
                places = store.places(store.select_writer(select, (*parameters, BATCH)))
                if not places:
                    if removed:
                        _give_up_claim(store, live_volume(store))
                    return removed
                delete_rows(store, places, locked)
                if locked:
                    unlink_removed(store)  # who removes that much wants the room
        except Exception as error:
            error.count = removed  # type: ignore[attr-defined]
            raise
        removed += len(places)


def _give_up_claim(store: Holder, volume: int) -> None:
    """Claim no more than is in use, after much was removed; the next write looks how much it may take."""
    share.claim(store, volume, 0)
    store.header[Header.MARK] = 0


def cull(store: Holder, timeout: float | None) -> int:
    """Remove expired entries and, above the size limit, live ones by rank; return how many went.

    Takes the lock itself.
    """
    removed = remove_selected(store, sql.SELECT_EXPIRED, (store.now(),), timeout)
    while store.policy.evicts:
        try:
            evicted = _evict_excess(store, timeout)
        except Exception as error:
            error.count = removed  # type: ignore[attr-defined]
            raise
        if not evicted:
            break
        removed += evicted
    return removed


def _evict_excess(store: Holder, timeout: float | None) -> int:
    """Remove a batch of live entries by rank if there is too much; return how many."""
    with store.locked(timeout) as locked:
        if locked:
            unlink_removed(store)
        volume = live_volume(store)
        excess = min(-share.left(store, volume), volume - store.limit)
        doomed = victims(store, excess, locked) if excess > 0 else []
        if doomed:
            delete_rows(store, doomed, locked)
        else:
            _give_up_claim(store, volume)
    return len(doomed)


def sweep(store: Holder) -> None:
    """Look into the trash: date what is new, forget what was unlinked, choose what to unlink after the release."""
    now = store.now()
    try:
        if store.select_writer(sql.HAS_UNDATED, (now,)):
            store.walk(sql.DATE_TRASH, (now,))
        rows = [column for (column,) in store.select_writer(sql.SELECT_TRASH, (now - GRACE, SWEEP_FILES))]
        gone = [column for column in rows if column in store.unlinked]
        store.doomed = [column for column in rows if column not in store.unlinked]
        if gone:
            store.writer.executemany(sql.DELETE_TRASH, [(column,) for column in gone])
        store.unlinked.clear()  # also of those whose rows others have dropped, or every file would be remembered
    except FAILURES as error:
        store.failed(error)


def unlink_doomed(store: Holder, most: int = UNLINK_FILES) -> None:
    """Unlink files chosen by `sweep`. Runs without the lock: nothing refers to them any more."""
    doomed = store.doomed
    store.doomed = doomed[most:]
    for column in doomed[:most]:
        with suppress(OSError):  # the write is committed; the row in the trash has it tried again
            _unlink(store, column)
            store.unlinked.add(column)


def unlink_unused(store: Holder, columns: Iterable[object]) -> None:
    """Unlink value files unless a row refers to them, after a rollback; where that fails they are for `check` to find.

    A signal handler may have raised just after the commit, so that what looks like a rollback is none.
    """
    for column in columns:
        with suppress(OSError, CacheError):
            if not store.refers_to_column(column):
                _unlink(store, column)


def _unlink(store: Holder, column: object) -> None:
    try:
        store.disk.remove(files.from_column(column))
    except DecodeError:
        return  # a planted name: the row is dropped, no file is touched


def flush_trash(store: Holder, everything: bool) -> None:
    """Unlink trashed files now: those past their grace, or all of them when room is needed.

    A reader that loses its file this way reads its row again. The caller holds the lock and no transaction is open.
    """
    if not store.header[Header.FILES] or store.header[Header.EPOCH] != store.epoch or not store.has_disk():
        return  # none, or that of a database left behind, by a handle that cannot follow or was refused as it opened
    if not everything:
        sweep(store)
        unlink_doomed(store, SWEEP_FILES)
    unlinked = list(store.unlinked)  # at once: another thread may be adding to it, after its release
    rows = store.select_writer(sql.SELECT_ALL_TRASH) if everything else [(column,) for column in unlinked]
    for (column,) in rows if everything else []:
        _unlink(store, column)
    if rows:
        with store.batch():
            _write_many(store, sql.DELETE_TRASH, rows)
    store.unlinked.clear()


def checkpoint(store: Holder, shrink: bool = False) -> None:
    """Copy the WAL into the database; under the write lock, so that no commit and no second checkpoint meets it.

    With `shrink`, or where the WAL is long, its room is given back.
    """
    header = store.header
    try:  # without a WAL, whatever this handle's settings say, the answer is 0, -1, -1
        _, frames, done = store.writer.execute(sql.CHECKPOINT).fetchone()
        if (shrink or frames > WAL_LIMIT) and frames == done:
            store.writer.execute(sql.CHECKPOINT_TRUNCATE).fetchone()
    except FAILURES as error:
        store.failed(error)
    if 0 < frames == done:  # all of the WAL is from after the checkpoint before, unless a reader held that one up
        counted = max(header[Header.WRITTEN] - header[Header.CHECKPOINTED], 1)
        header[Header.GROWTH] = min(16 * frames * FRAME // counted, MOST_GROWTH)
    # Where a reader held the checkpoint up it is tried again after half the usual amount, not at every write.
    early = _between_checkpoints(store) // 2 if done < frames else 0
    header[Header.CHECKPOINTED] = max(header[Header.WRITTEN] - early, 0)


@scope
def durably(store: Holder) -> Generator[None, None, None]:
    """Have what the body commits outlast a power loss, whatever the cache's durability; no transaction is open.

    One more commit, which changes nothing, begins the -wal file anew while it is synced, unless one reads just then.
    Where the next one did so that is not, a loss could bring back the head of the file with some of its first pages, of
    before the body.
    """
    store.writer.execute(synchronous(FULL))
    try:
        yield
        checkpoint(store)
        store.writer.execute(f"PRAGMA user_version = {schema.VERSION}")
    except FAILURES as error:
        store.failed(error)
    finally:
        store.writer.execute(synchronous(store.settings["sqlite_synchronous"]))


def unsynced(store: Holder, step: Callable[[], object]) -> None:
    """Do a step whose commit need not wait for the disk, whatever the cache's durability; no transaction is open.

    It has to wait where there is a rollback journal, which is synced for the database to stay sound.
    """
    usual = store.settings["sqlite_synchronous"]
    if usual < FULL or store.select_writer(sql.JOURNAL_MODE) != [("wal",)]:
        step()
        return
    execute, as_usual = store.writer.execute, synchronous(usual)  # no call in Python, in which a handler may raise, ...
    try:
        execute(synchronous(NORMAL))
        step()
    finally:
        execute(as_usual)  # ... may come before this one


def _write_many(store: Holder, statement: str, rows: Sequence[tuple[object, ...]]) -> None:
    try:
        store.writer.executemany(statement, rows)
    except FAILURES as error:
        store.failed(error)


def give_back(store: Holder, unused: int, tolerance: int) -> None:
    """Give the room of free pages back, but for `unused` bytes, once it is more than that by `tolerance` bytes.

    Free pages are not in the volume, since the next rows go there. But where files take the place of rows, the database
    would keep its size beside them. Most of the time rows replace rows, and there is nothing to do.
    """
    ((free,),) = store.select_writer(sql.FREE_PAGES)
    excess = int(free) * PAGE_SIZE - unused
    if excess > tolerance and vacuum(store, excess // PAGE_SIZE):
        checkpoint(store)  # only now does the file become shorter


def vacuum(store: Holder, most: int = VACUUM_PAGES) -> bool:
    """Take free pages off the end of the database, where auto_vacuum is incremental; tell whether that was tried."""
    if store.settings["sqlite_auto_vacuum"] != 2 or store.txn is not None:
        return False
    # executescript steps the pragma to its end on every version of Python; execute frees one page on some.
    try:
        store.writer.executescript(f"PRAGMA incremental_vacuum({min(most, VACUUM_PAGES)})")
    except FAILURES as error:
        store.failed(error)
    return True
