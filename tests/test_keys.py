"""Equal keys have equal bytes in every process, unequal keys never; stored keys give back what they stand for."""

from __future__ import annotations

import array
import collections
import dataclasses
import datetime as dt
import enum
import functools
import os
import pickle
import random
import re
import subprocess
import sys
import threading
import types
import zoneinfo
from decimal import Context, Decimal, FloatOperation, localcontext
from fractions import Fraction
from pathlib import Path, PurePath, PurePosixPath, PureWindowsPath
from typing import Any, Self
from uuid import UUID, SafeUUID

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import diskcache_like.keys as keys_module
from diskcache_like.codecs import encode_value
from diskcache_like.errors import DecodeError, KeyEncodeError, KeyTooLarge
from diskcache_like.keys import (
    KEY_DEPTH,
    KEY_SIZE_LIMIT,
    KeyDecodeError,
    PrefixedQueueKey,
    QueueKey,
    decode_key,
    encode_key,
    encode_long,
    encode_tag,
    is_direct,
    key_hash,
    new_modulus,
    queue_key,
    sort_token,
    spelling,
)

LONDON = zoneinfo.ZoneInfo("Europe/London")


class Text(str):
    __slots__ = ()


class LoudText(str):
    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, str) and self.upper() == other.upper()

    def __hash__(self) -> int:
        return hash(self.upper())


class Code(enum.StrEnum):
    A = "a"


class OldCode(str, enum.Enum):  # noqa: UP042 - the old way is what is tested
    A = "a"


class Level(enum.IntEnum):
    ONE = 1


class Colour(enum.Enum):
    RED = 1
    CRIMSON = 1
    BLUE = 2


class Mode(enum.Flag):
    READ = 1
    WRITE = 2


Pair = collections.namedtuple("Pair", "left right")  # noqa: PYI024 - the untyped kind is what is tested


@dataclasses.dataclass(frozen=True)
class Point:
    x: float
    y: object = None
    note: str = dataclasses.field(default="", compare=False)

    @functools.cached_property
    def size(self) -> float:
        return self.x


@dataclasses.dataclass(frozen=True, slots=True)
class Slotted:
    x: int


class Plain:
    def __init__(self, **attributes: object) -> None:
        self.__dict__.update(attributes)


class Listing(list[int]):
    def __eq__(self, other: object) -> bool:
        return self is other

    __hash__ = None  # type: ignore[assignment]


def a_function() -> None:
    """Stand for any function of a module."""


@functools.wraps(a_function)
def wrapped() -> None:
    """Carry the name of another function."""


# Equality.

ratios = st.builds(Fraction, st.integers(-8, 8), st.sampled_from([1, 2, 3, 4, 5, 7, 10, 1 << 80]))
shapes: list[Any] = [
    lambda n: n,
    float,
    lambda n: Decimal(n.numerator) / n.denominator,
    lambda n: complex(n),
    lambda n: complex(n, n),
    lambda n: n.numerator,
    lambda n: bool(n),
    lambda n: n.numerator << 70,
    lambda n: -0.0 * n.numerator,
    lambda n: Decimal(n.numerator).scaleb(2),
]
numbers = st.deferred(lambda: a_number)
a_number = st.builds(lambda shape, n: shape(n), st.sampled_from(shapes), ratios) | st.floats(allow_nan=False)
texts = st.sampled_from(["", "a", "b", b"", b"a", "\ud800", "ab", "1", None, ..., bytearray(b"a"), Text("a"), Code.A])
offsets = st.sampled_from([None, *(dt.timezone(dt.timedelta(hours=hours)) for hours in range(3))])
times = st.deferred(lambda: a_time)
a_time = st.one_of(
    st.builds(dt.datetime, st.just(2020), st.just(1), st.integers(1, 2), st.integers(0, 3), tzinfo=offsets),
    st.builds(dt.time, st.integers(2, 4), tzinfo=offsets),
    st.builds(dt.date, st.just(2020), st.just(1), st.integers(1, 2)),
    st.builds(dt.timedelta, st.integers(-1, 1), st.sampled_from([0, 86400])),
)
small_ranges = st.builds(range, st.integers(0, 3), st.integers(0, 5), st.sampled_from([1, 2, -1]))
leaves = st.one_of(numbers, texts, times, small_ranges)
hashable_leaves = leaves.filter(lambda value: not isinstance(value, bytearray))
keys = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.frozensets(hashable_leaves, max_size=3),
        st.sets(hashable_leaves, max_size=3),
        st.dictionaries(hashable_leaves, inner, max_size=3),
    ),
    max_leaves=5,
)


