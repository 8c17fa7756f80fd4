"""Data keys in use: how much one of them has sealed, and entries that move from one to the next.

The keyring changes under the write lock, outside every transaction, in a commit of its own; the header's word KEYS
changes before and after it. What is written is sealed with the present data key: `present_row` sees to that under the
lock, where KEYS is exact, so that a rotation that has gone through all entries has left none behind.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from .. import files
from ..coherence.generations import WORD, Header
from ..errors import DecodeError, SecretError, TransactionError
from ..keyring import MAX_SEALS, RESERVED, Keyring, Master, Sealer
from ..record import Record
from ..sealing import epoch_of, epoch_of_key
from . import checkpoints, dictionaries, room
from . import statements as sql
from .connection import FAILURES
from .rows import Row

if TYPE_CHECKING:
    from .holding import Holder
    from .store import Store

BATCH = 100  # entries per transaction of a rotation


def present_row(store: Holder, sealer: Sealer, stored: bytes, row: Row) -> Row:
    """Return the row as the present data key seals it; the write lock is held.

    It is what it was, but for a row that was sealed just before another data key came. Then its file is another too,
    and the caller removes the one that no row needs.
    """
    reserve(store, sealer)
    epoch = sealer.current().epoch
    is_present = epoch_of(row.v) == epoch == epoch_of_key(row.spelling)
    if is_present and (row.file is None or sealer.open(stored, row.v).payload == epoch):
        return row
    renewed = _renewed(store, sealer, stored, row)
    if store.txn is not None and renewed.file is not None and renewed.file != row.file:
        store.txn.files.append(renewed.file)
    return renewed


def reserve(store: Holder, sealer: Sealer) -> None:
    """Count what was sealed, a block ahead, and begin a new data key before one has sealed too much.

    The write lock is held. Within a transaction nothing is done, since it may be rolled back.
    """
    if sealer.left >= 0 or store.txn is not None:
        return
    try:
        _reserve(store, sealer)
    except FAILURES as error:
        store.failed(error)


def _reserve(store: Holder, sealer: Sealer) -> None:
    rows = store.select_writer(sql.SELECT_SETTING, ("sealed",))
    sealed = rows[0][0] if rows and type(rows[0][0]) is int else 0
    wanted = RESERVED - sealer.left
    if sealed + wanted > MAX_SEALS // int(store.identity.get("shards", 1)):
        sealer.current()
        _change_keyring(store, sealer, sealer.keyring.with_new_key())
        sealed = 0
    with store.batch():
        store.writer.execute(sql.SET_SETTING, ("sealed", sealed + wanted))
    sealer.left += wanted


def _change_keyring(store: Holder, sealer: Sealer, keyring: Keyring, master: Master | None = None) -> None:
    """Store another keyring for good; the write lock is held and no transaction is open.

    Shards that a power loss took back to different keyrings might have no secret in common.
    """
    sealed = keyring.sealed()
    _note_change(store)  # before: who is killed in between leaves a word that makes everybody look
    with checkpoints.durably(store):
        with store.batch():
            store.writer.execute(sql.SET_SETTING, ("keyring", sealed))
            store.writer.execute(sql.SET_SETTING, ("sealed", 0))
        _note_change(store)  # after: who looked too early looks again
        sealer.left = min(sealer.left, -1)
        sealer.master = master or sealer.master
        sealer.reload()


def replace_keyring(store: Store, keyring: Keyring, timeout: float | None) -> None:
    """Store the keyring of another shard in place of one that is damaged, for good."""
    with store.locked(timeout):
        _note_change(store)  # as in `_change_keyring`
        with checkpoints.durably(store), store.batch():
            store.writer.execute(sql.SET_SETTING, ("keyring", keyring.sealed()))
        _note_change(store)


def _note_change(store: Holder, changes: int = 1) -> None:
    """Make the word another number, but never 0, which says that nothing is encrypted."""
    store.header[Header.KEYS] = (store.header[Header.KEYS] + changes - 1) % WORD + 1


# ------------------------------------------------------------------------------------------------------------ rotation


def begin(store: Store, sealer: Sealer, new: Master) -> bytes:
    """Let two secrets open the keyring and begin a new data key; return its epoch.

    A rotation to the same secret that was interrupted goes on where it was.
    """
    txn = store.txn  # once: another thread may end it at any time
    if txn is not None and txn.reads_here():
        raise TransactionError(f"{store.directory!r}: rotate() cannot run within transact()")
    with store.locked(None):
        sealer.reload()
        keyring = sealer.keyring
        under_way = len(keyring.wraps) > 1 and keyring.is_opened_by(new)
        if not under_way:
            _change_keyring(store, sealer, keyring.opened_by_both(sealer.master, new))
        else:
            _note_change(store, 2)  # the one before may have been killed while it changed the word
        return sealer.keyring.epoch


def renew_entries(store: Store, sealer: Sealer, epoch: bytes, told: Callable[[int], None]) -> None:
    """Seal every entry with the data key of `epoch`, in batches; call `told` with the number of entries of each."""
    for rows in store.pages(sql.PAGE_ROWS, BATCH):
        _renew_batch(store, sealer, epoch, [row for row in rows if _is_stale(row, epoch)])
        told(len(rows))


def finish(store: Store, sealer: Sealer, epoch: bytes, new: Master) -> None:
    """Leave only the new secret and the new data key."""
    with store.locked(None):
        _refuse_overtaken(store, sealer, epoch)
        with store.batch():
            store.leave_step()  # what follows are writes of their own
            dictionaries.seal_again(store)
        _change_keyring(store, sealer, sealer.keyring.opened_by_one(new), new)


def _refuse_overtaken(store: Store, sealer: Sealer, epoch: bytes) -> None:
    if sealer.current().epoch != epoch:
        raise SecretError(f"{store.directory!r}: another rotation has begun meanwhile; this one was given up")


def _is_stale(row: Sequence[Any], epoch: bytes) -> bool:
    """Tell whether a part of a row is sealed with another data key; what is not sealed at all is damage, and stays."""
    try:
        return epoch_of(row[10]) != epoch or epoch_of_key(row[7]) != epoch
    except DecodeError:
        return False


def _renew_batch(store: Store, sealer: Sealer, epoch: bytes, rows: Sequence[Sequence[Any]]) -> None:
    """Seal rows anew: the files before the lock is taken, the rows under it if they are still what they were."""
    written: list[bytes | str] = []
    try:
        renewed = []
        for row in rows:
            new = _try_renewed(store, sealer, row)
            if new is not None:
                renewed.append((row, new))
                written += [new.file] if new.file is not None and new.file != row[6] else []
        if not renewed:
            return
        with store.transaction(None):
            _refuse_overtaken(store, sealer, epoch)
            with store.changing([row[0] for row, _ in renewed], locked=False):
                for row, new in renewed:
                    _replace(store, row, new, written)
    except BaseException:
        room.unlink_unused(store, written)
        raise


def _try_renewed(store: Store, sealer: Sealer, row: Sequence[Any]) -> Row | None:
    """Return the row sealed anew, None for one that is damaged or whose file is gone: it stays as it is."""
    _, stored, _, expire, tag, size, file, spelling, queue, num, blob = row
    try:
        return _renewed(store, sealer, stored, Row(blob, expire, tag, size, file, spelling, queue, num))
    except (DecodeError, FileNotFoundError):
        return None


def _replace(store: Store, row: Sequence[Any], new: Row, written: list[bytes | str]) -> None:
    """Write a renewed row unless the entry was written since; the file that is needed no more goes."""
    parameters = (new.v, new.spelling, new.file, new.size, row[0], row[1], row[10])
    store.note_written(len(new.v))
    done = store.writer.execute(sql.UPDATE_SEALED, parameters).rowcount
    if not done and new.file is not None and new.file in written:
        written.remove(new.file)
        room.unlink_unused(store, [new.file])


def _renewed(store: Holder, sealer: Sealer, stored: bytes, row: Row) -> Row:
    """Return a row sealed with the present data key, its file written anew."""
    record = sealer.open(stored, row.v)
    canonical, spelling = sealer.open_key(stored, row.spelling)
    if record.file is not None and record.payload != sealer.current().epoch:
        record = _renewed_file(store, sealer, record)
    return row._replace(
        v=sealer.seal(stored, record),
        spelling=sealer.seal_key(stored, canonical, spelling),
        file=None if record.file is None else files.to_column(record.file),
        size=record.size,
    )


def _renewed_file(store: Holder, sealer: Sealer, record: Record) -> Record:
    """Write the content of a value file into a new one under the present data key."""
    with store.disk.sealed_file(record) as content:
        _, epoch, name, size = store.disk.write_sealed(record.mode, content.chunks(), sealer)
    return record._replace(file=name, size=size, payload=epoch)
