"""Values come back equal and of the same type, or are refused; hostile bytes raise DecodeError and nothing else."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import enum
import random
import struct
import threading
import tracemalloc
import zoneinfo
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from decimal import Context, Decimal, localcontext
from fractions import Fraction
from typing import Any
from uuid import UUID, SafeUUID

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from diskcache_like.encoding import values as encoding_values
from diskcache_like.encoding.msgpack_reader import MAX_DEPTH, is_plain, kinds_in
from diskcache_like.encoding.values import FRACTION_BITS, NotSerializable, decode_value, encode_value, is_immutable
from diskcache_like.errors import DecodeError

ZONES = [zoneinfo.ZoneInfo(name) for name in ("Europe/London", "America/Port-au-Prince", "Etc/GMT+5")]


class Text(str):
    __slots__ = ()


class Number(enum.IntEnum):
    ONE = 1


class Colour(enum.Enum):
    RED = 1


Pair = collections.namedtuple("Pair", "left right")  # noqa: PYI024 - the untyped kind is what is tested


@dataclasses.dataclass
class Point:
    x: int


class ListOfMine(list[int]):
    pass


def face(value: object) -> object:
    """Describe a value so that two faces are equal only if type, spelling, order and sign are."""
    kind = type(value)
    if isinstance(value, dict):
        return kind, [(face(key), face(member)) for key, member in value.items()]
    if isinstance(value, list | tuple):
        return kind, [face(member) for member in value]
    if isinstance(value, set | frozenset):
        return kind, sorted((face(member) for member in value), key=repr)
    if isinstance(value, float):
        return kind, struct.pack(">d", value)
    if isinstance(value, complex):
        return kind, struct.pack(">dd", value.real, value.imag)
    if isinstance(value, Decimal):
        return kind, value.as_tuple()
    if isinstance(value, datetime | time):
        return kind, value.replace(tzinfo=None), value.fold, zone_face(value.tzinfo)
    return kind, value


def zone_face(zone: tzinfo | None) -> object:
    return type(zone), zone if isinstance(zone, zoneinfo.ZoneInfo) else repr(zone)


zones = st.none() | st.sampled_from(ZONES) | st.timedeltas(timedelta(hours=-23), timedelta(hours=23)).map(timezone)
any_text = st.text(st.characters(exclude_categories=()))
# Deferred, because hypothesis would otherwise describe the whole of it again and again.
hashable_scalars: st.SearchStrategy[Any] = st.deferred(lambda: a_hashable_scalar)
a_hashable_scalar: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-(1 << 200), 1 << 200),
    st.floats(),
    any_text,
    st.binary(),
    st.complex_numbers(),
    st.decimals().filter(lambda number: not number.is_snan()),
    st.fractions(),
    st.uuids(),
    st.dates(),
    st.datetimes(timezones=zones),
    st.times(timezones=zones),
    st.timedeltas(),
    st.builds(range, st.integers(), st.integers(), st.integers(min_value=1)),
    st.just(...),
)
scalars = hashable_scalars | st.binary().map(bytearray) | st.just(Decimal("sNaN7"))
hashables: st.SearchStrategy[Any] = st.deferred(lambda: a_hashable)
a_hashable: st.SearchStrategy[Any] = st.recursive(
    hashable_scalars,
    lambda inner: st.lists(inner, max_size=4).map(tuple) | st.frozensets(inner, max_size=4),
    max_leaves=10,
)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=5),
        st.lists(inner, max_size=5).map(tuple),
        st.dictionaries(hashables, inner, max_size=5),
        st.sets(hashables, max_size=5),
        st.frozensets(hashables, max_size=5),
    ),
    max_leaves=20,
)


@given(values)
def test_a_value_comes_back_equal_and_of_the_same_type(value: Any) -> None:
    payload = encode_value(value)
    assert face(decode_value(payload)) == face(value)
    assert face(decode_value(memoryview(b"?" + payload + b"?")[1:-1])) == face(value)


@pytest.mark.parametrize(
    "value",
    [
        -0.0,
        float("inf"),
        struct.unpack(">d", b"\xff\xf8\x00\x00\x00\x00\x00\x07")[0],
        complex(-0.0, float("nan")),
        Decimal("-0"),
        Decimal("1.10"),
        Decimal("-Infinity"),
        Decimal("sNaN123"),
        Decimal("-NaN"),
        Decimal("1E+999999999999999999"),
        1 << 64,
        -(1 << 63),
        -(1 << 63) - 1,
        (1 << 64) - 1,
        1 << 100_000,
        "\ud800 and \udfff",
        "\ud83d\ude00",
        "\x00\r\n",
        *("é" * 128, "x" * 255, "x" * 256, b"x" * 255, b"x" * 256, b"x" * 70_000),
        bytearray(),
        bytearray(b"x"),
        [bytearray(b"x"), b"x"],
        {"a": {"b": (bytearray(b"x"),)}, (1, "b"): bytearray()},
        *((), set(), frozenset(), {frozenset({(1, 2.5)}), ()}),
        {1: "int", "1": "text", None: 0, (1, (2,)): [], frozenset(): {}, b"1": 1.0, Decimal("NaN"): 2},
        {"b": 1, "a": 2},
        range(-5, 1 << 70, 3),
        range(5, 5, -1),
        Fraction(-1, 3),
        Fraction(1 << (FRACTION_BITS - 1), 3),
        datetime(2020, 10, 25, 1, 30, fold=1),
        datetime(2020, 10, 25, 1, 30, tzinfo=ZONES[0], fold=1),
        datetime.max.replace(tzinfo=timezone(timedelta(hours=-5, microseconds=7), "\ud800")),
        datetime.min.replace(tzinfo=timezone(timedelta(0), "")),
        datetime(2020, 1, 1, tzinfo=UTC),
        time.max.replace(tzinfo=ZONES[1]),
        *(timedelta.min, timedelta.max, date.max),
        [..., None, True, False],
        [[]] * 100,
    ],
    ids=lambda value: type(value).__name__,
)
def test_the_corners_of_each_type_survive(value: Any) -> None:
    assert face(decode_value(encode_value(value))) == face(value)


def test_what_a_uuid_says_of_its_safety_survives() -> None:
    for safe in SafeUUID:
        made = UUID(int=7, is_safe=safe)
        read = decode_value(encode_value([made]))[0]
        assert (read, read.is_safe) == (made, safe)


def test_utc_is_the_one_utc() -> None:
    assert decode_value(encode_value(datetime(2020, 1, 1, tzinfo=UTC))).tzinfo is UTC


@pytest.mark.parametrize(
    "value",
    [
        *(Text("a"), Number.ONE, Colour.RED, Pair(1, 2), Point(1), ListOfMine([1]), object(), int, len, slice(1)),
        *(collections.OrderedDict(a=1), collections.defaultdict(int), collections.Counter("a"), NotImplemented),
        memoryview(b"x"),
        msgpack.ExtType(1, b""),
        msgpack.Timestamp(1),
        datetime(2020, 1, 1, tzinfo=zoneinfo.ZoneInfo.no_cache("Europe/London")),
        Fraction(1, 1 << FRACTION_BITS),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_not_exactly_data_is_refused_at_any_depth(value: Any) -> None:
    with pytest.raises(NotSerializable):
        encode_value(value)
    for around in ([value], (value,), {"a": value}, [[[b"", (value,)]]], [{"x": [value, bytearray()]}]):
        with pytest.raises(NotSerializable):
            encode_value(around)
    if value.__hash__ is not None:
        for around in ({value: 1}, {"a": {(1, value): b""}}):
            with pytest.raises(NotSerializable):
                encode_value(around)


def slips() -> st.SearchStrategy[Any]:
    made = [
        bytearray(b"x"),
        bytearray(),
        memoryview(b"x"),
        memoryview(b""),
        msgpack.ExtType(1, b""),
        msgpack.ExtType(5, b"12"),
    ]
    return st.sampled_from([*made, msgpack.Timestamp(1)])


@st.composite
def with_a_slip(draw: st.DrawFn) -> tuple[Any, Any]:
    """Return a value and what msgpack would take for something else, somewhere in it."""
    slip = draw(slips())
    value: Any = slip
    for _ in range(draw(st.integers(1, 4))):
        around = draw(st.lists(st.floats() | st.text() | st.integers() | st.lists(st.floats()), max_size=20))
        place = draw(st.integers(0, len(around)))
        around[place:place] = [value]
        wraps: list[Any] = [around, tuple(around), {number: one for number, one in enumerate(around)}]
        if not {list, dict, bytearray}.intersection(kinds_in(around)):
            wraps += [set(around), {value: around}]
        value = draw(st.sampled_from(wraps))
    return value, slip


@given(with_a_slip())
def test_what_msgpack_takes_for_something_else_is_found_among_anything(found: tuple[Any, Any]) -> None:
    value, slip = found
    assert not is_plain(value)
    if type(slip) is bytearray:
        assert face(decode_value(encode_value(value))) == face(value)
    else:
        with pytest.raises(NotSerializable):
            encode_value(value)


def test_refusal_names_the_type() -> None:
    with pytest.raises(NotSerializable, match=r"test_codecs\.Point"):
        encode_value([Point(1)])
    with pytest.raises(NotSerializable, match="memoryview"):
        encode_value([[memoryview(b"")]])


def test_the_context_of_decimal_plays_no_part() -> None:
    value = Decimal("1.5E+30")
    with localcontext(Context(prec=1, capitals=0, Emax=3, Emin=-3)):
        payload = encode_value(value)
        assert decode_value(payload) == value
    assert decode_value(payload) == value


PINNED: list[tuple[Any, str]] = [
    ([1, -1, 300, None, True, 1.5], "9601ffcd012cc0c3cb3ff8000000000000"),
    ({"a": b"x"}, "81a161c40178"),
    ((1, (2,)), "93c700010192c7000102"),
    ({1}, "92c7000201"),
    (frozenset({1}), "92c7000301"),
    (range(3), "94c70004000301"),
    (Fraction(1, 3), "93c700050103"),
    (1 << 64, "c70910010000000000000000"),
    (1j, "d8110000000000000000" + "3ff0000000000000"),
    (Decimal("1.10"), "d612312e3130"),
    (datetime(2020, 1, 2, 3, 4, 5, 6, UTC), "c7151307e40102030405000000060" + "04f0000000000000000"),
    (date(2020, 1, 2), "d61407e40102"),
    (timedelta(1), "c70c16000000010000000000000000"),
    (UUID(int=1), "d81700000000000000000000000000000001"),
    (bytearray(b"x"), "d41878"),
    (..., "c70019"),
]


@pytest.mark.parametrize(("value", "payload"), PINNED, ids=lambda part: type(part).__name__)
def test_the_bytes_of_a_value_never_change(value: Any, payload: str) -> None:
    """Whoever has to change this test makes the entries of every existing cache unreadable."""
    assert encode_value(value).hex() == payload
    assert face(decode_value(bytes.fromhex(payload))) == face(value)


# Depth.


def nested(wrap: Any, depth: int) -> Any:
    value: Any = 0
    for _ in range(depth):
        value = wrap(value)
    return value


@pytest.mark.parametrize(
    "wrap",
    [
        lambda value: [value],
        lambda value: (value,),
        lambda value: {"a": value},
        lambda value: frozenset([value]),
    ],
    ids=["list", "tuple", "dict", "frozenset"],
)
def test_depth_is_bounded_alike_on_both_sides(wrap: Any) -> None:
    decode_value(encode_value(nested(wrap, MAX_DEPTH)))
    for depth in (MAX_DEPTH + 1, 2 * MAX_DEPTH, 5000):
        with pytest.raises(NotSerializable):
            encode_value(nested(wrap, depth))


def test_bytearrays_are_found_at_any_depth() -> None:
    value = nested(lambda value: [value], MAX_DEPTH - 1)
    innermost = value
    while isinstance(innermost[0], list):
        innermost = innermost[0]
    innermost[0] = [bytearray(b"x")]
    assert decode_value(encode_value(value)) == value


@pytest.mark.parametrize("head", [b"\x91", b"\x81\x01", b"\x92\xc7\x00\x01", b"\xdd\x00\x00\x00\x01"])
@pytest.mark.parametrize("depth", [MAX_DEPTH + 1, 1024, 1025, 100_000])
def test_a_payload_nested_too_deeply_is_refused(head: bytes, depth: int) -> None:
    with pytest.raises(DecodeError):
        decode_value(head * depth + b"\x01")


def test_a_value_that_contains_itself_is_refused() -> None:
    loop: list[Any] = []
    loop.append(loop)
    ring: dict[str, Any] = {}
    ring["a"] = (ring,)
    for value in (loop, ring, [1, (loop,)]):
        with pytest.raises(NotSerializable):
            encode_value(value)


# Hostile bytes.

NEW_YEAR = bytes((7, 0xE4, 1, 1)) + bytes(8)


def extension(code: int, data: bytes) -> bytes:
    return bytes((0xC7, len(data), code & 0xFF)) + data


def decode_or_refuse(payload: bytes) -> None:
    for form in (payload, memoryview(payload)):
        with contextlib.suppress(DecodeError):
            decode_value(form)


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\x01\x01",
        b"\xc4",
        b"\xc4\x05ab",
        b"\xc4\x01ab",
        b"\xa2a",
        b"\xa1ab",
        b"\xa1\xff",
        b"\xd9\x02\xc0\x80",
        b"\x91",
        b"\x90\x00",
        b"\xdd\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff",
        b"\xc9\xff\xff\xff\xff\x10",
        b"\x81\x90\x01",  # a list as a key
        b"\x92\xc7\x00\x02\x90",  # a list in a set
        b"\x93\xc7\x00\x02\x01\x01",  # twice the same member
        b"\xc7\x00\x01",  # marks out of place
        b"\x92\x01\xc7\x00\x01",
        b"\x93\xc7\x00\x01\xc7\x00\x01\x01",
        b"\x81\xc7\x00\x01\x01",
        b"\x81\x01\xc7\x00\x01",
        b"\x91\xc8\x00\x00\x01\x91\x00",
        b"\x92\xd4\x01\x00\x01",  # a mark with data
        b"\x94\xc7\x00\x04\x00\x01\x00",  # a range with step 0
        b"\x94\xc7\x00\x04\x00\xcb\x3f\xf0\x00\x00\x00\x00\x00\x00\x01",
        b"\x93\xc7\x00\x05\x01\x00",  # a fraction over 0
        b"\x93\xc7\x00\x05\xa11\xa12",
        b"\xd4\x63\x00",  # an unknown extension
        b"\xd6\xff\x00\x00\x00\x00",  # timestamps of msgpack
        b"\x91\xd7\xff\x00\x00\x00\x00\x00\x00\x00\x00",
        b"\x81\xc7\x0c\xff" + bytes(12) + b"\x01",
        b"\x91\xc8\x00\x0c\xff" + bytes(12),
        b"\x92\xc7\x00\x01\xd6\xff\x00\x00\x00\x00",
        b"\xc7\x0d\x13" + bytes(13),
        b"\xd5\x121\xff",
        extension(18, b"1E+99999999999999999999999"),
        extension(19, NEW_YEAR + b"ZNo/Such_Zone"),
        extension(19, NEW_YEAR + b"O" + b"\x7f" * 8),
        extension(19, NEW_YEAR + b"O" + bytes(8) + b"?UTC"),
        b"\x93\xc7\x00\x05\x01\xc8\x08\x01\x10\x01" + bytes(2048),  # a fraction of too many bits
        extension(19, bytes((7, 0xE4, 13, 1, 0, 0, 0, 0, 0, 0, 0, 0))),
        extension(23, bytes(15)),
        msgpack.packb([msgpack.ExtType(5, b""), 1 << 63, 3]).replace(b"\xcf\x80", b"\xa9\x80"),
    ],
    ids=lambda payload: payload[:20].hex(),
)
def test_bad_payloads_are_refused(payload: bytes) -> None:
    for form in (payload, memoryview(payload)):
        with pytest.raises(DecodeError):
            decode_value(form)


@pytest.mark.parametrize("name", [b"../../etc/passwd", b"/etc/passwd", b"a.b", b"", b"a//b", b"a/b/c/d/e", b"x" * 40])
def test_a_zone_is_looked_for_only_where_zones_are(name: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding_values, "ZoneInfo", pytest.fail)
    with pytest.raises(DecodeError, match="time zone"):
        decode_value(extension(19, NEW_YEAR + b"Z" + name))


def test_bytes_that_look_like_timestamps_are_fine() -> None:
    value = {"blob": b"\xd6\xff\x00\xd7\xff", "ones": [-1, (-1, 4, -1)], "big": b"\xc7\x0c\xff" * 500}
    assert decode_value(encode_value(value)) == value


@pytest.mark.parametrize(
    "payload",
    [
        b"\xdd\x00\x0f\xff\xff" * 1000 + bytes(1 << 20),
        b"\x91" * 300 + b"\xdd\x00\x0f\xff\xff" * 90 + bytes(1 << 20),
        b"\x93\xc7\x00\x02" + b"\xdc\xff\xff" * 300 + bytes(1 << 16),
        b"\xc9\x7f\xff\xff\xff\x10" + bytes(1 << 16),
        b"\xdf\x7f\xff\xff\xff" + bytes(1 << 16),
        b"\xdd\x00\x00\x01\x8f" * 80,
        b"\xc7\x1a\x121E+99999999999999999999999999",
        encode_value(range(1 << 60)),
    ],
    ids=lambda payload: payload[:12].hex(),
)
def test_claims_of_size_allocate_nothing(payload: bytes) -> None:
    tracemalloc.start()
    try:
        decode_or_refuse(payload)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 20 * len(payload) + (1 << 20)


# Use by many.


def test_threads_do_not_share_packers() -> None:
    rng = random.Random(1)
    values = [[(i, str(i), [(rng.random(),)] * 3) for i in range(size)] for size in range(1, 30)]
    failures: list[object] = []

    def work() -> None:
        for _ in range(20):
            failures.extend(value for value in values if decode_value(encode_value(value)) != value)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_a_failure_leaves_no_half_written_bytes_behind() -> None:
    for _ in range(10):
        with pytest.raises(NotSerializable):
            encode_value(["left behind", (1, object())])
        assert decode_value(encode_value([(1, 2)])) == [(1, 2)]


# Handing values out.


@given(hashables)
def test_what_is_called_immutable_is_made_of_immutable_types(value: Any) -> None:
    assert is_immutable(value)  # the strategy makes few members


@pytest.mark.parametrize(
    "value",
    [[], {}, set(), bytearray(), ([],), (1, (2, {})), tuple(range(65)), ((0,) * 33, (0,) * 33), Point(1), Text()],
)
def test_what_may_change_or_is_large_is_not_called_immutable(value: Any) -> None:
    assert not is_immutable(value)


def test_a_zone_of_the_users_own_makes_a_datetime_mutable() -> None:
    class Zone(tzinfo):
        def utcoffset(self, moment: datetime | None) -> timedelta:
            return timedelta(0)

        dst = utcoffset

        def tzname(self, moment: datetime | None) -> str:
            return "own"

    assert is_immutable((datetime(2020, 1, 1, tzinfo=ZONES[0]), time(tzinfo=UTC)))
    assert not is_immutable(datetime(2020, 1, 1, tzinfo=Zone()))
