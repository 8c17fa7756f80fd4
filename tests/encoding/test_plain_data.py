"""Plain values are read and written in C: what comes of any bytes, or value, is what comes of them in Python."""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Iterator
from enum import IntEnum
from types import SimpleNamespace
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diskcache_like.coherence import _native
from diskcache_like.encoding import msgpack_reader
from diskcache_like.encoding.msgpack_reader import MAX_DEPTH
from diskcache_like.encoding.values import decode_value, encode_value
from diskcache_like.errors import DecodeError
from tools.fuzz_codecs import mutated

from ..support.sample_values import ANY_TEXT, DATA, same

NUMBERS = [sign * (1 << bits) + more for bits in range(63) for sign in (1, -1) for more in (-1, 0, 1)]
SCALARS = st.none() | st.booleans() | st.sampled_from(NUMBERS) | st.floats() | ANY_TEXT | st.binary(max_size=300)
PLAIN = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=20) | st.dictionaries(SCALARS, inner, max_size=20), max_leaves=40
)
REFUSED = object()


class Text(str):
    __slots__ = ()


class Number(IntEnum):
    ONE = 1


def in_python(payload: bytes) -> Any:
    """Return what the other reader makes of a payload, REFUSED if nothing."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(msgpack_reader, "_native", SimpleNamespace(read_plain=lambda _: NotImplemented))
        return decoded(payload)


def decoded(payload: bytes) -> Any:
    try:
        return decode_value(payload)
    except DecodeError:
        return REFUSED


def nested(depth: int, head: bytes) -> bytes:
    return head * depth + b"\xc0"


def alike(one: Any, other: Any) -> bool:
    """Tell whether two are the same, or look so: a set that has a NaN has an order of its own."""
    return one is other or same(one, other) or sorted(repr(one)) == sorted(repr(other))


@given(PLAIN)
def test_a_plain_value_is_read_as_it_was(value: Any) -> None:
    payload = encode_value(value)
    assert repr(_native.read_plain(payload)) == repr(value)
    assert alike(in_python(payload), value)


@settings(max_examples=200)
@given(st.lists(PLAIN | DATA, min_size=1, max_size=3), st.randoms(use_true_random=False))
def test_what_is_damaged_is_taken_or_refused_alike(values: list[Any], dice: random.Random) -> None:
    seeds = [encode_value([value, {"key": value}]) for value in values]
    for payload in (*seeds, *(mutated(dice, seeds) for _ in range(10))):
        assert alike(decoded(payload), in_python(payload))


@pytest.mark.parametrize("head", [b"\x91", b"\x81\x01", b"\xdc\x00\x01", b"\xdf\x00\x00\x00\x01\xc0"])
def test_both_stop_at_one_depth(head: bytes) -> None:
    assert _native.read_plain(nested(MAX_DEPTH, head)) is not NotImplemented
    assert in_python(nested(MAX_DEPTH, head)) is not REFUSED
    assert _native.read_plain(nested(MAX_DEPTH + 1, head)) is NotImplemented
    assert decoded(nested(MAX_DEPTH + 1, head)) is REFUSED


def cut(payload: bytes) -> Iterator[bytes]:
    yield from (payload[:size] for size in range(len(payload)))
    yield payload + b"\xc0"


def test_what_is_not_one_whole_plain_value_is_left_alone() -> None:
    whole = encode_value([None, True, 7, -7, 1 << 40, -(1 << 40), 0.5, "text", "long" * 20, b"bytes", {"key": [1]}])
    others = [b"", b"\xc1", msgpack.packb(msgpack.ExtType(1, b"x")), b"\xca\x00\x00\x00\x00", b"\xdd\xff\xff\xff\xff"]
    for payload in (*cut(whole), *others):
        assert _native.read_plain(payload) is NotImplemented
    # What somebody may change while it is read is not read here.
    for payload in (bytearray(whole), memoryview(whole), "text", None):
        assert _native.read_plain(payload) is NotImplemented


PACKER = msgpack.Packer(strict_types=True, use_bin_type=True, unicode_errors="surrogatepass")


@given(PLAIN)
def test_a_plain_value_is_written_as_msgpack_writes_it(value: Any) -> None:
    written = _native.write_plain(value)
    assert written == PACKER.pack(value) or (written is NotImplemented and has_surrogates(value))


def has_surrogates(value: Any) -> bool:
    return b"\xed" in PACKER.pack(value)


@pytest.mark.parametrize("size", [0, 15, 16, 31, 32, 255, 256, 65535, 65536])
def test_sizes_are_written_as_msgpack_writes_them(size: int) -> None:
    for value in ("t" * size, b"b" * size, [None] * size, dict.fromkeys(range(size))):
        assert _native.write_plain(value) == PACKER.pack(value)
        assert _native.read_plain(_native.write_plain(value)) == value


@pytest.mark.parametrize(
    "part",
    [
        bytearray(b"x"),
        memoryview(b"x"),
        msgpack.ExtType(1, b"x"),
        msgpack.Timestamp(1),
        (1,),
        {1},
        1j,
        1 << 63,
        -(1 << 63) - 1,
        "\ud800",
        object(),
        Number.ONE,
        Text("text"),
        OrderedDict(),
    ],
    ids=lambda part: type(part).__name__,
)
def test_a_part_that_is_not_plain_is_left_alone(part: Any) -> None:
    for value in (part, [1, part], {"key": part}, [{1: [part]}]):
        assert _native.write_plain(value) is NotImplemented


def test_what_is_nested_too_deeply_or_contains_itself_is_not_written() -> None:
    value: list[Any] = []
    for _ in range(MAX_DEPTH - 1):
        value = [value]
    assert _native.write_plain(value) == PACKER.pack(value)
    assert _native.write_plain([value]) is NotImplemented
    value.append(value)
    assert _native.write_plain(value) is NotImplemented


def test_records_share_their_keys() -> None:
    one, other = decode_value(encode_value([{"key": 1, "": 2}, {"key": 1, "": 2}]))
    assert next(iter(one)) is next(iter(other))


def test_a_key_that_nothing_can_be_found_by_is_refused() -> None:
    assert decoded(b"\x81\x90\x01") is REFUSED
