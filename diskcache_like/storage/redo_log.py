"""The redo log of a cross-shard transaction, by which it is whole though its commits are several.

The shard that has changed most commits first, and that commit decides: it holds, beside its own changes, an image of
what each of the others has changed. Whoever meets a transaction cut off after it, because a process was killed or a
disk failed, rolls it forward from these images before anything else is written there; one cut off before it never was.

Two words say what there is to do. `Header.CROSS_SHARD` of a shard is not 0 from before the decision until every commit
is made and the redo log removed, all of it under the locks of all shards: so whoever gets the lock of a shard and finds
it set takes those of all shards where it is, and nobody has written to any of them since. Each shard notes its last
transaction with its part of it; a redo log is of use to a shard only while that is the one which the log names as the
last before. So one that a power loss or a copy brings back does nothing.

A process that dies in the middle of a commit may leave it whole in the WAL and yet seen by nobody, until somebody opens
the database after all have closed it. So before anything is concluded from there being no redo log, each of these
shards gets a commit that takes the place of such a one.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from hashlib import blake2b
from operator import attrgetter
from sqlite3 import IntegrityError
from typing import Any, NamedTuple

from ..coherence.contexts import end
from ..coherence.generations import NEVER, UNCOUNTED, Header
from ..encoding.values import decode_value, encode_value
from ..errors import CacheError, CorruptDatabase, CorruptDatabaseWarning, DecodeError, DiskFull, StorageError
from ..system.blocking import may_block
from ..system.callers import warn
from ..system.forks import token_word
from ..system.signals import is_from_signal_handler, reraise_signal
from .opening.identity import COMMITTING, LAST_TRANSACTION
from .shard.ownership import HOME, Transaction
from .shard.transactions import Transactions, left
from .sqlite import statements as sql
from .sqlite.connection import FRAME, FULL
from .store import Store

BURNT, HEAD, CHUNK = "joint.burnt", "joint.redo.head", "joint.redo.{:08d}"
FORMAT = 2
DIGEST_SIZE = 16
CHUNK_PLACES = 1000  # and
CHUNK_BYTES = 256 << 10  # of rows that are in memory at a time
COLUMNS = 13  # of a row
_INTEGER = 1 << 63  # bound of what SQLite takes


class Part(NamedTuple):
    """Where one shard's changes are in the redo log."""

    shard: str
    before: bytes | None  # the shard's mark until it has them
    first: int  # chunk
    chunks: int
    digest: bytes


