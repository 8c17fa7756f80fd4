"""The ring of the write buffer: what is found, flushed, mended, taken over after a power loss, and lost by damage."""

from __future__ import annotations

import errno
import mmap
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

from diskcache_like import DecodeError, DirectoryError
from diskcache_like.coherence import _native
from diskcache_like.coherence import ring as ring_module
from diskcache_like.coherence._native import LONGEST_WALK
from diskcache_like.coherence.ring import PAGE, Mark, Ring, Word, Written

from ..support.rings import SMALLEST, content_of, dies_at, record_at, table_of

SLOTS = 16
CAPACITY = 1 << 14
NUMBER, EPOCH = 4711, 0


def made(path: Path, slots: int = SLOTS) -> Ring:
    """Return a ring that is begun."""
    ring = Ring.open(str(path), slots, CAPACITY)
    assert ring is not None
    ring.begin(None, EPOCH, NUMBER)
    return ring


@pytest.fixture
def ring(tmp_path: Path) -> Iterator[Ring]:
    ring = made(tmp_path / "cache.buffer")
    yield ring
    ring.close()


def hash_of(key: int) -> int:
    """Return a hash; every fourth key shares it with another."""
    return (key // 4) << 2


class Model:
    """A ring beside what it should say: a database that has what is flushed, and all keys as they are."""

    def __init__(self, ring: Ring) -> None:
        self.ring = ring
        self.now: dict[int, bytes | None] = {}
        self.database: dict[int, bytes | None] = {}
        self.tick = 0

    def write(self, key: int, v: bytes | None) -> None:
        """Write a key, with everything flushed before if there is no room."""
        self.tick += 1
        written = Written(self.tick, hash_of(key), stored(key), v)
        if not self.ring.append(written):
            self.flush(1 << 20)
            self.ring.hide_flushed()
            assert self.ring.append(written)
        self.now[key] = v

    def flush(self, most: int) -> None:
        """Flush what waits of some keys to the database."""
        net, mark = self.ring.gather(most)
        for key, (_, _, _, what, _) in net.items():
            assert isinstance(key, bytes)
            self.database[int(key)] = None if what is None else bytes(what[1])
        if mark is not None:
            self.ring.flushed(mark)

    def read(self, key: int) -> bytes | None:
        """Read a key as a reader does."""
        found = self.ring.find(hash_of(key), stored(key))
        return self.database.get(key) if found is None else found.packed


def stored(key: int) -> bytes:
    """Return the stored form of a key."""
    return b"%d" % key


@pytest.mark.parametrize("seed", range(10))
def test_the_newest_write_of_every_key_is_found_or_flushed(ring: Ring, seed: int) -> None:
    source, model = random.Random(seed), Model(ring)
    for _ in range(3000):
        key = source.randrange(40)
        model.write(key, None if source.random() < 0.2 else source.randbytes(source.choice((0, 10, 100, 900))))
        if source.random() < 0.05:
            model.flush(source.choice((1, 5, 100)))
        for each in source.sample(range(40), 3):
            assert model.read(each) == model.now.get(each)
    assert ring.words[Word.HEAD] > 10 * CAPACITY, "it has wrapped"


def test_all_columns_of_a_row_come_back(ring: Ring) -> None:
    rows = [
        Written(1, 0, b"a", b"v", 1.5, 2.5, "61 62", b"spelled", False),
        Written(2, 4, b"b", b"", None, None, None, None, False),
        Written(3, 8, b"c", b"v", 0.0, None, "", b"", False),
        Written(4, 12, b"d", b"v"),
        Written(5, 16, b"e", None),
    ]
    for row in rows:
        assert ring.append(row)
    assert [ring.find(row.home, row.stored_key) for row in rows] == rows
    net, mark = ring.gather(100)
    found = [
        None if row is None else tuple(each if each == each else "NaN" for each in row) for *_, row, _ in net.values()
    ]
    assert found == [
        (1, b"v", 0, b"a", 1, 1.5, 2.5, "61 62", b"spelled", "NaN", "NaN"),
        (2, b"", 4, b"b", 2, "NaN", "NaN", "NaN", "NaN", "NaN", "NaN"),
        (3, b"v", 8, b"c", 3, 0.0, "NaN", "", b"", "NaN", "NaN"),
        (4, b"v", 12, b"d", 4),
        None,
    ]
    assert mark is not None
    assert mark.flushed == ring.words[Word.HEAD]


def test_checksums_are_those_of_zlib(ring: Ring) -> None:
    for size in (*range(40), 9999):
        at = ring.words[Word.HEAD]
        assert ring.append(Written(1, 0, b"", os.urandom(size)))
        header, body = record_at(ring, at)  # None if the checksum of the header is another
        assert header is not None
        assert (len(body), header.body_check) == (size, crc32(body))


def test_what_several_writes_of_a_key_come_to(ring: Ring) -> None:
    for tick, v in enumerate((b"1", b"2", None, b"3", b"4"), start=1):
        assert ring.append(Written(tick, 0, b"key", v))
    assert ring.append(Written(6, 0, b"other", b"5"))
    assert ring.append(Written(7, 0, b"other", b"6"))
    net, _ = ring.gather(100)
    assert net == {
        b"key": (4, 5, 0, (5, b"4", 0, b"key", 4), True),
        b"other": (6, 7, 0, (7, b"6", 0, b"other", 6), False),
    }


@pytest.mark.parametrize("home", [1, 2, 1 << 63, (1 << 64) - 4])
def test_a_hash_that_no_key_has_is_damage(ring: Ring, home: int) -> None:
    assert ring.append(Written(1, home, b"key", b"v"))
    with pytest.raises(DecodeError):
        ring.gather(100)


def test_a_slice_ends_before_one_key_more(ring: Ring) -> None:
    for tick, key in enumerate((b"a", b"b", b"a", b"c", b"a"), start=1):
        assert ring.append(Written(tick, 0, key, b"v"))
    net, mark = ring.gather(2)
    assert [*net] == [b"a", b"b"]
    assert net[b"a"][1] == 3
    assert mark is not None
    ring.flushed(mark)
    assert [*ring.gather(2)[0]] == [b"c", b"a"]


def test_a_walk_is_never_longer_than_its_bound(ring: Ring) -> None:
    for key in range(LONGEST_WALK):
        for _ in range(2):
            assert ring.append(Written(1, 0, stored(key), b"v"))
    assert not ring.append(Written(1, 0, b"one more", b"v"))
    assert ring.append(Written(1, 0, stored(LONGEST_WALK - 1), b"v")), "the newest key makes the walk no longer"


def test_nothing_waiting_is_overwritten(ring: Ring) -> None:
    appended = 0
    while ring.append(Written(1, 0, b"key", b"v" * 100)):
        appended += 1
    assert (appended + 1) * 200 > CAPACITY
    row = ring.gather(10)[0][b"key"][3]
    assert row is not None
    assert row[1] == b"v" * 100


def test_walks_end_where_the_database_was_written_in_another_way(ring: Ring) -> None:
    assert ring.append(Written(1, 0, b"key", b"v"))
    _, mark = ring.gather(10)
    assert mark is not None
    ring.flushed(mark)
    assert ring.find(0, b"key") is not None
    assert ring.is_marked()
    ring.hide_flushed()
    assert ring.find(0, b"key") is None
    assert not ring.is_marked()


@pytest.mark.parametrize("before", [0, 1, 50])
def test_a_writer_that_dies_has_written_its_record_or_nothing(tmp_path: Path, before: int) -> None:
    outcomes = []
    for step in range(1, 20):
        ring = made(tmp_path / f"{before}-{step}")
        model = Model(ring)
        for key in range(before):
            model.write(key % 7, b"v" * 300)
        has_died = dies_at(step, lambda ring=ring: ring.append(Written(99, hash_of(3), stored(3), b"new")))  # type: ignore[misc]
        ring.mend()
        value = model.read(3)
        outcomes.append(value == b"new")
        assert value in (b"new", model.now.get(3))
        if value == b"new":
            model.now[3] = b"new"
        model.write(5, b"after")
        assert [model.read(key) for key in range(7)] == [model.now.get(key) for key in range(7)]
        model.flush(1 << 20)
        assert model.database == model.now
        ring.close()
        if not has_died:
            break
    assert not has_died
    assert outcomes == sorted(outcomes)
    assert set(outcomes) == {True, False}


def test_a_flush_that_died_between_its_two_words_is_finished(ring: Ring) -> None:
    for tick, key in enumerate((b"a", b"b", b"c")):
        assert ring.append(Written(tick, 0, key, b"v"))
    flushed = ring.words[Word.FLUSHED]
    _, mark = ring.gather(1)
    assert mark is not None
    ring.flushed(mark)
    ring.words[Word.FLUSHED] = flushed
    ring.mend()
    assert ring.is_sound()
    assert ring.append(Written(3, 0, b"d", b"v"))
    assert [*ring.gather(10)[0]] == [b"b", b"c", b"d"]


def dies_appending(ring: Ring, step: int) -> bool:
    """Write key 3 and die at a step; tell whether it died. Then the next holder of the lock mends the ring."""
    has_died = dies_at(step, lambda: ring.append(Written(99, hash_of(3), stored(3), b"new")))
    ring.mend()
    return has_died


def test_a_writer_that_dies_at_the_end_of_a_lap_costs_nothing(tmp_path: Path) -> None:
    """The next record is too long to lie where the one of the dead writer lies."""
    step, has_died = 0, True
    while has_died:
        step += 1
        ring = made(tmp_path / str(step))
        model = Model(ring)
        while CAPACITY - ring.words[Word.HEAD] % CAPACITY > 500:
            model.write(len(model.now), b"v" * 200)
        model.flush(1 << 20)
        has_died = dies_appending(ring, step)
        if model.read(3) == b"new":
            model.now[3] = b"new"
        model.write(5, b"after" * 100)
        assert ring.words[Word.HEAD] % CAPACITY < 1000, "it lies in the next lap"
        assert [model.read(key) for key in model.now] == [*model.now.values()]
        model.flush(1 << 20)
        assert model.database == model.now
        ring.close()
    assert step > 5


def test_what_a_dead_writer_left_does_not_follow_a_later_commit(tmp_path: Path) -> None:
    """After a restart, or in a copy, the words are not believed, and the chain alone says what happened."""
    step, has_died = 0, True
    while has_died:
        step += 1
        ring = made(tmp_path / str(step))
        model = Model(ring)
        model.write(1, b"before")
        has_died = dies_appending(ring, step)
        model.flush(1 << 20)
        mark = ring.flushed_mark()
        model.database[3] = b"acknowledged"  # by a commit of another kind
        ring.hide_flushed()
        ring.words[Word.BOOT] = 0
        assert ring.begin(mark, EPOCH, NUMBER + 1) == NUMBER
        assert model.read(3) == b"acknowledged"
        model.flush(1 << 20)
        assert model.database[3] == b"acknowledged"
        ring.close()
    assert step > 5


@pytest.fixture
def at_each_step() -> Iterator[Callable[[Callable[[], None]], None]]:
    """Return what has a reader look after each change of a ring; what it finds wrong fails the test at its end."""
    wrong: list[BaseException] = []

    def watch(look: Callable[[], None]) -> None:
        def looking(step: str) -> None:
            try:
                look()
            except BaseException as error:
                wrong.append(error)

        _native.watch_steps(looking)

    yield watch
    _native.watch_steps(None)
    if wrong:
        raise wrong[0]


def test_old_content_at_the_end_of_a_lap_is_no_record(ring: Ring) -> None:
    """Whoever knows the offsets can store a value that looks like the beginning of the next record."""
    model = Model(ring)
    while CAPACITY - ring.words[Word.HEAD] % CAPACITY > 600:
        model.write(len(model.now), b"v" * 24)
    while CAPACITY - ring.words[Word.HEAD] % CAPACITY > 400:
        model.write(len(model.now), b"")
    place = PAGE + ring.words[Word.HEAD] % CAPACITY
    content_of(ring)[place : place + 8] = ring.words[Word.HEAD].to_bytes(8, "little")
    model.write(1, b"long" * 200)
    assert ring.words[Word.HEAD] % CAPACITY < 1000, "it lies in the next lap"
    model.flush(1 << 20)
    assert model.database == model.now


def test_damaged_content_costs_its_key_alone_where_a_writer_has_died(ring: Ring) -> None:
    for tick, key in enumerate((1, 20, 40)):
        assert ring.append(Written(tick, hash_of(key), stored(key), b"value"))
    second = ring.words[Word.FLUSHED] + SMALLEST + 8
    content_of(ring)[PAGE + second % CAPACITY + SMALLEST + 2] ^= 1
    ring.mend()
    assert ring.append(Written(9, hash_of(60), stored(60), b"value"))
    net, _ = ring.gather(1 << 20)
    assert {key: row and row[1] for key, (_, _, _, row, _) in net.items()} == {
        stored(1): b"value",
        hash_of(20): None,
        stored(40): b"value",
        stored(60): b"value",
    }


def test_a_damaged_header_is_not_linked_to(ring: Ring) -> None:
    """The next record of its slot would be sound, and hide what the damaged link leads past."""
    one, other = 8, 9  # in one slot
    model = Model(ring)
    model.write(one, b"old")
    model.flush(1 << 20)
    model.write(one, b"new")
    at = ring.words[Word.HEAD]
    model.write(other, b"value")
    content_of(ring)[PAGE + at % CAPACITY + 24] ^= 0xFF
    assert not ring.append(Written(9, hash_of(other), stored(other), b"next")), "everything has to be flushed first"


Watch = Callable[[Callable[[], None]], None]


def test_taking_over_shows_all_the_time_what_waits(ring: Ring, at_each_step: Watch) -> None:
    """Where only words were damaged, readers go on meanwhile."""
    mark = ring.mark()
    for key in range(10):
        assert ring.append(Written(key, hash_of(key), stored(key), b"value"))

    def look() -> None:
        assert all(ring.find(hash_of(key), stored(key)) for key in range(10))

    at_each_step(look)
    ring.begin(mark, EPOCH, NUMBER)
    look()


@pytest.mark.parametrize("damaged", [0, 5, CAPACITY + 200])  # an entry of the table: below and among what waits
def test_mending_leads_nobody_to_an_older_record(ring: Ring, at_each_step: Watch, damaged: int) -> None:
    for number in range(30):
        assert ring.append(Written(number, number % 3, stored(number % 3), b"%d" % number))
    looks: list[None] = []

    def look() -> None:
        looks.append(None)
        for key in range(3):
            found = ring.find(key, stored(key))
            mended = len(looks) > 2 or key or not damaged  # slot 0 is the first that is mended
            assert not mended or (found is not None and found.packed == b"%d" % (27 + key))

    at_each_step(look)
    if damaged:
        table_of(ring)[0] = damaged
    ring.mend()
    look()
    assert len(looks) > 3


@pytest.mark.parametrize(("slots", "capacity"), [(1 << 36, CAPACITY), (SLOTS, 1 << 39), (0, CAPACITY), (SLOTS, 0)])
def test_a_planted_file_of_holes_takes_no_memory(tmp_path: Path, slots: int, capacity: int) -> None:
    path = tmp_path / "cache.buffer"
    made(path).close()
    with path.open("r+b") as file:
        words = memoryview(bytearray(file.read(PAGE))).cast("Q")
        words[Word.SLOTS], words[Word.CAPACITY] = slots, capacity
        file.seek(0)
        file.write(words)
        file.truncate(1 << 40)
    ring = Ring.open(str(path), SLOTS, CAPACITY)
    assert ring is not None
    assert (ring.slots, ring.capacity) == (SLOTS, CAPACITY)
    ring.close()


def test_a_file_that_is_being_made_is_left_alone_without_the_lock(tmp_path: Path) -> None:
    path = tmp_path / "cache.buffer"
    path.write_bytes(b"\0" * PAGE)
    assert Ring.open(str(path), SLOTS, CAPACITY, may_grow=False) is None
    assert path.read_bytes() == b"\0" * PAGE


@pytest.mark.parametrize("seed", range(20))
def test_after_a_power_loss_the_writes_up_to_one_are_there(tmp_path: Path, seed: int) -> None:
    source = random.Random(seed)
    path = tmp_path / "cache.buffer"
    ring = made(path)
    model = Model(ring)
    for _ in range(source.randrange(200)):
        model.write(source.randrange(40), source.randbytes(source.choice((10, 400))))
    model.flush(1 << 20)
    mark = ring.mark()
    history = [dict(model.database)]
    before = path.read_bytes()
    for _ in range(source.randrange(1, 30)):
        model.write(source.randrange(40), source.randbytes(source.choice((10, 400))))
        if ring.words[Word.FLUSHED] != mark.flushed:
            mark, history, before = ring.mark(), [dict(model.database)], path.read_bytes()
        history.append(dict(model.now))
    after = path.read_bytes()
    ring.close()
    pages = [
        (before if source.random() < 0.3 else after)[start : start + mmap.PAGESIZE]
        for start in range(0, len(after), mmap.PAGESIZE)
    ]
    words = bytearray(b"".join(pages))
    words[: mmap.PAGESIZE] = source.choice((before, after))[: mmap.PAGESIZE]
    path.write_bytes(words)
    found = Ring.open(str(path), SLOTS, CAPACITY)
    assert found is not None
    assert not found.belongs_to(NUMBER, EPOCH + 1)
    found.begin(mark, EPOCH, 1234)
    again = Model(found)
    again.database, again.now = dict(history[0]), {}
    seen = {key: again.read(key) for key in range(40)}
    assert {key: v for key, v in seen.items() if v is not None} in [
        {key: v for key, v in state.items() if v is not None} for state in history
    ]
    again.now = dict(seen)
    again.write(1, b"after")
    again.flush(1 << 20)
    assert {key: again.database.get(key) for key in range(40)} == {**seen, 1: b"after"}
    found.close()


def test_a_ring_is_believed_only_in_its_file_and_on_its_boot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ring = made(tmp_path / "cache.buffer")
    assert ring.belongs_to(NUMBER, EPOCH)
    assert not ring.belongs_to(NUMBER + 1, EPOCH)
    assert not ring.belongs_to(NUMBER, EPOCH + 1)
    (tmp_path / "copy").write_bytes((tmp_path / "cache.buffer").read_bytes())
    copy = Ring.open(str(tmp_path / "copy"), SLOTS, CAPACITY)
    assert copy is not None
    assert not copy.belongs_to(NUMBER, EPOCH)
    copy.close()
    monkeypatch.setattr(ring_module, "boot_id", lambda: 5)
    assert not ring.belongs_to(NUMBER, EPOCH)
    ring.close()


@pytest.mark.parametrize("mark", [None, Mark(NUMBER + 1, 3 * CAPACITY, 0)])
def test_what_the_database_does_not_know_of_is_dropped(ring: Ring, mark: Mark | None) -> None:
    assert ring.append(Written(1, 0, b"key", b"v"))
    assert ring.begin(mark, EPOCH, 99) == 99
    assert ring.find(0, b"key") is None
    assert ring.gather(10) == ({}, None)
    assert ring.append(Written(1, 0, b"key", b"new"))
    assert ring.find(0, b"key") == Written(1, 0, b"key", b"new")


def test_a_flipped_bit_never_shows_an_older_value(tmp_path: Path) -> None:
    path = tmp_path / "cache.buffer"
    ring = made(path)
    at = PAGE + ring.words[Word.HEAD] % CAPACITY
    assert ring.append(Written(1, 0, b"key", b"old"))
    first = ring.words[Word.HEAD]
    assert ring.append(Written(2, 0, b"key", b"new"))
    size = ring.words[Word.HEAD] - first
    for position in range(at + size, at + 2 * size):
        content_of(ring)[position] ^= 4
        try:
            found = ring.find(0, b"key")
        except DecodeError:
            found = Written(0, 0, b"key", None)
        assert found is not None, "and the database would be asked"
        assert found.packed != b"old"
        try:
            net, _ = ring.gather(10)
        except DecodeError:
            net = {}
        values = {bytes(row[1]) for _, _, _, row, _ in net.values() if row is not None}
        assert b"old" not in values
        content_of(ring)[position] ^= 4
    ring.close()


def test_a_flipped_bit_in_a_column_is_damage(ring: Ring) -> None:
    assert ring.append(Written(1, 0, b"key", b"v", tags="a tag", is_plain=False))
    content_of(ring)[content_of(ring).find(b"a tag")] ^= 128
    with pytest.raises(DecodeError):
        ring.find(0, b"key")


def test_a_record_that_leads_to_itself_is_damage(ring: Ring) -> None:
    at = PAGE + ring.words[Word.HEAD] % CAPACITY
    assert ring.append(Written(1, 0, b"key", b"v"))
    header = bytearray(content_of(ring)[at : at + SMALLEST - 4])
    header[24:32] = header[:8]
    content_of(ring)[at : at + SMALLEST] = header + crc32(header).to_bytes(4, "little")
    with pytest.raises(DecodeError):
        ring.find(0, b"other")


@pytest.mark.parametrize("ahead", [0, 8, -8, 1 << 40])
@pytest.mark.parametrize("rest", [0, 255])
def test_a_damaged_table_lets_writes_go_on(ring: Ring, ahead: int, rest: int) -> None:
    assert ring.append(Written(1, 0, b"key", b"v"))
    head = ring.words[Word.HEAD]
    at = PAGE + head % CAPACITY
    content_of(ring)[at : at + 400] = bytes([rest]) * 400
    table_of(ring)[0] = head + ahead
    assert not ring.append(Written(2, 0, b"other", b"v"))
    _, mark = ring.gather(10)
    assert mark is not None
    ring.flushed(mark)
    ring.hide_flushed()
    assert ring.append(Written(2, 0, b"other", b"v"))
    assert ring.find(0, b"other") == Written(2, 0, b"other", b"v")
    assert ring.find(0, b"key") is None, "the database has it"


def fail_with(code: int) -> Callable[..., Any]:
    def fail(*_: object) -> Any:
        raise OSError(code, os.strerror(code))

    return fail


def test_no_room_for_the_file_means_no_ring(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "posix_fallocate", fail_with(errno.ENOSPC))
    assert Ring.open(str(tmp_path / "cache.buffer"), SLOTS, CAPACITY) is None


def test_a_file_that_cannot_be_mapped_is_not_done_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "cache.buffer"
    opened = Ring.open(str(path), SLOTS, CAPACITY)
    assert opened is not None
    opened.close()
    with monkeypatch.context() as patch, pytest.raises(DirectoryError, match=r"cache\.buffer"):
        patch.setattr(mmap, "mmap", fail_with(errno.ENOMEM))
        Ring.open(str(path), SLOTS, CAPACITY)
    with monkeypatch.context() as patch, pytest.raises(DirectoryError, match=r"cache\.buffer"):
        patch.setattr(os, "open", fail_with(errno.EMFILE))
        Ring.open(str(path), SLOTS, CAPACITY)


def test_what_is_wiped_is_found_no_more_and_writes_go_on(ring: Ring) -> None:
    assert ring.append(Written(1, 0, b"key", b"v"))
    _, mark = ring.gather(10)
    assert mark is not None
    ring.flushed(mark)
    ring.wipe()
    assert ring.is_sound()
    assert not any(content_of(ring)[PAGE : PAGE + CAPACITY])
    assert ring.find(0, b"key") is None
    assert ring.append(Written(2, 0, b"key", b"w"))
    assert ring.find(0, b"key") == Written(2, 0, b"key", b"w")
