"""A write of another kind takes along what waits in the write buffer: one commit, seen by everybody as one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from diskcache_like import Cache, DiskFull, FanoutCache, StorageError
from diskcache_like.coherence.ring import Mark, Ring, Word
from diskcache_like.storage.shard.writer_connection import WriterConnection
from diskcache_like.storage.write_buffer import WriteBuffer

from .test_write_buffer import SMALL, DyingAfter, die, killed, ring_of, rows_of

LARGE = bytes(1 << 16)
WRITES: dict[str, Callable[[Cache], object]] = {
    "set of a large value": lambda cache: cache.set("large", LARGE),
    "set_many": lambda cache: cache.set_many({"key": "new", "second": "new"}),
    "touch of a large value": lambda cache: cache.touch("large", 100),
}


def two_at_once(cache: Cache) -> None:
    assert cache.set_many({"key": "new", "second": "new"}) == 2


@contextmanager
def carrying(cache: Cache) -> Iterator[None]:
    """Do what `transact` does, but carry what waits, as the package's own short transactions do."""
    with cache._shards.stores[0].transaction(None):
        yield


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[Cache]:
    with Cache(tmp_path / "cache", **SMALL) as cache:
        cache["large"] = LARGE
        cache["key"] = "old"
        yield cache


@pytest.fixture
def other(cache: Cache) -> Iterator[Cache]:
    with Cache(cache.directory, hot_size_limit=0, **SMALL) as other:
        yield other


