"""Keys of every kind for the tests of `canonical` and `keys`, and which of them are one key."""

from __future__ import annotations

import array
import collections
import dataclasses
import datetime as dt
import enum
import functools
import re
import types
import zoneinfo
from decimal import Context, Decimal
from fractions import Fraction
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any
from uuid import UUID, SafeUUID

import attrs
from hypothesis import strategies as st

from diskcache_like.encoding.keys import PrefixedQueueKey, QueueKey, queue_key

TENTH, TINY, HUGE = 0.1, 5e-324, 1e300
LONDON = zoneinfo.ZoneInfo("Europe/London")


class Text(str):
    __slots__ = ()


class LoudText(str):
    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, str) and self.upper() == other.upper()

    def __hash__(self) -> int:
        return hash(self.upper())


class OddText(str):
    __slots__ = ()

    def __hash__(self) -> int:
        return 1


class Code(enum.StrEnum):
    A = "a"


class OldCode(str, enum.Enum):  # noqa: UP042 - the old way is what is tested
    A = "a"


class Level(enum.IntEnum):
    ONE = 1


class Colour(enum.Enum):
    RED = 1
    CRIMSON = 1  # noqa: PIE796 - another name of one member
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


@dataclasses.dataclass(frozen=True, eq=False)
class Named(Point):
    """Compared as the class that its `==` comes from compares: without the name."""

    name: str = ""


@attrs.frozen
class Noted:
    x: object
    note: str = attrs.field(default="", eq=False)


class Sticky(Noted):
    __slots__ = ()


@attrs.frozen(slots=False)
class Caseless:
    text: str = attrs.field(eq=str.lower)

    @functools.cached_property
    def size(self) -> int:
        return len(self.text)


@attrs.frozen
class Judged:
    """Says itself what is equal."""

    x: object
    note: str = attrs.field(default="", eq=False)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Judged) and (self.x, self.note) == (other.x, other.note)

    def __hash__(self) -> int:
        return hash((self.x, self.note))


@dataclasses.dataclass(frozen=True, slots=True)
class Slotted:
    x: int


class Plain:
    def __init__(self, **attributes: object) -> None:
        self.__dict__.update(attributes)


class Listing(list[int]):
    def __eq__(self, other: object) -> bool:
        return self is other

    __hash__ = None


def a_function() -> None:
    """Stand for any function of a module."""


@functools.wraps(a_function)
def wrapped() -> None:
    """Carry the name of another function."""


ratios: st.SearchStrategy[Fraction] = st.builds(
    Fraction, st.integers(-8, 8), st.sampled_from([1, 2, 3, 4, 5, 7, 10, 1 << 80])
)
shapes: list[Any] = [
    lambda n: n,
    float,
    lambda n: Decimal(n.numerator) / n.denominator,
    complex,
    lambda n: complex(n, n),
    lambda n: n.numerator,
    bool,
    lambda n: n.numerator << 70,
    lambda n: -0.0 * n.numerator,
    lambda n: Decimal(n.numerator).scaleb(2),
]
numbers: st.SearchStrategy[Any] = st.builds(lambda shape, n: shape(n), st.sampled_from(shapes), ratios) | st.floats(
    allow_nan=False
)
texts = st.sampled_from(["", "a", "b", b"", b"a", "\ud800", "ab", "1", None, ..., bytearray(b"a"), Text("a"), Code.A])
offsets = st.sampled_from([None, *(dt.timezone(dt.timedelta(hours=hours)) for hours in range(3))])
times: st.SearchStrategy[Any] = st.one_of(
    st.builds(dt.datetime, st.just(2020), st.just(1), st.integers(1, 2), st.integers(0, 3), tzinfo=offsets),
    st.builds(dt.time, st.integers(2, 4), tzinfo=offsets),
    st.builds(dt.date, st.just(2020), st.just(1), st.integers(1, 2)),
    st.builds(dt.timedelta, st.integers(-1, 1), st.sampled_from([0, 86400])),
)
small_ranges = st.builds(range, st.integers(0, 3), st.integers(0, 5), st.sampled_from([1, 2, -1]))
leaves = st.one_of(numbers, texts, times, small_ranges)
hashable_leaves = leaves.filter(lambda value: not isinstance(value, bytearray))
keys: st.SearchStrategy[Any] = st.recursive(
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


EQUAL: list[tuple[Any, ...]] = [
    (Named(1, note="a", name="b"), Named(1, note="c", name="d")),
    (Noted("x", "a"), Noted("x", "b")),
    (Sticky("x", "a"), Sticky("x", "b")),
    (Caseless("Word"), Caseless("wORD")),
    (1, True, 1.0, Decimal(1), Decimal("1.000"), Decimal("0.1E+1"), Fraction(1), 1 + 0j, Level.ONE),
    (0, -0.0, False, Decimal("-0"), Decimal("0E-99"), complex(-0.0, -0.0)),
    (float("nan"), -float("nan"), Decimal("NaN"), Decimal("-sNaN5"), complex("nan")),
    (complex("nan+nanj"), complex(float("nan"), -float("nan"))),
    (float("inf"), Decimal("Infinity"), complex("inf")),
    (0.1, Decimal(TENTH), Fraction(0.1)),
    (Decimal("0.1"), Fraction(1, 10), Decimal("0.10")),
    (5e-324, Decimal(TINY), Fraction(5e-324)),
    (1e300, int(1e300), Decimal(HUGE)),
    (Decimal("1E+30"), 10**30),
    (Fraction(7, 1 << 2000), Decimal(7 * 5**2000).scaleb(-2000, Context(prec=5000))),
    ("a", Text("a"), Code.A, OldCode.A),
    (b"a", bytearray(b"a"), memoryview(b"a")),
    ((1, 2), Pair(1, 2)),
    ({1, 2}, frozenset({2, 1})),
    (
        {"a": 1, "b": 2},
        {"b": 2.0, "a": True},
        collections.Counter(a=1, b=2),
        collections.defaultdict(int, a=1, b=2),
        types.MappingProxyType({"a": 1, "b": 2}).copy(),
    ),
    (range(0), range(5, 5), range(3, 0)),
    (range(1), range(0, 7, 9)),
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


DISTINCT: list[Any] = [
    *(group[0] for group in EQUAL),
    *(Judged(1, "a"), Judged(1, "b"), Noted("y"), Caseless("words")),
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
