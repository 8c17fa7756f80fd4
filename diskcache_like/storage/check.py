"""Check: compare database, value files and totals; mend what is wrong when asked.

Reads go in pages without a lock; every mend is made under the write lock after a second look, so that a check may run
beside writers.
"""

from __future__ import annotations

import contextlib
import os
import re
import warnings
from collections.abc import Callable, Sequence
from math import inf
from typing import Any

from ..coherence.generations import UNCOUNTED, Header
from ..crypto.keyring import Sealer
from ..disk import file_io
from ..encoding import file_names, keys
from ..encoding.record import Record
from ..encoding.tags import tags_column
from ..errors import CorruptDatabaseWarning, DecodeError, EmptyDirWarning, UnknownFileWarning, named
from ..system import paths
from ..system.signals import reraise_signal, suppress
from .shard.row import Row
from .sqlite import schema
from .sqlite import statements as sql
from .sqlite.connection import corrupt
from .store import Store

PAGE = 256
LOOKS = 3  # another process may quarantine a database between two of them
_OWN = re.compile(r"cache\.((\d+\.)?(db|gen|buffer|lock)(-wal|-shm|-journal)?|metrics|remote-[0-9a-f]{12}(\.send)?)")
CheckRecord = Callable[[Store, int, bytes, bytes], Record]


def check_whole(
    store: Store, check_record: CheckRecord, fix: bool, timeout: float | None
) -> list[warnings.WarningMessage]:
    """Do what `check_store` does, and report a database that was quarantined meanwhile because it cannot be read."""
    found = _Findings()
    store.shard.present_header()
    path = store.path
    for attempt in store.attempts():
        with attempt:
            found.warnings += check_store(store, check_record, fix, timeout)
    if store.path != path:
        message = f"{path}: damaged; it stays where it is and the cache goes on empty in {store.path}"
        found.add(message, CorruptDatabaseWarning)
    return found.warnings


def check_store(
    store: Store, check_record: CheckRecord, fix: bool, timeout: float | None, looks: int = LOOKS
) -> list[warnings.WarningMessage]:
    """Return a list of warnings about one shard; with `fix`, mend what they say.

    A flaw in the database's own structure cannot be mended in place: the database is quarantined, like one that cannot
    be read. CorruptDatabase is raised if that is not wanted, or if only this handle, after `looks` looks, sees damage.
    """
    found = _Findings()
    if fix and not _difference(store) and store.select(sql.SELECT_UNSIZED):
        with store.locked(timeout):  # else the trigger that sums them would fail when their rows are removed
            store.connection.walk(sql.MEND_SIZES)
            store.connection.walk(sql.MEND_TOTALS)
    flaws = _flaws(store, found)
    _check_tick(store, fix, timeout, found)
    _check_rows(store, check_record, fix, timeout, found)
    _check_index(store, fix, timeout, found)
    if fix and flaws and (left := _flaws(store, _Findings())):  # more than a row that has gone by now
        problem = corrupt(f"{store.path!r}: {left[0]}", store.path)
        if looks == 1 or not store.shard.recover(problem):
            raise problem
        return [*found.warnings, *check_store(store, check_record, fix, timeout, looks - 1)]
    _check_trash(store, fix, timeout, found)
    _check_files(store, fix, timeout, found)
    _check_directories(store, fix, found)
    _check_totals(store, fix, timeout, found)
    if fix:
        with store.locked(timeout) as locked:
            if locked:
                # A write to its neighbours may have brought back an entry that damage hid from lookups: whoever keeps
                # hot that it is missing has to look once more.
                store.shard.generations.settle_all(store.shard.generations.internal_tick())
                store.trash.empty()
                store.checkpointer.vacuum()
    return found.warnings


def _flaws(store: Store, found: _Findings) -> list[str]:
    """Return, and note, what is wrong with the database itself: what SQLite finds, and an altered schema."""
    difference = _difference(store)
    if difference:
        flaws = [difference]  # SQLite's check might evaluate an expression that somebody planted
    else:
        flaws = [str(message) for (message,) in store.select(sql.INTEGRITY_CHECK) if message != "ok"]
    for message in flaws:
        found.add(f"{store.path}: {message}")
    return flaws


def _difference(store: Store) -> str | None:
    """Describe how the schema differs from the expected one; None if it does not."""
    return schema.difference_of(store.select(schema.SELECT_SCHEMA))