class RedoLog:
    """Commit transactions over the shards of one cache together, and roll forward those that were cut off."""

    def __init__(self, directory: str, stores: Sequence[Store]) -> None:
        self._directory = directory
        self._stores = stores
        self._store_of = {store.transactions: store for store in stores}
        # The order in which transactions take their locks, so that no two can wait for each other.
        self._ordered = sorted(stores, key=attrgetter("directory"))

    # -- committing ---------------------------------------------------------------------------------------------------

    def decide(self, txns: Sequence[tuple[Transactions, Transaction]]) -> list[Transactions]:
        """Commit the first of the open transactions, with the redo log of the others, if several changed something.

        Returns the shards that have a part, the one with the redo log first; none if one commit or none is enough. The
        caller commits the others.
        """
        for part, txn in txns:
            part.connection.verify_whole(txn)  # of all, before the first is committed
        parts = [(self._store_of[part], txn) for part, txn in txns if txn.homes or txn.names]
        if len(parts) < 2:
            return []
        parts.sort(key=lambda each: len(each[1].homes or ()), reverse=True)
        first, txn = parts[0]
        _write(first, parts[1:])
        for store, other in parts:
            store.shard.header[Header.CROSS_SHARD] = COMMITTING
            other.decided = True  # before the commit: an exception may come between it and the next line
        try:
            first.connection.commit(txn)
        except CacheError as error:
            reraise_signal(error)  # a signal handler may have raised it just after the commit
            for _, other in parts:
                other.decided = False
            raise
        return [store.transactions for store, _ in parts]

    def forget(self, decided: Sequence[Transactions]) -> None:
        """Remove the redo log after all parts are committed, still under all locks."""
        try:
            _drop(self._store_of[decided[0]])
        except CacheError:
            return  # the transaction is committed; the next holder finds CROSS_SHARD set and tries again
        for part in decided:
            part.shard.header[Header.CROSS_SHARD] = 0

    def complete(self, error: BaseException, txns: Sequence[tuple[Transactions, Transaction]]) -> None:
        """Complete a decided transaction that was cut off; raise what cut it off, unless that is the package's error.

        If it cannot be completed now, the error says what becomes of it.
        """
        try:
            self.roll_forward(0)
            for part, txn in txns:  # if it was cut off before the deciding commit, no row refers to their files
                part.upkeep.unlink_unused(txn.files)
        except CacheError:
            text = (
                "a shard could not commit its part of a transaction whose other parts are committed; the transaction is"
                f" completed when that shard is written again ({error})"
            )
            if isinstance(error, DiskFull):
                raise DiskFull(text, self._directory) from error
            if isinstance(error, CacheError):
                raise StorageError(f"{self._directory!r}: {text}") from error
        if not isinstance(error, CacheError) or is_from_signal_handler(error):
            raise error

    # -- rolling forward ----------------------------------------------------------------------------------------------

    def is_due(self) -> bool:
        """Tell whether a transaction may have been cut off, or is just being committed."""
        return any(store.shard.header[Header.CROSS_SHARD] for store in self._stores)

    def roll_forward(self, timeout: float | None) -> float | None:
        """Complete transactions that were cut off; return what is left of `timeout`.

        Takes the locks of those concerned. Raises Timeout, and what the disk refuses; all is as it was then.
        """
        may_block()
        deadline = None if timeout is None else time.monotonic() + timeout
        for _ in self._stores:
            try:
                self._roll_forward(deadline)
                break
            except CorruptDatabase as error:
                damaged = next((store for store in self._stores if store.path == error.path), None)
                # With no time to wait the caller may hold another shard's lock, and quarantine waits for this one's.
                if damaged is None or timeout == 0 or not damaged.shard.recover(error):
                    raise
        return left(deadline)

    def _roll_forward(self, deadline: float | None) -> None:
        # This thread may hold others already; the call that took them ends them.
        free = tuple(store.shard for store in self._stores if not store.shard.lock.is_mine())
        problems = None
        while problems is None:
            try:
                problems = self._complete_due(deadline)
            finally:
                end(free, token_word[0])
        for problem in problems:
            warn(problem, CorruptDatabaseWarning)

    def _complete_due(self, deadline: float | None) -> list[str] | None:
        """Take the locks, and complete what was cut off; return what was wrong, None if more has to be locked."""
        due = []
        for store in self._ordered:
            if store.shard.present_header()[Header.CROSS_SHARD]:
                store.transactions.take_alone(left(deadline))
                due.append(store)
        # While this waited for a lock, another transaction may have been cut off that concerns a shard passed over.
        # Without the locks of `due`, nobody can begin or finish one that concerns them.
        passed = [store for store in self._ordered if store not in due]
        if any(store.shard.present_header()[Header.CROSS_SHARD] for store in passed):
            return None
        problems = _complete_all(due)
        for store in due:
            store.transactions.settle()
        return problems


# -- writing ----------------------------------------------------------------------------------------------------------


def _write(first: Store, parts: Sequence[tuple[Store, Transaction]]) -> None:
    """Put the changes of the other shards into the first one's transaction, and a new mark into each of them.

    What is small stands in the head of the redo log, the rest in rows beside it.
    """
    identifier = os.urandom(16)
    written: list[list[Any]] = []
    pieces: list[bytes] = []
    number = size = 0
    for store, txn in parts:
        digest = blake2b(digest_size=DIGEST_SIZE)
        start = number
        for content in _changes(store, txn):
            chunk = encode_value(content)
            digest.update(chunk)
            size += len(chunk)
            if size <= CHUNK_BYTES:
                pieces.append(chunk)
            else:
                _put(first, CHUNK.format(number), chunk)
            number += 1
        written.append([_name(store), _mark(store), start, number - start, digest.digest()])
        store.connection.put_setting(LAST_TRANSACTION, identifier)
    synced = all(
        store.shard.settings["sqlite_synchronous"] >= FULL for store in (first, *(store for store, _ in parts))
    )
    head = encode_value([FORMAT, identifier, written, pieces, 0 if synced else first.shard.header[Header.BOOT]])
    _put(first, HEAD, _digest(head) + head)


