"""The hot layer by itself: what is valid, what a hit leaves behind, and what is kept, with a stand-in for the store."""

from __future__ import annotations

import copy
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import pytest

from diskcache_like.coherence._native import Counters, Marks, Words
from diskcache_like.coherence.counts import HOT, MISSES
from diskcache_like.coherence.generations import HEADER_WORDS, LEAST_MARKS, PAGE, UNREAD_MARKS, Header
from diskcache_like.disk.payloads import HITS, Kept, fresh
from diskcache_like.encoding import keys
from diskcache_like.encoding.copying import copier_of
from diskcache_like.entries.hot import NEGATIVE_HIT, HotLayer
from diskcache_like.settings.policies import policy_named
from diskcache_like.storage.interface import EntryStore

PRIME = 7
SLOT = 3
HASH = PRIME + SLOT
LIMIT = 1 << 20


class Shard:
    """Words that nobody maps."""

    def __init__(self) -> None:
        self.slots: Any = [2] * PRIME
        memory = bytearray(PAGE + 4 * LEAST_MARKS)
        self.header = Words(memory, 0, HEADER_WORDS)
        self.marks = Marks(memory, PAGE, PRIME)
        self.row = bytearray(8 * 64 * 8)
        counters = Counters()
        counters.attach(self.row, 0, len(self.row) // 8)
        self.marks.count_in(counters, {b"": 0})
        self.slot_prime = PRIME


class Bench:
    """A hot layer with a clock and a store that the test sets."""

    def __init__(self, limit: int = LIMIT) -> None:
        self.now = 0.0
        self.shard = Shard()
        self.hot = HotLayer(limit, lambda: self.now)

    @property
    def counted(self) -> tuple[int, int]:
        """Return hits and misses."""
        row = memoryview(self.shard.row).cast("Q")
        return row[HOT], row[MISSES]

    def keep(self, key: Any, value: Any, expire: float | None = None, decode: Any = None) -> None:
        self.hot.keep(key, (repr(key).encode(), HASH, cast(EntryStore, self)), 2, expire, (value, decode), 10)

    def look(self, key: Any) -> Any:
        entry = self.hot.probe(key)
        return "nothing" if entry is None else self.hot.hit(entry)


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_an_entry_counts_while_its_slot_is_the_same(bench: Bench) -> None:
    bench.keep("key", "value")
    assert bench.look("key") == "value"
    bench.shard.slots[SLOT] = 3  # a write is under way
    assert bench.look("key") == "nothing"
    bench.shard.slots[SLOT] = 4
    assert bench.look("key") == "nothing"


def test_an_entry_counts_until_it_expires(bench: Bench) -> None:
    bench.keep("key", "value", expire=10.0)
    bench.now = 9.9
    assert bench.look("key") == "value"
    bench.now = 10.0
    assert bench.look("key") == "nothing"


def test_a_payload_is_decoded_for_each_hit(bench: Bench) -> None:
    bench.keep("key", b"12", decode=lambda payload: [*payload])
    assert bench.look("key") == [49, 50]
    assert bench.look("key") is not bench.look("key")


VALUE = [1, {"a": [2]}]
_, DECODED_SIZE = copier_of(copy.deepcopy(VALUE))


class Decoder:
    """Counts how often it makes a value."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, _: bytes) -> Any:
        self.calls += 1
        return copy.deepcopy(VALUE)


def test_a_list_is_copied_after_some_hits_and_each_caller_has_one_of_its_own(bench: Bench) -> None:
    decode = Decoder()
    bench.keep("key", Kept(b"payload", decode), decode=fresh)
    for _ in range(2 * HITS):
        found = bench.look("key")
        assert found == VALUE
        found[1]["a"].append(3)
        found.clear()
    assert decode.calls == HITS


def test_a_value_that_is_kept_decoded_is_charged_with_its_size(bench: Bench) -> None:
    bench.keep("key", Kept(b"payload", Decoder()), decode=fresh)
    before = bench.hot.size
    for _ in range(HITS - 1):
        bench.look("key")
    assert bench.hot.size == before
    bench.look("key")
    assert bench.hot.size == before + DECODED_SIZE
    bench.look("key")
    assert bench.hot.size == before + DECODED_SIZE
    bench.hot.discard("key")
    assert bench.hot.size == 0


def test_a_value_that_is_too_large_when_decoded_is_decoded_for_each_hit() -> None:
    bench, decode = Bench(64 * DECODED_SIZE), Decoder()
    bench.keep("key", Kept(b"payload", decode), decode=fresh)
    before = bench.hot.size
    assert [bench.look("key") for _ in range(2 * HITS)] == [VALUE] * 2 * HITS
    assert (decode.calls, bench.hot.size) == (2 * HITS, before)


def test_values_that_are_kept_decoded_make_others_go() -> None:
    bench = Bench(64 * (DECODED_SIZE + 1000))
    keys_ = range(200)
    for key in keys_:
        bench.keep(key, Kept(b"payload", Decoder()), decode=fresh)
        for _ in range(HITS + 1):
            assert bench.look(key) == VALUE
    assert bench.hot.size <= bench.hot.limit
    assert 0 < sum(bench.look(key) == VALUE for key in keys_) < len(keys_)


def test_a_value_whose_entry_was_replaced_is_not_charged_to_the_new_one(bench: Bench) -> None:
    old, new = Kept(b"old", Decoder()), Kept(b"new", Decoder())
    bench.keep("key", old, decode=fresh)
    bench.keep("key", new, decode=fresh)
    before = bench.hot.size
    assert [fresh(old) for _ in range(HITS + 1)] == [VALUE] * (HITS + 1)
    assert bench.hot.size == before


def test_a_value_does_not_keep_its_layer_alive(bench: Bench) -> None:
    value, layer = Kept(b"payload", Decoder()), weakref.ref(bench.hot)
    bench.keep("key", value, decode=fresh)
    del bench.hot
    assert layer() is None
    assert [fresh(value) for _ in range(HITS + 1)] == [VALUE] * (HITS + 1)


def test_a_value_that_two_threads_decode_at_once_is_charged_once(bench: Bench) -> None:
    value = Kept(b"payload", Decoder())
    bench.keep("key", value, decode=fresh)
    before = bench.hot.size
    for _ in range(HITS - 1):
        bench.look("key")
    make, source = value.how
    assert make is None
    assert [value.decoded(source) for _ in range(2)] == [VALUE] * 2  # both have read `how` before either set it
    assert bench.hot.size == before + DECODED_SIZE
    decode = value._decode
    assert isinstance(decode, Decoder)
    calls = decode.calls
    assert bench.look("key") == VALUE
    assert decode.calls == calls


def test_threads_that_hit_one_value_each_have_one_of_their_own(bench: Bench) -> None:
    for number in range(50):
        bench.keep(number, Kept(b"payload", Decoder()), decode=fresh)

    def hit(_: int) -> bool:
        sound = True
        for number in range(50):
            found = bench.look(number)
            sound = sound and found == VALUE
            found[1]["a"].append(3)
        return sound

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(hit, range(40)))


def test_a_key_without_an_entry_is_a_negative_hit(bench: Bench) -> None:
    bench.hot.keep_missing("key", (b"key", HASH, cast(EntryStore, bench)), 2)
    assert bench.look("key") is NEGATIVE_HIT
    assert bench.counted == (0, 1)


def test_an_unhashable_key_is_kept_by_its_stored_bytes(bench: Bench) -> None:
    bench.keep([1], "value")
    assert bench.hot.probe([1]) is None
    entry = bench.hot.probe(keys.EncodedKey(b"[1]"))
    assert entry is not None
    assert bench.hot.hit(entry) == "value"


@pytest.mark.parametrize(
    ("policy", "noted"),
    [
        ("least-recently-stored", 0),
        ("least-recently-used", 5),
        ("second-chance", 5),
        ("least-frequently-used", 1),
    ],
)
def test_a_hit_leaves_what_the_policy_goes_by_and_is_counted(bench: Bench, policy: str, noted: int) -> None:
    bench.shard.header[Header.TICK] = 5
    bench.hot.mark_for(policy_named(policy))
    bench.keep("key", "value")
    assert bench.look("key") == "value"
    assert (bench.shard.marks[HASH], bench.shard.marks[4 * HASH]) == (noted, 0)
    assert bench.counted == (1, 0)


def test_a_probe_leaves_nothing(bench: Bench) -> None:
    bench.hot.mark_for(policy_named("least-frequently-used"))
    bench.keep("key", "value")
    entry = bench.hot.probe("key")
    assert entry is not None
    assert (entry[6][0], bench.shard.marks[HASH], bench.counted) == (0, 0, (0, 0))


@pytest.mark.parametrize("policy", ["least-recently-stored", "least-recently-used", "second-chance"])
def test_a_hit_on_what_a_server_has_keeps_it_in_memory_for_longer(bench: Bench, policy: str) -> None:
    bench.shard.marks = UNREAD_MARKS
    bench.hot.mark_for(policy_named(policy))
    bench.keep("key", "value")
    assert bench.look("key") == "value"
    assert bench.hot.entries["key"][6][0] != 0


def test_nothing_is_kept_without_a_limit() -> None:
    bench = Bench(limit=0)
    bench.keep("key", "value")
    assert bench.hot.entries == {}
    bench.hot.resize(LIMIT)
    bench.keep("key", "value")
    assert bench.look("key") == "value"
