"""memoize: one entry per bound call, for functions, methods and coroutine functions."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import inspect
import subprocess
import sys
import threading
from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from diskcache_like import Cache, ExpiryError, KeyEncodeError, memoize_stampede
from diskcache_like.storage.shard.reader import Reader
from diskcache_like.storage.writer import Writer

from ..support.cache_kinds import Clock, Opener, exact, few, one
from ..support.sample_keys import Noted, Point

LIMIT = 60.0  # seconds after which a test gives up on another process; no test waits for it to pass


class Counted:
    """Count the calls of a function by its name."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def __call__(self, *arguments: Any) -> None:
        self.calls.append(arguments)

    def __len__(self) -> int:
        return len(self.calls)


@pytest.fixture
def calls() -> Counted:
    """Return a log of calls."""
    return Counted()


@exact
def test_a_result_is_computed_once(open_cache: Opener, calls: Counted) -> None:
    cache, other = open_cache(), open_cache()

    def square(number: float) -> float:
        """Square a number."""
        calls(number)
        return number * number

    first, second = cache.memoize()(square), other.memoize()(square)
    assert [first(3), first(3), second(3), first(4), first(3.0)] == [9, 9, 9, 16, 9]
    assert calls.calls == [(3,), (4,)]
    assert first.__doc__ == "Square a number."
    assert first.__name__ == "square"
    assert first.__wrapped__ is square


@exact
def test_calls_that_bind_differently_are_different_entries(cache: Cache, calls: Counted) -> None:
    @cache.memoize()
    def show(*args: Any, **kwargs: Any) -> Any:
        calls(args, kwargs)
        return repr((args, kwargs))

    variants: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
        ((), {}), ((1,), {}), ((1, None, "x"), {}), ((1,), {"x": None}), ((("x", 2),), {}), ((), {"x": 2}),
        ((1, ("x", 2)), {}), ((1,), {"x": 2}), (((1,),), {}), ((None,), {}), ((), {"x": 2, "y": 1}),
        (("x", 2, "y", 1), {}),
    ]  # fmt: skip
    for _ in range(2):
        for args, kwargs in variants:
            assert show(*args, **kwargs) == repr((args, kwargs))
    assert show(x=2, y=1) == show(y=1, x=2)
    assert len(calls) == len(variants)


@exact
def test_functions_that_share_a_name_do_not_share_results(cache: Cache) -> None:
    def make(factor: int) -> Callable[[int], int]:
        @cache.memoize()
        def scaled(number: int) -> int:
            return factor * number

        return scaled

    def other() -> Callable[[int], int]:
        @cache.memoize()
        def scaled(number: int) -> int:
            return -number

        return scaled

    double, triple = make(2), make(3)
    plus, minus = cache.memoize()(lambda number: number + 1), cache.memoize()(lambda number: number - 1)
    for _ in range(2):
        assert [double(5), triple(5), other()(5), plus(5), minus(5)] == [10, 15, -5, 6, 4]
    assert make(2).__cache_key__(5) == double.__cache_key__(5)  # type: ignore[attr-defined]


@exact
@pytest.mark.parametrize("typed", [False, True])
def test_parameters_may_have_any_name(cache: Cache, typed: bool) -> None:
    def first(__name: str, *__rest: int, __type: str = "t", **__named: int) -> Any:  # noqa: PYI063
        return "first", __name, __rest, __type, __named

    def second(__name: str, __default___name: int = 2, __types: int = 3, ___name: int = 4) -> Any:  # noqa: PYI063
        return "second", __name, __default___name, __types, ___name

    one, two = cache.memoize("one", typed)(first), cache.memoize("two", typed)(second)
    for _ in range(2):
        assert one("x", 1, 2, a=3) == first("x", 1, 2, a=3)
        assert two("x") == second("x")
        assert two("x", 1, 3, 5) == second("x", 1, 3, 5)
        assert one("x") == first("x")


@few
def test_nested_functions_may_call_themselves_and_each_other(cache: Cache) -> None:
    def make(base: int) -> tuple[Callable[[int], int], Callable[[int], bool]]:
        def factorial(number: int) -> int:
            return base if number < 1 else number * factorial(number - 1)

        def even(number: int) -> bool:
            return base == number or odd(number - 1)

        def odd(number: int) -> bool:
            return base != number and even(number - 1)

        return factorial, even

    for _ in range(2):
        for base in (1, 2):
            factorial, even = (cache.memoize()(function) for function in make(base))
            assert (factorial(3), even(base + 2)) == (6 * base, True)


