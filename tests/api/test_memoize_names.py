"""memoize: which functions share results, and that a key is what the arguments were before the call."""

from __future__ import annotations

import asyncio
import functools
import subprocess
import sys
import threading
import types
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from diskcache_like import Cache
from diskcache_like.errors import KeyEncodeError

from ..support.cache_kinds import Opener, few, one

INLINE = """
from diskcache_like import Cache
with Cache({directory!r}) as cache:
    @cache.memoize()
    def load(number):
        return number * {factor}
    print(load(5), load.cache_info().hits)
"""


def base(number: int) -> int:
    """Return the number."""
    return number


def times(factor: int) -> Callable[[int], int]:
    """Return a wrapper of a function of this module, which takes its name."""

    @functools.wraps(base)
    def wrapper(number: int) -> int:
        return base(number) * factor

    return wrapper


def scaled(factor: int) -> Callable[[int], int]:
    """Return a function that closes over one that differs in a default alone."""

    def inner(number: int, *, by: int = factor) -> int:
        return number * by

    return lambda number: inner(number)


def picked(factor: int) -> Callable[[int], int]:
    """Return a function that closes over a table of functions."""
    choices = {"by": [lambda number: number * factor]}
    return lambda number: choices["by"][0](number)


class Connection:
    """Something that cannot be part of a key."""

    def __init__(self, factor: int) -> None:
        self.factor, self.lock = factor, threading.Lock()

    def times(self, number: int) -> int:
        return number * self.factor


def through(connection: Connection) -> Callable[[int], int]:
    return lambda number: connection.times(number)


@few
@pytest.mark.parametrize("make", [times, scaled, picked])
def test_functions_that_differ_in_what_they_close_over_share_nothing(open_cache: Opener, make: Any) -> None:
    for _ in range(2):
        with open_cache() as cache:
            memoized = [cache.memoize()(make(factor)) for factor in (1, 3)]
            assert [each(5) for each in memoized] == [5, 15]
    assert [each.cache_info().hits for each in memoized] == [1, 1], "a later handle finds them"


@one
def test_what_cannot_be_told_apart_asks_for_a_name(cache: Cache) -> None:
    for function in (through(Connection(3)), Connection(3).times):
        with pytest.raises(TypeError, match=r"a Connection, which cannot be part of a key.* name="):
            cache.memoize()(function)(5)
        assert cache.memoize(name="a name")(function)(5) == 15
        assert cache.memoize(key=lambda number: ("times 3", number))(function)(5) == 15


