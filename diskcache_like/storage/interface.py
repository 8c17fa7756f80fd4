"""What an operation on a key may ask of a store: of one shard here, or of one whose entries a server has.

`store.Store` and `tier.store.TieredStore` are the two. Whatever is about all entries of a shard (tags, queues,
listings, upkeep) is asked of a `Store` alone, and sees what is on this machine.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from ..coherence.generations import Marks, Words
from ..disk.contract import Disk
from .shard.row import Decide, Row

# A key's hash; with a server, an integer that knows more of the key.
Home = Any


class Slots(Protocol):
    """The words that tell whether what was read of a key still holds; attributes, since each hit looks at them."""

    slot_prime: int

    @property
    def slots(self) -> Words:
        """Return the generations, or the words of a server's entries."""

    @property
    def marks(self) -> Marks:
        """Return what hits leave for the eviction policy."""

    def ready(self) -> None:
        """Open what is closed."""

    def slot_of(self, home: int) -> int:
        """Return the slot of a key's hash."""


class EntryStore(Protocol):
    """Read and write entries by the hash and the stored key of their keys.

    A write returns the generation under which the caller may keep the value hot: 1, or an odd one, for none.
    """

    directory: str

    @property
    def disk(self) -> Disk:
        """Return what encodes values, and keeps value files."""

    @property
    def shard(self) -> Slots:
        """Return the words of the open shard."""

    @property
    def displaced(self) -> bool:
        """Tell whether any key lives beside its home place."""

    def read(self, home: Home, stored_key: bytes, /) -> Any:
        """Return the record of a key, or at its hash: the caller verifies that it is its own. None for none."""

    def read_versioned(self, home: Home, stored_key: bytes, /) -> tuple[Any, int]:
        """Return the record of the key, wherever it lies, and its version; None and 0 for none."""

    def read_many(self, keys: Sequence[tuple[Home, bytes]], /) -> dict[Home, Any]:
        """Return the records of keys, or at their hashes, that exist."""

    def version(self, home: Home, stored_key: bytes, /) -> int:
        """Return the version of what the running `update` has read, 0 for no entry."""

    def put(
        self, home: Home, stored_key: bytes, row: Row | bytes, timeout: float | None, /, known: bool = False
    ) -> int:
        """Store a row, or a record alone; `known`: the key most likely has an entry."""

    def put_many(self, rows: Sequence[tuple[Home, bytes, Row | bytes]], /) -> None:
        """Store rows within a transaction of the caller's."""

    def update(
        self,
        home: Home,
        stored_key: bytes,
        decide: Decide,
        timeout: float | None,
        /,
        early: bool = False,
        missing: int = 0,
    ) -> int:
        """Let `decide` say what becomes of an entry; `early`: it may be asked more than once.

        `missing`: the generation of the slot at which the caller has found no entry, 0 for none.
        """

    def remove(self, home: Home, stored_key: bytes, timeout: float | None, /, seen: int = 0) -> int:
        """Remove an entry; return 0 if there was none."""

    def remove_many(self, keys: Sequence[tuple[Home, bytes]], timeout: float | None, /) -> int:
        """Remove entries together; return how many there were."""

    def transaction(self, timeout: float | None, /) -> AbstractContextManager[None]:
        """Make the body one transaction, where there are any."""

    def attempts(self, removes: bool = False) -> Iterator[AbstractContextManager[Any]]:
        """Yield a context for each attempt at a transaction."""

    def in_transaction(self) -> bool:
        """Tell whether the calling task is inside a transaction."""

    def refers_to(self, file: str, /) -> bool:
        """Tell whether an entry has this value file."""

    def make_room(self, timeout: float | None, /) -> bool:
        """Make room on a full disk for a value file; tell whether to try again."""

    def generation(self, home: Home, /) -> int:
        """Return the word to sleep on."""

    def was_missed(self, home: Home, /) -> bool:
        """Tell whether this was called for a key, or its entry was evicted, a short while ago, as far as is known."""

    def was_evicted(self, home: Home, /) -> bool:
        """Tell the same, and remember nothing."""

    def sleep(self, home: Home, stamp: int, seconds: float, /) -> None:
        """Sleep until `wake` is called, but not if the word is no longer `stamp`, and `seconds` at most."""

    def wake(self, home: Home, /) -> None:
        """Wake those who sleep."""

    def hold(self, home: Home, owner: object, /) -> bool | None:
        """Hold a key if nobody does; None where that is impossible."""

    def let_go(self, home: Home, owner: object, /) -> None:
        """Let go of a key if this owner holds it."""
