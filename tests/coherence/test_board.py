"""The board: small records in shared memory, taken only under the generation that they were committed with."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from diskcache_like import Cache
from diskcache_like.coherence.atomics import choose_implementation
from diskcache_like.coherence.board import CELL, CELLS, RECORD_LIMIT, SIZE, Board
from diskcache_like.coherence.generations import Header
from diskcache_like.encoding.keys import encode_key

# Only where words are read without the helper does a cache have a board.
NEEDS_BOARD = pytest.mark.skipif(choose_implementation() != "python", reason="caches have no board on this CPU")


@pytest.fixture
def board(tmp_path: Path) -> Iterator[Board]:
    opened = Board.open(str(tmp_path / "cache.board"), locked=True)
    assert opened is not None
    yield opened
    opened.close()


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[Cache, Cache]]:
    """Return two handles on one cache that behave as if they were in two processes."""
    writer, reader = Cache(tmp_path / "cache"), Cache(tmp_path / "cache")
    store(writer).session.header[Header.SHARED] = 1
    yield writer, reader
    writer.close()
    reader.close()


def store(cache: Cache) -> Any:
    return cache._shards.stores[0]


def _located(shard: Any, place: int, key: str) -> tuple[bytes, int, Any]:
    return encode_key(key), place, shard


def without_database(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(h: int) -> bytes:
        raise AssertionError("the database was asked")

    monkeypatch.setattr(store(cache), "read", refuse)


def without_rows(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> tuple[int, bytes]:
        raise AssertionError("a row was read")

    monkeypatch.setattr(store(cache).writer._placement, "find", refuse)


def test_a_record_is_found_only_under_its_hash_and_generation(board: Board) -> None:
    board.post(4, 102, b"record")
    assert board.find(4, 102) == b"record"
    assert board.find(4, 104) is None
    assert board.find(4 + CELLS, 102) is None, "another key of the same cell"


class Overwritten:
    """Stand for the bytes of a cell that another key's writer fills while they are copied."""

    def __init__(self, board: Board) -> None:
        self.board = board
        self.view = board._bytes

    def __getitem__(self, index: slice) -> bytes:
        found = bytes(self.view[index])
        self.board._bytes = self.view
        self.board.post(4 + CELLS, 104, b"other!")
        return found


def test_a_record_being_overwritten_is_not_taken(board: Board) -> None:
    board.post(4, 102, b"record")
    board._bytes = Overwritten(board)  # type: ignore[assignment]
    assert board.find(4, 102) is None
    assert board.find(4 + CELLS, 104) == b"other!"


def test_a_later_record_takes_the_place(board: Board) -> None:
    board.post(4, 102, b"x" * RECORD_LIMIT)
    board.post(4 + CELLS, 104, b"")
    assert board.find(4, 102) is None
    assert board.find(4 + CELLS, 104) == b""


def test_garbage_is_no_record(tmp_path: Path) -> None:
    (tmp_path / "cache.board").write_bytes(b"\xff" * SIZE)
    (tmp_path / "cache.board").chmod(0o600)
    board = Board.open(str(tmp_path / "cache.board"))
    assert board is not None
    found = board.find(2**64 - 1, 2**64 - 1)
    assert found is not None
    assert len(found) == RECORD_LIMIT, "whatever length it claims"
    board.clear()
    assert board.find(0, 0) == b""
    board.close()


def test_the_file_is_private_and_allocated(tmp_path: Path, board: Board) -> None:
    status = (tmp_path / "cache.board").stat()
    assert status.st_mode & 0o777 == 0o600
    assert status.st_blocks * 512 >= SIZE == CELL * 2048


@NEEDS_BOARD
def test_another_process_reads_what_was_just_written_without_the_database(
    pair: tuple[Cache, Cache], monkeypatch: pytest.MonkeyPatch
) -> None:
    writer, reader = pair
    without_database(reader, monkeypatch)
    for number in range(100):
        writer.set("k", {"number": number})
        assert reader.get("k") == {"number": number}


@NEEDS_BOARD
def test_expiry_and_tag_come_from_the_board_as_well(pair: tuple[Cache, Cache], monkeypatch: pytest.MonkeyPatch) -> None:
    writer, reader = pair
    writer.set("k", 1, expire=1000, tag="t")
    without_database(reader, monkeypatch)
    value, expiry, tag = reader.get("k", expire_time=True, tag=True)
    assert (value, tag) == (1, "t")
    assert expiry == writer.get("k", expire_time=True)[1]


