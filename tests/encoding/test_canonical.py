"""Equal keys have equal bytes in every process, unequal keys never; what has no stable form is refused."""

from __future__ import annotations

import array
import collections
import datetime as dt
import functools
import itertools
import os
import pickle
import random
import re
import subprocess
import sys
import threading
import types
from decimal import Context, Decimal, FloatOperation, localcontext
from fractions import Fraction
from pathlib import Path
from typing import Any
from uuid import UUID, SafeUUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

import diskcache_like
from diskcache_like.encoding.keys import (
    KEY_DEPTH,
    KEY_SIZE_LIMIT,
    PrefixedQueueKey,
    QueueKey,
    decode_key,
    encode_key,
    encode_unbounded,
)
from diskcache_like.errors import KeyEncodeError, KeyTooLarge

from ..support.sample_keys import (
    DISTINCT,
    EQUAL,
    LONDON,
    TENTH,
    Caseless,
    LoudText,
    Noted,
    OddText,
    Plain,
    Point,
    hashable_leaves,
    keys,
    numbers,
    wrapped,
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


@pytest.mark.parametrize("group", EQUAL, ids=lambda group: type(group[0]).__name__)
def test_each_group_is_one_key(group: tuple[Any, ...]) -> None:
    assert {encode_key(key) for key in group} == {encode_key(group[0])}
    assert {encode_key((key, "x")) for key in group} == {encode_key((group[0], "x"))}


def test_a_subclass_that_hashes_otherwise_is_not_its_base() -> None:
    assert encode_key(OddText("a")) != encode_key("a")
    assert encode_key(LoudText("a")) != encode_key("a")


def test_unequal_keys_have_bytes_of_which_none_begins_another() -> None:
    encoded = sorted(encode_key(key) for key in DISTINCT)
    for one, following in itertools.pairwise(encoded):
        assert not following.startswith(one)


def test_the_context_of_decimal_plays_no_part() -> None:
    numbers = [
        Decimal("1.5E+30"),
        Decimal("0.1000000001"),
        Decimal(TENTH),
        Fraction(1, 10**9),
        Decimal("-1E-400"),
    ]
    encoded = [encode_key(number) for number in numbers]
    with localcontext(Context(prec=2, Emax=3, Emin=-3, capitals=0, traps=[FloatOperation])):
        assert [encode_key(number) for number in numbers] == encoded


# Other processes.

SHARED = [
    {"b": {3, "x", (1, "y"), None, b"z"}, "a": frozenset("hello"), 3: 1.5, None: [Decimal("0.1")]},
    (
        types.SimpleNamespace(b={"x", "y", "z"}, a=1),
        Path("a/b"),
        UUID(int=9),
        SafeUUID.safe,
        re.compile("x", re.IGNORECASE),
    ),
    (int, len, collections.OrderedDict, dt.datetime(2020, 6, 1, 12, tzinfo=LONDON), range(9), "\ud800", float("nan")),
    collections.deque([{"p", "q", "r"}, 1 << 90]),
]


def test_another_process_with_other_hashes_makes_the_same_bytes() -> None:
    script = (
        "import pickle, sys; from diskcache_like.encoding.keys import encode_key\n"
        "print([encode_key(key).hex() for key in pickle.loads(sys.stdin.buffer.read())])"
    )
    expected = repr([encode_key(key).hex() for key in SHARED])
    root = str(Path(diskcache_like.__file__).parents[1])
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
        (Sealed(), r"test_canonical\.Sealed.*sealed"),
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


def test_a_field_that_cannot_be_compared_is_named() -> None:
    for key in (Caseless(5), object.__new__(Noted), object.__new__(Point)):  # type: ignore[arg-type]
        with pytest.raises(KeyEncodeError, match=rf"{type(key).__name__} has a field '\w+' that its == cannot compare"):
            encode_key(key)


def test_open_files_and_local_things_are_refused() -> None:
    class Local:
        pass

    def local() -> None:
        pass

    with open(os.devnull) as file:
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


def test_the_depth_is_exact() -> None:
    key: Any = ()
    for _ in range(KEY_DEPTH - 1):
        key = (key,)
    assert decode_key(encode_key(key)) == key
    with pytest.raises(KeyEncodeError, match=f"more than {KEY_DEPTH} deep"):
        encode_key(((key,),))


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
    assert len(encode_unbounded(key)) > 1 << 20


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


# numpy, without needing it.


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
