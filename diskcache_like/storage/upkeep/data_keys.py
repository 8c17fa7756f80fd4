"""The data keys of an encrypted shard: how much one of them has sealed, and when the next begins.

The keyring changes under the write lock, outside every transaction, in a commit of its own; the header's word KEYS
changes before and after it. What is written is sealed with the present data key: `present_row` sees to that under the
lock, where KEYS is exact, so that a rotation that has gone through all entries has left none behind.
"""

from __future__ import annotations

from ...coherence.generations import MAX_WORD, Header
from ...crypto.aead import epoch_of, epoch_of_key
from ...crypto.keyring import MAX_SEALS, RESERVED, Keyring, MasterKey, Sealer, is_whole
from ...encoding import file_names
from ...encoding.record import Record
from ...errors import DecodeError, KeyringError
from ..shard.reader import Reader
from ..shard.row import Row
from ..shard.transactions import Transactions
from ..sqlite import statements as sql
from .checkpoints import Checkpointer


class DataKeys:
    """Keep the keyring of one shard, and rows sealed with its present data key."""

    def __init__(self, transactions: Transactions, reader: Reader, checkpointer: Checkpointer) -> None:
        self._shard = transactions.shard
        self._connection = transactions.shard.connection
        self._transactions = transactions
        self._reader = reader
        self._checkpointer = checkpointer

    def keyring(self) -> bytes:
        """Return the sealed keyring as it is stored now; raise KeyringError if there is none."""
        shard = self._shard
        rows = self._reader.select(sql.SELECT_SETTING, ("keyring",))
        if not rows or type(rows[0][0]) is not bytes:
            raise KeyringError(f"{shard.path!r}: the keyring of this encrypted cache is gone; no entry can be read")
        sealed: bytes = rows[0][0]
        if is_whole(sealed):  # for the database that takes the place of this one, should it break
            shard.identity["keyring"] = sealed
            if "keyring" in shard.config.identity:  # or be gone, or found broken, when this handle opens it again
                shard.config.identity["keyring"] = sealed
        return sealed

    def version(self) -> tuple[int, int]:
        """Return a value that changes whenever the keyring may have changed; exact under the write lock."""
        return self._shard.epoch, self._shard.header[Header.KEYS]

    def present_row(self, stored_key: bytes, row: Row) -> Row:
        """Return the row as the present data key seals it; the write lock is held.

        A row that was sealed just before the data key changed is sealed again, with another file: the caller removes
        the one that no row needs.
        """
        sealer = self._shard.sealer
        assert sealer is not None
        self.reserve_seals()
        epoch = sealer.current().epoch
        is_present = epoch_of(row.packed) == epoch == epoch_of_key(row.original_key)
        if is_present and (row.file is None or sealer.open(stored_key, row.packed).payload == epoch):
            return row
        renewed = self.sealed_again(sealer, stored_key, row)
        txn = self._connection.txn
        if txn is not None and renewed.file is not None and renewed.file != row.file:
            txn.files.append(renewed.file)
        return renewed

    def is_present(self, original_key: object) -> bool:
        """Tell whether a key is sealed with the present data key; the write lock is held."""
        sealer = self._shard.sealer
        try:
            return sealer is not None and epoch_of_key(original_key) == sealer.current().epoch
        except DecodeError:
            return False

    def reserve_seals(self) -> None:
        """Count what was sealed, a block ahead, and begin a new data key before one has sealed too much.

        The write lock is held. Within a transaction nothing is done, since it may be rolled back.
        """
        sealer = self._shard.sealer
        if sealer is None or sealer.left >= 0 or self._connection.txn is not None:
            return
        stored = self._connection.setting("sealed")
        sealed = stored if type(stored) is int else 0
        wanted = RESERVED - sealer.left
        if sealed + wanted > MAX_SEALS // int(self._shard.identity.get("shards", 1)):
            self.change_keyring(sealer, sealer.keyring.with_new_key())
            sealed = 0
        with self._transactions.batch():
            self._connection.execute(sql.SET_SETTING, ("sealed", sealed + wanted))
        sealer.left += wanted

    def change_keyring(self, sealer: Sealer, keyring: Keyring, master: MasterKey | None = None) -> None:
        """Store another keyring durably; the write lock is held and no transaction is open.

        Shards that a power loss took back to different keyrings might have no secret in common. `master`: the only
        secret that opens it, and one that opens the present keyring, too.
        """
        sealed, before = keyring.sealed(), sealer.master
        self.count_change()  # before: who is killed in between leaves a word that makes everybody look
        with self._checkpointer.durably():
            try:
                sealer.master = master or before  # first: another thread may load the keyring once it is stored
                with self._transactions.batch():
                    self._connection.execute(sql.SET_SETTING, ("keyring", sealed))
                    self._connection.execute(sql.SET_SETTING, ("sealed", 0))
            except BaseException:
                sealer.master = before
                raise
            self.count_change()  # after: who looked too early looks again
            sealer.left = min(sealer.left, -1)
            sealer.reload()

    def replace_keyring(self, keyring: Keyring, timeout: float | None) -> None:
        """Store the keyring of another shard in place of one that is damaged, for good."""
        with self._transactions.locked(timeout):
            self.count_change()  # as in `change_keyring`
            with self._checkpointer.durably(), self._transactions.batch():
                self._connection.execute(sql.SET_SETTING, ("keyring", keyring.sealed()))
            self.count_change()

    def count_change(self, changes: int = 1) -> None:
        """Change the word KEYS, but never to 0, which says that nothing is encrypted."""
        header = self._shard.header
        header[Header.KEYS] = (header[Header.KEYS] + changes - 1) % MAX_WORD + 1

    def sealed_again(self, sealer: Sealer, stored_key: bytes, row: Row) -> Row:
        """Return a row sealed with the present data key, its file written anew."""
        record = sealer.open(stored_key, row.packed)
        canonical, original_key = sealer.open_key(stored_key, row.original_key)
        if record.file is not None and record.payload != sealer.current().epoch:
            record = self._with_new_file(sealer, record)
        return row._replace(
            packed=sealer.seal(stored_key, record),
            original_key=sealer.seal_key(stored_key, canonical, original_key),
            file=None if record.file is None else file_names.to_column(record.file),
            size=record.size,
        )

    def _with_new_file(self, sealer: Sealer, record: Record) -> Record:
        """Write the content of a value file into a new one under the present data key."""
        disk = self._shard.disk
        with disk.sealed_file(record) as content:
            _, epoch, name, size = disk.write_sealed(record.mode, content.chunks(), sealer)
        return record._replace(file=name, size=size, payload=epoch)