@pytest.fixture
def commits(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the commits from here on."""
    found: list[str] = []
    commit = WriterConnection.commit

    def counted(self: WriterConnection, txn: Any) -> None:
        found.append("commit")
        commit(self, txn)

    monkeypatch.setattr(WriterConnection, "commit", counted)
    return found


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_what_waits_and_the_write_are_one_commit(
    cache: Cache, other: Cache, commits: list[str], write: Callable[[Cache], object]
) -> None:
    write(other)
    assert len(commits) == 1
    assert ring_of(cache).waiting() == 0
    assert rows_of(cache) == len(cache)
    commits.clear()
    cache["next"] = 1  # the mark is stored already
    assert (commits, ring_of(cache).waiting() > 0) == ([], True)
    assert other["next"] == 1
    assert cache.check() == []


def test_the_key_that_waits_may_be_the_one_that_is_written(cache: Cache, other: Cache) -> None:
    cache["key"] = LARGE
    assert other["key"] == cache["key"] == LARGE
    cache["key"] = "small"
    assert other["key"] == cache["key"] == "small"
    assert cache.delete("key")
    assert ("key" in other, "key" in cache, len(other)) == (False, False, 1)


def test_a_large_value_that_is_written_is_kept_hot(cache: Cache, other: Cache, commits: list[str]) -> None:
    cache["large"] = bytes(20_000)
    assert commits
    Path(cache.directory, "cache.db").unlink()
    assert cache["large"] == bytes(20_000)


def test_what_is_rolled_back_waits_as_before(cache: Cache, other: Cache) -> None:
    waiting = ring_of(cache).waiting()
    with pytest.raises(KeyError), carrying(other):
        other["key"] = "new"
        raise KeyError
    assert (cache["key"], other["key"]) == ("old", "old")
    assert ring_of(cache).waiting() == waiting
    two_at_once(other)
    assert (cache["key"], cache["second"], len(cache)) == ("new", "new", 3)
    assert cache.check() == []


def test_a_transaction_reads_what_it_has_taken_along(cache: Cache, other: Cache) -> None:
    with carrying(other):
        assert other["key"] == "old"
        assert sorted(other) == ["key", "large"]
        assert len(other) == 2
        other["key"] = "new"
        assert (other["key"], cache["key"]) == ("new", "old")
        assert other.delete("key")
        assert "key" not in other
    assert "key" not in cache


def test_more_than_a_transaction_should_carry_is_flushed_before(
    cache: Cache, commits: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("diskcache_like.storage.write_buffer.CARRIED", 8)
    two_at_once(cache)
    assert len(commits) == 2
    assert (cache["key"], len(cache)) == ("new", 3)


def test_transact_flushes_before_and_leaves_a_mark(cache: Cache, other: Cache, commits: list[str]) -> None:
    with cache.transact():
        assert (len(commits), len(other), list(other)) == (1, 2, ["large", "key"])
        cache["key"] = "new"
        assert other["key"] == "old"
    commits.clear()
    cache["next"] = 1
    assert commits == []
    assert (other["key"], other["next"], cache.check()) == ("new", 1, [])


def test_a_transaction_over_several_shards_flushes_each_before(tmp_path: Path) -> None:
    with FanoutCache(tmp_path, shards=2, **SMALL) as cache:
        for number in range(20):
            cache[number] = "old"
        with cache.transact():
            for number in range(20):
                cache[number] = "new"
        assert {cache[number] for number in range(20)} == {"new"}
        assert cache.check() == []


# -- all or nothing, wherever the writer dies --------------------------------------------------------------------------


def _killed_while(directory: Path, arrange: Callable[[Cache], object]) -> None:
    def work() -> Cache:
        cache = Cache(directory, **SMALL)
        cache["key"] = "old"
        arrange(cache)
        two_at_once(cache)
        return cache

    killed(work)


def _die_before_the_commit(_: Cache) -> None:
    WriterConnection.commit = die  # type: ignore[method-assign, assignment]


def _die_after_the_commit(_: Cache) -> None:
    Ring.carried = die  # type: ignore[method-assign, assignment]


def _die_after(word: int) -> Callable[[Cache], None]:
    def arrange(cache: Cache) -> None:
        ring, carried = ring_of(cache), Ring.carried

        def half(self: Ring, mark: Mark) -> None:
            ring.words = DyingAfter(ring.words, word)  # type: ignore[assignment]
            carried(self, mark)

        Ring.carried = half  # type: ignore[method-assign]

    return arrange


DEATHS = {
    "before the commit": (_die_before_the_commit, "old", None),
    "after the commit": (_die_after_the_commit, "new", "new"),
    **{
        f"after {name}": (_die_after(word), "new", "new")
        for name, word in vars(Word).items()
        if name in ("FLUSHED_LAST", "FLUSHED", "LAST", "FLOOR", "CARRYING")
    },
}


@pytest.mark.parametrize("then", ["read", "append", "transact", "update"])
@pytest.mark.parametrize(("arrange", "key", "second"), DEATHS.values(), ids=DEATHS)
def test_a_writer_that_dies_has_written_both_keys_or_none(
    tmp_path: Path, arrange: Callable[[Cache], object], key: str, second: str | None, then: str
) -> None:
    with Cache(tmp_path, **SMALL) as witness, Cache(tmp_path, hot_size_limit=0, **SMALL) as cache:
        witness["count"] = 1
        assert witness.get("key") is None
        _killed_while(tmp_path, arrange)
        if then == "read":
            for reader in (witness, cache, witness):
                assert (reader.get("second"), reader.get("key")) == (second, key)
                assert reader.get_many(["key", "second"]) == {
                    name: value for name, value in (("key", key), ("second", second)) if value
                }
        elif then == "append":
            cache["another"] = 1
        elif then == "transact":
            with carrying(cache):
                assert (cache.get("second"), cache.get("key")) == (second, key)
        else:
            assert cache.pop("key") == key
            key = ""
        for reader in (cache, witness):
            assert (reader.get("second"), reader.get("key", "")) == (second, key)
        assert cache.incr("count") == 2
        assert witness["count"] == 2
        assert cache.check() == []
        assert len(cache) == len(list(cache))


def test_a_reader_in_the_midst_of_the_commit_sees_all_of_it(
    cache: Cache, other: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[tuple[Any, Any]] = []
    carried = Ring.carried

    def look_first(self: Ring, mark: Mark) -> None:
        found.append((other.get("second"), other.get("key")))
        found.append((other.get("second"), other.get_many(["key"]).get("key")))
        carried(self, mark)

    monkeypatch.setattr(Ring, "carried", look_first)
    two_at_once(cache)
    assert found == [("new", "new")] * 2
    assert (cache["key"], other["key"]) == ("new", "new")


@pytest.mark.parametrize("fails", ["before", "after"])
def test_a_commit_that_fails_leaves_what_the_database_has(
    cache: Cache, other: Cache, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    commit = WriterConnection.commit

    def failing(self: WriterConnection, txn: Any) -> None:
        if fails == "after":
            commit(self, txn)
        raise StorageError("the disk is ill")

    with monkeypatch.context() as patch:
        patch.setattr(WriterConnection, "commit", failing)
        with pytest.raises(StorageError, match="is ill"):
            two_at_once(cache)
    expected = ("new", "new") if fails == "after" else ("old", None)
    for reader in (other, cache):
        assert (reader["key"], reader.get("second")) == expected
    cache["third"] = 3
    assert (other["third"], other["key"], other.get("second")) == (3, *expected)
    assert cache.check() == []


def test_a_disk_that_is_full_for_both_is_tried_for_each(
    cache: Cache, other: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    carry = WriteBuffer.carry

    def full(self: WriteBuffer, txn: Any, carried: Any) -> None:
        carry(self, txn, carried)
        raise DiskFull("no room", "cache.db")

    with monkeypatch.context() as patch:
        patch.setattr(WriteBuffer, "carry", full)
        cache["large"] = LARGE + b"new"
        assert other["large"] == LARGE + b"new"
        cache["key"] = "waits again"
        assert other.delete("large")
    assert (other["key"], "large" in cache, cache.check()) == ("waits again", False, [])


def test_a_signal_that_interrupts_the_commit_loses_nothing(
    cache: Cache, other: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    carried = Ring.carried

    def interrupted(self: Ring, mark: Mark) -> None:
        monkeypatch.setattr(Ring, "carried", carried)
        raise KeyboardInterrupt

    monkeypatch.setattr(Ring, "carried", interrupted)
    with pytest.raises(KeyboardInterrupt):
        two_at_once(cache)
    assert (other["key"], other["second"]) == ("new", "new")
    cache["key"] = "newer"
    assert (other["key"], cache["second"], cache.check()) == ("newer", "new", [])