def check_without_secret(store: Store) -> list[warnings.WarningMessage]:
    """Return what is wrong with a shard, as far as that can be told without its secret, and what was not looked at."""
    found = _Findings()
    _flaws(store, found)
    entries = in_files = 0
    for rows in store.reader.pages(sql.PAGE_ROWS, PAGE):
        entries += len(rows)
        in_files += sum(row[7] is not None for row in rows)
        for row in rows:
            problem = _outer_problem(store, row)
            if problem is not None:
                found.add(f"entry {row[0]} in {store.path}: {problem}")
    _check_files(store, False, None, found)
    _check_directories(store, False, found)
    _check_totals(store, False, None, found)
    found.add(
        f"{store.path}: {entries} entries, {in_files} of them in value files, are looked at from outside only: keys,"
        " values, tags and expiry are verified with the secret (secret= or DISKCACHE_LIKE_SECRET)"
    )
    return found.warnings


def _outer_problem(store: Store, row: Sequence[Any]) -> str | None:
    """Return what is wrong with a row as far as that can be seen without opening its record."""
    place, stored_key, _, _, _, _, size, file, _, _, _, packed = row
    if not isinstance(stored_key, bytes) or not isinstance(packed, bytes):
        return "key or record is not a BLOB"
    if keys.key_hash(stored_key, store.shard.identity["modulus"]) != place & ~3:
        return "the key does not belong to its place"
    if file is None:
        return None
    try:
        with file_io.open_read(store.directory, file_names.from_column(file)) as reader:
            there = os.fstat(reader.fileno()).st_size
    except FileNotFoundError:
        return "file not found"
    except (DecodeError, OSError) as error:
        reraise_signal(error)
        return str(error)
    return None if there == size else f"value file has {there} bytes instead of {size}"


class _Unread(str):
    """Why an entry could not be read; it may be readable later, so this is no reason to remove it."""


class _Findings:
    """Collect warnings as objects, whatever the warning filters say."""

    def __init__(self) -> None:
        self.warnings: list[warnings.WarningMessage] = []

    def add(self, message: str, category: type[Warning] = UserWarning) -> None:
        self.warnings.append(warnings.WarningMessage(category(message), category, __file__, 0))


def _check_tick(store: Store, fix: bool, timeout: float | None, found: _Findings) -> None:
    """Report entries that were written after what counts as the last write: iteration leaves them out."""
    with store.locked(timeout):
        ((last,),) = store.connection.select(sql.LAST_WRITE, (store.shard.generations.highest_tick(),))
        if last > store.shard.header[Header.TICK]:
            found.add(
                f"{store.path}: {store.shard.header[Header.TICK]} writes were counted, entries are from write {last}"
            )
            if fix:
                store.shard.header[Header.TICK] = last


def _check_rows(store: Store, check_record: CheckRecord, fix: bool, timeout: float | None, found: _Findings) -> None:
    """Verify each row's record and file, and that its columns say what the record says."""
    for rows in store.reader.pages(sql.PAGE_ROWS, PAGE):
        for row in rows:
            if _problem(store, check_record, row) is None:
                continue
            with store.locked(timeout) as locked:
                problem = _problem_now(store, check_record, row[0])
                if problem is not None:
                    found.add(f"entry {_named(store, row)} in {store.path}: {problem}")
                if problem is not None and fix and not isinstance(problem, _Unread):
                    store.remover.delete([row[0]], locked)


def _check_index(store: Store, fix: bool, timeout: float | None, found: _Findings) -> None:
    """Report where the index of tags says something else than the rows."""
    kinds = (
        (sql.NOT_INDEXED, sql.ADD_TO_INDEX, "lacks tags of an entry"),
        (sql.FALSELY_INDEXED, sql.DROP_FROM_INDEX, "has tags that an entry does not have"),
    )
    with store.locked(timeout):
        for select, mend, problem in kinds:
            wrong = store.connection.select(select, (-1,))
            for tag, place in wrong:
                found.add(f"entry {place} in {store.path}: the index of tags {problem}")
                if fix:
                    store.connection.execute(mend, (tag, place))


def _problem(store: Store, check_record: CheckRecord, row: Sequence[Any]) -> str | None:
    place, stored_key, number, expire, fresh, tags, size, file, original_key, queue, num, packed = row
    if not isinstance(stored_key, bytes) or not isinstance(packed, bytes):
        return "key or record is not a BLOB"
    if number > store.shard.generations.highest_tick():
        return "its place in the order of insertion is beyond the last write, so that iteration leaves it out"
    try:
        record = check_record(store, place, stored_key, packed)
        column = None if record.file is None else file_names.to_column(record.file)
    except FileNotFoundError:
        return "file not found"
    except DecodeError as error:
        return str(error)
    except OSError as error:
        reraise_signal(error)
        return _Unread(error)
    sealer = store.disk.sealer
    wanted = tags_column(record.metadata.tags, None if sealer is None else sealer.blind_tag)
    said = Row.expiries(record.metadata)
    if (expire, fresh, tags, size, file) != (*said, wanted, record.size, column):
        return "columns do not say what the record says"
    if not isinstance(original_key, bytes | None) or not _is_in_queue(sealer, stored_key, original_key, queue, num):
        return "original key or queue is not what a cache writes"
    return None


