"""Stored keys give back what they stand for; queue keys, placing, sorting, and use as keys of a dict."""

from __future__ import annotations

import datetime as dt
import pickle
import random
import re
from decimal import Decimal
from fractions import Fraction
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any
from uuid import UUID

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

import diskcache_like.encoding.keys as keys_module
from diskcache_like.encoding.keys import (
    KEY_SIZE_LIMIT,
    KeyDecodeError,
    PrefixedQueueKey,
    QueueKey,
    decode_key,
    encode_key,
    hashes_like_stored_key,
    key_hash,
    new_modulus,
    original_key,
    queue_key,
    sort_key,
)
from diskcache_like.encoding.values import encode_value
from diskcache_like.errors import DecodeError
from diskcache_like.storage.shards import ShardSet

from ..support.sample_keys import (
    DISTINCT,
    LONDON,
    Code,
    Colour,
    Level,
    LoudText,
    Mode,
    Pair,
    Plain,
    Point,
    Slotted,
    Text,
    a_function,
    keys,
)

# Back from storage.


@given(keys)
def test_a_stored_key_gives_back_an_equal_key(key: Any) -> None:
    assume(not isinstance(key, dt.time))  # one with an offset needs its spelling
    stored = encode_key(key)
    try:
        read = decode_key(stored)
    except KeyDecodeError:
        assert original_key(key, stored) is not None
    else:
        assert encode_key(read) == stored
        assert read == key


@given(keys)
def test_with_its_spelling_a_key_of_data_comes_back_exactly(key: Any) -> None:
    stored = encode_key(key)
    spelled = original_key(key, stored)
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
    assert original_key(key, stored) is None
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
    spelled = original_key(key, stored)
    assert spelled is not None
    assert spelled[:1] == b"\x00"
    assert repr(decode_key(stored, spelled)) == repr(key)


@pytest.mark.parametrize(
    "key",
    [
        *(Text("a"), Code.A, Level.ONE, Colour.RED, Mode.READ, Pair(1, 2)),
        *(Point(1), Slotted(1), PurePosixPath("a"), PureWindowsPath("A"), int, len, a_function, re.compile("a")),
    ],
    ids=lambda key: type(key).__name__,
)
def test_what_is_not_data_is_kept_as_a_pickle(key: Any) -> None:
    stored = encode_key(key)
    spelled = original_key(key, stored)
    assert spelled is not None
    assert spelled[:1] == b"\x01"
    assert pickle.loads(spelled[1:]) == key


def test_an_instance_without_its_spelling_says_so() -> None:
    for key in (Point(1), ("a", Colour.RED), {"x": Plain()}, int, dt.time(1, tzinfo=dt.UTC)):
        with pytest.raises(KeyDecodeError, match="original key"):
            decode_key(encode_key(key))


def test_a_memoryview_and_what_cannot_be_pickled_have_no_spelling() -> None:
    class LocalText(str):
        __slots__ = ()

    for key, read in ((memoryview(b"a"), b"a"), (LocalText("a"), "a")):
        stored = encode_key(key)
        assert original_key(key, stored) is None
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
    if hashes_like_stored_key(one):
        assert {one: 1}[one] == 1
        assert pickle.loads(pickle.dumps(one)) == one  # not by identity alone
        if hashes_like_stored_key(other):
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
    assert hashes_like_stored_key(key)


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
    assert not hashes_like_stored_key(key)


def test_keys_sort_numbers_first_then_text_then_bytes_then_the_rest() -> None:
    ordered = [
        *(-float("inf"), -1, Decimal("-0.5"), 0, Fraction(1, 3), 0.5, True, 2, 1 << 70, float("inf"), float("nan")),
        *("", "A", "a", Text("b"), "é", "\ud800", "\U0001f600", b"", b"a", bytearray(b"b")),
        *(QueueKey(1), QueueKey(300), frozenset({1}), (1,), (2,)),
    ]
    shuffled = ordered.copy()
    random.Random(3).shuffle(shuffled)
    assert [repr(key) for key in sorted(shuffled, key=sort_key)] == [repr(key) for key in ordered]


def test_every_key_can_be_sorted_among_all() -> None:
    assert len(sorted(DISTINCT, key=sort_key)) == len(DISTINCT)


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


def test_no_flipped_bit_makes_another_prime_of_a_modulus() -> None:
    for modulus in {new_modulus() for _ in range(5)}:
        assert not [bit for bit in range(61) if keys_module.is_prime(modulus ^ 1 << bit)]  # more are out of range


