"""Parts of a store by themselves, with stand-ins for the parts beside them."""

from __future__ import annotations

import ast
import os
import threading
from array import array
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest import mock

import pytest

import diskcache_like
from diskcache_like import Cache, FanoutCache
from diskcache_like.coherence.generations import UNCOUNTED, Header
from diskcache_like.coherence.write_lock import WriteLock
from diskcache_like.errors import CacheError, CorruptDatabase, DiskFull, Timeout, TransactionError
from diskcache_like.storage.shard.invalidation import Invalidation
from diskcache_like.storage.shard.open_shard import OpenShard
from diskcache_like.storage.shard.ownership import Transaction
from diskcache_like.storage.upkeep.quota import Quota
from diskcache_like.storage.upkeep.recovery import Recovery

SLOTS = 7
KEY = 8  # a multiple of four, as hashes of keys are: its slot is 1


class Shard:
    """What a part sees of an open shard: words, and a connection that notes what is asked of it."""

    def __init__(self, limit: int = 1000) -> None:
        self.header = array("Q", [0] * 64)
        self.slots = array("Q", [2] * SLOTS)
        self.slot_prime = SLOTS
        self.settings = {"size_limit": limit}
        self.ring: Any = None
        self.asked: list[object] = []
        self.limit = limit
        self.connection = SimpleNamespace(txn=None, inserted=0)

    def present_header(self) -> array[int]:
        return self.header


def invalidation(shard: Shard) -> Invalidation:
    return Invalidation(cast(Any, shard))


# -- slots around a commit --------------------------------------------------------------------------------------------


def test_a_slot_is_odd_while_a_step_commits_and_settles_on_the_next_even_number() -> None:
    shard = Shard()

    def commit(h: int, tick: int, arguments: tuple[Any, ...]) -> bool:
        assert (h, tick, arguments) == (KEY, 1, ("argument",))
        assert shard.slots[1] == 2 * tick + 1
        return True

    assert invalidation(shard).commit_one(KEY, True, commit, ("argument",)) == 4
    assert list(shard.slots) == [2, 4, 2, 2, 2, 2, 2]
    assert shard.header[Header.TICK] == 1


def test_a_step_that_changes_nothing_settles_its_slot_all_the_same() -> None:
    shard = Shard()
    assert invalidation(shard).commit_one(KEY, True, lambda *_: False, ()) == 0
    assert shard.slots[1] == 4


def test_after_a_step_that_failed_the_count_is_unknown_and_the_slot_even() -> None:
    shard = Shard()
    shard.header[Header.COUNT] = 5

    def fail(*_: object) -> bool:
        raise DiskFull("no room", "path")

    with pytest.raises(DiskFull):
        invalidation(shard).commit_one(KEY, True, fail, ())
    assert (shard.header[Header.COUNT], shard.slots[1]) == (UNCOUNTED, 4)


def test_within_a_transaction_a_slot_stays_odd_and_is_noted() -> None:
    shard = Shard()
    shard.connection.txn = txn = Transaction()
    assert invalidation(shard).commit_one(KEY, False, lambda *_: True, ()) == 1
    assert shard.slots[1] == 3
    assert txn.slots == {1}


# -- second tries -----------------------------------------------------------------------------------------------------


class Disk:
    """Stands for the parts that make room: it has some, or not, and notes what is given back."""

    def __init__(self, room: bool) -> None:
        self.room = room
        self.reclaimed: list[bool] = []

    def recovery(self) -> Recovery:
        made = Recovery(*[cast(Any, SimpleNamespace(shard=None))] * 3)
        made.reclaim_space = self.reclaim  # type: ignore[method-assign,assignment]
        return made

    def reclaim(self, removes: bool = False, kept: int = 0) -> bool:
        self.reclaimed.append(removes)
        return self.room


@pytest.mark.parametrize("removes", [False, True])
def test_a_step_is_taken_a_second_time_once_room_was_made(removes: bool) -> None:
    disk, tries = Disk(room=True), iter([DiskFull("no room", "path"), None])

    def step() -> str:
        if problem := next(tries):
            raise problem
        return "done"

    assert disk.recovery().run(step, removes) == "done"
    assert disk.reclaimed == [removes]