@few
def test_calls_of_a_memoized_function_do_not_change_the_name_of_its_caller(cache: Cache) -> None:
    @cache.memoize()
    def rate(day: int) -> int:
        return 2 * day

    def price(day: int) -> int:
        return 10 * rate(day)

    def rounded(digits: int) -> Callable[[int], float]:
        @functools.wraps(rate)
        def wrapper(day: int) -> float:
            return round(rate(day), digits)

        return cache.memoize()(lambda day: wrapper(day))

    before = cache.memoize()(price).__cache_key__(1)
    rate(1)
    assert cache.memoize()(price).__cache_key__(1) == before
    assert rounded(1).__cache_key__(1) != rounded(-1).__cache_key__(1)  # type: ignore[attr-defined]


@exact
def test_a_method_depends_on_its_instance(cache: Cache, calls: Counted) -> None:
    class Scaled(tuple[int]):
        __slots__ = ()

        @cache.memoize(name="scaled")
        def by(self, number: int) -> int:
            calls(number)
            return self[0] * number

        @staticmethod
        @cache.memoize(name="static")
        def doubled(number: int) -> int:
            calls(number)
            return 2 * number

    two, three = Scaled((2,)), Scaled((3,))
    assert [two.by(5), three.by(5), two.by(5), Scaled((2,)).by(number=5)] == [10, 15, 10, 10]
    assert [two.doubled(4), Scaled.doubled(4)] == [8, 8]  # type: ignore[call-arg]  # mypy binds it to the instance
    assert len(calls) == 3


@exact
@pytest.mark.parametrize("of_class", [Noted, Point], ids=["attrs", "dataclass"])
def test_fields_that_equality_leaves_out_are_kept_and_do_not_count(cache: Cache, calls: Counted, of_class: Any) -> None:
    @cache.memoize()
    def note(value: Any) -> Any:
        calls(value)
        return value

    assert note(of_class("x", note="first")).note == "first"
    assert note(of_class("x", note="second")).note == "first"
    assert len(calls) == 1
    note(of_class("y", note="first"))
    assert len(calls) == 2
    cache[of_class("x", note="third")] = of_class("z", note="fourth")
    assert cache[of_class("x")].note == "fourth"
    assert [key.note for key in cache if isinstance(key, of_class)] == ["third"]


@exact
def test_typed_tells_equal_arguments_of_different_types_apart(cache: Cache, calls: Counted) -> None:
    def kind(value: Any, *rest: Any, **more: Any) -> str:
        calls(value)
        return f"{type(value).__name__} {[type(v).__name__ for v in (*rest, *more.values())]}"

    typed, untyped = cache.memoize(name="typed", typed=True)(kind), cache.memoize(name="untyped")(kind)
    assert [typed(1), typed(1.0), typed(True), typed(1)] == ["int []", "float []", "bool []", "int []"]
    assert [typed(1, 1), typed(1, 1.0), typed(1, x=1), typed(1, x=1.0)] == [
        "int ['int']", "int ['float']", "int ['int']", "int ['float']",
    ]  # fmt: skip
    assert len(calls) == 7
    assert untyped(1) == untyped(1.0) == untyped(True) == "int []"
    assert len(calls) == 8


@exact
@pytest.mark.parametrize(
    "ignore", [{1, "debug"}, ["log", "debug"], (1, 2), "log"], ids=["set", "list", "tuple", "name"]
)
def test_ignored_arguments_do_not_count(cache: Cache, calls: Counted, ignore: Any) -> None:
    @cache.memoize(ignore=ignore)
    def work(number: int, log: object = None, debug: bool = False) -> int:
        calls(number)
        return number

    assert work(1, "log") == work(1, log="other") == work(1) == 1
    assert len(calls) == 1
    work(1, debug=True)
    assert len(calls) == (2 if ignore == "log" else 1)
    work(2)
    assert calls.calls[-1] == (2,)


@few
def test_ignored_positions_and_names_reach_into_rest_arguments(cache: Cache, calls: Counted) -> None:
    @cache.memoize(ignore={1, "verbose"})
    def work(*args: Any, **kwargs: Any) -> int:
        calls(args)
        return len(args)

    assert work(1, 2, 3, verbose=True) == work(1, "ignored", 3) == work(1, 0, 3, verbose=False) == 3
    assert len(calls) == 1
    work(1, 2, 4)
    work(1, 2, 3, other=1)
    assert len(calls) == 3