@pytest.mark.parametrize("number", [2047, 3215031751, 341550071728321, 3825123056546413051])
def test_strong_pseudoprimes_are_not_taken_for_primes(number: int) -> None:
    assert not keys_module.is_prime(number)
    assert keys_module.is_prime((1 << 61) - 1)


USUAL = st.text(max_size=70) | st.binary(max_size=70) | st.integers(0, 1 << 33) | st.integers(-(1 << 65), 1 << 65)
NESTED = st.recursive(
    st.text(max_size=9) | st.integers(0, 300) | st.none() | st.booleans(),
    lambda inner: st.lists(inner, max_size=16).map(tuple),
)

DEEP: Any = ()
for _ in range(16):
    DEEP = (DEEP,)

HEADS = [bytes((first,)) for first in range(256)]
TAILS = st.text(max_size=40).map(str.encode) | st.binary(max_size=9)


def is_usual(key: Any) -> bool:
    if type(key) is tuple:
        return len(key) < 15 and all(map(is_usual, key))
    return type(key) in (str, bytes) or (type(key) is int and -(1 << 63) <= key < 1 << 63)


@given(USUAL | st.booleans() | st.none() | NESTED | st.floats(), st.integers(3, (1 << 60) - 1))
@example(tuple(range(14)), 7)
@example(tuple(range(15)), 7)
@example(DEEP, 7)
def test_the_core_locates_most_keys_as_python_does(key: Any, modulus: int) -> None:
    stored_key, shards = encode_key(key), ShardSet.__new__(ShardSet)
    home = keys_module.key_hash(stored_key, modulus)
    for count in (1, 3, 8):
        vars(shards)["stores"] = [*map(str, range(count))]
        found = keys_module.located(key, modulus, shards.stores)
        if is_usual(key) and len(stored_key) <= keys_module.DIGEST_ABOVE:
            assert found == (stored_key, home, shards.of(home))
        else:
            assert found is None


@given(USUAL | NESTED | st.none() | st.floats(), st.integers(3, (1 << 60) - 1), st.integers(0, 3))
def test_the_core_tells_most_keys_as_python_does(key: Any, modulus: int, collisions: int) -> None:
    stored_key = encode_key(key)
    place = keys_module.key_hash(stored_key, modulus) + collisions
    found = keys_module.key_at(place, stored_key, modulus)
    decoded = decode_key(stored_key)  # 0.0 is stored as 0
    if type(decoded) is not tuple and is_usual(decoded) and len(stored_key) <= keys_module.DIGEST_ABOVE:
        assert (found, type(found)) == (decoded, type(decoded))
    else:
        assert found is None
    assert keys_module.key_at(place ^ 4, stored_key, modulus) is None
    assert keys_module.key_at(place + (1 << 61), stored_key, modulus) is None


@given(
    st.binary(max_size=40) | st.binary(min_size=2, max_size=3) | st.tuples(st.sampled_from(HEADS), TAILS).map(b"".join)
)
def test_the_core_tells_no_key_that_is_not_in_its_form(stored_key: bytes) -> None:
    found = keys_module.key_at(keys_module.key_hash(stored_key, 101), stored_key, 101)
    if found is not None:
        assert encode_key(found) == stored_key


@pytest.mark.parametrize(
    "stored_key",
    [
        b"",
        b"\xd9\x01a",
        b"\xa1\xff",
        b"\xa2a",
        b"\xcc\x05",
        b"\xce\0\0\0\5",
        b"\xd3\0\0\0\0\xff\xff\xff\xff",
        b"\xff",
        b"\x05\0",
        None,
        "a",
    ],
)
def test_what_is_no_key_in_its_form_is_left_to_python(stored_key: Any) -> None:
    place = keys_module.key_hash(stored_key, 101) if isinstance(stored_key, bytes) else 0
    assert keys_module.key_at(place, stored_key, 101) is None
    assert keys_module.key_at(-1, b"\xa1a", 101) is None
    assert keys_module.key_at(0, b"\xa1a", 0) is None


def test_the_core_locates_no_other_key() -> None:
    class Text(str):
        __slots__ = ()

    for key in ("\ud800", 1 << 63, ~(1 << 63), Text("key"), 5.0, object(), "x" * 1_000, (5.0,), ("key", ["key"])):
        assert keys_module.located(key, 7, [1]) is None
    assert keys_module.located("key", 7, []) is None
    for modulus, stores in (("7", [1]), (7, None), (-1, [1])):
        with pytest.raises((TypeError, SystemError, OverflowError)):
            keys_module.located("key", modulus, stores)  # type: ignore[arg-type]
