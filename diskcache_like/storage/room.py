"""Room: expired entries, eviction and trash, in rounds that ride on writes.

Every function here runs under the store's write lock unless it says otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from .. import files
from ..coherence.generations import NEVER, UNKNOWN, WORD, Header, microseconds
from ..errors import CacheError, DecodeError, DiskFull
from ..interrupts import suppress
from . import checkpoints, schema, share
from . import statements as sql
from .connection import FAILURES, PAGE_SIZE, mapped

if TYPE_CHECKING:
    from .holding import Holder

SMALL_BATCH = 20  # the same where the disk is full and little WAL fits
BATCH = 1000  # rows removed per transaction, so that nobody waits long for the lock
GRACE = 10.0  # seconds that a replaced file stays for readers that hold its row
SWEEP_FILES = 4096  # files chosen per round: more than writes can add between two rounds
UNLINK_FILES = 16  # files unlinked after one write, so that no caller waits long


def evicts(store: Holder) -> bool:
    """Tell whether live entries are removed for room at all."""
    return store.policy.evicts and store.settings["cull_limit"] > 0


def housekeeping(store: Holder, incoming: int, makes_room: bool = True) -> None:
    """Keep house before a write of `incoming` bytes.

    On a full disk the write itself will tell; but one that adds something is refused, by DiskFull, where what is in the
    WAL has no room in the database: what it took of the WAL would be missing for removals.
    """
    checkpoints.measure(store)
    refusal = _unless_full(store, lambda: _checkpoint_and_sweep(store))
    if makes_room:
        _unless_full(store, lambda: _look_at_volume(store, incoming))
    if store.cramped and incoming:
        raise refusal or DiskFull("no room for what is in the -wal file, so nothing is added", store.path)
    if store.cramped and makes_room and store.txn is None:
        relieve(store, [], removal=True)


def _unless_full(store: Holder, step: Callable[[], object]) -> DiskFull | None:
    """Take a step; return the error if there is no room for it, and the caller's transaction goes on."""
    try:
        step()
    except DiskFull as error:
        problem = error
    except FAILURES as error:
        found = mapped(error, store.path)
        if not isinstance(found, DiskFull):
            raise found from error
        problem = found
    else:
        return None
    store.verify_open(problem)
    return problem


def _checkpoint_and_sweep(store: Holder) -> None:
    if store.txn is None:
        checkpoints.keep(store)
        if store.header[Header.FILES]:
            sweep(store)


def _look_at_volume(store: Holder, incoming: int) -> None:
    """Make room if that is due, and set the mark at which this is looked at again.

    The mark counts bytes written into the WAL, which is more than the database grows by. It is never set further ahead
    than CHECKPOINT_BYTES, so that a write takes one that is for damaged.
    """
    header = store.header
    written = header[Header.WRITTEN]
    due = (header[Header.CHECKPOINTED] if store.txn is None else written) + checkpoints.between(store)
    if evicts(store):
        # Looked at again when the shard's part of what is left may be used up, and at least after half a percent.
        due = min(due, written + _room_for(store, incoming))
    _mark(store, due)


def _mark(store: Holder, due: int) -> None:
    written = store.header[Header.WRITTEN]
    store.header[Header.MARK] = min(max(due, written), written + checkpoints.CHECKPOINT_BYTES, WORD)


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
    """Make the index on rank the first time that somebody has to go; not where there is no room for what is there."""
    if store.has_rank_index or store.cramped:
        return
    store.walk(schema.CREATE_RANK_INDEX)
    store.has_rank_index = True


def delete_rows(
    store: Holder, places: Sequence[int], locked: bool, everything: Callable[[], Sequence[int]] | None = None
) -> Sequence[int]:
    """Delete rows by place in one transaction, their slots odd until it has ended; return the places that went.

    On a full disk in several. Where not even that helps, since more is in the WAL than the database has room for, all
    go that `everything` returns.
    """
    if not locked:
        store.delete_places(places)
        return places
    try:
        with store.batch():
            store.delete_places(places)
        return places
    except DiskFull:
        if not relieve(store, _files_of(store, places), removal=True) and everything is None:
            raise
    if everything is None or checkpoints.fits(store):
        try:
            return _delete_few_by_few(store, places)
        except DiskFull:
            if everything is None:
                raise
    left = everything()
    if 2 * len(left) >= known_count(store):  # else that might be used up without the room that it should give
        store.lock.drop_ballast()
    _delete_all_at_once(store, left)
    return [*set(places).difference(left), *left]