@given(keys, keys)
def test_equal_keys_have_equal_bytes_and_unequal_keys_do_not(one: Any, other: Any) -> None:
    first, second = encode_key(one), encode_key(other)
    assert (first == second) == (one == other)
    if first != second:
        assert not first.startswith(second)
        assert not second.startswith(first)


@given(numbers, numbers)
def test_numbers_are_equal_as_python_has_it(one: Any, other: Any) -> None:
    assert (encode_key(one) == encode_key(other)) == (one == other)


@given(st.lists(hashable_leaves, unique=True, max_size=6), st.randoms(use_true_random=False))
def test_order_plays_no_part_in_sets_and_dicts(members: list[Any], rng: random.Random) -> None:
    shuffled = rng.sample(members, len(members))
    assert encode_key(set(members)) == encode_key(frozenset(shuffled))
    assert encode_key(dict.fromkeys(members)) == encode_key(dict.fromkeys(shuffled))


EQUAL: list[tuple[Any, ...]] = [
    (1, True, 1.0, Decimal(1), Decimal("1.000"), Decimal("0.1E+1"), Fraction(1), 1 + 0j, Level.ONE),
    (0, -0.0, False, Decimal("-0"), Decimal("0E-99"), complex(-0.0, -0.0)),
    (float("nan"), -float("nan"), Decimal("NaN"), Decimal("-sNaN5"), complex("nan")),
    (complex("nan+nanj"), complex(float("nan"), -float("nan"))),
    (float("inf"), Decimal("Infinity"), complex("inf")),
    (0.1, Decimal(0.1), Fraction(0.1)),
    (Decimal("0.1"), Fraction(1, 10), Decimal("0.10")),
    (5e-324, Decimal(5e-324), Fraction(5e-324)),
    (1e300, int(1e300), Decimal(1e300)),
    (Decimal("1E+30"), 10**30),
    (Fraction(7, 1 << 2000), Decimal(7 * 5**2000).scaleb(-2000, Context(prec=5000))),
    ("a", Text("a"), Code.A, OldCode.A),
    (b"a", bytearray(b"a"), memoryview(b"a")),
    ((1, 2), Pair(1, 2)),
    ({1, 2}, frozenset({2, 1})),
    (
        {"a": 1, "b": 2},
        {"b": 2.0, "a": True},
        collections.OrderedDict(b=2, a=1),
        collections.Counter(a=1, b=2),
        collections.defaultdict(int, a=1, b=2),
        types.MappingProxyType({"a": 1, "b": 2}).copy(),
    ),
    (range(0), range(5, 5), range(3, 0)),
    (range(0, 1), range(0, 7, 9)),
    (range(0, 3, 2), range(0, 4, 2)),
    (range(5, 0, -2), range(5, -1, -2)),
    (range(1 << 70, (1 << 70) + 3, 2), range(1 << 70, (1 << 70) + 4, 2)),
    (dt.datetime(2020, 10, 25, 1, fold=1), dt.datetime(2020, 10, 25, 1)),
    (
        dt.datetime(2020, 6, 1, 12, tzinfo=LONDON),
        dt.datetime(2020, 6, 1, 11, tzinfo=dt.UTC),
        dt.datetime(2020, 6, 1, 13, tzinfo=dt.timezone(dt.timedelta(hours=2), "X")),
    ),
    (dt.datetime(2020, 10, 25, 1, 30, tzinfo=LONDON, fold=1), dt.datetime(2020, 10, 25, 1, 30, tzinfo=dt.UTC)),
    (dt.timedelta(1), dt.timedelta(hours=24)),
    (UUID(int=5), UUID(int=5, is_safe=SafeUUID.safe)),
    (Path("a//b"), PurePosixPath("a/b")),
    (PureWindowsPath("A/b"), PureWindowsPath("a\\B")),
    (Point(1), Point(1.0), Point(1, note="not compared")),
    (Slotted(1), Slotted(True)),
    (Plain(a=1, b=2), Plain(b=2, a=1.0)),
    (Colour.RED, Colour.CRIMSON),
    (Mode.READ | Mode.WRITE, Mode(3)),
    (re.compile("a", re.IGNORECASE), re.compile("a", re.IGNORECASE)),
    (functools.partial(int, base=2), functools.partial(int, base=2)),
    (QueueKey(5), queue_key(None, 5)),
    (PrefixedQueueKey("p", 5), queue_key("p", 5)),
]