@one
def test_a_wrapper_that_the_module_has_under_its_name_may_close_over_anything(
    cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = Connection(2)

    @functools.wraps(base)
    def wrapper(number: int) -> int:
        return connection.times(number)

    memoized = cache.memoize()(wrapper)
    monkeypatch.setattr(sys.modules[__name__], "base", memoized)
    assert memoized(5) == 10
    assert memoized.__cache_key__(5)[0] == f"{__name__}.base"


@one
def test_implementations_of_one_name_share_nothing(cache: Cache) -> None:
    @functools.singledispatch
    def kind(_: object) -> str:
        return "object"

    def register(code: str) -> None:
        names = {"kind": kind, "cache": cache, "__name__": __name__}
        exec(f"@kind.register\n@cache.memoize()\ndef _({code}", names)

    register("given: int): return 'int'")
    register("given: float): return 'float'")
    for _ in range(2):
        assert [kind(1), kind(1.0)] == ["int", "float"]


@one
@pytest.mark.parametrize("how", ["-c", "-"])
def test_programs_without_a_file_share_only_the_same_code(cache: Cache, how: str) -> None:
    def run(factor: int) -> str:
        text = INLINE.format(directory=cache.directory, factor=factor)
        arguments, given = ([how, text], None) if how == "-c" else ([how], text)
        command = [sys.executable, *arguments]
        return subprocess.run(command, input=given, check=True, capture_output=True, text=True).stdout.strip()

    assert [run(factor) for factor in (2, 3, 2)] == ["10 0", "15 0", "10 1"]


@one
def test_a_notebook_has_keys_of_its_own(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    def cell(code: str) -> Any:
        notebook = types.ModuleType("__main__")
        monkeypatch.setitem(sys.modules, "__main__", notebook)
        exec(f"def load(number): return {code}", vars(notebook))
        return cache.memoize()(notebook.load)

    first, second, again = cell("number * 2"), cell("number * 3"), cell("number * 2")
    assert [first(5), second(5), again(5)] == [10, 15, 10]
    assert again.cache_info().hits == 1


ARGUMENTS = """
import abc, dataclasses, enum, functools, typing
import attrs, pydantic
from diskcache_like import Cache

@dataclasses.dataclass
class Point:
    x: int
    def __call__(self): return self.x * {factor}

class Points(typing.NamedTuple):
    x: int
    def __call__(self): return self.x * {factor}

class Colour(enum.Enum):
    RED = {factor}
    def __call__(self): return self.value * 5

class Plain:
    @functools.cache
    def made(self): return 5 * {factor}
    def __call__(self): return self.made()

class Lazy(abc.ABC):
    @functools.cached_property
    def made(self): return 5 * {factor}
    def __call__(self): return self.made

@attrs.define
class Made:
    x: int = attrs.field(default={factor}, validator=attrs.validators.instance_of(int))
    def __call__(self): return self.x * 5

class Model(pydantic.BaseModel):
    x: int
    def __call__(self): return self.x * {factor}

def function(): return 5 * {factor}

class Still:
    @staticmethod
    def __new__(cls): return 5 * {factor}

with Cache({directory!r}) as cache:
    call = cache.memoize(name="call", typed={typed})(lambda value: value())
    print(*(call(value) for value in [{value}]), call.cache_info().hits)
"""
VALUES = ["Point(5)", "Points(5)", "Colour.RED", "Plain()", "Lazy()", "Made()", "Model(x=5)", "function", "Still"]


def run_script(path: Path, code: str) -> str:
    path.write_text(code)
    return subprocess.run([sys.executable, path], check=True, capture_output=True, text=True).stdout.strip()


@one
def test_named_functions_keep_their_keys_across_edits_and_lambdas_do_not(cache: Cache, tmp_path: Path) -> None:
    def edited(definition: str) -> str:
        opened = f"from diskcache_like import Cache\ncache = Cache({cache.directory!r})"
        return run_script(tmp_path / "edited.py", f"{opened}\n{definition}\nprint(cache.memoize()(work)(1))")

    assert edited("def work(x): return x") == "1"
    assert edited("def work(x): return -x") == "1", "its name says that it is the same"
    assert edited("work = lambda x: x") == "1"
    assert edited("work = lambda x: -x") == "-1"


@one
@pytest.mark.parametrize("value", VALUES)
def test_scripts_share_no_results_of_arguments_that_they_define(cache: Cache, tmp_path: Path, value: str) -> None:
    def run(name: str, factor: int) -> str:
        code = ARGUMENTS.format(directory=cache.directory, factor=factor, value=value, typed="Points" in value)
        return run_script(tmp_path / name, code)

    assert [run("a.py", 2), run("b.py", 3), run("a.py", 2)] == ["10 0", "15 0", "10 1"]


@one
@pytest.mark.parametrize("value", VALUES)
def test_a_notebook_shares_no_results_of_arguments_that_it_defined_again(
    cache: Cache, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    notebook = types.ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", notebook)
    call: Any = cache.memoize(name="call", typed=True)(lambda value: value())

    def cell(factor: int) -> Any:
        definitions = ARGUMENTS.partition("\nwith ")[0].format(factor=factor)
        exec(definitions, vars(notebook))
        return call(eval(value, vars(notebook)))

    assert [cell(2), cell(3), cell(2)] == [10, 15, 10]
    assert call.cache_info()[:2] == (1, 2)


@one
def test_an_argument_that_nothing_tells_apart_is_refused(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    notebook: Any = types.ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", notebook)
    exec("import threading\nclass Busy:\n lock = threading.Lock()", vars(notebook))
    call = cache.memoize(name="call")(lambda first, value: 1)
    wanted = r"'value' of call cannot be part of a key: __main__.Busy has 'lock', a lock, .*ignore=\{'value'\}"
    with pytest.raises(KeyEncodeError, match=wanted):
        call(1, notebook.Busy())
    assert cache.memoize(name="call", ignore={"value"})(lambda first, value: 1)(1, notebook.Busy()) == 1


@pytest.fixture
def module(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a module that can be imported by its name, which no other test uses."""
    made = types.ModuleType(request.node.name)
    monkeypatch.setitem(sys.modules, made.__name__, made)
    return made


@one
def test_a_function_that_is_defined_again_shares_nothing_with_the_first(cache: Cache, module: Any) -> None:
    def define(code: str) -> Any:
        exec(f"def load(number): return {code}", vars(module))
        return cache.memoize()(module.load)

    first = define("number * 2")
    assert first(5) == 10
    second = define("number * 3")
    assert [second(5), first(5), second(5), first(5)] == [15, 10, 15, 10]
    again = define("number * 2")
    assert [again(5), again.__cache_key__(5)] == [10, first.__cache_key__(5)], "a reload that changed nothing"
    assert first.__cache_key__(5)[0] == f"{module.__name__}.load"


@one
def test_what_was_defined_again_is_told_apart_where_it_is_closed_over_or_given(cache: Cache, module: Any) -> None:
    def define(factor: int) -> Any:
        exec(f"class Factor:\n value = {factor}\ndef times(number): return number * {factor}", vars(module))
        factors, times = module.Factor, module.times
        return cache.memoize()(lambda number: (times(number), number * factors.value))

    by_argument = cache.memoize(name="call")(lambda given, number: given(number))
    by_type = cache.memoize(name="typed", typed=True, key=None)(lambda given: given.value)
    for factor in (2, 3):
        assert define(factor)(5) == (5 * factor, 5 * factor)
        assert by_argument(module.times, 5) == 5 * factor
        assert by_type(module.Factor()) == factor


@one
def test_a_function_and_its_wrapper_may_both_be_memoized(cache: Cache, module: Any) -> None:
    exec("import functools\ndef load(number): return number * 2\nplain = load", vars(module))
    exec("@functools.wraps(plain)\ndef load(number): return plain(number) + 1", vars(module))
    wrapped, plain = cache.memoize()(module.load), cache.memoize()(module.plain)
    assert [wrapped(5), plain(5), wrapped(5), plain(5)] == [11, 10, 11, 10]


@few
def test_a_call_is_kept_under_the_arguments_that_it_got(cache: Cache) -> None:
    @cache.memoize()
    def render(options: dict[str, Any]) -> str:
        return str(options.pop("mode", "plain"))

    for _ in range(2):
        assert render({"mode": "red", "w": 1}) == "red"
        assert render({"w": 1}) == "plain"
    assert render.refresh({"mode": "blue", "w": 2}) == "blue"
    assert render({"w": 2}) == "plain"
    assert render.peek({"mode": "blue", "w": 2}) == "blue"


@one
@pytest.mark.parametrize(
    "options", [{}, {"expire": 60, "beta": 1}, {"expire": 60, "stale_while_revalidate": 60, "stale_if_error": 60}]
)
def test_no_option_lets_a_call_change_its_key(cache: Cache, options: dict[str, Any]) -> None:
    def drain(values: Any) -> float:
        total = float(sum(np.ravel(values)))
        if isinstance(values, list):
            values.clear()
        else:
            values[:] = 0
        return total

    @cache.memoize(name="sum", **options)
    async def awaited(values: list[float]) -> float:
        await asyncio.sleep(0)
        return drain(values)

    drained = cache.memoize(name="sum", **options)(drain)

    for make in (list, np.array, lambda numbers: pd.DataFrame({"a": numbers})):
        assert [drained(make([1.0, 2.0])), drained(make([0.0, 0.0])), drained(make([1.0, 2.0]))] == [3, 0, 3]
    assert drained([]) == 0
    assert asyncio.run(awaited([5.0, 6.0])) == 11
    assert drained([5.0, 6.0]) == 11
    key = ["a"]

    def change() -> int:
        key.append("b")
        return len(key)

    assert cache.get_or_set(key, change) == 2
    assert (cache.get(["a"]), cache.get(["a", "b"])) == (2, None)


class Named:
    """An object without a text of its own."""

    def __init__(self, name: str) -> None:
        self.name = name


@few
def test_the_values_in_a_template_stay_apart_and_keep_their_types(cache: Cache) -> None:
    @cache.memoize(key="{a}:{b}")
    def pair(a: Any, b: Any) -> tuple[Any, Any]:
        return a, b

    calls = [("x:y", "z"), ("x", "y:z"), (1, None), ("1", None), (1, "None"), ("1", "None"), ([1], "z"), ("[1]", "z")]
    for _ in range(2):
        assert [pair(*call) for call in calls] == calls
    assert pair.__cache_key__("x", 1) == (f"{pair.__cache_key__('x', 1)[0]}", ("{a}:{b}", "x", 1))


@one
def test_a_template_refuses_a_text_that_is_an_address(cache: Cache) -> None:
    for field in ("{given}", "{given!r}", "{given!s:>5}"):
        with pytest.raises(TypeError, match=r"address|a key of type"):
            cache.memoize(key=field)(lambda given: 1)(threading.Lock())
        with pytest.raises(TypeError, match="address"):
            cache.memoize(name="tagged", tags=[f"tag:{field}"])(lambda given: given.name)(Named("a"))
    assert cache.memoize(key="{given.name}")(lambda given: given.name)(Named("a")) == "a"


def made_by_class(kind: str, factor: int) -> Callable[[int], int]:
    class Factor:
        value = factor

        @property
        def own(self) -> int:
            return factor

        @staticmethod
        def still() -> int:
            return factor

        @classmethod
        def of_class(cls, number: int) -> int:
            return number * cls.value

    class Heir(Factor):
        pass

    ways: dict[str, Callable[[int], int]] = {
        "attribute": lambda number: number * Factor.value,
        "property": lambda number: number * Factor().own,
        "static": lambda number: number * Factor.still(),
        "inherited": lambda number: number * Heir.value,
        "class method": Factor.of_class,
    }
    return ways[kind]


@one
@pytest.mark.parametrize("what", ["attribute", "property", "static", "inherited", "class method"])
def test_functions_that_differ_in_a_nested_class_do_not_share(cache: Cache, what: str) -> None:
    assert [cache.memoize()(made_by_class(what, factor))(10) for factor in (2, 3, 2)] == [20, 30, 20]


@one
@pytest.mark.parametrize(
    "values", [(1, True, 1.0), ({"a": 1, "b": 2}, {"b": 2, "a": 1}), ([1], [True]), ((0,), (0.0,))]
)
def test_closed_over_values_that_are_equal_but_not_alike_do_not_share(cache: Cache, values: tuple[Any, ...]) -> None:
    def shown(value: Any) -> Callable[[], str]:
        return lambda: repr(value)

    assert [cache.memoize()(shown(value))() for value in values] == [repr(value) for value in values]


@one
def test_what_is_tried_is_part_of_a_function(cache: Cache) -> None:
    def functions(source: str) -> Any:
        names: dict[str, Any] = {"__name__": "__main__"}
        exec(source, names)
        return names["f"]

    both = functions("def f(x):\n try: int(x); float(x)\n except ValueError: return 'caught'")
    second = functions("def f(x):\n int(x)\n try: float(x)\n except ValueError: return 'caught'")
    assert cache.memoize()(both)("x") == "caught"
    with pytest.raises(ValueError, match="invalid literal"):
        cache.memoize()(second)("x")


@one
def test_functions_that_close_over_what_is_no_key_are_told_apart_by_their_code(cache: Cache) -> None:
    connection = threading.Lock()
    memoize = cache.memoize(key=lambda number: number)
    assert memoize(lambda number: (connection.locked(), number + 1))(1) == (False, 2)
    assert memoize(lambda number: (connection.locked(), number + 2))(1) == (False, 3)


@one
def test_types_of_one_name_are_told_apart(cache: Cache) -> None:
    kinds: list[Any] = [namedtuple("Point", "x") for _ in range(2)]  # noqa: PYI024
    kinds[0].__module__, kinds[1].__module__ = "one", "another"

    @cache.memoize(typed=True)
    def module(point: Any, **others: Any) -> str:
        return str(type(point).__module__)

    assert [module(kind(1)) for kind in kinds] == ["one", "another"]