def _delete_few_by_few(store: Holder, places: Sequence[int]) -> Sequence[int]:
    """Delete rows where little WAL fits, with a checkpoint after each few, so that it begins anew if it can.

    Returns their places.
    """
    start, few = 0, SMALL_BATCH
    while start < len(places):
        try:
            with store.batch():
                store.delete_places(places[start : start + few])
        except DiskFull:
            if few == 1:
                raise
            few = 1
            continue
        start += few
        with suppress(DiskFull):
            checkpoints.fit(store)
    return places


def _delete_all_at_once(store: Holder, places: Sequence[int]) -> None:
    """Delete rows in one transaction that also cuts off the pages which they leave.

    So it needs no room for changes to these, and the WAL has some where it has room for what is left.
    """
    with store.batch():
        store.delete_places(places)
        checkpoints.vacuum_within(store)
    with suppress(DiskFull):
        checkpoints.fit(store, shrink=True)


def _files_of(store: Holder, places: Sequence[int]) -> list[object]:
    """Return the file columns of the rows at `places`, seen through the writer."""
    found: list[object] = []
    for start in range(0, len(places), sql.MANY):
        batch = list(places[start : start + sql.MANY])
        batch += batch[-1:] * (sql.MANY - len(batch))
        found += [column for (column,) in store.select_writer(sql.SELECT_FILES, batch)]
    return found


def relieve(store: Holder, columns: Sequence[object], for_file: bool = False, removal: bool = False) -> bool:
    """On a full disk, unlink the files in the trash and those of rows about to go; tell whether a write may fit now.

    Even a DELETE needs room in the WAL, so files are what can go first: until its row has gone, an entry without its
    file reads as missing. A `removal` also gets the ballast, but for the last of it where all of it would not do. A
    checkpoint, if it gets through, lets the WAL start anew in the room that it has, or give that room to a value file;
    where it would only use up what a removal has got, it is not tried. The lock is held, no transaction is open.
    """
    doomed = [*columns, *(column for (column,) in store.select_writer(sql.SELECT_ALL_TRASH))]
    for column in doomed:
        _unlink(store, column)
    gained = bool(doomed)
    if removal:
        enough = checkpoints.fits(store, store.lock.ballast())
        gained = store.lock.drop_ballast(0 if enough else checkpoints.LATE_BALLAST) or gained
        if gained and not checkpoints.fits(store):
            return True
    try:
        checkpoints.fit(store, shrink=for_file)
    except DiskFull:
        return gained
    checkpoints.shorten(store, shrink=for_file)
    if not removal:
        checkpoints.measure(store)
    return True


def cull_due(store: Holder) -> None:
    """Remove some expired entries if one may have expired, at most `cull_limit`, and sweep if that may be due.

    So a write stays short. What is chosen in the trash is unlinked after the release.
    """
    header = store.header
    limit = store.settings["cull_limit"]
    now = store.now()
    if limit == 0 or now * 1e6 < header[Header.NEXT_EXPIRE]:
        return
    places = store.places(store.select_writer(sql.SELECT_EXPIRED, (now, limit)))
    if places:
        delete_rows(store, places, locked=True)
    ((earliest,),) = store.select_writer(sql.MIN_EXPIRE)
    if header[Header.FILES] and header[Header.SWEEP] <= now * 1e6:
        sweep(store)
        header[Header.SWEEP] = microseconds(now + GRACE) if store.select_writer(sql.HAS_TRASH) else NEVER
    header[Header.NEXT_EXPIRE] = min(NEVER if earliest is None else microseconds(earliest), header[Header.SWEEP])


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
                places = _selected(store, select, parameters, BATCH)
                if not places:
                    if removed:
                        _give_up_claim(store, live_volume(store))
                    return removed
                places = delete_rows(store, places, locked, partial(_selected, store, select, parameters, -1))
                if locked:
                    unlink_removed(store)  # who removes that much wants the room
        except Exception as error:
            error.count = removed  # type: ignore[attr-defined]
            raise
        removed += len(places)


def _selected(store: Holder, select: str, parameters: tuple[object, ...], most: int) -> Sequence[int]:
    return store.places(store.select_writer(select, (*parameters, most)))


def _give_up_claim(store: Holder, volume: int) -> None:
    """Claim no more than is in use, after much was removed; the next write looks how much it may take.

    On a disk that is full what is not in use is given back at once.
    """
    share.claim(store, volume, 0)
    store.header[Header.MARK] = 0
    if store.txn is None and checkpoints.is_tight(store):
        with suppress(DiskFull):
            checkpoints.shorten(store, shrink=True)
            checkpoints.fit(store, shrink=True)
        checkpoints.measure(store)  # part of what was gained is ballast again


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
    excess = checkpoints.free_pages(store) * PAGE_SIZE - unused
    if excess > tolerance and checkpoints.vacuum(store, excess // PAGE_SIZE):
        checkpoints.checkpoint(store)  # only now does the file become shorter
