"""The C core: words in mapped memory, the write lock, the ring of a write buffer, and appends in a single call."""

from collections.abc import Callable, Generator, Iterator, Mapping
from types import TracebackType
from typing import Any, Final, Self, TypeAlias, final

from _typeshed import WriteableBuffer

# Indices of words of a generation file's header, which generations.py explains.
EPOCH: Final[int]
BUFFER: Final[int]
TICK: Final[int]
WRITTEN: Final[int]
VOLUME_DUE: Final[int]
SETTLED: Final[int]
CROSS_SHARD: Final[int]
WAKE: Final[int]
WAITERS: Final[int]
FAIRNESS_CLAIM: Final[int]
LIMIT: Final[int]
COUNT: Final[int]
SINCE: Final[int]
EVICTED: Final[int]
MARKS: Final[int]

LEAST_CELLS: Final[int]  # of marks and ghosts, in use where the word MARKS is 0
SPACES: Final[int]  # that are counted apart,
SPACE_COUNTERS: Final[int]  # and the counters of each

# Indices of words of a ring's first page, which ring.py explains.
RESERVED: Final[int]
LAST: Final[int]
HEAD: Final[int]
FLUSHED: Final[int]
FLUSHED_LAST: Final[int]
FLOOR: Final[int]
CARRYING: Final[int]

# What `Lock.try_acquire` and `Lock.wait` return.
TAKEN: Final[int]
BUSY: Final[int]
HELD: Final[int]  # by the calling thread itself

LONGEST_WALK: Final[int]
HEADER_SIZE: Final[int]
FARTHEST: Final[int]  # offset that no ring comes to; what is beyond is damage

DIGEST_ABOVE: Final[int]  # bytes; a longer stored key is digested before it is hashed, because division is quadratic
SHARD_PRIME: Final[int]  # keys with regular hashes still spread over the shards

# The fields of a `Written` (ring.py).
Fields: TypeAlias = tuple[int, int, bytes, bytes | None, float | None, float | None, str | None, bytes | None, bool]

# What is written under a key: a record alone, a `Row` of storage/shard/row.py, or None for a removal.
Change: TypeAlias = bytes | tuple[Any, ...] | None

# What the records of one key come to: the number of the write that made the entry, that of the last one, the hash, the
# row that the last one wrote (`Small` of storage/rows.py; None for a removal), and whether any was a removal.
Net: TypeAlias = tuple[int, int, int, tuple[Any, ...] | None, bool]

class Words:
    """64-bit unsigned words in a buffer, `length` of them from the word `first` on.

    A load is an acquire that no earlier load follows, and a store a release that no later store precedes; on x86-64 a
    later load may.
    Raises IndexError for a word that is not there, negative indices included.
    """

    def __new__(cls, buffer: WriteableBuffer, first: int, length: int, /) -> Self: ...
    def __getitem__(self, index: int, /) -> int: ...
    def __setitem__(self, index: int, value: int, /) -> None: ...
    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[int]: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def add(self, index: int, amount: int, /) -> int:
        """Add to a word in one atomic step; return what it was."""

    def fill(self, value: int, /) -> None:
        """Set every word, each atomically; 65,536 words take about 20 µs."""

    def wait(self, index: int, expected: int, timeout_us: int, /) -> int:
        """Sleep until `wake`, if the low half of the word is `expected`; return 0, or an errno (ENOSYS: no futex)."""

    def wake(self, index: int, waiters: int, /) -> int:
        """Wake up to `waiters` of the sleepers; return 0, or an errno."""

@final
class Counters:
    """Count in words of one process. None are attached at first, and what is counted beyond them is not counted."""

    def attach(self, buffer: WriteableBuffer, first: int, length: int, /) -> None:
        """Count in `length` words of a buffer from now on, from its word `first` on."""

    def add(self, index: int, amount: int, /) -> None:
        """Add to a counter."""

    def observe(self, first: int, time: int, /) -> None:
        """Count a time in nanoseconds in the histogram that begins with counter `first` (counts.py)."""