@one
def test_a_key_function_leaves_nothing_to_typed_and_ignore(cache: Cache) -> None:
    for options in ({"typed": True}, {"ignore": 0}, {"ignore": {"x"}}):
        with pytest.raises(TypeError, match="key="):
            cache.memoize(key=lambda x: x, **options)(lambda x: x)


@exact
def test_results_expire_and_carry_a_tag(cache: Cache, clock: Clock, calls: Counted) -> None:
    for expire in (0.5, timedelta(milliseconds=500)):
        calls.calls.clear()

        @cache.memoize(name=f"work {expire}", expire=expire, tag="results")
        def work(number: int) -> int:
            calls(number)
            return number

        work(1)
        assert cache.get(work.__cache_key__(1), tag=True, expire_time=True) == (1, clock.now + 0.5, "results")
        clock.advance(0.4)
        work(1)
        assert len(calls) == 1
        clock.advance(0.1)
        work(1)
        assert len(calls) == 2
    assert cache.evict("results") >= 1


@few
def test_an_expiry_of_nothing_keeps_nothing(cache: Cache, calls: Counted) -> None:
    work = cache.memoize(expire=0)(calls.__call__)
    work()
    work()
    assert len(calls) == 2
    assert len(cache) == 0


@exact
def test_none_is_a_result_and_an_exception_is_not(cache: Cache, calls: Counted) -> None:
    @cache.memoize()
    def work(number: int) -> None:
        calls(number)
        if number < 0:
            raise ValueError(number)

    for _ in range(2):
        assert work(1) is None
        with pytest.raises(ValueError, match="-1"):
            work(-1)
    assert calls.calls == [(1,), (-1,), (-1,)]


@exact
def test_a_mutable_result_is_everyones_own(cache: Cache) -> None:
    @cache.memoize()
    def work() -> list[int]:
        return [1, 2]

    work().append(3)
    work().append(4)
    assert work() == [1, 2]


@exact
def test_coroutine_functions_are_awaited_once(cache: Cache, calls: Counted) -> None:
    @cache.memoize(expire=100, ignore={"log"})
    async def fetch(number: int, log: object = None) -> list[int]:
        calls(number)
        await asyncio.sleep(0)
        if number < 0:
            raise ValueError(number)
        return [number]

    async def main() -> list[Any]:
        with pytest.raises(ValueError, match="-1"):
            await fetch(-1)
        return [await fetch(1), await fetch(1, log="x"), await fetch(number=1), await fetch(2)]

    assert asyncio.run(main()) == [[1], [1], [1], [2]]
    assert calls.calls == [(-1,), (1,), (2,)]
    assert inspect.iscoroutinefunction(fetch)
    assert cache[fetch.__cache_key__(1)] == [1]


@exact
def test_the_key_of_a_call_finds_its_entry(cache: Cache) -> None:
    @cache.memoize(name="name")
    def work(number: int, text: str = "x") -> str:
        return text * number

    assert work(3) == "xxx"
    key = work.__cache_key__(3)
    assert cache[key] == "xxx"
    assert key == work.__cache_key__(number=3, text="x")
    assert key[0] == "name"
    cache.delete(key)
    assert work(3) == "xxx"


@exact
def test_arguments_longer_than_a_key_may_be_work(cache: Cache, calls: Counted) -> None:
    @cache.memoize()
    def length(text: str) -> int:
        calls(len(text))
        return len(text)

    long, other = "x" * 1_000_000, "x" * 999_999 + "y"
    assert [length(long), length(other), length(long), length(other)] == [1_000_000] * 4
    assert len(calls) == 2


@exact
def test_what_tells_no_signature_works(cache: Cache) -> None:
    assert cache.memoize(name="max")(max)(3, 5, 4) == 5
    assert cache.memoize(name="partial")(functools.partial(pow, 2))(5) == 32
    assert cache.memoize(name="type")(dict)(a=1) == {"a": 1}  # type: ignore[call-arg]


