"""What the tests of cashews, dogpile.cache and FusionCache check, where it exists here, in our own words."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from diskcache_like import Breaker, BreakerOpen, Cache, CacheError, ComputeTimeout, Computing
from diskcache_like.operations import computing, rules

from ..support.cache_kinds import Clock, few
from ..support.workers import PATIENCE

Get = Callable[..., Any]


class Broken(Exception):
    """What a source raises that fails."""


class Source:
    """Computes 1, 2, 3 and so on, each within a second of the clock; it may fail, and be held up."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.calls = 0
        self.fails = False
        self.begun, self.may_end = threading.Event(), threading.Event()
        self.may_end.set()

    def __reduce__(self) -> tuple[type[Source], tuple[()]]:
        return Source, ()  # all are the same to the keys of what closes over one

    def __call__(self) -> int:
        self.calls += 1
        number = self.calls
        self.begun.set()
        assert self.may_end.wait(PATIENCE)
        self.clock.advance(1)
        if self.fails:
            raise Broken
        return number

    @contextmanager
    def held_up(self) -> Iterator[None]:
        """Compute nothing until the end of the block, and everything then."""
        self.begun.clear()
        self.may_end.clear()
        try:
            yield
        finally:
            self.may_end.set()
            background()


@pytest.fixture
def source(clock: Clock) -> Source:
    return Source(clock)


@pytest.fixture
def get(cache: Cache, source: Source) -> Get:
    """Return what gets the source's value, which is kept for 20 seconds."""
    return partial(cache.get_or_set, "key", source, 20)


@pytest.fixture
def safe_get(get: Get) -> Get:
    """Return what gets it, if need be up to 60 seconds after its expiry."""
    return partial(get, stale_if_error=60)


@pytest.fixture
def eager_get(get: Get, monkeypatch: pytest.MonkeyPatch) -> Get:
    """Return what gets it and has it renewed from 9 seconds before its expiry, which is chance elsewhere."""
    monkeypatch.setattr("random.random", lambda: 0.9999)
    return partial(get, beta=1)


def background() -> None:
    """Wait until what is computed in the background is there."""
    for thread in threading.enumerate():
        if thread.name == computing.RENEWAL:
            thread.join(PATIENCE)