def test_a_step_is_not_taken_again_where_no_room_can_be_made() -> None:
    disk, taken = Disk(room=False), []

    def step() -> None:
        taken.append(1)
        raise DiskFull("no room", "path")

    with pytest.raises(DiskFull):
        disk.recovery().run(step)
    assert taken == [1]


@pytest.mark.parametrize("problem", [Timeout("late"), CorruptDatabase("damaged")])
def test_no_other_error_is_taken_for_a_full_disk(problem: CacheError) -> None:
    disk = Disk(room=True)

    def step() -> None:
        raise problem

    with pytest.raises(type(problem)):
        disk.recovery().run(step)
    assert disk.reclaimed == []


# -- the size limit ---------------------------------------------------------------------------------------------------


def quotas(*volumes: int, limit: int = 1200) -> list[Quota]:
    """Return the quotas of shards that use so many bytes and have reserved nothing yet."""
    shards = [Shard(limit) for _ in volumes]
    made = []
    for shard, volume in zip(shards, volumes, strict=True):
        shard.limit = limit // len(volumes)
        made.append(Quota(cast(Any, shard), cast(Any, SimpleNamespace(volume=lambda volume=volume: volume))))
    for quota in made:
        quota.others = [other for other in made if other is not quota]
    return made


def test_what_is_left_is_what_nobody_uses_or_has_reserved() -> None:
    first, second, third = quotas(100, 200, 300)
    assert first.left(100) == 600
    second.reserve(200, 300)  # half as much more, or a third of what is free
    assert first.left(100) == 500
    assert third.left(300) == 500


def test_all_shards_that_look_at_once_reserve_no_more_than_there_is() -> None:
    shards = quotas(100, 100, 100)
    free = [quota.left(100) for quota in shards]  # before any of them has reserved
    for quota, mine in zip(shards, free, strict=True):
        quota.reserve(100, mine)
    assert sum(quota.reserved() for quota in shards) <= 1200


@pytest.mark.parametrize("claim", [10_000, 1 << 64])  # under a larger limit, and none that anybody can have made
def test_a_claim_above_the_limit_counts_with_what_is_used(claim: int) -> None:
    first, second = quotas(100, 100)
    second.reserve(100, claim)
    assert first.left(100) == 1000


def test_a_shard_that_cannot_be_read_counts_with_its_even_part() -> None:
    first, second = quotas(100, 100)

    def unreadable() -> Any:
        raise CorruptDatabase("damaged")

    second._shard.present_header = unreadable  # type: ignore[method-assign]
    assert first.left(100) == 1200 - 600 - 100


# -- what a failed write leaves ---------------------------------------------------------------------------------------


def test_entries_are_counted_right_after_a_batch_that_found_no_room(tmp_path: Path) -> None:
    """SQLite remembers the number of a failed insert; the next write of a key that exists must not look like one."""
    with Cache(tmp_path, hot_size_limit=0) as cache:
        cache.set_many({f"key {number}": number for number in range(10)})
        raw = cache._shards.stores[0].connection.open()
        ((pages,),) = raw.execute("PRAGMA page_count").fetchall()
        raw.execute(f"PRAGMA max_page_count = {pages + 20}").fetchall()
        with pytest.raises(DiskFull), cache.transact():
            cache.set_many({f"more {number}": os.urandom(4000) for number in range(200)})
        raw.execute("PRAGMA max_page_count = 1073741823").fetchall()
        assert len(cache) == 10
        for number in range(5):
            cache[f"key {number}"] = "new"
        assert (len(cache), cache.check()) == (10, [])


def test_entries_are_counted_right_after_removals_that_were_cut_short(tmp_path: Path) -> None:
    with Cache(tmp_path, hot_size_limit=0) as cache:
        cache.set_many({f"key {number}": number for number in range(40)})
        assert len(cache) == 40
        store = cache._shards.stores[0]
        with cache.transact():
            raw = store.connection.open()
            places = [place for (place,) in raw.execute("SELECT h FROM entry LIMIT 20").fetchall()]
            raw.execute(
                f"CREATE TEMP TRIGGER fails BEFORE DELETE ON main.entry WHEN old.h = {places[10]}"
                " BEGIN SELECT raise(fail, 'a page cannot be read'); END"
            )
            with pytest.raises(CacheError):
                store.remove_places(places)
            raw.execute("DROP TRIGGER fails")
        assert (len(cache), cache.check()) == (30, [])


