"""The journal of a transaction over several shards, by which it is whole though its commits are several.

The shard that has changed most commits first, and that commit decides: it holds, beside its own changes, an image of
what each of the others has changed. Whoever meets a transaction cut off after it, because a process was killed or a
disk failed, completes it from these images before anything else is written there; one cut off before it never was.

Two words say what there is to do. `Header.JOINT` of a shard is not 0 from before the decision until every commit is
made and the journal removed, all of it under the locks of all shards: so whoever gets the lock of a shard and finds it
set takes those of all shards where it is, and nobody has written to any of them since. Each shard's mark, changed with
a part that stands in a journal, names the transaction; a journal is of use to a shard only while its mark is the one
that the journal names as the last before. So one that a power loss or a copy brings back does nothing.

A process that dies in the middle of a commit may leave it whole in the WAL and yet seen by nobody, until somebody opens
the database after all have closed it. So before anything is concluded from there being no journal, each of these shards
gets a commit that takes the place of such a one.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from hashlib import blake2b
from operator import attrgetter
from sqlite3 import IntegrityError
from typing import TYPE_CHECKING, Any, NamedTuple

from ..codecs import decode_value, encode_value
from ..coherence.generations import NEVER, UNKNOWN, Header
from ..errors import CacheError, CorruptDatabase, CorruptDatabaseWarning, DecodeError, DiskFull
from . import checkpoints, room
from . import statements as sql
from .connection import FULL
from .transaction import HOME, Transaction

if TYPE_CHECKING:
    from .holding import Holder

COMMITTING = 1  # what JOINT says of a shard: its part of a transaction may be missing, or its last commit be seen late
UNKNOWN_STATE = 2  # its header is new, so that only its database can tell
MARK, BURNT, HEAD, CHUNK = "joint.mark", "joint.burnt", "joint.redo.head", "joint.redo.{:08d}"
FORMAT = 2
DIGEST_SIZE = 16
CHUNK_PLACES = 1000  # and
CHUNK_BYTES = 256 << 10  # of rows that are in memory at a time
COLUMNS = 13  # of a row
_INTEGER = 1 << 63  # bound of what SQLite takes


class Part(NamedTuple):
    """Where one shard's changes are in the journal."""

    shard: str
    before: bytes | None  # the shard's mark until it has them
    first: int  # chunk
    chunks: int
    digest: bytes


# ------------------------------------------------------------------------------------------------------------- deciding


def decide(stores: Sequence[Holder]) -> list[Holder]:
    """Commit the first of the open transactions if several have changed something, so that all of them will be.

    Returns the stores that have a part, the one with the journal first; none if one commit, or none, is enough. The
    caller commits the others.
    """
    for store in stores:
        store.verify_open()  # of all, before the first is committed
    parts = [(store, store.txn) for store in stores if store.txn is not None and (store.txn.homes or store.txn.names)]
    if len(parts) < 2:
        return []
    parts.sort(key=lambda part: len(part[1].homes or ()), reverse=True)
    first, txn = parts[0]
    _write(first, parts[1:])
    for store, other in parts:
        store.header[Header.JOINT] = COMMITTING
        other.decided = True  # before the commit: an exception may come between it and the next line
    try:
        first.commit(txn)
    except CacheError:
        for _, other in parts:
            other.decided = False
        raise
    return [store for store, _ in parts]


def forget(stores: Sequence[Holder]) -> None:
    """Remove the journal after all parts are committed, still under all locks."""
    try:
        _drop(stores[0])
    except CacheError:
        return  # the transaction is made; who comes next finds JOINT set and tries again
    for store in stores:
        store.header[Header.JOINT] = 0