def at_once(work: Callable[[], Any]) -> list[Any]:
    """Return what ten threads get that call `work` at once."""
    found: list[Any] = []
    barrier = threading.Barrier(10)

    def run() -> None:
        barrier.wait(PATIENCE)
        found.append(work())

    threads = [threading.Thread(target=run) for _ in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    return found


# -- cashews, tests/test_tags_feature.py: tags of entries, and of decorated functions (plain, soft, early) -------------


@few
def test_a_tag_takes_its_own_entries_only(cache: Cache) -> None:
    cache.set_many({"both": 1}, tags=["a", "b"])
    cache.set_many({"second": 2}, tags=["b"])
    cache.set_many({"third": 3}, tags=["c"])
    assert (cache.evict("nobody's"), len(cache)) == (0, 3)
    assert (cache.evict("b"), list(cache)) == (2, ["third"])
    assert (cache.evict("a"), list(cache)) == (0, ["third"])
    assert (cache.evict("c"), list(cache)) == (1, [])


@few
def test_a_counter_goes_with_its_tag(cache: Cache) -> None:
    cache.add("hits", 0, tags=["counters"])
    assert cache.incr("hits") == 1
    assert cache.evict("counters") == 1
    assert "hits" not in cache


@few
def test_what_is_written_again_without_its_tag_stays(cache: Cache) -> None:
    cache.set("key", 1, tags=["tag"])
    cache.delete("key")
    cache.set("key", 2)
    assert cache.evict("tag") == 0
    assert cache["key"] == 2


@few
def test_what_has_expired_leaves_its_tag(cache: Cache, clock: Clock) -> None:
    cache.set("first", 1, expire=10, tags=["tag"])
    clock.advance(9)
    cache.set("second", 1, expire=10, tags=["tag"])
    clock.advance(2)
    assert list(cache.keys(tags=["tag"])) == ["second"]
    clock.advance(8)
    assert cache.tags() == []


@few
def test_a_tag_of_more_than_a_hundred_entries(cache: Cache) -> None:
    for number in range(150):
        cache.set(number, number, tags=[f"own {number}", "all"])
    assert [cache.evict(tags=["own 1", "own 2", "own 100"]) for _ in range(2)] == [3, 0]
    assert cache.evict(tags=["own 5", "all"]) == 147


@few
@pytest.mark.parametrize("options", [{}, {"stale_if_error": 60}, {"beta": 1}, {"stale_while_revalidate": 60}], ids=str)
def test_tags_made_from_arguments(cache: Cache, source: Source, options: Any) -> None:
    @cache.memoize(expire="1m", key="key:{a}:{b}", tags=["all", "a:{a};b:{b}"], **options)
    def work(a: int, b: int | None = None) -> int:
        return source()

    assert [work(1), work(2), work(5)] == [1, 2, 3]
    assert cache.evict("a:1;b:None") == 1
    assert [work(1), work(2), work(5)] == [4, 2, 3]
    assert cache.evict("all") == 3
    assert [work(2), work(5)] == [5, 6]


@few
def test_two_decorators_with_one_tag(cache: Cache, source: Source) -> None:
    @cache.memoize(expire="1m", key="key:{a}", tags=["all"])
    @cache.memoize(expire="1m", key="key:{a}", tags=["all", "a:{a}"], stale_if_error="1m")
    def work(a: int) -> int:
        return source()

    assert [work(1), work(2), work(1)] == [1, 2, 1]
    assert cache.evict("all") == 4
    assert [work(1), work(2)] == [3, 4]


@few
def test_keys_and_tags_made_from_attributes(cache: Cache, source: Source) -> None:
    @cache.memoize(key="{user.name}:{user.site.theme}:{page}", tags=["user:{user.name}", "theme:{user.site.theme}"])
    def work(user: Any, page: int) -> int:
        return source()

    ada, bo = (SimpleNamespace(name=name, site=SimpleNamespace(theme="dark")) for name in ("ada", "bo"))
    assert [work(ada, 1), work(bo, 1), work(ada, 2), work(ada, 1)] == [1, 2, 3, 1]
    assert cache.evict("user:ada") == 2
    assert [work(ada, 1), work(bo, 1)] == [4, 2]
    assert cache.evict("theme:dark") == 2


# -- cashews, tests/test_circuit_breaker.py: it opens after some successes; half open it lets some calls through -------


@few
def test_errors_open_the_breaker_for_all_calls(cache: Cache, source: Source) -> None:
    work = cache.memoize(expire=0, breaker=Breaker(errors=2))(lambda: source())
    assert [work() for _ in range(9)] == list(range(1, 10))
    source.fails = True
    for _ in range(2):
        with pytest.raises(Broken):
            work()
    for source.fails in (True, False):
        with pytest.raises(BreakerOpen):
            work()
    assert source.calls == 11


@few
def test_a_breaker_lets_one_of_many_tasks_try(cache: Cache, clock: Clock) -> None:
    async def main() -> None:
        all_refused = asyncio.Event()
        refused = 0

        @cache.memoize(expire=0, breaker=Breaker(errors=1, open=30))
        async def work(fails: bool = False) -> str:
            if fails:
                raise Broken
            await asyncio.wait_for(all_refused.wait(), PATIENCE)
            return "done"

        async def attempt() -> str | None:
            nonlocal refused
            try:
                return await work()
            except BreakerOpen:
                refused += 1
                if refused == 99:
                    all_refused.set()
                return None

        with pytest.raises(Broken):
            await work(fails=True)
        with pytest.raises(BreakerOpen):
            await work()
        clock.advance(30)
        assert sorted(await asyncio.gather(*(attempt() for _ in range(100))), key=str) == [None] * 99 + ["done"]
        assert await work() == "done"

    asyncio.run(main())


# -- cashews, tests/test_cache.py: soft, with and without an error, and early; tests/test_cache_exception.py: early ----


@few
def test_a_soft_value_is_replaced_once_it_is_old(clock: Clock, safe_get: Get) -> None:
    assert [safe_get(), safe_get()] == [1, 1]
    clock.advance(20)
    assert [safe_get(), safe_get()] == [2, 2]


@few
def test_a_soft_value_outlives_errors_until_its_window_ends(clock: Clock, source: Source, safe_get: Get) -> None:
    safe_get()
    source.fails = True
    clock.advance(20)
    end, served = clock.now + 60, 0
    with pytest.raises(Broken):
        while clock.now < end + 30:
            served += safe_get()
            clock.advance(rules.ERROR_PAUSE / 2)
    assert served == 4, "to serve an old value prolongs nothing"


@few
def test_an_early_value_lasts_until_it_expires(clock: Clock, eager_get: Get, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("random.random", lambda: 0.0)
    assert [eager_get(), eager_get()] == [1, 1]
    clock.advance(19.5)
    assert eager_get() == 1
    clock.advance(0.5)
    assert eager_get() == 2


@few
def test_an_early_function_keeps_its_errors(source: Source, eager_get: Get) -> None:
    source.fails = True
    for _ in range(2):
        with pytest.raises(Broken):
            eager_get(cache_errors=Broken)
    assert source.calls == 1


# -- dogpile.cache, tests/cache/test_decorator.py, DecoratorTest: lifetimes, get, set, invalidate, refresh, own keys ---


@few
@pytest.mark.parametrize("expire", [20, "20s", lambda _: 20], ids=["number", "text", "function"])
def test_results_by_arguments_expire(cache: Cache, clock: Clock, source: Source, expire: Any) -> None:
    work = cache.memoize(expire=expire)(lambda a, b: (source(), a, b))
    assert [work(1, 2), work(3, 4), work(1, 2)] == [(1, 1, 2), (2, 3, 4), (1, 1, 2)]
    clock.advance(20)
    assert work(1, 2) == (3, 1, 2)


@few
def test_a_function_that_returns_no_lifetime_keeps_nothing(cache: Cache, source: Source) -> None:
    assert [cache.get_or_set("key", source, lambda _: 0) for _ in range(3)] == [1, 2, 3]


@few
def test_results_are_seen_set_and_removed_by_arguments(cache: Cache, source: Source) -> None:
    work = cache.memoize(expire=60)(lambda a, b: source())
    assert [work(1, 2), work.peek(1, 2), work.peek(2, 1)] == [1, 1, None]
    cache.set(work.key(1, 2), 50, expire=60)
    assert work(1, 2) == 50
    assert work.invalidate(1, 2)
    assert work(1, 2) == 2
    cache.set(work.key(1, 3), 0, expire=60)
    assert work(1, 3) == 0


@few
def test_a_refresh_computes_whatever_is_there(cache: Cache, source: Source) -> None:
    work = cache.memoize(expire=60)(lambda a: source())
    assert [work(1), work.refresh(1), work(1), work.refresh(1), work(1)] == [1, 2, 2, 3, 3]


@few
def test_a_key_function_that_drops_an_argument(cache: Cache, source: Source) -> None:
    work = cache.memoize(key=lambda a, b: a)(lambda a, b: (source(), a, b))
    assert [work(1, 2), work(3, 4), work(1, 3)] == [(1, 1, 2), (2, 3, 4), (1, 1, 2)]


# -- dogpile.cache, tests/cache/test_decorator.py, KeyGenerationTest: keywords, defaults, None, namespaces, non-ASCII --


@few
def test_keyword_arguments_and_defaults_make_the_same_key(cache: Cache) -> None:
    none = cache.memoize()(lambda a, b: None)
    last = cache.memoize()(lambda a, b=None: None)
    every = cache.memoize()(lambda a=True, b=None: None)
    for work in (none, last, every):
        assert work.key(1, 2) == work.key(1, b=2) == work.key(a=1, b=2) == work.key(b=2, a=1)
        assert work.key(None, 5) != work.key("None", 5), "which are one text"
    assert last.key(1) == last.key(a=1) == last.key(1, None)
    assert every.key() == every.key(True, None)
    assert every.key(b=2) == every.key(True, 2)


@few
def test_names_keep_the_results_of_functions_apart(cache: Cache, source: Source) -> None:
    first, second = (cache.memoize(name=name)(lambda a, b: source()) for name in ("first", "second"))
    assert [first("méil", "drôle"), second("méil", "drôle"), first("méil", "drôle")] == [1, 2, 1]
    assert first("méil", "drole") == 3


# -- dogpile.cache, tests/cache/test_decorator.py, CacheDecoratorTest: original, signature, reentrant call, condition --


@few
def test_the_function_itself_and_its_signature_are_there(cache: Cache) -> None:
    def work(a: int, b: int, c: bool = True, *args: int, **kwargs: int) -> None: ...

    memoized = cache.memoize()(work)
    assert memoized.__wrapped__ is work
    assert inspect.signature(memoized) == inspect.signature(work)


@few
@pytest.mark.parametrize("name", [None, "shared"], ids=["own names", "one name"])
def test_a_class_method_calls_that_of_another_class(cache: Cache, source: Source, name: str | None) -> None:
    class First:
        @classmethod
        @cache.memoize(name, ignore=["cls"])
        def make(cls, x: int) -> int:
            return source()

    class Second:
        @classmethod
        @cache.memoize(name, ignore=["cls"])
        def make(cls, x: int) -> int:
            found: int = first.make(x)
            return found

    first: Any = First  # of which type checkers do not know that its method is bound
    second: Any = Second
    if name is None:
        assert [second.make(1), first.make(1), source.calls] == [1, 1, 1]
    else:
        with pytest.raises(CacheError, match="would wait for itself"):
            second.make(1)


@few
def test_a_result_that_is_not_to_be_kept_is_computed_each_time(cache: Cache, source: Source) -> None:
    work = cache.memoize(when=lambda text: not text.startswith("8 "))(lambda number: f"{number} {source()}")
    assert [work(2), work(8), work(2), work(8)] == ["2 1", "8 2", "2 1", "8 3"]


# -- FusionCache, L1Tests_Async.cs: eager refresh, also with tags, infinite, cancelled, under way, and by many ---------
# -- cashews, tests/test_cache.py: early in parallel ------------------------------------------------------------------


@few
def test_an_eager_refresh_is_made_in_the_background(cache: Cache, clock: Clock, eager_get: Get) -> None:
    assert [eager_get(), eager_get()] == [1, 1]
    clock.advance(15)
    assert eager_get(tags=["c", "d"]) == 1
    background()
    assert eager_get() == 2
    assert cache.evict("c") == 1
    assert eager_get() == 3
    clock.advance(20)
    assert [eager_get(), eager_get()] == [4, 4]


@few
def test_what_lasts_for_ever_is_not_refreshed(cache: Cache, clock: Clock, source: Source) -> None:
    assert cache.get_or_set("key", source, None, beta=1) == 1
    clock.advance(1e9)
    assert cache.get_or_set("key", source, None, beta=1) == 1


@few
def test_many_callers_start_one_eager_refresh(cache: Cache, clock: Clock, source: Source, eager_get: Get) -> None:
    eager_get()
    clock.advance(15)
    with source.held_up():
        assert at_once(eager_get) == [1] * 10
    assert source.calls == cache["key"] == 2


@few
@pytest.mark.usefixtures("eager_get")
def test_an_eager_refresh_goes_on_if_its_caller_is_cancelled(cache: Cache, clock: Clock) -> None:
    async def main() -> None:
        calls = 0
        begun, may_end = asyncio.Event(), asyncio.Event()

        async def work() -> int:
            nonlocal calls
            calls += 1
            if calls == 2:
                begun.set()
                await asyncio.wait_for(may_end.wait(), PATIENCE)
            clock.advance(1)
            return calls

        async def call() -> None:
            assert await cache.get_or_set("key", work, 20, beta=1) == 1
            await asyncio.Event().wait()

        await cache.get_or_set("key", work, 20, beta=1)
        clock.advance(15)
        caller = asyncio.create_task(call())
        await asyncio.wait_for(begun.wait(), PATIENCE)
        caller.cancel()
        await asyncio.wait([caller])
        assert caller.cancelled()
        may_end.set()
        await asyncio.wait(asyncio.all_tasks() - {asyncio.current_task()})
        assert cache["key"] == 2

    asyncio.run(main())


@few
def test_after_the_expiry_callers_wait_for_the_eager_refresh(
    cache: Cache, clock: Clock, source: Source, eager_get: Get, monkeypatch: pytest.MonkeyPatch
) -> None:
    rest = computing.Rest.run

    def release_and_rest(step: computing.Rest) -> None:
        source.may_end.set()
        rest(step)

    eager_get()
    clock.advance(15)
    with source.held_up():
        assert eager_get() == 1
        assert source.begun.wait(PATIENCE)
        clock.advance(10)
        assert "key" not in cache
        monkeypatch.setattr(computing.Rest, "run", release_and_rest)
        assert cache.get_or_set("key", lambda: 99, 20, beta=1) == 2


# -- FusionCache, L1Tests_Async.cs: fail-safe, its duration and throttle, removal and expiry by tag, adaptive caching --


@few
def test_an_error_is_raised_without_a_window(clock: Clock, source: Source, get: Get, safe_get: Get) -> None:
    safe_get()
    clock.advance(20)
    source.fails = True
    assert safe_get() == 1
    with pytest.raises(Broken):
        get()


@few
def test_reading_an_old_value_stores_nothing(cache: Cache, clock: Clock, safe_get: Get) -> None:
    safe_get()
    clock.advance(20)
    for _ in range(2):
        assert cache.get_entry("key", stale=True).value == 1
        assert cache.get("key", "default") == "default"


@few
def test_an_old_value_is_served_for_a_while_after_an_error(clock: Clock, source: Source, safe_get: Get) -> None:
    safe_get(jitter=0.5)
    clock.advance(20)
    source.fails = True
    calls = []
    for seconds in (0, rules.ERROR_PAUSE - 2, 2):
        clock.advance(seconds)
        assert safe_get(jitter=0.5) == 1
        calls.append(source.calls)
    assert calls == [2, 2, 3], "the pause has no jitter"


@few
@pytest.mark.parametrize("age", [0, 20], ids=["fresh", "old"])
@pytest.mark.parametrize(("remove", "argument"), [("delete", ["key"]), ("evict", ["tag"]), ("clear", [])])
def test_what_was_removed_is_not_served(
    cache: Cache, clock: Clock, source: Source, safe_get: Get, remove: str, argument: list[str], age: float
) -> None:
    safe_get(tags=["tag"])
    clock.advance(age)
    getattr(cache, remove)(*argument)
    source.fails = True
    with pytest.raises(Broken):
        safe_get()


@few
def test_what_was_expired_by_its_tag_is_served_after_an_error(cache: Cache, source: Source, safe_get: Get) -> None:
    safe_get(tags=["x", "y"])
    cache.set("other", 2, tags=["y", "z"])
    assert cache.evict("x", soft=True) == 1
    assert list(cache.keys(tags=["y"])) == ["other"]
    source.fails = True
    assert safe_get() == 1


@few
def test_a_server_is_asked_for_changes_only(cache: Cache, clock: Clock) -> None:
    here, asked, values = b"v1", [], []

    def request(context: Computing) -> Any:
        asked.append((context.etag, here))
        if context.etag == here:
            return context.not_modified()
        context.etag = here
        return f"the page of {here.decode()}"

    for seconds in (0, 0, 10, 10):
        clock.advance(seconds)
        values.append(cache.get_or_set("key", request, 10, stale_if_error=60))
    here = b"v2"
    clock.advance(10)
    assert cache.get_or_set("key", request, 10, stale_if_error=60) == "the page of v2"
    assert values == ["the page of v1"] * 4
    assert asked == [(b"", b"v1"), (b"v1", b"v1"), (b"v1", b"v1"), (b"v1", b"v2")]


@few
def test_a_lifetime_that_a_call_chose_is_no_other_calls(cache: Cache, clock: Clock) -> None:
    def work(context: Computing) -> str:
        if context.old is None:
            context.expire = 5
        return "first" if context.old is None else "second"

    get: Get = partial(cache.get_or_set, "key", work, 60, stale_if_error=60)
    assert get() == "first"
    clock.advance(5)
    assert get() == "second"
    clock.advance(59)
    assert get() == "second"


# -- FusionCache, L1Tests_Async.cs: soft and hard timeouts. Here one of 0, which has passed when the call has begun. ---


@few
@pytest.mark.parametrize("timeouts", [{"soft_timeout": 0}, {"hard_timeout": 0}, {"soft_timeout": 0, "hard_timeout": 9}])
def test_an_old_value_is_served_after_a_timeout_and_replaced_later(
    cache: Cache, clock: Clock, source: Source, safe_get: Get, timeouts: Any
) -> None:
    safe_get()
    clock.advance(20)
    with source.held_up():
        assert safe_get(**timeouts) == cache.get_entry("key", stale=True).value == 1
    assert cache["key"] == 2


@few
def test_without_an_old_value_the_hard_timeout_alone_counts(cache: Cache, source: Source, safe_get: Get) -> None:
    assert safe_get(soft_timeout=0) == 1
    cache.clear()
    with source.held_up():
        for timeouts in ({}, {"soft_timeout": 0}):
            with pytest.raises(ComputeTimeout):
                safe_get(hard_timeout=0, **timeouts)
    assert source.calls == cache["key"] == 2


@few
def test_an_error_after_a_soft_timeout_counts_as_one(clock: Clock, source: Source, safe_get: Get) -> None:
    safe_get()
    source.fails = True
    for seconds, calls in ((20, 2), (0, 2), (rules.ERROR_PAUSE, 3)):
        clock.advance(seconds)
        with source.held_up():
            assert safe_get(soft_timeout=0) == 1
        assert source.calls == calls


@few
def test_a_computation_that_timed_out_chooses_its_lifetime(
    cache: Cache, clock: Clock, source: Source, safe_get: Get
) -> None:
    def work(context: Computing) -> int:
        context.expire = 5
        return source()

    safe_get()
    clock.advance(20)
    with source.held_up():
        assert cache.get_or_set("key", work, 3600, soft_timeout=0, stale_if_error=60) == 1
    assert cache["key"] == 2
    clock.advance(5)
    assert "key" not in cache


@few
def test_soft_timeouts_start_no_second_computation(cache: Cache, clock: Clock, source: Source, safe_get: Get) -> None:
    safe_get()
    clock.advance(20)
    with source.held_up():
        for _ in range(2):
            assert at_once(partial(safe_get, soft_timeout=0)) == [1] * 10
    assert source.calls == cache["key"] == 2
