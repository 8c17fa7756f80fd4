"""Maps of many pairs are read in another way than small ones: what comes of any bytes has to be the same."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import msgpack
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from diskcache_like.encoding import msgpack_reader
from diskcache_like.encoding.values import decode_value, encode_value
from diskcache_like.errors import DecodeError
from tools.fuzz_codecs import mutated

from ..support.sample_values import DATA, HASHABLE, same

MANY = msgpack_reader._FEW_PAIRS + 1
FILLER = [f"key{number}" for number in range(MANY)]
NEVER = 1 << 62
REFUSED = object()
MARK = b"\xc7\x00\x01"


def decoded(payload: bytes, few: int) -> Any:
    """Return the value, or REFUSED, where maps of up to `few` pairs are read as msgpack reads them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(msgpack_reader, "_FEW_PAIRS", few)
        patch.setattr(msgpack_reader, "_native", SimpleNamespace(read_plain=lambda _: NotImplemented))
        try:
            return decode_value(payload)
        except DecodeError:
            return REFUSED


def forged(*pairs: bytes, count: int | None = None) -> bytes:
    """Return a large map with these pairs, in msgpack, in front of ordinary ones."""
    body = b"".join(pairs) + b"".join(msgpack.packb(key) + b"\x05" for key in FILLER)
    return b"\xde" + (len(pairs) + MANY if count is None else count).to_bytes(2, "big") + body


@settings(max_examples=40)
@given(st.dictionaries(HASHABLE, DATA, min_size=1, max_size=4), DATA)
def test_a_large_dictionary_comes_back_in_order(some: dict[Any, Any], value: Any) -> None:
    whole = {**some, **{(key, 1): value for key in FILLER}}
    assert same(decode_value(encode_value(whole)), whole)
    assert same(decode_value(memoryview(b"?" + encode_value(whole))[1:]), whole)


@settings(max_examples=40)
@given(st.dictionaries(HASHABLE, DATA, min_size=1, max_size=4), st.randoms(use_true_random=False))
@example({1: {2}}, random.Random(5))
def test_what_is_damaged_is_taken_or_refused_alike(some: dict[Any, Any], dice: random.Random) -> None:
    payload = encode_value({**some, **dict.fromkeys(FILLER, 0)})
    for damaged in (payload, *(mutated(dice, [payload]) for _ in range(5))):
        one, other = decoded(damaged, msgpack_reader._FEW_PAIRS), decoded(damaged, NEVER)
        # Sorted, since a set that has a NaN, whose hash comes from its address, has an order of its own.
        assert one is other is REFUSED or sorted(repr(one)) == sorted(repr(other))


@pytest.mark.parametrize(
    "payload",
    [
        forged(MARK + b"\x01"),  # a mark as the first key, which must not open the array that the map is read as
        forged(b"\x01" + MARK),
        forged(b"\x90\x01"),  # a list as a key
        forged(b"\x91\x90" + b"\x01"),
        forged(b"\xd6\xff\x00\x00\x00\x00\x01"),  # a timestamp of msgpack as a key
        forged(b"\x01\xd6\xff\x00\x00\x00\x00"),
        forged(count=MANY + 1),
        forged(count=MANY - 1),
        forged(count=0xFFFF),
        forged() + b"\x00",
        forged()[:-1],
        b"\xdf\x7f\xff\xff\xff" + forged()[3:],
        b"\xdf\x80\x00\x00\x00" + forged()[3:],
        b"\xdf\xff\xff\xff\xff" + forged()[3:],
        b"\xdf\xff\xff\xff\xff",
        b"\xde\xff",
        b"\xdf",
    ],
    ids=lambda payload: payload[:12].hex(),
)
def test_hostile_large_maps_are_refused(payload: bytes) -> None:
    for form in (payload, memoryview(payload)):
        with pytest.raises(DecodeError):
            decode_value(form)


def test_the_last_of_equal_keys_counts() -> None:
    payload = forged(b"\xa4key3\x01", b"\xa1x\x02")
    assert decode_value(payload) == {**dict.fromkeys(FILLER, 5), "x": 2}
    assert list(decode_value(payload))[:2] == ["key3", "x"]
    assert decoded(payload, NEVER) == decode_value(payload)


def test_a_large_map_within_another_value_is_a_dictionary() -> None:
    inner = {(key, 1.5): [number] for number, key in enumerate(FILLER)}
    values: list[Any] = [[inner], {"a": inner, **inner}, (inner, {"b": {1}})]
    for value in values:
        assert decode_value(encode_value(value)) == value