@pytest.mark.parametrize("group", EQUAL, ids=lambda group: type(group[0]).__name__)
def test_each_group_is_one_key(group: tuple[Any, ...]) -> None:
    assert {encode_key(key) for key in group} == {encode_key(group[0])}
    assert {encode_key((key, "x")) for key in group} == {encode_key((group[0], "x"))}


DISTINCT: list[Any] = [
    *(group[0] for group in EQUAL),
    "1",
    b"1",
    [],
    (),
    {},
    frozenset(),
    None,
    ...,
    NotImplemented,
    [1, 2],
    [[1], 2],
    [[1, 2]],
    ("a", ("b",)),
    ("a", "b"),
    (("a",), "b"),
    {"a": 1},
    [("a", 1)],
    [["a", 1]],
    (1, None, "x"),
    dt.datetime(2020, 1, 1),
    dt.datetime(2020, 1, 1, tzinfo=dt.UTC),
    dt.date(2020, 1, 1),
    dt.datetime(2020, 10, 25, 1, 30, tzinfo=LONDON),
    dt.time(1),
    dt.time(1, tzinfo=dt.UTC),
    dt.time(1, tzinfo=dt.timezone(dt.timedelta(hours=2))),
    -float("inf"),
    Decimal("1E-400"),
    Fraction(1, 3),
    0.1 + 0.2,
    1j,
    -1,
    127,
    128,
    (1 << 32) - 1,
    1 << 32,
    (1 << 63) - 1,
    1 << 63,
    (1 << 64) - 1,
    1 << 64,
    -(1 << 63),
    -(1 << 63) - 1,
    "x" * 31,
    "x" * 32,
    "x" * 255,
    "x" * 256,
    b"x" * 256,
    int,
    dict,
    type(None),
    len,
    a_function,
    dt.datetime.fromtimestamp,
    "a".join,
    "b".join,
    Colour.BLUE,
    Mode.READ,
    Mode.WRITE,
    Point(2),
    Point(1, 2),
    Plain(),
    Plain(a=1),
    LoudText("a"),
    Listing([1, 2]),
    Path("a"),
    array.array("i", [1]),
    array.array("l", [1]),
    500000000000000,
    QueueKey(500000000000000),
    "p-000000000000005",
    PrefixedQueueKey("p-", 5),
    collections.deque([1, 2]),
    ValueError("a"),
    ValueError("b"),
    KeyError("a"),
]


def test_unequal_keys_have_bytes_of_which_none_begins_another() -> None:
    encoded = sorted(encode_key(key) for key in DISTINCT)
    for one, following in zip(encoded, encoded[1:], strict=False):
        assert not following.startswith(one)


def test_the_context_of_decimal_plays_no_part() -> None:
    numbers = [Decimal("1.5E+30"), Decimal("0.1000000001"), Decimal(0.1), Fraction(1, 10**9), Decimal("-1E-400")]
    encoded = [encode_key(number) for number in numbers]
    with localcontext(Context(prec=2, Emax=3, Emin=-3, capitals=0, traps=[FloatOperation])):
        assert [encode_key(number) for number in numbers] == encoded


# Other processes.

SHARED = [
    {"b": {3, "x", (1, "y"), None, b"z"}, "a": frozenset("hello"), 3: 1.5, None: [Decimal("0.1")]},
    (types.SimpleNamespace(b={"x", "y", "z"}, a=1), Path("a/b"), UUID(int=9), SafeUUID.safe, re.compile("x", re.I)),
    (int, len, collections.OrderedDict, dt.datetime(2020, 6, 1, 12, tzinfo=LONDON), range(9), "\ud800", float("nan")),
    collections.deque([{"p", "q", "r"}, 1 << 90]),
]


def test_another_process_with_other_hashes_makes_the_same_bytes() -> None:
    script = (
        "import pickle, sys; from diskcache_like.keys import encode_key\n"
        "print([encode_key(key).hex() for key in pickle.loads(sys.stdin.buffer.read())])"
    )
    expected = repr([encode_key(key).hex() for key in SHARED])
    root = str(Path(keys_module.__file__).parents[1])
    for seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", script],
            input=pickle.dumps(SHARED),
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": root},
            capture_output=True,
            check=True,
        )
        assert done.stdout.decode().strip() == expected


