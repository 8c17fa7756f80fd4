"""Rotation of one shard: its keyring goes from one secret to another, its entries from one data key to the next."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..crypto.aead import epoch_of, epoch_of_key
from ..crypto.keyring import MasterKey, Sealer
from ..errors import DecodeError, SecretError, TransactionError
from .shard.row import Row
from .sqlite import statements as sql
from .store import Store

BATCH = 100  # entries per transaction of a rotation


def begin(store: Store, sealer: Sealer, new: MasterKey) -> bytes:
    """Let two secrets open the keyring and begin a new data key; return its epoch. Resume an interrupted rotation."""
    if store.in_transaction():
        raise TransactionError(f"{store.directory!r}: rotate() cannot run within transact()")
    with store.locked(None):
        sealer.reload()
        keyring = sealer.keyring
        under_way = len(keyring.wraps) > 1 and keyring.is_opened_by(new)
        if not under_way:
            store.data_keys.change_keyring(sealer, keyring.opened_by_both(sealer.master, new))
        else:
            store.data_keys.count_change(2)  # the one before may have been killed while it changed the word
        return sealer.keyring.epoch


def renew_entries(store: Store, sealer: Sealer, epoch: bytes, progress: Callable[[int], None]) -> None:
    """Seal every entry with the data key of `epoch`, in batches; call `progress` with the size of each."""
    for rows in store.reader.pages(sql.PAGE_ROWS, BATCH):
        _renew_batch(store, sealer, epoch, [row for row in rows if _is_stale(row, epoch)])
        progress(len(rows))


def finish(store: Store, sealer: Sealer, epoch: bytes, new: MasterKey) -> None:
    """Leave only the new secret and the new data key."""
    with store.locked(None):
        _refuse_overtaken(store, sealer, epoch)
        store.writer.buffer.wipe()
        store.data_keys.change_keyring(sealer, sealer.keyring.opened_by_one(new), new)


def _refuse_overtaken(store: Store, sealer: Sealer, epoch: bytes) -> None:
    if sealer.current().epoch != epoch:
        raise SecretError(f"{store.directory!r}: another rotation has begun meanwhile; this one was given up")


def _is_stale(row: Sequence[Any], epoch: bytes) -> bool:
    """Tell whether a part of a row is sealed with another data key; what is not sealed at all is damage, and stays."""
    try:
        return epoch_of(row[11]) != epoch or epoch_of_key(row[8]) != epoch
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
                written += [new.file] if new.file is not None and new.file != row[7] else []
        if not renewed:
            return
        with store.transaction(None):
            _refuse_overtaken(store, sealer, epoch)
            with store.invalidation.commit_many([row[0] for row, _ in renewed], autocommit=False):
                for row, new in renewed:
                    _replace(store, row, new, written)
    except BaseException:
        store.trash.unlink_unused(written)
        raise


def _try_renewed(store: Store, sealer: Sealer, row: Sequence[Any]) -> Row | None:
    """Return the row sealed anew, None for one that is damaged or whose file is gone: it stays as it is."""
    try:
        return store.data_keys.sealed_again(sealer, row[1], Row(row[11], *row[3:11]))
    except (DecodeError, FileNotFoundError):
        return None


def _replace(store: Store, row: Sequence[Any], new: Row, written: list[bytes | str]) -> None:
    """Write a renewed row unless the entry was written since; unlink the file that is not needed."""
    parameters = (new.packed, new.original_key, new.file, new.size, row[0], row[1], row[11])
    store.invalidation.count_written(len(new.packed))
    done = store.connection.execute(sql.UPDATE_SEALED, parameters).rowcount
    if not done and new.file is not None and new.file in written:
        written.remove(new.file)
        store.trash.unlink_unused([new.file])
