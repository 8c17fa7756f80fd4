"""The ring of the write buffer: the newest small writes of a shard, in a mapped file that all processes share.

It is a log that outlives its writer, from which the database is written in batches, and where readers find what is not
there yet. Records lie one behind the other. Each has an absolute offset, which only grows; where it lies is that modulo
the capacity. A table has, for each slot, the offset of its newest record, and a record that of the one before it in its
slot, leaving out earlier ones of its own key: so a walk is as long as there are keys in the slot.

Who may change what: only the holder of the write lock writes here, in this order: RESERVED, the content, the header,
LAST, HEAD, the table, DONE.

* RESERVED covers what is about to be overwritten, and never goes back. A reader that finds its record covered by it,
  after copying, did not get a whole record; what is overwritten is in the database by then.
* The header makes a record happen, since the content is there by then. A writer that dies before that has written
  nothing. For one that dies after that the next holder ends the append (`mend`): a whole record that HEAD left out
  would stay where the next record may not overwrite it, and be taken for that one. DONE differs from HEAD meanwhile.
  The C helper, which no signal handler interrupts, leaves DONE alone: if it dies there, the unsettled tick tells.
* FLUSHED is the offset up to which the database has everything. It is set after the commit that flushes the records: a
  writer that dies in between leaves them to be flushed once more, and nothing newer can be in the database by then.
* FLOOR is where walks end. Whoever writes the database in another way, when everything is flushed, sets it to HEAD
  before the commit: so no reader takes a record for newer than that commit.

Readers need no lock. They copy a record, then look at RESERVED again, then compare the header's checksum; the content
verifies itself, as in a row. On x86-64, which reorders neither loads with loads nor stores with stores, that suffices;
on other CPUs there is no ring.

Each header has the checksum of the header before it. So what a power loss leaves, pages in any order, counts as far as
the chain holds from the place that the database names, as in SQLite's WAL.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from math import isnan, nan
from pathlib import Path
from struct import Struct
from typing import Any, Final, NamedTuple
from zlib import crc32

from ..errors import DecodeError, DiskFull, file_error
from ..system.boot import boot_id
from ..system.signals import reraise_signal
from .control_files import allocate, extend, fill_holes, open_control_file
from .generations import MAX_SLOTS, prime_below

PAGE: Final = 4096
LEAST_CAPACITY: int = 1 << 14
MOST_CAPACITY: Final = 1 << 30  # what the setting allows
LONGEST_WALK: Final = 16  # records of one slot; a longer one is cut by flushing everything

_FARTHEST: Final = 1 << 62  # offset that no ring comes to; what is beyond is damage

_MAGIC: Final = int.from_bytes(b"dcl-buf\1", "big")
_LOW: Final = (1 << 32) - 1


class Word:
    """Indices of the words of the header."""

    MAGIC, SLOTS, CAPACITY, ID, BOOT, FILE, EPOCH = range(7)
    RESERVED, LAST, HEAD, DONE, FLUSHED, FLUSHED_LAST, FLOOR = range(16, 23)


class Kind:
    """What a record says of its key."""

    REMOVAL, RECORD, ROW = range(3)  # there is no entry, an entry without further columns, one with


_HEADER: Final = Struct("<QqqQIBBxxIiiddIII")  # as in `_Header`, all for SQLite signed; native_build.py spells it in C
_LINK: Final = Struct("<QIB")
_LINK_AT: Final = 24
_MARK: Final = Struct("<QQI")
_OFFSET: Final = Struct("<Q")
_CHECK: Final = Struct("<I")
_CHECK_AT: Final = _HEADER.size - 4
SMALLEST: Final = _HEADER.size  # bytes of a record
_SIZE: Final = _HEADER.size
_REMOVAL, _RECORD, _ROW = Kind.REMOVAL, Kind.RECORD, Kind.ROW
_NO_HEADER: Final = (0,) * 15
NO_COLUMNS: Final = (-1, -1, nan, nan)
_RESERVED, _LAST, _HEAD, _DONE = Word.RESERVED, Word.LAST, Word.HEAD, Word.DONE  # for the hot path
_FLUSHED, _FLOOR = Word.FLUSHED, Word.FLOOR


class Written(NamedTuple):
    """One record: the newest write of a key."""

    tick: int
    h: int
    stored: bytes
    v: bytes | None  # None for a removal
    expire: float | None = None
    fresh: float | None = None
    tags: str | None = None
    original_key: bytes | None = None
    is_plain: bool = True  # a record without further columns

    @property
    def is_damage(self) -> bool:
        """Tell whether it stands for a write that cannot be read: no write has the number 0."""
        return not self.tick

    def body(self) -> bytes:
        """Return what stands behind the header."""
        return self.stored + (self.v or b"") + (self.original_key or b"") + (self.tags or "").encode("ascii")

    def columns(self) -> tuple[int, int, float, float]:
        """Return the sizes of original key and tags, and expiry and freshness, as the header spells them."""
        return (
            -1 if self.original_key is None else len(self.original_key),
            -1 if self.tags is None else len(self.tags),
            nan if self.expire is None else self.expire,
            nan if self.fresh is None else self.fresh,
        )


class _Header(NamedTuple):
    """What stands before the content of a record."""

    offset: int
    tick: int
    h: int
    previous: int  # offset of the record before it in its slot, of another key
    key_size: int
    walk: int  # how many records a walk from here meets
    kind: int
    v_size: int
    original_size: int  # -1 for none, like the next
    tags_size: int
    expire: float  # NaN for none, like the next
    fresh: float
    body_check: int
    last: int  # checksum of the header before this
    check: int

    @property
    def body_size(self) -> int:
        """Return the bytes behind the header."""
        return self.key_size + self.v_size + max(self.original_size, 0) + max(self.tags_size, 0)

    @property
    def size(self) -> int:
        """Return the bytes to the next record."""
        return _SIZE + self.body_size + 7 & ~7

    def written(self, body: bytes) -> Written:
        """Return the write that the record is about."""
        key_size, original, tags = self.key_size, self.original_size, self.tags_size
        stored, end = body[:key_size], key_size + self.v_size
        if self.kind == _REMOVAL:
            return Written(self.tick, self.h, stored, None)
        if self.kind == _RECORD:
            return Written(self.tick, self.h, stored, body[key_size:end])
        spelled = end + max(original, 0)
        tags_text = body[spelled : spelled + max(tags, 0)]
        if not tags_text.isascii():
            raise _damaged()  # somebody planted it: its checksum is right
        return Written(
            self.tick,
            self.h,
            stored,
            body[key_size:end],
            None if isnan(self.expire) else self.expire,
            None if isnan(self.fresh) else self.fresh,
            None if tags < 0 else tags_text.decode("ascii"),
            None if original < 0 else body[end:spelled],
            False,
        )


# What the records of one key come to: the number of the write that made the entry, that of the last one, the hash, the
# last content, a record alone or all columns, None for a removal; and whether it was removed on the way.
Net = tuple[int, int, int, "bytes | Written | None", bool]


class Mark(NamedTuple):
    """What the database says of the ring: up to where it has everything, and the checksum before the next record."""

    ring: int
    flushed: int
    last: int

    def packed(self) -> bytes:
        """Return it as it is stored."""
        return _MARK.pack(*self)

    @classmethod
    def of(cls, content: object) -> Mark | None:
        """Return what is stored; None for anything else."""
        mark = cls(*_MARK.unpack(content)) if type(content) is bytes and len(content) == _MARK.size else None
        return mark if mark is not None and mark.flushed < _FARTHEST else None


class _NoSlots:
    """The table of a closed ring."""

    def __getitem__(self, _: int) -> int:
        return 0


class Ring:
    """Map the ring of one shard."""

    __slots__ = ("_bytes", "_mapping", "_prime", "_table", "capacity", "file", "words")

    def __init__(self, mapping: mmap.mmap, capacity: int, slots: int, file: int) -> None:
        self._mapping = mapping
        self._bytes = memoryview(mapping)
        self.words = self._bytes[:PAGE].cast("Q")
        table = PAGE + capacity
        self._table = self._bytes[table : table + 8 * slots].cast("Q")
        self._prime = prime_below(slots)
        self.capacity = capacity
        self.file = file

    @classmethod
    def open(cls, path: str, slots: int, capacity: int, shared: bool = False, may_grow: bool = True) -> Ring | None:
        """Map the file, made or made longer if need be; return None where there is no room for that.

        The slots and the capacity of a file that is there win. Who does not hold the write lock says that the file may
        not grow, since another process may just be making it. A whole file may hold what the database does not have:
        raises DirectoryError if it cannot be mapped, and DiskFull if it is a copy with holes that the disk has no room
        to fill.
        """
        try:
            descriptor = open_control_file(Path(path), create=True, shared=shared)
        except DiskFull:
            return None
        is_short = False
        try:
            status = os.fstat(descriptor)
            capacity = max(capacity, LEAST_CAPACITY) // PAGE * PAGE
            slots, capacity = _sizes_in(descriptor, status.st_size) or (slots, capacity)
            size = PAGE + capacity + 8 * slots
            is_short = status.st_size < size
            if is_short and not (may_grow and (allocate(descriptor, size) or extend(descriptor, size))):
                return None
            fill_holes(descriptor, size)
            mapping = mmap.mmap(descriptor, size, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
            ring = cls(mapping, capacity, slots, hash((status.st_dev, status.st_ino)) & (1 << 63) - 1)
            if is_short:
                ring.words[Word.FILE] = 0  # what its words are about was cut off
            return ring
        except OSError as error:
            reraise_signal(error)
            problem = file_error(error, path)
            if is_short and isinstance(problem, DiskFull):
                return None
            raise problem from error
        finally:
            os.close(descriptor)

    def close(self) -> None:
        """Drop the mapping; a reader that is using it keeps it until it is done."""
        empty = memoryview(bytearray(PAGE))
        self._bytes = empty[:0]
        self.words, self._table = empty.cast("Q"), _NoSlots()  # type: ignore[assignment]
        try:
            self._mapping.close()
        except BufferError:
            return  # it is unmapped when the last view is gone

    def views(self) -> tuple[memoryview[int], memoryview[int], memoryview[int]]:
        """Return the words of the header, the table, and what lies between, for the C helper."""
        return self.words, self._table, self._bytes[PAGE : PAGE + self.capacity]

    # -- whose it is --------------------------------------------------------------------------------------------------

    def belongs_to(self, number: int, epoch: int) -> bool:
        """Tell whether the words here can be believed: made on this boot, in this very file, for this database."""
        words = self.words
        return (
            words[Word.ID] == number > 1
            and words[Word.EPOCH] == epoch
            and words[Word.BOOT] == boot_id() != 0
            and words[Word.FILE] == self.file
            and words[Word.MAGIC] == _MAGIC
            and words[Word.CAPACITY] == self.capacity
            and words[Word.SLOTS] == len(self._table)
        )

    def is_new(self) -> bool:
        """Tell whether nobody has begun with the file."""
        return self.words[Word.MAGIC] == 0

    def holds(self, mark: Mark | None) -> bool:
        """Tell whether this may have what a database with this mark lacks; the write lock is held."""
        words = self.words
        is_ours = words[Word.MAGIC] == _MAGIC and words[Word.CAPACITY] == self.capacity
        return mark is not None and is_ours and mark.ring == words[Word.ID]

    def begin(self, mark: Mark | None, epoch: int, anew: int) -> int:
        """Take over what is here and not in a database whose mark this is; return the ring's number.

        `anew`: the number that it gets where there is nothing to take over. The write lock is held. The words are not
        believed: they may be of another moment than the bytes, or the database.
        """
        words = self.words
        known = mark if self.holds(mark) else None
        words[Word.BOOT] = 0  # nobody believes the words until all of them are whole again; ID stays, for another try
        flushed = self.capacity if mark is None else max(mark.flushed, self.capacity)
        table = memoryview(bytearray(8 * len(self._table))).cast("Q")
        if known is None:
            number, first, reserved = anew, anew & _LOW, 0
            head = flushed = flushed + self.capacity  # nothing that lies here has such an offset
        else:
            number, first, reserved = known.ring, known.last, words[Word.RESERVED]
            head = flushed
        last = first
        for found, end in self._chain(flushed, first) if known else ():
            if not self._has_whole_body(found):
                break
            table[found.h % self._prime] = found.offset
            head, last = end, found.check
        self._table[:] = table  # at once, so that readers never miss what waits where only words were damaged
        words[Word.RESERVED] = reserved if head <= reserved <= head + self.capacity else head
        words[Word.LAST] = _joined(last, head)
        words[Word.HEAD] = words[Word.DONE] = head
        words[Word.FLUSHED] = words[Word.FLOOR] = flushed
        words[Word.FLUSHED_LAST] = _joined(first, flushed)
        words[Word.MAGIC], words[Word.CAPACITY], words[Word.SLOTS] = _MAGIC, self.capacity, len(self._table)
        words[Word.FILE], words[Word.EPOCH], words[Word.ID] = self.file, epoch, number
        words[Word.BOOT] = boot_id()
        return number

    def _chain(self, offset: int, last: int) -> Iterator[tuple[_Header, int]]:
        """Yield the header and the end of the records from an offset on, as far as the chain holds."""
        limit = offset + self.capacity
        while True:
            found = self._next(offset)
            if found is None or found.last != last:
                return
            end = found.offset + found.size
            if end > limit:
                return
            yield found, end
            offset, last = end, found.check

    def newest_tick(self) -> int:
        """Return the highest number of the writes that wait, 0 if nothing does; the lock is held."""
        words = self.words
        chain = self._chain(words[Word.FLUSHED], words[Word.FLUSHED_LAST] >> 32)
        return max((found.tick for found, _ in chain), default=0)

    def follow(self, mark: Mark) -> None:
        """Let the next record follow a mark at HEAD that the database has by now."""
        words = self.words
        words[Word.FLUSHED_LAST] = words[Word.LAST] = _joined(mark.last, mark.flushed)

    def mark(self) -> Mark:
        """Return what the database is to say once everything up to HEAD is in it."""
        words = self.words
        return Mark(words[Word.ID], words[Word.HEAD], words[Word.LAST] >> 32)

    def flushed_mark(self) -> Mark:
        """Return what a database is to say that has everything up to FLUSHED, and lacks what waits.

        FLUSHED_LAST, which is stored before FLUSHED, tells if a writer died between them.
        """
        words = self.words
        flushed, last = words[Word.FLUSHED], words[Word.FLUSHED_LAST]
        ahead = last - flushed & _LOW
        return Mark(words[Word.ID], flushed + (ahead if ahead <= words[Word.HEAD] - flushed else 0), last >> 32)

    # -- writing ------------------------------------------------------------------------------------------------------

    def is_sound(self) -> bool:
        """Tell whether the offsets in the words can be true beside each other; the lock is held."""
        words, capacity = self.words, self.capacity
        floor, flushed, head = words[_FLOOR], words[_FLUSHED], words[_HEAD]
        in_order = capacity <= floor <= flushed <= head <= words[_RESERVED] < _FARTHEST
        are_together = words[Word.FLUSHED_LAST] & _LOW == flushed & _LOW
        return in_order and are_together and head - flushed <= capacity and words[_RESERVED] - head <= capacity

    def append(self, what: Written) -> bool:
        """Append a record; return False if everything has to be flushed first, for want of room or of a short walk.

        The write lock is held.
        """
        tick, h, stored, v, _, _, _, _, is_plain = what
        if is_plain:
            return self.append_record(tick, h, stored, v)
        assert v is not None
        return self._append((tick, h, stored, what.body()), (_ROW, len(v)), what.columns())

    def append_record(self, tick: int, h: int, stored: bytes, v: bytes | None) -> bool:
        """Do what `append` does for a record alone, or, with None, for a removal."""
        if v is None:
            return self._append((tick, h, stored, stored), (_REMOVAL, 0), NO_COLUMNS)
        return self._append((tick, h, stored, stored + v), (_RECORD, len(v)), NO_COLUMNS)

    def _append(
        self,
        write: tuple[int, int, bytes, bytes],
        content: tuple[int, int],
        columns: tuple[int, int, float, float],
    ) -> bool:
        tick, h, stored, body = write
        words, capacity, memory = self.words, self.capacity, self._bytes
        slot = h % self._prime
        head, last = words[_HEAD], words[_LAST]
        if words[_DONE] != head or (last ^ head) & _LOW:
            self.mend()
            head, last = words[_HEAD], words[_LAST]
        size = _SIZE + len(body)
        start, place = head, head % capacity
        if capacity - place < size + 7:
            start, place = start + capacity - place, 0
        end = start + (size + 7 & ~7)
        if end - words[_FLUSHED] > capacity:
            return False
        link = self._link(slot, stored, end)
        if link is None:
            return False
        words[_DONE] = 0  # whoever comes next ends this append if it is interrupted
        if end > words[_RESERVED]:
            words[_RESERVED] = end
        if start != head:  # whoever looks for a record at HEAD must not find what lay there before
            _OFFSET.pack_into(memory, PAGE + head % capacity, 0)
        at = PAGE + place
        kind, v_size = content
        header = _HEADER.pack(
            start, tick, h, link[0], len(stored), link[1], kind, v_size, *columns, crc32(body), last >> 32, 0
        )[:_CHECK_AT]
        check = crc32(header)
        memory[at + _SIZE : at + size] = body
        memory[at : at + _CHECK_AT] = header
        _CHECK.pack_into(memory, at + _CHECK_AT, check)
        words[_LAST] = check << 32 | end & _LOW
        words[_HEAD] = end
        self._table[slot] = start
        words[_DONE] = end
        return True

    def _link(self, slot: int, stored: bytes, end: int) -> tuple[int, int] | None:
        """Return the offset of the record before the next one in its slot, of another key, and the length of the walk.

        Returns None where everything has to be flushed first: the walk is too long, or the table or a record damaged.
        """
        words, memory, previous = self.words, self._bytes, self._table[slot]
        if previous < words[_FLOOR] or previous < end - self.capacity:
            return previous, 1
        at = PAGE + previous % self.capacity
        header = memory[at : at + _SIZE].tobytes()
        if previous >= words[_HEAD] or not _is_header(header, previous):
            # Once all is flushed, nothing is hidden by a record that leads to no other.
            return (0, 1) if words[_FLUSHED] == words[_HEAD] else None
        before, key_size, walk = _LINK.unpack_from(header, _LINK_AT)
        if key_size == len(stored) and memory[at + _SIZE : at + _SIZE + key_size].tobytes() == stored:
            return before, walk
        return (previous, walk + 1) if walk < LONGEST_WALK else None

    def mend(self) -> None:
        """Finish the append or flush that a writer died in, or was interrupted in; the lock is held.

        Damaged content does not end the chain: it costs its key alone, since the next record follows the header.
        """
        words, table = self.words, self._table
        words[Word.FLUSHED] = self.flushed_mark().flushed
        head, last = words[Word.FLUSHED], words[Word.FLUSHED_LAST] >> 32
        newest: dict[int, int] = {}
        for found, end in self._chain(head, last):
            if end > words[Word.HEAD] and not self._has_whole_body(found):
                break  # a power loss left that, no writer
            newest[found.h % self._prime] = found.offset
            head, last = end, found.check
        is_whole = head >= words[Word.HEAD]
        head = max(head, words[Word.HEAD])  # a damaged header ends the chain before it
        for slot, offset in newest.items():
            # Readers must never be led to an older record, not even for a moment.
            if is_whole or not offset <= table[slot] < head:
                table[slot] = offset
        words[Word.RESERVED] = max(words[Word.RESERVED], head)
        words[Word.LAST] = _joined(last, head)
        words[Word.HEAD] = head
        words[Word.DONE] = head

    def waiting(self) -> int:
        """Return the bytes that are not flushed yet."""
        words = self.words
        return words[Word.HEAD] - words[Word.FLUSHED]

    def end_walks(self) -> None:
        """Let no reader find what is flushed: the database is about to be written in another way."""
        words = self.words
        words[Word.FLOOR] = words[Word.FLUSHED]

    def is_marked(self) -> bool:
        """Tell whether the database has said, since it was written in another way, what the next record follows."""
        words = self.words
        return words[Word.FLOOR] < words[Word.HEAD]

    def gather(self, most: int) -> tuple[dict[bytes | int, Net], Mark | None]:
        """Return what waiting records come to, from the oldest on until more than `most` keys are among them.

        The mark is that of the last of them, None if nothing waits. A record whose content is damaged counts as a
        removal of every key of its hash. Raises DecodeError for a damaged header. The lock is held.
        """
        words = self.words
        if words[Word.DONE] != words[Word.HEAD]:
            self.mend()
        head, offset, capacity = words[Word.HEAD], words[Word.FLUSHED], self.capacity
        content, unpack = self._bytes, _HEADER.unpack_from
        net: dict[bytes | int, Net] = {}
        mark: Mark | None = None
        end, last = offset, words[Word.FLUSHED_LAST] >> 32
        while offset < head:
            place = offset % capacity
            if place + _SIZE > capacity or _OFFSET.unpack_from(content, PAGE + place)[0] != offset:
                offset, place = self._next_lap(offset), 0
            at = PAGE + place
            found = unpack(content, at)
            key_size, kind = found[4], found[6]
            size = _SIZE + key_size + found[7] + (0 if kind != _ROW else max(found[8], 0) + max(found[9], 0))
            # The chain tells a record whose offset is damaged from the rest of a lap that nothing is in.
            is_sound = found[0] == offset and found[13] == last and crc32(content[at : at + _CHECK_AT]) == found[14]
            if not is_sound or offset + size > head or place + size > capacity:
                raise _damaged()
            body = content[at + _SIZE : at + size].tobytes()
            tick, h = found[1], found[2]
            if crc32(body) != found[12]:
                key: bytes | int = h
                what: bytes | Written | None = None
                net.update({other: (*each[:3], None, True) for other, each in net.items() if each[2] == h})
            else:
                key, what = body[:key_size], _content_in(found, body)
            before = net.get(key)
            if before is None:
                if len(net) == most:
                    break
                net[key] = (tick, tick, h, what, what is None)
            else:
                is_new = before[3] is None
                net[key] = (tick if is_new else before[0], tick, h, what, before[4] or what is None)
            end = offset = offset + (size + 7 & ~7)
            last = found[14]
        if net:
            mark = Mark(words[Word.ID], end, last)
        return net, mark

    def record_at(self, offset: int) -> tuple[bytes, int, int, bytes | Written | None]:
        """Return stored key, tick, hash and content of a record that waits and is sound."""
        at = PAGE + offset % self.capacity
        found = _HEADER.unpack_from(self._bytes, at)
        key_size = found[4]
        size = key_size + found[7] + max(found[8], 0) + max(found[9], 0)
        body = self._bytes[at + _SIZE : at + _SIZE + size].tobytes()
        return body[:key_size], found[1], found[2], _content_in(found, body)

    def flushed(self, mark: Mark) -> None:
        """Note that everything up to a mark is in the database."""
        words = self.words
        words[Word.FLUSHED_LAST] = _joined(mark.last, mark.flushed)
        words[Word.FLUSHED] = mark.flushed

    def drop(self, mark: Mark) -> None:
        """Forget everything up to a mark at HEAD that the database has by now; the lock is held.

        FLOOR comes first. Ahead of FLUSHED it is not sound, so if this process dies before the end, the next holder
        takes the ring over by the mark.
        """
        words = self.words
        words[Word.FLOOR] = words[Word.HEAD]
        words[Word.DONE] = words[Word.HEAD]
        self.follow(mark)
        words[Word.FLUSHED] = words[Word.HEAD]

    def wipe(self) -> None:
        """Overwrite everything; the lock is held, and everything is flushed."""
        words, capacity = self.words, self.capacity
        words[Word.RESERVED] = words[Word.HEAD] + capacity  # whoever copies a record meanwhile asks the database
        self.end_walks()
        self._bytes[PAGE : PAGE + capacity] = bytes(capacity)
        self._mapping.flush()

    # -- reading ------------------------------------------------------------------------------------------------------

    def is_closed(self) -> bool:
        """Tell whether `close` has begun: from then on `find` may miss what is here."""
        return not self._bytes

    def has(self, h: int) -> bool:
        """Tell whether there may be a record of a key with this hash; in a closed ring there may."""
        return self._table[h % self._prime] >= self.words[Word.FLOOR]

    def find(self, h: int, stored: bytes) -> Written | None:
        """Return the newest write of a key if it is here; raise DecodeError for damage. Needs no lock.

        None means that the database has it: everything that is overwritten or below FLOOR is there.
        """
        words, table, memory, capacity = self.words, self._table, self._bytes, self.capacity
        if not memory:
            return None  # closed by another thread just now: see `is_closed`
        slot, key_size, unpack = h % self._prime, len(stored), _HEADER.unpack
        offset = table[slot]
        while offset >= words[_FLOOR] and offset:
            at = PAGE + offset % capacity
            content = memory[at : at + _SIZE].tobytes()
            if words[_RESERVED] - capacity > offset:
                return None
            found = unpack(content) if len(content) == _SIZE else _NO_HEADER
            is_here = found[0] == offset > found[3] and found[2] % self._prime == slot  # and no walk is without an end
            if not is_here or crc32(content[:_CHECK_AT]) != found[14]:
                raise _damaged()
            if found[2] == h and found[4] == key_size:
                size = key_size + found[7] + max(found[8], 0) + max(found[9], 0)
                body = memory[at + _SIZE : at + _SIZE + size].tobytes()
                if words[_RESERVED] - capacity > offset:
                    return None
                is_own = body.startswith(stored)
                if is_own and found[6] == _RECORD:  # whoever unpacks it notices damage
                    return Written(found[1], h, stored, body[key_size:])
                if crc32(body) != found[12]:
                    raise _damaged()  # may be this key's
                if is_own:
                    return _Header(*found).written(body)
            offset = found[3]
        return None

    def _next(self, offset: int) -> _Header | None:
        """Return the header of the record at an offset, or at the beginning of the next lap; None if there is none."""
        return self._header_at(offset) or self._header_at(self._next_lap(offset))

    def _header_at(self, offset: int) -> _Header | None:
        place = offset % self.capacity
        if place + _SIZE > self.capacity:
            return None
        at = PAGE + place
        content = bytes(self._bytes[at : at + _SIZE])
        found = _Header(*_HEADER.unpack(content)) if _is_header(content, offset) else None
        return found if found is not None and place + found.size <= self.capacity else None

    def _has_whole_body(self, found: _Header) -> bool:
        """Tell whether the content of a record is what was written."""
        at = PAGE + found.offset % self.capacity + _SIZE
        return crc32(self._bytes[at : at + found.body_size]) == found.body_check

    def _next_lap(self, offset: int) -> int:
        return (offset // self.capacity + 1) * self.capacity


def _sizes_in(descriptor: int, size: int) -> tuple[int, int] | None:
    """Return the slots and the capacity of the ring in a file; None if there is none, or the sizes are impossible."""
    head = os.pread(descriptor, PAGE, 0)
    if len(head) < PAGE:
        return None
    words = memoryview(head).cast("Q")
    slots, capacity = words[Word.SLOTS], words[Word.CAPACITY]
    is_possible = capacity % PAGE == 0 and LEAST_CAPACITY <= capacity <= MOST_CAPACITY and 0 < slots <= MAX_SLOTS
    is_whole = words[Word.MAGIC] == _MAGIC and is_possible and PAGE + capacity + 8 * slots <= size
    return (slots, capacity) if is_whole else None


def _is_header(content: bytes, offset: int) -> bool:
    """Tell whether what was copied from an offset is the header of the record there."""
    return (
        len(content) == _SIZE
        and _OFFSET.unpack_from(content)[0] == offset
        and crc32(content[:_CHECK_AT]) == _CHECK.unpack_from(content, _CHECK_AT)[0]
    )


def _content_in(header: tuple[Any, ...], body: bytes) -> bytes | Written | None:
    """Return what a record writes: a record alone or all columns, None for a removal."""
    if header[6] == _RECORD:
        return body[header[4] :]
    return None if header[6] == _REMOVAL else _Header(*header).written(body)


def _damaged() -> DecodeError:
    return DecodeError("a record of the write buffer is damaged")


def _joined(check: int, offset: int) -> int:
    """Return a word with a checksum and the offset that it belongs to, so that both change at once."""
    return check << 32 | offset & _LOW