PINNED: list[tuple[Any, str]] = [
    (1, "01"),
    (-1, "d3ffffffffffffffff"),
    (300, "ce0000012c"),
    (1 << 70, "c70901400000000000000000"),
    (0.5, "cb3fe0000000000000"),
    (Decimal("0.1"), "93c7002301d3ffffffffffffffff"),
    ("a", "a161"),
    ("a" * 32, "d920" + "61" * 32),
    (b"a", "c40161"),
    (None, "c0"),
    (("a", [1]), "93c70020a1619101"),
    ({"b": 1, "a": {2, 1}}, "82a16193c700210102a16201"),
    (dt.datetime(2020, 1, 1), "c7080400e25b1bdefd6000"),
    (dt.datetime(2020, 1, 1, tzinfo=dt.UTC), "c7080500e25b1bdefd6000"),
    (UUID(int=1), "c71009" + "00" * 15 + "01"),
    (Path("a"), "c7011361"),
    (len, "c70c10" + b"builtins:len".hex()),
    (QueueKey(500000000000000), "c708118001c6bf52634000"),
    (PrefixedQueueKey("p", 5), "c70912708000000000000005"),
]


@pytest.mark.parametrize(("key", "stored"), PINNED, ids=lambda part: type(part).__name__)
def test_the_bytes_of_a_key_never_change(key: Any, stored: str) -> None:
    """Whoever has to change this test makes every existing cache lose its entries."""
    assert encode_key(key).hex() == stored


# Refusal.


class Sealed:
    def __reduce__(self) -> Any:
        raise OSError("sealed")


class Early:
    def __reduce__(self) -> Any:
        raise KeyTooLarge("from within")


def a_generator() -> Any:
    yield 1