@final
class Marks:
    """Marks and ghosts (generations.py) in the cells from `offset` on of a buffer that begins with the header.

    A key is named by its hash, or by the place of its row. Loads and stores are relaxed.
    """

    def __new__(cls, buffer: WriteableBuffer, offset: int, slot_prime: int, /) -> Marks: ...
    def __setitem__(self, home: int, kind: int, /) -> None:
        """Count a use; `kind` is one of settings/policies.py: nothing, the present time, or one more use.

        32 uses are counted one by one, more of them by chance. The bits above tell which counter of the space gets one
        more, if any (`count_in`).
        """

    def of(self, stored_key: bytes, /) -> Marks:
        """Return these marks for a key; they count for the space that it is in."""

    def count_in(self, counters: Counters, spaces: Mapping[bytes, int] | None, /) -> None:
        """Count from now on; `spaces` tells the number of a space by how the stored keys in it begin."""

    def __getitem__(self, home: int, /) -> int:
        """Return the mark of a key."""

    def put(self, home: int, mark: int, /) -> None:
        """Store the mark of a key, the largest one instead of any that is larger."""

    def grow(self, are_times: bool, /) -> bool:
        """Use twice as many cells, whose blocks are allocated; return False if there are not so many.

        The others begin as copies. `are_times`: the marks tell times, which leave out one more bit from now on. Holds
        the GIL, for about 2 ms where there are a million marks. The caller holds the write lock.
        """

    def last_use(self, home: int, written: int, since: int, /) -> int:
        """Return twice the write after which an entry was last used since `since`, and one more; or 0.

        It is twice `written` where that is more: the last write of the entry itself.
        """

    def knows(self, home: int, entries: int, /) -> bool:
        """Tell whether the ghost of a key was left while about as many were evicted as there are entries now."""

    def leave(self, home: int, /) -> None:
        """Leave the ghost of a key, in place of the oldest of four."""

@final
class Lock:
    """The write lock: one holder at a time, among the threads that share this object and among processes.

    It owns the descriptor that it locks. A closed one raises OSError (EBADF) where the lock is wanted.
    """

    def __new__(cls, descriptor: int, /) -> Lock: ...
    def attach(self, header: Words, /) -> None:
        """Wait, wake and claim by the words of this header from now on, not by words of this object alone."""

    def try_acquire(self, ignores_claim: bool, /) -> int:
        """Take the lock if it is free, and no claim stands unless that is ignored; return TAKEN, BUSY or HELD."""

    def wait(self, timeout: float | None, look: Callable[[], object], /) -> int:
        """Wait for the lock without the GIL; return TAKEN, BUSY after `timeout` seconds, or HELD.

        Signal handlers run meanwhile, and `look` is called now and then. What these raise ends the wait with nothing
        held.
        """

    def release(self) -> None:
        """Release the lock and wake one waiter, if the calling thread holds it."""

    def enter(self) -> bool:
        """Keep the other threads of this process out, with no lock taken, if that can be done at once."""

    def leave(self) -> None:
        """End what `enter` began."""

    def owner(self) -> int:
        """Return the thread of this process that holds the lock or is just trying, 0 for none."""

    def is_mine(self) -> bool:
        """Tell whether that is the calling thread."""

    def waiting(self) -> int:
        """Return how many threads of this process wait."""

    def contended(self) -> bool:
        """Tell whether anybody has recently found the lock taken: a hint."""

    def close(self, unlocks: bool, /) -> None:
        """Close the descriptor. `unlocks`: also release a lock that a process shares by a fork."""

    def fileno(self) -> int:
        """Return the descriptor, -1 once it is closed."""

