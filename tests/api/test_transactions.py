"""Transactions: all or nothing, nested, with value files and queues; other threads wait, other tasks are refused."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable
from types import ModuleType

import pytest

from diskcache_like import Cache, Timeout, TransactionError

from ..support.cache_kinds import Opener, exact, few, one
from ..support.statement_hooks import is_change, watch

BIG = "x" * 100_000


class Stop(Exception):
    """Raised to roll a transaction back."""


def rolled_back(cache: Cache, body: Callable[[], object]) -> None:
    """Run `body` in a transaction and roll it back."""
    with pytest.raises(Stop), cache.transact():
        body()
        raise Stop


def test_a_transaction_is_seen_by_others_at_its_end_and_whole(open_cache: Opener) -> None:
    cache, other = open_cache(), open_cache()
    cache.set_many({"one": 1, "two": 2})
    with cache.transact():
        cache.incr("one", 10)
        cache.decr("two", 10)
        cache["new"] = BIG
        assert (cache["one"], cache["two"], cache["new"]) == (11, -8, BIG)
        assert cache.get_many(["one", "new"]) == {"one": 11, "new": BIG}
        assert other.get_many(["one", "two", "new"]) == {"one": 1, "two": 2}
    assert other.get_many(["one", "two", "new"]) == {"one": 11, "two": -8, "new": BIG}


def test_an_exception_rolls_everything_back(open_cache: Opener) -> None:
    cache, other = open_cache(), open_cache()
    before = {"small": 1, "big": BIG, "gone": "soon", "counter": 5}
    cache.set_many(before)
    first = cache.push("first")

    def body() -> None:
        cache["small"] = BIG
        cache["big"] = "small"
        del cache["gone"]
        cache.set("tagged", BIG, tag="tag", expire=100)
        cache.set_many({f"many {number}": BIG for number in range(5)})
        assert cache.incr("counter") == 6
        assert cache.pop("counter") == 6
        cache.push("second")
        assert cache.pull() == (first, "first")
        assert cache.evict("tag") == 1
        cache.touch("small", 0)
        assert cache.get("small") is None
        assert not cache.add("big", 1)
        assert cache.clear() > 0
        assert len(cache) == 0
        cache["last"] = 1

    rolled_back(cache, body)
    for handle in (cache, other):
        assert handle.get_many([*before, "tagged", "many 1", "last"]) == before
        assert len(handle) == 5
        assert handle.peek() == (first, "first")


def test_a_nested_transaction_is_rolled_back_alone(cache: Cache) -> None:
    with cache.transact():
        cache["outer"] = BIG
        with cache.transact():
            cache["kept"] = BIG
            rolled_back(cache, lambda: (cache.set("outer", "changed"), cache.set("inner", BIG), cache.delete("kept")))
            assert (cache["outer"], cache["kept"], cache.get("inner")) == (BIG, BIG, None)
            assert len(cache) == 2
        rolled_back(cache, cache.clear)
        cache["after"] = 1
    assert cache.get_many(["outer", "kept", "inner", "after"]) == {"outer": BIG, "kept": BIG, "after": 1}
    assert len(cache) == 3


@exact
def test_a_failed_operation_leaves_the_transaction_usable(cache: Cache) -> None:
    cache["text"] = "text"
    with cache.transact():
        cache["key"] = 1
        with pytest.raises(TypeError):
            cache.incr("text")
        with pytest.raises(KeyError):
            cache.incr("missing", default=None)
        with pytest.raises(TypeError):
            cache["key"] = lambda: None
        cache["other"] = 2
    assert (cache["text"], cache["key"], cache["other"]) == ("text", 1, 2)


@few
def test_a_transaction_counts_its_entries(open_cache: Opener) -> None:
    cache, other = open_cache(), open_cache()
    cache.set_many({f"key {number}": number for number in range(10)})
    with cache.transact():
        cache["new"] = 1
        del cache["key 0"], cache["key 1"]
        cache["key 2"] = BIG
        rolled_back(cache, lambda: (cache.clear(), cache.set("a", 1), cache.set("b", 1)))
        assert (len(cache), len(other)) == (9, 10)
    assert len(cache) == len(other) == 9
    rolled_back(cache, cache.clear)
    assert len(cache) == len(other) == 9


@one
def test_a_signal_handler_in_the_middle_of_a_write_is_refused(cache: Cache) -> None:
    refused = []

    def handle(statement: str) -> None:
        if is_change(statement):
            with pytest.raises(TransactionError, match="signal handler"):
                cache.set("by the handler", 1)
            refused.append(statement)

    with cache.transact():
        watch(cache, after=handle)
        cache.set("key", 1)
        cache.incr("number")
        cache.delete("key")
        cache.set_many({"one": 1, "other": 2})
    assert len(refused) >= 4
    assert sorted(cache) == ["number", "one", "other"]
    assert len(cache) == 3


@few
def test_a_thread_is_not_taken_for_one_that_has_ended(open_cache: Opener) -> None:
    """The interpreter gives a new thread the number of one that has ended, here within a transaction."""
    cache, left = open_cache(timeout=0), []

    def leave() -> None:
        left.append(cache.transact(retry=True))
        left[0].__enter__()
        cache.set("key", 1)

    def intrude() -> None:
        with pytest.raises((Timeout, TransactionError)), cache.transact(retry=False):
            pass
        kept_out.append(cache.get("key") is None)

    kept_out: list[bool] = []
    for work in (leave, *[intrude] * 5):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    left.pop().__exit__(Stop, Stop(), None)
    assert kept_out == [True] * 5
    assert cache.get("key") is None


@few
def test_another_handle_gets_a_timeout(open_cache: Opener) -> None:
    cache, other = open_cache(), open_cache(timeout=0)
    cache["key"] = "before"
    with cache.transact():
        cache["key"] = "after"
        with pytest.raises(Timeout), other.transact(retry=False):
            raise AssertionError("not reached")
        assert other["key"] == "before"
    with other.transact(retry=False):
        assert other["key"] == "after"


@few
def test_another_task_of_the_same_thread_is_refused_and_reads_what_was_committed(cache: Cache) -> None:
    cache["key"] = "before"

    async def owner(inside: asyncio.Event, go_on: asyncio.Event) -> None:
        with cache.transact():
            cache["key"] = "after"
            inside.set()
            await go_on.wait()
            cache["second"] = "owner"

    async def intruder(inside: asyncio.Event, go_on: asyncio.Event) -> None:
        await inside.wait()
        assert cache["key"] == "before"
        assert "second" not in cache
        for use in (
            lambda: cache.set("key", BIG),
            lambda: cache.add("new", BIG),
            lambda: cache.incr("counter"),
            lambda: cache.push("item"),
            cache.clear,
            lambda: cache.transact().__enter__(),
        ):
            with pytest.raises(TransactionError, match="task"):
                use()
        go_on.set()

    async def both() -> None:
        inside, go_on = asyncio.Event(), asyncio.Event()
        await asyncio.gather(owner(inside, go_on), intruder(inside, go_on))

    asyncio.run(both())
    assert (cache["key"], cache["second"], len(cache)) == ("after", "owner", 2)


@one
def test_another_thread_may_be_importing_asyncio(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "asyncio", ModuleType("asyncio"))  # as it is while its import has not ended
    with cache.transact():
        cache["key"] = 1
    assert cache["key"] == 1


@few
def test_close_and_other_upkeep_have_their_place_outside(cache: Cache) -> None:
    with cache.transact():
        cache["key"] = BIG
        assert cache.volume() > 0
        assert cache.cull() == 0
        assert cache.expire() == 0
        assert [str(problem.message) for problem in cache.check()] == []
    assert cache["key"] == BIG