def _is_in_queue(sealer: Sealer | None, stored_key: bytes, original_key: bytes | None, queue: Any, num: Any) -> bool:
    """Tell whether a row says of its queue what its key says."""
    if sealer is None:
        return (queue, num) == keys.queue_columns(stored_key)
    try:
        column, number = keys.queue_columns(sealer.open_key(stored_key, original_key)[0])
    except DecodeError:
        return False
    return (queue, num) == (None if column is None else sealer.blind_queue(column), number)


def _named(store: Store, row: Sequence[Any]) -> str:
    """Return the key of a row, where that can be told without its secret and without running code, and its place."""
    if store.disk.sealer is None and isinstance(row[1], bytes):
        with contextlib.suppress(DecodeError):
            return f"{named(keys.decode_key(row[1])):.80} (at {row[0]})"
    return str(row[0])


def _problem_now(store: Store, check_record: CheckRecord, home: int) -> str | None:
    """Look again: the row may have been replaced since its page was read."""
    rows = store.select(sql.PAGE_ROWS, (home - 1 if home > -(1 << 63) else -inf, 1))
    if not rows or rows[0][0] != home:
        return None
    return _problem(store, check_record, rows[0])


def _check_trash(store: Store, fix: bool, timeout: float | None, found: _Findings) -> None:
    """Report files that are to be unlinked although an entry has them, as after a power loss that took a write back."""
    with store.locked(timeout):
        for (file,) in store.connection.select(sql.FALSELY_TRASHED):
            found.add(f"{store.path}: a value file of an entry is in the trash: {file!r}")
            if fix:
                store.connection.execute(sql.DELETE_TRASH, (file, file))


def _check_files(store: Store, fix: bool, timeout: float | None, found: _Findings) -> None:
    """Report files that neither a row nor the trash knows; those of other shards and children are not looked at."""
    for name in _own_files(store):
        if _is_known(store, name):
            continue
        with store.locked(timeout):  # a writer may have made the file and not yet its row
            if _is_known(store, name):
                continue
            if fix:  # still under the lock: a writer looks for its file, under the lock, before it writes the row
                path = os.path.join(store.directory, name)
                with contextlib.suppress(FileNotFoundError), file_io.translated_errors(path, FileNotFoundError):
                    file_io.remove_found(store.directory, name)
        found.add(f"unknown file: {os.path.join(store.directory, name)}", UnknownFileWarning)


def _own_files(store: Store) -> list[str]:
    shard = re.compile(r"(\d{3}|cache|deque|index)/")
    return [name for name in paths.files_below(store.directory) if not _OWN.fullmatch(name) and not shard.match(name)]


def _is_known(store: Store, name: str) -> bool:
    try:
        column = file_names.to_column(name)
    except DecodeError:
        return False
    return bool(store.select(sql.KNOWN_FILE, (column, column)))


def _check_directories(store: Store, fix: bool, found: _Findings) -> None:
    for path, _, names in reversed(list(paths.walk(store.directory))):
        # Listed anew: mending has just removed what was below, and may have left this one empty.
        with suppress(OSError):  # a writer removed it, or has put a file there by now
            if not names and path != store.directory and not os.listdir(path):
                found.add(f"empty directory: {path}", EmptyDirWarning)
                if fix:
                    file_io.remove_found(store.directory, os.path.relpath(path, store.directory), os.rmdir)


def _check_totals(store: Store, fix: bool, timeout: float | None, found: _Findings) -> None:
    with store.locked(timeout):
        ((size, _),) = store.connection.select(sql.FILE_TOTALS)
        ((real_size,),) = store.connection.select(sql.REAL_FILES)
        ((real_count,),) = store.connection.select(sql.COUNT)
        if size != real_size:
            found.add(f"{store.path}: total says {size} bytes in value files, there are {real_size}")
            if fix:
                store.connection.put_file_total(real_size)
        # Not store.count(), which takes the lock held here to find out a count that is unknown.
        count = store.shard.header[Header.COUNT]
        if store.connection.txn is None and count not in (UNCOUNTED, real_count):
            found.add(f"{store.path}: count says {count} entries, there are {real_count}")
            if fix:
                store.recount()
