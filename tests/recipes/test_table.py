"""get_or_set: what a caller gets, in the table of docs/computed.md."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, Phase, example, given, settings

from diskcache_like import Breaker, BreakerOpen, Cache, ComputeTimeout, Overloaded

from ..support.cache_kinds import Clock, Opener, few, one
from ..support.contention import finish_renewals
from ..support.workers import PATIENCE

ERRORS: dict[str, type[Exception]] = {  # what a call raises that has neither a value nor an old one
    "raises": ZeroDivisionError,
    "slow": ComputeTimeout,
    "busy": Overloaded,
    "breaker open": BreakerOpen,
}
OUTCOMES = ("computed", *ERRORS)
EXPIRE, WINDOW = 10.0, 5.0


class Caller:
    """Calls `get_or_set`, of a function or a coroutine function, with one outcome."""

    def __init__(self, cache: Cache, coroutine: bool) -> None:
        self.cache = cache
        self.coroutine = coroutine
        self.calls = 0
        self.begun, self.may_end = threading.Event(), threading.Event()

    def __call__(self, outcome: str, key: str = "key", **options: Any) -> Any:
        def work() -> str:
            self.calls += 1
            if outcome == "raises":
                raise ZeroDivisionError
            if outcome == "slow":
                self.begun.set()
                assert self.may_end.wait(PATIENCE)
            return "new"

        async def awork() -> str:
            return await asyncio.to_thread(work)

        async def main() -> Any:
            try:
                return await self.cache.get_or_set(key, awork, EXPIRE, **options)
            finally:
                self.end(outcome)
                others = asyncio.all_tasks() - {asyncio.current_task()}
                if others:
                    await asyncio.wait(others)

        if self.coroutine:
            return asyncio.run(main())
        try:
            return self.cache.get_or_set(key, work, EXPIRE, **options)
        finally:
            self.end(outcome)
            finish_renewals()

    def end(self, outcome: str) -> None:
        """Let what is slow come to its end, now that its caller has had enough of it."""
        if outcome == "slow":
            self.may_end.set()

    @contextmanager
    def prepared(self, outcome: str) -> Iterator[dict[str, Any]]:
        """Have what refuses a call ready, for the length of the body; yield the options that have it refused."""
        if outcome == "breaker open":
            with suppress(ZeroDivisionError):
                self("raises", "other", breaker=Breaker(errors=1))
            self.calls = 0
            yield {"breaker": Breaker(errors=1)}
        elif outcome == "busy":
            one = {"max_concurrent": 1}
            holder = threading.Thread(target=self, args=("slow", "other"), kwargs=one)
            holder.start()
            assert self.begun.wait(PATIENCE)
            self.calls = 0
            try:
                yield one
            finally:
                self.may_end.set()
                holder.join(PATIENCE)
        else:
            yield {}


class Options(NamedTuple):
    """The options of one call, drawn; `age` is that of the old value."""

    age: float
    outcome: str
    while_revalidating: float
    if_error: float
    soft_timeout: float | None
    hard_timeout: float | None
    others: dict[str, Any]

    def expected(self) -> Any:
        """Return what the table promises: values, or one error."""
        after = self.age - EXPIRE
        if after < 0 or after < self.while_revalidating:
            return {"old"}
        usable = after < self.if_error
        if self.outcome == "computed" or (self.outcome == "slow" and not self.times_out(usable)):
            return {"new"}
        return {"old"} if usable else ERRORS[self.outcome]

    def times_out(self, usable: bool) -> bool:
        """Tell whether a caller has enough of waiting before a slow computation ends."""
        return (self.hard_timeout if self.soft_timeout is None or not usable else self.soft_timeout) is not None

    def given(self) -> dict[str, Any]:
        """Return them as `get_or_set` takes them; what is not slow has as much time as it may need."""
        timeouts = {"soft_timeout": self.soft_timeout, "hard_timeout": self.hard_timeout}
        if self.outcome != "slow":
            timeouts = {name: None if seconds is None else PATIENCE for name, seconds in timeouts.items()}
        return {
            "stale_while_revalidate": self.while_revalidating,
            "stale_if_error": self.if_error,
            **timeouts,
            **self.others,
        }


HARMLESS: dict[str, Any] = {  # what changes no answer in the table
    "tags": st.sampled_from([None, ["t"], lambda value: [value]]),
    "when": st.just(lambda value: value == "new"),
    "none_expire": st.sampled_from([0, 5]),
    "jitter": st.just(0.5),
    "cache_errors": st.just(LookupError),
    "max_concurrent": st.integers(1, 3),
    "breaker": st.integers(1, 3).map(Breaker),
}
WINDOWS = st.sampled_from([0.0, WINDOW, 3 * WINDOW])
OPTIONS = st.builds(
    Options,
    st.sampled_from([EXPIRE + step for step in (-EXPIRE, -0.5, 0, 0.5, WINDOW, WINDOW + 0.5, 3 * WINDOW, 4 * WINDOW)]),
    st.sampled_from(OUTCOMES),
    WINDOWS,
    WINDOWS,
    st.sampled_from([None, 0.01]),
    st.sampled_from([None, 0.02]),
    st.fixed_dictionaries({}, optional=HARMLESS),
)


def check(open_cache: Opener, clock: Clock, coroutine: bool, options: Options) -> None:
    """Have a call with these options find an old value of their age; compare what comes of it with the table."""
    cache = open_cache(timeout=0.02) if options.outcome == "busy" else open_cache()
    cache.clear(retry=True)
    cache.get_or_set("key", lambda: "old", EXPIRE, stale_while_revalidate=4 * WINDOW)
    clock.advance(options.age)
    caller, wanted = Caller(cache, coroutine), options.expected()
    with (
        pytest.MonkeyPatch.context() as patch,
        caller.prepared(options.outcome) as more,
        contextlib.nullcontext() if isinstance(wanted, set) else pytest.raises(wanted),
    ):
        patch.setattr(threading, "excepthook", lambda _: None)  # a renewal that fails tells so
        if options.outcome == "slow" and wanted == {"new"}:  # but not before a soft timeout, which is for old values
            threading.Timer(3 * (options.soft_timeout or 0), caller.may_end.set).start()
        assert {caller(options.outcome, **{**options.given(), **more})} == wanted
    is_fresh, can_be_had = options.age < EXPIRE, options.outcome in ("computed", "slow")
    assert caller.calls == (not is_fresh and options.outcome in ("computed", "slow", "raises"))
    kept = "old" if is_fresh else "new" if can_be_had else None
    assert cache.get("key") == kept, "what was computed is kept, however long it took"
    assert cache.check() == []


@one
@pytest.mark.parametrize("coroutine", [False, True], ids=["function", "coroutine"])
@pytest.mark.parametrize("while_revalidating", [0, WINDOW])
@pytest.mark.parametrize("if_error", [0, WINDOW])
@pytest.mark.parametrize("age", [EXPIRE - 1, EXPIRE + 1, EXPIRE + WINDOW])
@pytest.mark.parametrize("outcome", OUTCOMES)
def test_the_table(
    open_cache: Opener, clock: Clock, coroutine: bool, while_revalidating: float, if_error: float, age: float,
    outcome: str,
) -> None:  # fmt: skip
    check(open_cache, clock, coroutine, Options(age, outcome, while_revalidating, if_error, 0.02, 0.05, {}))


@few
@pytest.mark.parametrize("coroutine", [False, True], ids=["function", "coroutine"])
@settings(
    max_examples=30,
    phases=(Phase.explicit, Phase.generate),  # to shrink what waits in vain takes minutes
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(options=OPTIONS)
@example(options=Options(EXPIRE + 1, "raises", WINDOW, 3 * WINDOW, None, None, {}))
@example(options=Options(EXPIRE + WINDOW, "raises", WINDOW, 3 * WINDOW, None, None, {}))
@example(options=Options(EXPIRE + WINDOW, "slow", 0.0, 3 * WINDOW, 0.01, None, {"breaker": Breaker(1)}))
@example(options=Options(EXPIRE + WINDOW, "slow", 0.0, 0.0, 0.01, None, {}))
def test_the_table_under_any_options(
    open_cache: Opener, clock: Clock, coroutine: bool, options: Options
) -> None:  # fmt: skip
    check(open_cache, clock, coroutine, options)