def _write(first: Holder, parts: Sequence[tuple[Holder, Transaction]]) -> None:
    """Put the changes of the other shards into the first one's transaction, and a new mark into each of them.

    What is small stands in the head of the journal, the rest in rows beside it.
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
        store.put_setting(MARK, identifier)
    synced = all(store.settings["sqlite_synchronous"] >= FULL for store in (first, *(store for store, _ in parts)))
    head = encode_value([FORMAT, identifier, written, pieces, 0 if synced else first.header[Header.BOOT]])
    _put(first, HEAD, _digest(head) + head)


def _put(store: Holder, name: str, content: bytes) -> None:
    store.note_written(len(content) + checkpoints.FRAME)
    store.put_setting(name, content)


def _changes(store: Holder, txn: Transaction) -> Iterator[list[Any]]:
    """Yield what a transaction has changed, some at a time: places, the rows that are there, trash, settings."""
    homes: list[int] = []
    rows: list[list[Any]] = []
    size = 0
    for home in sorted(txn.homes or ()):
        found = store.select_writer(sql.SELECT_IMAGES, (home,))
        homes.append(home)
        rows += map(list, found)
        size += sum(len(value) for row in found for value in row if isinstance(value, bytes | str))
        if size > CHUNK_BYTES or len(homes) == CHUNK_PLACES:
            yield [homes, rows, [], []]
            homes, rows, size = [], [], 0
    trash = [list(row) for column in txn.files for row in store.select_writer(sql.SELECT_TRASHED, (column,))]
    settings = [[name, store.select_writer(sql.SELECT_SETTING, (name,))] for name in sorted(txn.names)]
    yield [homes, rows, trash, [[name, [value for (value,) in found]] for name, found in settings]]


# ----------------------------------------------------------------------------------------------------------- completing


def first_mark(identity: dict[str, Any]) -> dict[str, object]:
    """Return what a new database has beside its settings, so that no journal of before is of use to it."""
    return {MARK: os.urandom(DIGEST_SIZE)} if identity.get("shards", 1) > 1 else {}


def is_due(stores: Sequence[Holder]) -> bool:
    """Tell whether a transaction may have been cut off, or is just being committed."""
    return any(store.header[Header.JOINT] for store in stores)


def complete(stores: Sequence[Holder], timeout: float | None) -> float | None:
    """Complete what was cut off among the shards of a cache; return what is left of `timeout`.

    Takes the locks of those concerned. Raises Timeout, and what the disk refuses; all is as it was then.
    """
    deadline = None if timeout is None else time.monotonic() + timeout
    for _ in stores:
        try:
            _complete(stores, deadline)
            break
        except CorruptDatabase as error:
            damaged = next((store for store in stores if store.path == error.path), None)
            # With no time to wait the caller may hold another shard's lock, and setting aside waits for this one's.
            if damaged is None or timeout == 0 or not damaged.recovered(error):
                raise
    return left(deadline)


def _complete(stores: Sequence[Holder], deadline: float | None) -> None:
    due: list[Holder] = []
    try:
        problems = _complete_due(stores, due, deadline)
    except BaseException:
        for store in due:
            store.let_go()  # as `Shards._let_go` does
        raise
    for problem in problems:
        warnings.warn(problem, CorruptDatabaseWarning, stacklevel=2)


def _complete_due(stores: Sequence[Holder], due: list[Holder], deadline: float | None) -> list[str]:
    """Complete what was cut off, with the locks of `due`, a list that is filled here; return what was wrong."""
    ordered = sorted(stores, key=attrgetter("directory"))  # the order in which transactions take their locks
    is_whole = False
    while not is_whole:
        with ExitStack() as held:
            due.clear()
            for store in ordered:
                if store.present_header()[Header.JOINT]:
                    held.enter_context(store.taken(left(deadline)))
                    store.settle()
                    due.append(store)
            # While this waited for one of them, another transaction may have been cut off that concerns a shard passed
            # over. None begins now that concerns one of `due`, and nobody can be done with one without its lock.
            is_whole = not any(store.present_header()[Header.JOINT] for store in ordered if store not in due)
            problems = _complete_all(due) if is_whole else []
    return problems


def _complete_all(due: Sequence[Holder]) -> list[str]:
    """Complete what concerns these shards, whose locks are held; return what is wrong with their journals."""
    problems: list[str] = []
    for store in due:
        if store.header[Header.JOINT] == COMMITTING:
            _with_room(store, partial(store.put_setting, BURNT, store.header[Header.TICK] & NEVER))
    for store in due:
        problems += _replay(store, {_name(other): other for other in due})
    for store in due:
        store.header[Header.JOINT] = 0
    return problems


def left(deadline: float | None) -> float | None:
    """Return how many seconds are left until a deadline, 0 if none."""
    return None if deadline is None else max(deadline - time.monotonic(), 0.0)


def _with_room(store: Holder, step: Callable[[], object]) -> None:
    """Do a step, once more if the disk was full and room could be made."""
    try:
        step()
    except DiskFull:
        if not room.relieve(store, []):
            raise
        step()


def _replay(source: Holder, shards: dict[str, Holder]) -> list[str]:
    """Give each shard its part of the journal in `source`, where it has not got it yet, and remove the journal.

    A shard that is not among `shards` has its part: it was completed, or made anew, since. After a restart of the
    machine the journal is of use only if commits are synced: else the shard may have lost some of before, and with this
    part it would have a later write without an earlier one. Returns what is wrong with the journal, if anything is.
    """
    content = _setting(source, HEAD)
    if content is None:
        return []
    problems = []
    try:
        identifier, parts, pieces, boot = _head(content)
        for part in parts if boot in (0, source.header[Header.BOOT]) else ():
            store = shards.get(part.shard)
            if store is not None and store is not source and _mark(store) == part.before:
                _apply(store, part, identifier, partial(_piece, source, pieces))
    except (DecodeError, UnicodeEncodeError) as error:  # the latter from text that SQLite cannot take
        problems.append(
            f"{source.path!r}: the journal of a transaction over several shards is damaged ({error}), so that a part of"
            " the transaction is missing"
        )
    _with_room(source, lambda: _drop(source))
    return problems


def _drop(source: Holder) -> None:
    """Remove the journal. That need not outlast a power loss, for marks tell that it was done with."""
    checkpoints.unsynced(source, source.drop_journal)


def _piece(source: Holder, pieces: list[object], number: int) -> bytes:
    """Return a chunk of the journal in `source`, or raise DecodeError."""
    chunk = pieces[number] if 0 <= number < len(pieces) else _setting(source, CHUNK.format(number))
    if not isinstance(chunk, bytes):
        raise DecodeError("a piece of it is missing")
    return chunk


def _apply(store: Holder, part: Part, identifier: bytes, piece: Callable[[int], bytes]) -> None:
    """Make one shard's part of a transaction, its mark included."""

    def step() -> None:
        digest = blake2b(digest_size=DIGEST_SIZE)
        with store.batch():
            for number in range(part.first, part.first + part.chunks):
                chunk = piece(number)
                digest.update(chunk)
                _restore(store, decode_value(chunk))
            if digest.digest() != part.digest:
                raise DecodeError("it does not match its checksum")
            store.put_setting(MARK, identifier)

    header = store.header
    header[Header.COUNT] = UNKNOWN
    header[Header.FILES] = 1  # before the commit, as everything that says what there may be from it on
    header[Header.NEXT_EXPIRE] = 0
    try:
        _with_room(store, step)
    finally:
        store.note_inserted()