@final
class Ring:
    """The ring in a mapped file: words in the first `page` bytes, then content, then the table of `slots` words."""

    def __new__(cls, buffer: WriteableBuffer, page: int, capacity: int, slots: int, prime: int, /) -> Ring: ...
    def find(self, home: int, stored_key: bytes, /) -> Fields | bool | None:
        """Return the newest write of a key, None if the database has it, False for damage."""

    def read(self, home: int, stored_key: bytes, /) -> bytes | bool | None:
        """Return the record of a key; None if the database has it, True if it was removed.

        False for damage, and for a ring that is closed.
        """

    def close(self) -> None:
        """Let `find` find nothing any more; the memory stays mapped as long as this object is in use."""

    def is_closed(self) -> bool:
        """Tell whether `close` has begun."""

    def is_sound(self) -> bool:
        """Tell whether the offsets in the words can be true beside each other; the lock is held."""

    def append(self, number: int, version: int, home: int, stored_key: bytes, row: Change, /) -> bool:
        """Append a record; return False if everything has to be flushed first. The lock is held.

        `number`: that of this write.
        """

    def mend(self, offset: int, last: int, /) -> None:
        """Finish what a writer died in; everything up to this place is flushed, and the lock is held."""

    def take_over(self, offset: int, last: int, /) -> tuple[int, int]:
        """Let the table lead to what follows a place in the chain, as far as it is whole; return where that ends."""

    def newest_tick(self) -> int:
        """Return the highest number of the writes that wait, 0 if nothing does; the lock is held."""

    def gather(self, most: int, /) -> tuple[dict[bytes | int, Net], int, int] | None:
        """Return what waiting records come to, of `most` keys, with the place where they end; None for damage."""

@final
class Shard:
    """What an append has to know of a shard as it is open now."""

    def __new__(
        cls,
        lock: Lock,
        header: Words,
        slots: Words,
        slot_prime: int,
        ring: Ring,
        limit: int,
        tick_limit: int,
        due_limit: int,
        bound: int,
        longest: int,
        most: int,
        /,
    ) -> Shard: ...
    def append(self, expected: int, version: int, home: int, stored_key: bytes, row: Change, /) -> int:
        """Append a record under the write lock; return the slot's new generation, or 0 if it writes nothing.

        If the lock is taken, it waits for 200 µs at most, without the GIL. `expected`: the generation that the slot
        must have, or, if it is odd, that it gets during the write; 0 for any.
        """

def key_at(place: int, stored_key: object, modulus: int, /) -> str | bytes | int | None:
    """Return a row's key if it is text, bytes or a 64-bit integer and belongs to this place; else None."""

def located(key: object, modulus: int, stores: list[Any], /) -> tuple[bytes, int, Any] | None:
    """Return (stored key, hash, store) of a key that is text, bytes, a 64-bit integer, or a tuple of these.

    None for any other key, and for one whose stored key is digested before it is hashed.
    """

def open_plain(stored_key: bytes, packed: object, /) -> tuple[str | bytes | int, float | None] | None:
    """Return value and expiry of an intact record (encoding/record.py) of a text, a byte string or a number.

    None for any other record, for one with more metadata, and for one of more than 1,024 bytes.
    """

def pack_plain(stored_key: bytes, payload: bytes, expire: float | None, tags: bytes, /) -> bytes:
    """Return the record of a value in the row with no more metadata than these two (encoding/record.py)."""

def read_file(folder: str, last: str, into: int | memoryview, /) -> bytes | memoryview | None:
    """Read a value file without the GIL; return its content as bytes, or the given memory once it is filled.

    None if it is not a regular file of that size with one name, if it or its folder is a link, and after any error of
    the system.
    """

def read_plain(payload: object, /) -> Any:
    """Read a value in msgpack that has no extension; NotImplemented for anything else than such bytes.

    Raises TypeError for a key that is not hashable, UnicodeDecodeError and MemoryError.
    """

def write_plain(value: object, /) -> Any:
    """Return a value in msgpack as bytes; NotImplemented if a part has another type, or is too large or too deep."""

def watch_steps(watcher: Callable[[str], object] | None, /) -> None:
    """For tests: have this called after each change of memory that others map, with what was changed."""

def write_back(descriptor: int, /) -> None:
    """Have the kernel begin to write what is in a file, and do not wait for it; nothing is promised of it."""

class Context:
    """The end of a context manager that has a generator."""

    generator: Generator[Any]

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> bool:
        """Resume the generator, or throw the error into it; tell whether it has dealt with the error."""

def end(shards: tuple[object, ...], token: int, thread: int = ..., /) -> None:
    """Roll back and release what a thread, mostly the calling one, holds of these open shards (`OpenShard`).

    `token`: of this process; what another has opened is left alone. A transaction that was open is put aside, as
    `cut_off` of its connection.
    """