@NEEDS_BOARD
@pytest.mark.parametrize("remove", [Cache.delete, Cache.pop])
def test_a_removal_is_put_up_too(
    pair: tuple[Cache, Cache], monkeypatch: pytest.MonkeyPatch, remove: Callable[[Cache, str], object]
) -> None:
    writer, reader = pair
    writer.set("k", 1)
    assert reader.get("k") == 1
    without_database(reader, monkeypatch)
    assert remove(writer, "k")
    assert reader.get("k") is None
    assert reader.get("k", "default") == "default"
    writer.set("k", 2)
    assert reader.get("k") == 2


@NEEDS_BOARD
def test_a_removal_in_a_transaction_is_not_put_up_before_its_commit(pair: tuple[Cache, Cache]) -> None:
    writer, reader = pair
    writer.set("k", 1)
    with writer.transact():
        assert writer.delete("k")
        assert store(reader).session.board.find(writer._rows.locate("k")[1], 0) is None
    assert reader.get("k") is None


@pytest.mark.parametrize("remove", [Cache.delete, Cache.pop])
def test_a_removed_neighbour_hides_no_displaced_key(
    pair: tuple[Cache, Cache], monkeypatch: pytest.MonkeyPatch, remove: Callable[[Cache, str], object]
) -> None:
    writer, reader = pair
    for cache in pair:
        place = cache._rows.locate("a")[1]
        monkeypatch.setattr(cache._rows, "locate", partial(_located, store(cache), place))
    writer.set("a", 1)
    writer.set("b", 2)
    assert remove(writer, "a")
    assert reader.get("a") is None
    assert reader.get("b") == 2


@pytest.mark.parametrize("change", ["delete", "set large", "transact", "clear", "touch"])
def test_what_changes_without_the_board_is_never_read_from_it(pair: tuple[Cache, Cache], change: str) -> None:
    writer, reader = pair
    writer.set("k", "old")
    assert reader.get("k") == "old"
    changes: dict[str, Callable[[], object]] = {
        "delete": lambda: writer.delete("k"),
        "set large": lambda: writer.set("k", "n" * CELL),
        "transact": lambda: _in_transaction(writer),
        "clear": writer.clear,
        "touch": lambda: writer.touch("k", expire=0),
    }
    changes[change]()
    expected = {"set large": "n" * CELL, "transact": "new"}.get(change)
    assert reader.get("k") == expected


COMPUTATIONS: dict[str, Callable[[Cache], object]] = {
    "incr": lambda cache: cache.incr("k", 10),
    "add": lambda cache: cache.add("k", 11),
    "pop": lambda cache: cache.pop("k", "nothing"),
    "touch": lambda cache: cache.touch("k", 100),
}


@NEEDS_BOARD
@pytest.mark.parametrize("computation", COMPUTATIONS)
def test_what_another_process_wrote_is_computed_with_and_no_row_read(
    pair: tuple[Cache, Cache], monkeypatch: pytest.MonkeyPatch, computation: str
) -> None:
    writer, other = pair
    without_rows(other, monkeypatch)
    for number in range(3):
        writer.set("k", number)
        expected = {"incr": number + 10, "add": False, "pop": number, "touch": True}[computation]
        assert COMPUTATIONS[computation](other) == expected
        assert writer.get("k") == {"incr": number + 10, "pop": None}.get(computation, number)


@NEEDS_BOARD
def test_one_process_alone_counts_without_reading_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Cache(tmp_path / "cache") as cache:
        cache["k"] = 0
        cache.incr("k")
        without_rows(cache, monkeypatch)
        assert [cache.incr("k") for _ in range(3)] == [2, 3, 4]
        assert cache.touch("k", 100)
        assert cache.incr("k") == 5


@pytest.mark.parametrize("computation", COMPUTATIONS)
@pytest.mark.parametrize("change", ["delete", "pop", "set large", "transact", "rolled back", "clear", "touch", "cull"])
def test_what_changes_without_the_board_is_not_computed_with(
    pair: tuple[Cache, Cache], change: str, computation: str
) -> None:
    writer, other = pair
    for _ in range(2):
        writer.incr("k")  # put on the board
    _change(other, change)
    left = {"set large": 1 << 8 * CELL, "transact": 5, "rolled back": 2}.get(change)
    if left is None:
        expected: object = {"incr": 10, "add": True, "pop": "nothing", "touch": False}[computation]
    else:
        expected = {"incr": left + 10, "add": False, "pop": left, "touch": True}[computation]
    assert COMPUTATIONS[computation](writer) == expected