@pytest.mark.parametrize(
    ("key", "named"),
    [
        (object(), "object"),
        (threading.Lock(), "lock"),
        (a_generator(), "generator"),
        (sys, "module"),
        (Sealed(), r"test_keys\.Sealed.*sealed"),
        (lambda: 1, "lambda"),
        (wrapped, "wrapped functions"),
        (memoryview(array.array("i", [1])), "tobytes"),
        (QueueKey(1 << 64), "64 bits"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_what_has_no_stable_form_is_refused_by_name(key: Any, named: str) -> None:
    for nested in (key, ("a", key), {"a": [key]}):
        with pytest.raises(KeyEncodeError, match=named):
            encode_key(nested)


def test_open_files_and_local_things_are_refused() -> None:
    class Local:
        pass

    def local() -> None:
        pass

    with open(os.devnull) as file:  # noqa: PTH123
        for key in (file, Local, Local(), local, functools.partial(local)):
            with pytest.raises(KeyEncodeError):
                encode_key(key)


def test_errors_of_ours_pass_unchanged() -> None:
    with pytest.raises(KeyTooLarge, match="from within"):
        encode_key(Early())


@pytest.mark.parametrize(
    "wrap", [lambda key: [key], lambda key: (key,), lambda key: {"a": key}, Point, lambda key: Plain(a=key)]
)
def test_depth_is_bounded(wrap: Any) -> None:
    key: Any = 1
    for _ in range(KEY_DEPTH // 4):
        key = wrap(key)
    encode_key(key)
    for _ in range(5000):
        key = wrap(key)
    with pytest.raises(KeyEncodeError, match="deep"):
        encode_key(key)


def test_a_key_that_contains_itself_is_refused() -> None:
    loop: list[Any] = []
    loop.append(loop)
    ring = Plain()
    ring.__dict__["ring"] = ring
    for key in (loop, ring, ("a", loop)):
        with pytest.raises(KeyEncodeError, match="contains itself"):
            encode_key(key)


def test_members_that_share_members_end_soon() -> None:
    shared: Any = ()
    for _ in range(KEY_DEPTH - 1):
        shared = (shared, shared)
    with pytest.raises(KeyTooLarge):
        encode_key(shared)


@pytest.mark.parametrize(
    "key",
    ["x" * (1 << 20), b"x" * (1 << 20), ("a", "é" * (1 << 19)), 1 << (8 << 20)],
    ids=["text", "bytes", "tuple", "int"],
)
def test_a_key_of_a_megabyte_is_too_large(key: Any) -> None:
    with pytest.raises(KeyTooLarge, match=rf"10485\d\d bytes; the limit is {KEY_SIZE_LIMIT}"):
        encode_key(key)
    assert len(encode_long(key)) > 1 << 20


def test_the_limit_is_exact() -> None:
    longest = "x" * (KEY_SIZE_LIMIT - 5)
    assert len(encode_key(longest)) == KEY_SIZE_LIMIT
    assert decode_key(encode_key(longest)) == longest
    with pytest.raises(KeyTooLarge):
        encode_key(longest + "x")
    with pytest.raises(KeyTooLarge, match="members"):
        encode_key([0] * (KEY_SIZE_LIMIT + 1))


@pytest.mark.parametrize(
    "key", [Decimal("1E+999999999999999999"), Fraction(1, 7**9000), Fraction(1, 1 << 60_000), Decimal(10) ** 5000 + 1]
)
def test_numbers_that_would_take_quadratic_time_are_too_large(key: Any) -> None:
    with pytest.raises(KeyTooLarge, match="digits"):
        encode_key(key)


def test_a_tiny_exponent_costs_nothing() -> None:
    key = Decimal("1E-999999999999999999")
    assert decode_key(encode_key(key)) == key


# Back from storage.


@given(keys)
def test_a_stored_key_gives_back_an_equal_key(key: Any) -> None:
    assume(not isinstance(key, dt.time))  # one with an offset needs its spelling
    stored = encode_key(key)
    try:
        read = decode_key(stored)
    except KeyDecodeError:
        assert spelling(key, stored) is not None
    else:
        assert encode_key(read) == stored
        assert read == key


@given(keys)
def test_with_its_spelling_a_key_of_data_comes_back_exactly(key: Any) -> None:
    stored = encode_key(key)
    spelled = spelling(key, stored)
    if spelled is None or spelled[:1] == b"\x00":
        read = decode_key(stored, spelled)
        assert type(read) is type(key)
        assert repr(read) == repr(key) or isinstance(key, set | frozenset | list | tuple | dict)


@pytest.mark.parametrize(
    "key",
    [
        *("a", "\ud800", b"a", 1, 1 << 70, -5, None, ..., 1.5, float("inf"), float("nan"), ("a", 1, (None, 1.5))),
        *(UUID(int=1), dt.date(2020, 1, 1), dt.timedelta(1), Path("a"), ("a", Path("b")), Decimal("0.1")),
        *(dt.datetime(2020, 1, 1), dt.datetime(2020, 1, 1, tzinfo=dt.UTC), frozenset({1}), {"a": 1}, [1, "x"]),
        *(
            QueueKey(5),
            PrefixedQueueKey("p", 5),
            ("q", QueueKey(5)),
            1 + 2j,
            range(0, 4, 2),
            Fraction(1, 3),
            dt.time(1),
        ),
    ],
    ids=lambda key: type(key).__name__,
)
def test_where_the_stored_key_says_it_all_there_is_no_spelling(key: Any) -> None:
    stored = encode_key(key)
    assert spelling(key, stored) is None
    read = decode_key(stored)
    assert type(read) is type(key)
    assert repr(read) == repr(key)


@pytest.mark.parametrize(
    "key",
    [
        *(True, 1.0, -0.0, Decimal(1), Decimal("0.10"), Fraction(2), 1 + 0j, Decimal("NaN"), ("a", True), [1.0]),
        *({1, 2}, bytearray(b"x"), {"b": 1, "a": 2}, range(0, 3, 2), dt.datetime(2020, 1, 1, fold=1)),
        *(dt.datetime(2020, 6, 1, tzinfo=LONDON), dt.time(1, tzinfo=dt.UTC)),
        *(dt.datetime.min.replace(tzinfo=dt.timezone(dt.timedelta(hours=5))),),
        *(dt.datetime.max.replace(tzinfo=dt.timezone(dt.timedelta(hours=-5))),),
    ],
    ids=lambda key: type(key).__name__,
)
def test_another_spelling_is_kept_as_data(key: Any) -> None:
    stored = encode_key(key)
    spelled = spelling(key, stored)
    assert spelled is not None
    assert spelled[:1] == b"\x00"
    assert repr(decode_key(stored, spelled)) == repr(key)


@pytest.mark.parametrize(
    "key",
    [
        *(Text("a"), Code.A, Level.ONE, Colour.RED, Mode.READ, Pair(1, 2), collections.OrderedDict(b=1, a=2)),
        *(Point(1), Slotted(1), PurePosixPath("a"), PureWindowsPath("A"), int, len, a_function, re.compile("a")),
    ],
    ids=lambda key: type(key).__name__,
)
def test_what_is_not_data_is_kept_as_a_pickle(key: Any) -> None:
    stored = encode_key(key)
    spelled = spelling(key, stored)
    assert spelled is not None
    assert spelled[:1] == b"\x01"
    assert pickle.loads(spelled[1:]) == key


def test_an_instance_without_its_spelling_says_so() -> None:
    for key in (Point(1), ("a", Colour.RED), {"x": Plain()}, int, dt.time(1, tzinfo=dt.UTC)):
        with pytest.raises(KeyDecodeError, match="spelling"):
            decode_key(encode_key(key))


def test_a_memoryview_and_what_cannot_be_pickled_have_no_spelling() -> None:
    class LocalText(str):
        __slots__ = ()

    for key, read in ((memoryview(b"a"), b"a"), (LocalText("a"), "a")):
        stored = encode_key(key)
        assert spelling(key, stored) is None
        assert decode_key(stored) == read


class Bomb:
    exploded = False

    def __reduce__(self) -> Any:
        return setattr, (Bomb, "exploded", True)


def test_a_spelling_of_another_key_is_not_believed_and_no_pickle_is_loaded() -> None:
    stored = encode_key(1)
    for lie in (
        b"\x00" + encode_value("admin"),
        b"\x00" + encode_value(2),
        b"\x00",
        b"\x00\xc1",
        b"\x00" + encode_value("x" * KEY_SIZE_LIMIT),
        b"",
        b"\x02",
        b"\x01" + pickle.dumps(Bomb()),
    ):
        assert decode_key(stored, lie) == 1
    assert not Bomb.exploded
    assert decode_key(stored, b"\x00" + encode_value(True)) is True


@pytest.mark.parametrize(
    "stored",
    [
        b"",
        b"\xff",  # msgpack's shorter forms
        b"\xcc\x80",
        b"\xcd\x01\x00",
        b"\xd3" + bytes(8),
        b"\xd9\x01a",
        b"\xda\x00\x01a",
        b"\xcb\x3f\xf0" + bytes(6),  # 1.0
        b"\xcb\x7f\xf8" + bytes(5) + b"\x01",
        b"\xca\x3f\xc0\x00\x00",
        b"\xc2",
        b"\xd4\x01\x01",
        b"\xc7\x01\x01\x01",
        b"\xdd\x00\x00\x00\x01\x01",
        b"\x93\xc7\x00\x21\x02\x01",  # a set out of order
        b"\x82\xa1b\x01\xa1a\x01",
        b"\x93\xc7\x00\x23\x0a\xff",
        b"\x93\xc7\x00\x23\x01\xce\xff\xff\xff\xff",
        b"\x93\xc7\x00\x24\x02\x04",
        b"\x93\xc7\x00\x24" + b"\xc9\x00\x00\xf0\x00\x01" + b"\x7f" * 0xF000 + b"\x03",
        b"\x81\x90\x01",
        b"\x91\x91\x91",
        b"\x01\x01",
        b"\xc7\x00\x20",
        b"\xc7\x02\x63\x00\x00",
        b"\xc7\x03\x03\xff\xff\xff",
        b"\xc7\x08\x04" + b"\xff" * 8,
        b"\xc7\x08\x05" + b"\x7f" * 8,
        b"\xc7\x02\x12ab",
        b"\xc7\x04\x13a//b",
        b"\xd6\xff\x00\x00\x00\x00",
        b"\xdb\x00\x01\x00\x00" + b"x" * 65536,
    ],
    ids=lambda stored: stored[:16].hex(),
)
def test_stored_keys_that_were_never_written_are_refused(stored: bytes) -> None:
    with pytest.raises(DecodeError):
        decode_key(stored)


def decode_or_refuse(stored: bytes) -> None:
    try:
        key = decode_key(stored, b"\x00" + stored)
    except DecodeError:
        return
    assert encode_key(key) == stored


@given(st.binary())
def test_random_bytes_decode_canonically_or_are_refused(stored: bytes) -> None:
    decode_or_refuse(stored)


@given(keys | st.sampled_from(DISTINCT), st.randoms(use_true_random=False))
def test_mutated_keys_decode_canonically_or_are_refused(key: Any, rng: random.Random) -> None:
    stored = bytearray(encode_key(key))
    for _ in range(rng.randint(1, 3)):
        at = rng.randint(0, len(stored))
        stored[at : at + rng.randint(0, 2)] = rng.randbytes(rng.randint(0, 2))
    decode_or_refuse(bytes(stored))


# Queue keys.


def test_queue_keys_are_equal_only_to_their_like() -> None:
    plain, prefixed = QueueKey(500000000000000), PrefixedQueueKey("p", 500000000000000)
    assert (repr(plain), str(plain)) == ("500000000000000", "500000000000000")
    assert (repr(prefixed), str(prefixed)) == ("'p-500000000000000'", "p-500000000000000")
    assert type(int(plain)) is int
    assert prefixed.startswith("p-")
    assert (plain.prefix, plain.number) == (None, 500000000000000)
    assert (prefixed.prefix, prefixed.number) == ("p", 500000000000000)
    for key, user_key in ((plain, 500000000000000), (prefixed, "p-500000000000000")):
        assert key != user_key
        assert user_key != key
        assert not (key == user_key or user_key == key)
        assert hash(key) != hash(user_key)
        assert len({key, user_key}) == 2
        assert encode_key(key) != encode_key(user_key)
    assert plain != QueueKey(1)
    assert prefixed != PrefixedQueueKey("q", 500000000000000)
    assert plain < QueueKey(500000000000001)


@pytest.mark.parametrize(
    "key", [QueueKey(7), PrefixedQueueKey("a-1", 7), PrefixedQueueKey("", 0), PrefixedQueueKey("\ud800", 1)]
)
def test_queue_keys_come_back_from_everywhere(key: Any) -> None:
    for read in (pickle.loads(pickle.dumps(key)), decode_key(encode_key(key)), queue_key(key.prefix, key.number)):
        assert type(read) is type(key)
        assert (read, read.prefix, read.number) == (key, key.prefix, key.number)
        assert hash(read) == hash(key)


def test_stored_queue_keys_sort_like_their_numbers() -> None:
    numbers = [0, 1, 255, 256, 499999999999999, 500000000000000, 1 << 62]
    for prefix in (None, "p", "x" * 300):
        stored = [encode_key(queue_key(prefix, number)) for number in numbers]
        assert stored == sorted(stored)


# Use in the process.


@given(keys | st.floats() | st.decimals(), keys)
def test_what_is_direct_agrees_with_its_stored_key(one: Any, other: Any) -> None:
    if is_direct(one):
        assert {one: 1}[one] == 1
        assert pickle.loads(pickle.dumps(one)) == one  # not by identity alone
        if is_direct(other):
            same = encode_key(one) == encode_key(other)
            assert (one == other) == same
            assert not same or hash(one) == hash(other)


@pytest.mark.parametrize(
    "key",
    [
        *("a", b"a", 1, 1.5, True, None, (), ("a", (1, b"x")), dt.date(2020, 1, 1), dt.datetime(2020, 1, 1)),
        *(dt.datetime(2020, 1, 1, tzinfo=dt.UTC), UUID(int=1), Decimal(1), Fraction(1, 3), frozenset({1, ("a",)})),
        *(QueueKey(1), PrefixedQueueKey("p", 1)),
    ],
    ids=lambda key: type(key).__name__,
)
def test_the_usual_keys_are_direct(key: Any) -> None:
    assert is_direct(key)


@pytest.mark.parametrize(
    "key",
    [
        *(
            float("nan"),
            Decimal("NaN"),
            Decimal("sNaN"),
            (1, float("nan")),
            Text("a"),
            LoudText("a"),
            Level.ONE,
            Pair(1, 2),
        ),
        *([], {}, set(), bytearray(), ([],), Point(1), int, Path("a"), dt.datetime(2020, 1, 1, tzinfo=LONDON)),
        *(tuple(range(17)), ((1,) * 9, (2,) * 9), memoryview(b"a"), Plain()),
    ],
    ids=lambda key: type(key).__name__,
)
def test_what_python_compares_otherwise_is_not_direct(key: Any) -> None:
    assert not is_direct(key)


def test_keys_sort_numbers_first_then_text_then_bytes_then_the_rest() -> None:
    ordered = [
        *(-float("inf"), -1, Decimal("-0.5"), 0, Fraction(1, 3), 0.5, True, 2, 1 << 70, float("inf"), float("nan")),
        *("", "A", "a", Text("b"), "é", "\ud800", "\U0001f600", b"", b"a", bytearray(b"b")),
        *(QueueKey(1), QueueKey(300), frozenset({1}), (1,), (2,)),
    ]
    shuffled = ordered.copy()
    random.Random(3).shuffle(shuffled)
    assert [repr(key) for key in sorted(shuffled, key=sort_token)] == [repr(key) for key in ordered]


def test_every_key_can_be_sorted_among_all() -> None:
    assert len(sorted(DISTINCT, key=sort_token)) == len(DISTINCT)


def test_a_tag_is_encoded_like_a_key_and_none_is_no_tag() -> None:
    assert encode_tag(None) is None
    assert encode_tag("a") == encode_key("a")


# Placing.


def test_a_place_is_the_same_for_equal_bytes_and_below_the_bound() -> None:
    modulus = new_modulus()
    for stored in (b"", b"a", b"\xff" * 64, b"x" * 65, b"x" * KEY_SIZE_LIMIT):
        place = key_hash(stored, modulus)
        assert place == key_hash(bytes(bytearray(stored)), modulus)
        assert place % 4 == 0
        assert 0 <= place < 1 << 62
    assert key_hash(b"a" * 65, modulus) != key_hash(b"a" * 66, modulus)
    assert key_hash(b"\x01\x00", 101) == 256 % 101 << 2


def test_a_modulus_is_a_prime_of_its_size_and_not_the_same_twice() -> None:
    moduli = {new_modulus() for _ in range(5)}
    assert len(moduli) == 5
    for modulus in moduli:
        assert 1 << 59 < modulus < 1 << 60
        assert all(pow(base, modulus - 1, modulus) == 1 for base in (2, 3, 43, 47))
        assert all(modulus % divisor for divisor in range(3, 10_000, 2))


@pytest.mark.parametrize("number", [2047, 3215031751, 341550071728321, 3825123056546413051])
def test_strong_pseudoprimes_are_not_taken_for_primes(number: int) -> None:
    assert not keys_module._is_prime(number)
    assert keys_module._is_prime((1 << 61) - 1)


# numpy, without needing it.


class generic:  # noqa: N801
    """Look like a scalar of numpy."""

    __module__ = "numpy"

    def __init__(self, value: object) -> None:
        self.value = value

    def item(self) -> Any:
        """Return the Python value."""
        return self.value


class float64(float, generic):  # type: ignore[misc]  # noqa: N801
    __module__ = "numpy"

    def __new__(cls, value: float) -> Self:
        return super().__new__(cls, value)

    def __eq__(self, other: object) -> bool:
        return float.__eq__(self, other)

    def __hash__(self) -> int:
        return float.__hash__(self)

    def item(self) -> Any:
        return float(self)


class datetime64(generic):  # noqa: N801
    __module__ = "numpy"

    def __reduce__(self) -> Any:
        return dt.datetime, (2020, 1, 1)


def test_scalars_of_numpy_are_their_values() -> None:
    assert encode_key(generic("a")) == encode_key("a")
    assert encode_key((generic(1), float64(1.5))) == encode_key((1, 1.5))
    assert encode_key(datetime64(5)) != encode_key(5)  # though item() gives nanoseconds


def test_real_numpy_scalars_are_their_values() -> None:
    numpy = pytest.importorskip("numpy")
    for kind in (numpy.int8, numpy.uint64, numpy.float32, numpy.float64, numpy.complex128):
        assert encode_key(kind(3)) == encode_key(3)
    assert encode_key(numpy.bool_(True)) == encode_key(1)
    assert encode_key(numpy.str_("a")) == encode_key("a")
    assert encode_key(numpy.bytes_(b"a")) == encode_key(b"a")
    assert encode_key(numpy.datetime64(5, "ns")) not in (encode_key(5), encode_key(numpy.timedelta64(5, "ns")))
    assert encode_key(numpy.arange(3)) == encode_key(numpy.arange(3))
    assert encode_key(numpy.arange(3)) != encode_key(numpy.arange(4))
    assert encode_key(numpy.longdouble(1.5)) != encode_key(numpy.longdouble(2.5))


def test_a_subclass_of_path_that_compares_otherwise_is_not_its_path() -> None:
    assert issubclass(type(Path()), PurePath)
    assert encode_key(Path("a")) != encode_key("a")