@one
def test_a_wrong_call_is_refused_like_the_function_would(cache: Cache) -> None:
    @cache.memoize()
    def work(a: int, /, b: int, *, c: int = 0) -> int:
        return a + b + c

    wrong: Callable[..., Any] = work
    calls: list[Callable[[], Any]] = [
        wrong,
        lambda: wrong(1),
        lambda: wrong(a=1, b=2),
        lambda: wrong(1, 2, 3),
        lambda: wrong(1, 2, d=3),
    ]
    for call in calls:
        with pytest.raises(TypeError):
            call()
    assert work(1, b=2, c=3) == 6
    with pytest.raises(TypeError, match="parentheses"):
        cache.memoize(work)  # type: ignore[arg-type]


# -- what a memoized function offers ----------------------------------------------------------------------------------


@exact
def test_cache_info_counts_the_calls_of_one_wrapper(open_cache: Opener) -> None:
    cache = open_cache()

    def work(number: int) -> int:
        return number // (number != 13)

    first, second = cache.memoize()(work), open_cache().memoize()(work)
    assert first.cache_info() == (0, 0, None, 0)
    assert [first(1), first(1), first(2), second(1)] == [1, 1, 2, 1]
    with pytest.raises(ZeroDivisionError):
        first(13)
    assert first.cache_info() == (1, 3, None, 2)
    assert first.cache_info()._asdict() == {"hits": 1, "misses": 3, "maxsize": None, "currsize": 2}
    assert second.cache_info() == (1, 0, None, 2)


@exact
def test_invalidate_removes_the_result_of_one_call(cache: Cache, calls: Counted) -> None:
    @cache.memoize(ignore={"log"})
    def work(number: int, text: str = "x", log: object = None) -> str:
        calls(number)
        return text * number

    work(1), work(2)
    assert work.invalidate(number=1, text="x", log=calls) is True
    assert work.invalidate(1) is False
    work(1), work(2)
    assert calls.calls == [(1,), (2,), (1,)]

    @cache.memoize()
    async def task(number: int) -> int:
        calls(number)
        return number

    async def main() -> None:
        await task(5)
        await task(5)
        assert task.invalidate(5)
        await task(5)

    asyncio.run(main())
    assert calls.calls[3:] == [(5,), (5,)]
    assert task.cache_info()[:2] == (1, 2)


@few
def test_many_and_long_arguments_are_told_apart(cache: Cache) -> None:
    @cache.memoize(name="f" * 200)
    def work(*args: Any) -> int:
        return len(args)

    def wide(a: Any, b: Any = 0, c: Any = 0, d: Any = 0, e: Any = 0, f: Any = 0, g: Any = 0, h: Any = 0) -> str:
        return repr((a, b, c, d, e, f, g, h))

    memoized = cache.memoize(name="wide")(wide)
    texts = ["", "x", "x" * 32, "x" * 33, "x" * 5000, "y" * 5000, b"x", None, 1.5, (1, "x"), 10**40, ["x" * 2000]]
    for _ in range(2):
        for text in texts:
            assert memoized(text) == wide(text)
            assert memoized(1, h=text) == wide(1, h=text)
            assert memoized(*[text] * 8) == wide(*[text] * 8)
            assert work(text, text) == 2
    assert memoized.cache_info().misses == 3 * len(texts)


@few
def test_a_coroutine_whose_result_cannot_be_stored_yet_stops_nobody(cache: Cache) -> None:
    locked, free = threading.Event(), threading.Event()

    def hold() -> None:
        with cache.transact(retry=True):
            locked.set()
            free.wait(60)

    async def fetch(number: int) -> int:
        return number * 2

    async def main() -> int:
        memoized = cache.memoize()(fetch)
        task = asyncio.ensure_future(memoized(21))
        for _ in range(10):
            await asyncio.sleep(0)
        assert not task.done()
        free.set()  # never reached where the task waits in the loop's thread
        result = await task
        assert (result, await memoized(21), memoized.cache_info().hits) == (42, 42, 1)
        return result

    thread = threading.Thread(target=hold)
    thread.start()
    locked.wait(60)
    assert asyncio.run(main()) == 42
    thread.join()


@dataclasses.dataclass
class Scale:
    """Something whose method is memoized."""

    factor: int

    def times(self, number: int) -> int:
        return self.factor * number

    @classmethod
    def named(cls, number: int) -> str:
        return cls.__name__ * number


class Other(Scale):
    """Something else with the same methods."""