def test_a_handler_that_raises_as_a_store_is_closed_leaves_no_lock_behind(tmp_path: Path) -> None:
    with Cache(tmp_path) as cache, Cache(tmp_path, timeout=0) as other:
        cache["key"] = 1
        shard = cache._shards.stores[0].shard
        close = shard.close

        def interrupted() -> None:
            shard.close = close  # type: ignore[method-assign]
            raise KeyboardInterrupt

        shard.close = interrupted  # type: ignore[method-assign]
        with pytest.raises(KeyboardInterrupt):
            cache.close()
        assert other.set("key", 2)


def test_a_handler_that_interrupts_closing_does_not_wait_for_its_end(tmp_path: Path) -> None:
    with FanoutCache(tmp_path, shards=2) as cache:
        cache.set_many(dict.fromkeys(range(20), "value"))
        found: list[object] = []
        close, follow, follows = WriteLock.release_and_close, OpenShard.reopen, iter(range(50))

        def interrupted(lock: WriteLock, *arguments: Any) -> None:
            store = next(store for store in cache._shards.stores if store.shard.lock is lock)
            with pytest.raises(TransactionError, match="being closed"):
                store.shard.present_header()
            found.append(store.select("SELECT count(*) FROM entry")[0][0])
            other = next(other for other in cache._shards.stores if other is not store)
            assert other.quota.left(0) > 0  # counts the one that is being closed with its even part
            close(lock, *arguments)

        def followed(shard: OpenShard) -> None:
            next(follows)  # ends a wait without end
            follow(shard)

        with (
            mock.patch.object(WriteLock, "release_and_close", interrupted),
            mock.patch.object(OpenShard, "reopen", followed),
        ):
            cache.close()
        assert sum(found) == 20  # type: ignore[arg-type]


def test_who_takes_the_lock_of_a_shard_that_another_thread_still_opens_gives_it_back(tmp_path: Path) -> None:
    use, taken = OpenShard._use, list[bool]()

    def used(shard: OpenShard, *found: Any) -> None:
        writer = threading.Thread(target=lambda: taken.append(store.writer._transactions.acquire(0)))
        writer.start()  # as one that looked just before the shard was closed
        writer.join()
        use(shard, *found)

    with Cache(tmp_path) as cache, Cache(tmp_path, timeout=0) as other:
        store = cache._shards.stores[0]
        cache.close()
        with mock.patch.object(OpenShard, "_use", used):
            assert cache.set("key", 1)
        assert taken == [False]
        assert other.set("key", 2, expire=9)


def test_who_finds_a_lock_closed_goes_on_though_the_shard_is_open_again_meanwhile(tmp_path: Path) -> None:
    with Cache(tmp_path) as cache:
        cache["key"] = 1
        shard = cache._shards.stores[0].shard
        closed, inherited = shard.lock, OpenShard.inherited
        cache.close()

        def late(shard: OpenShard) -> bool:
            with mock.patch.object(OpenShard, "inherited", inherited):
                shard.ready()  # by another thread
            return inherited(shard)

        with mock.patch.object(OpenShard, "inherited", late):
            assert not shard.is_open_with(closed)


def test_nothing_above_reaches_through_a_store_into_its_parts() -> None:
    """What a store offers is in `interface.py` and its own methods; its disk and the words of its shard are offered."""
    package = Path(diskcache_like.__file__).parent
    reached = []
    for path in package.rglob("*.py"):
        if path.relative_to(package).parts[0] in ("storage", "tier"):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Attribute):
                owner = ast.unparse(node.value.value)
                is_store = owner.split(".")[-1] in ("store", "_store", "stores[0]", "first")
                if is_store and node.value.attr not in ("disk", "shard", "identity", "settings", "config"):
                    reached.append(f"{path.relative_to(package)}:{node.lineno} {ast.unparse(node)}")
    assert reached == []