def _change(cache: Cache, change: str) -> None:
    if change == "touch":
        cache.touch("k", expire=0)
    elif change == "cull":
        cache.set("k", 3, expire=0)
        cache.expire()
    elif change == "set large":
        cache.set("k", 1 << 8 * CELL)
    elif change in ("transact", "rolled back"):
        with contextlib.suppress(ZeroDivisionError), cache.transact():
            cache.incr("k", 3)
            assert change == "transact" or 1 // 0
    else:
        getattr(cache, change)(*(() if change == "clear" else ("k",)))


def test_within_a_transaction_its_own_writes_are_computed_with(pair: tuple[Cache, Cache]) -> None:
    writer, _ = pair
    writer.incr("k")
    with writer.transact():
        assert writer.incr("k") == 2
        assert writer.pop("k") == 2
        assert writer.incr("k", default=10) == 11
    assert writer.incr("k") == 12


def test_the_record_of_another_key_at_the_same_place_is_not_computed_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Cache(tmp_path / "cache", strict=True) as cache:
        place = cache._rows.locate("a")[1]
        monkeypatch.setattr(cache._rows, "locate", partial(_located, store(cache), place))
        assert [cache.incr("a", 5), cache.incr("a", 5)] == [5, 10]
        assert cache.incr("b") == 1
        assert [cache.get("a"), cache.get("b"), cache.incr("a"), cache.incr("b")] == [10, 1, 11, 2]


@NEEDS_BOARD
def test_a_forged_cell_is_not_computed_with(pair: tuple[Cache, Cache]) -> None:
    writer, _ = pair
    writer.incr("k")
    shard = store(writer)
    h = writer._rows.locate("k")[1]
    shard.session.board.post(h, shard.session.slots[h % shard.session.slot_prime], b"\x01\x63" + b"\0\0\0\0")
    assert writer.incr("k") == 2


def _in_transaction(cache: Cache) -> None:
    with cache.transact():
        cache.set("k", "new")


@NEEDS_BOARD
def test_a_forged_cell_is_not_believed(pair: tuple[Cache, Cache]) -> None:
    writer, reader = pair
    writer.set("k", "true")
    shard = store(writer)
    h = writer._rows.locate("k")[1]
    generation = shard.session.slots[h % shard.session.slot_prime]
    shard.session.board.post(h, generation, b"\x01\xa5false" + b"\0\0\0\0")
    assert reader.get("k") == "true"


@NEEDS_BOARD
def test_a_slot_left_odd_sends_readers_to_the_database(pair: tuple[Cache, Cache]) -> None:
    writer, reader = pair
    writer.set("k", "true")
    shard = store(writer)
    h = writer._rows.locate("k")[1]
    slot = h % shard.session.slot_prime
    shard.session.slots[slot] += 1  # a writer that died between its commit and the settling
    shard.session.board.post(h, shard.session.slots[slot], b"nonsense")
    assert reader.get("k") == "true"


def test_a_cache_works_without_its_board(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_bytes(b"untouched")
    (tmp_path / "cache").mkdir(mode=0o700)
    (tmp_path / "cache" / "cache.board").symlink_to(outside)
    with Cache(tmp_path / "cache") as cache:
        assert store(cache).session.board is None
        cache["k"] = 1
        store(cache).session.header[Header.SHARED] = 1
        cache["k"] = 2
        assert cache["k"] == 2
    assert outside.read_bytes() == b"untouched"


@NEEDS_BOARD
def test_one_process_alone_posts_nothing(tmp_path: Path) -> None:
    with Cache(tmp_path / "cache") as cache:
        cache["k"] = 1
        assert store(cache).session.header[Header.SHARED] == 0
    assert not any((tmp_path / "cache" / "cache.board").read_bytes())


def test_a_second_process_makes_the_shard_a_shared_one(tmp_path: Path) -> None:
    with Cache(tmp_path / "cache") as cache:
        child = os.fork()
        if not child:
            try:
                cache.get("k")
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        assert store(cache).session.header[Header.SHARED] == 1


PROGRAM = """
import os, sys
os.getpid = lambda: 7
from diskcache_like import Cache
from diskcache_like.coherence.generations import Header
with Cache(sys.argv[1]) as cache:
    print(cache._shards.stores[0].session.header[Header.SHARED])
"""


def test_a_process_of_the_same_id_in_another_container_is_a_second_one(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "cache")]
    printed = [subprocess.run(command, check=True, timeout=60, capture_output=True).stdout for _ in range(2)]
    assert printed == [b"0\n", b"1\n"]