def test_bound_methods_do_not_share_results_with_those_of_another_object(cache: Cache) -> None:
    decorate = cache.memoize()
    assert [decorate(Scale(factor).times)(5) for factor in (1, 2, 1)] == [5, 10, 5]
    assert len(cache) == 2
    assert [decorate(kind.named)(1) for kind in (Scale, Other)] == ["Scale", "Other"]
    shared = cache.memoize(name="by name")
    assert [shared(Scale(factor).times)(5) for factor in (1, 2)] == [5, 5]


@few
def test_another_version_has_results_of_its_own(cache: Cache, calls: Counted) -> None:
    def load(number: int) -> int:
        calls(number)
        return number

    old, new = (cache.memoize("load", version=version)(load) for version in (None, (2, "b")))
    assert [old(1), new(1), old(1), new(1)] == [1, 1, 1, 1]
    assert len(calls) == 2
    assert new.invalidate(1)
    assert old.__cache_key__(1) in cache
    with pytest.raises(KeyEncodeError):
        cache.memoize(version=object())(load)


@few
def test_an_argument_that_cannot_be_a_key_is_named(cache: Cache) -> None:
    class Client:
        @cache.memoize()
        def fetch(self, number: int) -> int:
            return number

    with pytest.raises(KeyEncodeError, match=r"'self' of .*Client\.fetch.*ignore=\{'self'\}") as raised:
        Client().fetch(1)
    assert len(raised.traceback) <= 4
    assert raised.value.__cause__ is None


@few
@pytest.mark.parametrize(
    ("options", "error"),
    [({"expire": "10"}, ExpiryError), ({"expire": float("nan")}, ExpiryError), ({"tag": lambda: "a"}, KeyEncodeError)],
)
def test_a_wrong_lifetime_or_tag_is_refused_at_decoration(
    options: dict[str, Any], error: type[Exception], cache: Cache
) -> None:
    with pytest.raises(error):
        cache.memoize(**options)(len)
    with pytest.raises(error):
        memoize_stampede(cache, **{"expire": None, **options})(len)


@few
@pytest.mark.parametrize("expire", [Decimal(10), Fraction(21, 2), timedelta(seconds=10), True])
def test_a_lifetime_may_be_any_number_that_set_takes(expire: Any, cache: Cache) -> None:
    assert cache.memoize(expire=expire)(abs)(-1) == 1
    assert memoize_stampede(cache, expire)(abs)(-2) == 2


SCRIPT = """
import sys
from diskcache_like import Cache

cache = Cache(sys.argv[1])

@cache.memoize()
def load(number):
    return {answer!r}

if __name__ == "__main__":
    print(load(1), load.cache_info().hits)
"""


def test_functions_of_two_scripts_share_no_results(tmp_path: Path) -> None:
    answers = {}
    for name in ("one", "two"):
        (tmp_path / f"{name}.py").write_text(SCRIPT.format(answer=name))
    for name in ("one", "two", "one"):
        command = [sys.executable, str(tmp_path / f"{name}.py"), str(tmp_path / "cache")]
        answers[name] = subprocess.run(command, capture_output=True, text=True, check=True, timeout=LIMIT).stdout
    assert answers == {"one": "one 1\n", "two": "two 0\n"}


def test_a_module_that_is_run_shares_results_with_itself_imported(tmp_path: Path) -> None:
    (tmp_path / "loads.py").write_text(SCRIPT.format(answer="same"))
    run = [sys.executable, "-m", "loads", str(tmp_path / "cache")]
    imported = [sys.executable, "-c", "import loads; print(loads.load(1), loads.load.cache_info().hits)"]
    printed = [
        subprocess.run(command, capture_output=True, text=True, check=True, timeout=LIMIT, cwd=tmp_path).stdout
        for command in (run, [*imported, str(tmp_path / "cache")])
    ]
    assert printed == ["same 0\n", "same 1\n"]


def test_a_miss_is_one_look_and_one_append(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Cache(tmp_path) as cache:

        @cache.memoize(expire=60)
        def double(number: int) -> int:
            return number * 2

        assert double(0) == 0
        with monkeypatch.context() as patch:
            patch.setattr(Reader, "select", None)  # what asks once more
            patch.setattr(Writer, "_locked", None)  # what takes the lock for more than an append
            assert [double(number) for number in range(20)] == [*range(0, 40, 2)]
            assert cache.get_or_set("key", lambda: "value") == "value"
        assert (double.cache_info().hits, double.cache_info().misses) == (1, 20)