def _put(store: Store, name: str, content: bytes) -> None:
    store.invalidation.count_written(len(content) + FRAME)
    store.connection.put_setting(name, content)


def _changes(store: Store, txn: Transaction) -> Iterator[list[Any]]:
    """Yield what a transaction has changed, some at a time: places, the rows that are there, trash, settings."""
    homes: list[int] = []
    rows: list[list[Any]] = []
    size = 0
    for home in sorted(txn.homes or ()):
        found = store.connection.select(sql.SELECT_IMAGES, (home, home + 3))
        homes.append(home)
        rows += map(list, found)
        size += sum(len(value) for row in found for value in row if isinstance(value, bytes | str))
        if size > CHUNK_BYTES or len(homes) == CHUNK_PLACES:
            yield [homes, rows, [], []]
            homes, rows, size = [], [], 0
    trash = [list(row) for column in txn.files for row in store.connection.select(sql.SELECT_TRASHED, (column,))]
    settings = [[name, store.connection.select(sql.SELECT_SETTING, (name,))] for name in sorted(txn.names)]
    yield [homes, rows, trash, [[name, [value for (value,) in found]] for name, found in settings]]


# -- replaying --------------------------------------------------------------------------------------------------------


def _complete_all(due: Sequence[Store]) -> list[str]:
    """Complete what concerns these shards, whose locks are held; return what is wrong with their redo logs."""
    problems: list[str] = []
    for store in due:
        if store.shard.header[Header.CROSS_SHARD] == COMMITTING:
            burnt = store.shard.header[Header.TICK] & NEVER
            store.recovery.run(partial(store.connection.put_setting, BURNT, burnt))
    for store in due:
        problems += _replay(store, {_name(other): other for other in due})
    for store in due:
        store.shard.header[Header.CROSS_SHARD] = 0
    return problems


def _replay(source: Store, shards: dict[str, Store]) -> list[str]:
    """Give each shard its part of the redo log in `source` unless it has it; return what is wrong with the log.

    A shard that is not among `shards` has its part: it was completed, or made anew, since. After a restart of the
    machine the redo log is of use only if commits are synced: else the shard may have lost earlier writes, and must not
    get a later one without them. The redo log is removed in the end.
    """
    content = source.connection.setting(HEAD)
    if content is None:
        return []
    problems = []
    try:
        identifier, parts, pieces, boot = _head(content)
        for part in parts if boot in (0, source.shard.header[Header.BOOT]) else ():
            store = shards.get(part.shard)
            if store is not None and store is not source and _mark(store) == part.before:
                _apply(store, part, identifier, partial(_piece, source, pieces))
    except (DecodeError, UnicodeEncodeError) as error:  # the latter from text that SQLite cannot take
        problems.append(
            f"{source.path!r}: the redo log of a transaction over several shards is damaged ({error}), so that a part"
            " of the transaction is missing"
        )
    source.recovery.run(partial(_drop, source))
    return problems


def _drop(source: Store) -> None:
    """Remove the redo log. That need not outlast a power loss, for the marks tell that it has been replayed."""
    source.checkpointer.unsynced(partial(source.connection.walk, sql.DROP_REDO_LOG))


def _piece(source: Store, pieces: list[object], number: int) -> bytes:
    """Return a chunk of the redo log in `source`, or raise DecodeError."""
    chunk = pieces[number] if 0 <= number < len(pieces) else source.connection.setting(CHUNK.format(number))
    if not isinstance(chunk, bytes):
        raise DecodeError("a piece of it is missing")
    return chunk