def _restore(store: Holder, content: object) -> None:
    """Give places, trash and settings the content that they have in a chunk; raise DecodeError for any other form."""
    homes, rows, trash, settings = _checked(content)
    there = {row[0] for row in rows}
    if any(place & ~HOME for place in there):
        store.header[Header.DISPLACED] = 1
    with store.changing(homes, locked=False):
        try:
            free = [(place,) for home in homes for place in range(home, home + 4) if place not in there]
            store.writer.executemany(sql.DELETE_H, free)
            store.writer.executemany(sql.RESTORE, rows)
            store.writer.executemany(sql.RESTORE_TRASH, trash)
        except IntegrityError as error:
            raise DecodeError(f"it holds rows that no cache writes ({error})") from error
    for name, values in settings:
        if values:
            store.put_setting(name, values[0])
        else:
            store.drop_setting(name)
        if name == "eviction_policy":
            store.rank_anew()


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
    """Return identifier, parts, first chunks and boot of a journal, 0 for any boot, or raise DecodeError."""
    if not isinstance(content, bytes) or content[:DIGEST_SIZE] != _digest(content[DIGEST_SIZE:]):
        raise DecodeError("it does not match its checksum")
    match decode_value(content[DIGEST_SIZE:]):
        case [2, bytes() as identifier, list() as parts, list() as pieces, int() as boot]:
            return identifier, [_part(part) for part in parts], pieces, boot
    raise DecodeError("it does not have the form of one")


def _part(content: object) -> Part:
    match content:
        case [str() as shard, bytes() | None as before, int() as first, int() as chunks, bytes() as digest]:
            return Part(shard, before, first, chunks, digest)
    raise DecodeError("it does not have the form of one")


def _digest(content: bytes) -> bytes:
    return blake2b(content, digest_size=DIGEST_SIZE).digest()


def _name(store: Holder) -> str:
    return os.path.basename(store.directory)


def _mark(store: Holder) -> object:
    """Return the transaction whose journal had a part for a shard last, None for none."""
    return _setting(store, MARK)


def _setting(store: Holder, name: str) -> object:
    rows = store.select_writer(sql.SELECT_SETTING, (name,))
    return rows[0][0] if rows else None