def _apply(store: Store, part: Part, identifier: bytes, piece: Callable[[int], bytes]) -> None:
    """Make one shard's part of a transaction, its mark included."""

    def step() -> None:
        digest = blake2b(digest_size=DIGEST_SIZE)
        with store.transactions.batch():
            for number in range(part.first, part.first + part.chunks):
                chunk = piece(number)
                digest.update(chunk)
                _restore(store, decode_value(chunk))
            if digest.digest() != part.digest:
                raise DecodeError("it does not match its checksum")
            store.connection.put_setting(LAST_TRANSACTION, identifier)

    header = store.shard.header
    header[Header.COUNT] = UNCOUNTED
    header[Header.FILES] = 1  # before the commit, as everything that says what there may be from it on
    header[Header.NEXT_EXPIRE] = 0
    store.recovery.run(step)


def _restore(store: Store, content: object) -> None:
    """Give places, trash and settings the content that they have in a chunk; raise DecodeError for any other form."""
    homes, rows, trash, settings = _checked(content)
    there = {row[0] for row in rows}
    if any(place & ~HOME for place in there):
        store.shard.header[Header.DISPLACED] = 1
    with store.invalidation.commit_many(homes, autocommit=False):
        try:
            free = [(place,) for home in homes for place in range(home, home + 4) if place not in there]
            store.connection.open().executemany(sql.DELETE_H, free)
            store.connection.open().executemany(sql.RESTORE, rows)
            store.connection.open().executemany(sql.RESTORE_TRASH, trash)
        except IntegrityError as error:
            raise DecodeError(f"it holds rows that no cache writes ({error})") from error
    for name, values in settings:
        if values:
            store.connection.put_setting(name, values[0])
        else:
            store.connection.drop_setting(name)
        if name == "eviction_policy":
            store.shard.generations.forget_uses()


def _checked(content: object) -> Any:
    """Return what is in a chunk if it has the form that `_changes` gives it."""
    match content:
        case [list() as homes, list() as rows, list() as trash, list() as settings]:
            is_sound = (
                all(type(home) is int and abs(home) < _INTEGER and not home & ~HOME for home in homes)
                and all(_is_row(row, COLUMNS) and type(row[0]) is int for row in rows)
                and {row[0] & HOME for row in rows} <= set(homes)
                and all(_is_row(row, 3) for row in trash)
                and all(_is_setting(item) for item in settings)
            )
            if is_sound:
                return content
    raise DecodeError("it does not have the form of one")


def _is_row(row: object, columns: int) -> bool:
    """Tell whether something is what SQLite can have given for so many columns."""
    return type(row) is list and len(row) == columns and all(map(_is_column, row))


def _is_column(value: object) -> bool:
    return value is None or type(value) in (bytes, str, float) or (type(value) is int and -_INTEGER <= value < _INTEGER)


def _is_setting(item: object) -> bool:
    match item:
        case [str() as name, list() as values]:
            return not name.startswith("joint.") and len(values) <= 1 and _is_row(values, len(values))
    return False


def _head(content: object) -> tuple[bytes, list[Part], list[object], int]:
    """Return identifier, parts, first chunks and boot of a redo log, 0 for any boot, or raise DecodeError."""
    if not isinstance(content, bytes) or content[:DIGEST_SIZE] != _digest(content[DIGEST_SIZE:]):
        raise DecodeError("it does not match its checksum")
    match decode_value(content[DIGEST_SIZE:]):
        case [2, bytes() as identifier, list() as parts, list() as pieces, int() as boot]:
            return identifier, [_part(part) for part in parts], pieces, boot
    raise DecodeError("it does not have the form of one")


def _part(content: object) -> Part:
    match content:
        case [str() as shard, bytes() | None as before, int() as first, int() as chunks, bytes() as digest]:
            if 0 <= first < _INTEGER and 0 <= chunks < _INTEGER:
                return Part(shard, before, first, chunks, digest)
    raise DecodeError("it does not have the form of one")


def _digest(content: bytes) -> bytes:
    return blake2b(content, digest_size=DIGEST_SIZE).digest()


def _name(store: Store) -> str:
    return os.path.basename(store.directory)


def _mark(store: Store) -> object:
    """Return the transaction whose redo log had a part for a shard last, None for none."""
    return store.connection.setting(LAST_TRANSACTION)
