"""The hot layer by itself: what is valid, what a hit leaves behind, and what is kept, with a stand-in for the store."""

from __future__ import annotations

from typing import Any, cast

import pytest

from diskcache_like.coherence.generations import Header
from diskcache_like.encoding import keys
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
        self.uses: Any = [0] * PRIME
        self.header: Any = [0] * 128
        self.slot_prime = PRIME


class Bench:
    """A hot layer with a clock and a store that the test sets."""

    def __init__(self, limit: int = LIMIT) -> None:
        self.now = 0.0
        self.shard = Shard()
        self.counters = [0, 0]
        self.hot = HotLayer(limit, lambda: self.now, self.counters)

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


def test_a_key_without_an_entry_is_a_negative_hit(bench: Bench) -> None:
    bench.hot.count(True)
    bench.hot.keep_missing("key", (b"key", HASH, cast(EntryStore, bench)), 2)
    assert bench.look("key") is NEGATIVE_HIT
    assert bench.counters == [0, 1]


def test_an_unhashable_key_is_kept_by_its_stored_bytes(bench: Bench) -> None:
    bench.keep([1], "value")
    assert bench.hot.probe([1]) is None
    entry = bench.hot.probe(keys.EncodedKey(b"[1]"))
    assert entry is not None
    assert bench.hot.hit(entry) == "value"


@pytest.mark.parametrize(
    ("policy", "counts", "noted", "counted"),
    [
        ("least-recently-stored", False, 0, 0),
        ("least-recently-stored", True, 0, 1),
        ("least-recently-used", False, 2 * 5 + 1, 0),
        ("least-frequently-used", False, 1, 0),
        ("least-frequently-used", True, 1, 1),
    ],
)
def test_a_hit_leaves_what_the_policy_goes_by(
    bench: Bench, policy: str, counts: bool, noted: int, counted: int
) -> None:
    bench.shard.header[Header.TICK] = 5
    bench.hot.mark_for(policy_named(policy))
    bench.hot.count(counts)
    bench.keep("key", "value")
    assert bench.look("key") == "value"
    assert bench.shard.uses == [noted if slot == SLOT else 0 for slot in range(PRIME)]
    assert bench.counters == [counted, 0]


def test_a_probe_leaves_nothing(bench: Bench) -> None:
    bench.hot.mark_for(policy_named("least-frequently-used"))
    bench.hot.count(True)
    bench.keep("key", "value")
    entry = bench.hot.probe("key")
    assert entry is not None
    assert (entry[6], bench.shard.uses[SLOT], bench.counters) == ([0], 0, [0, 0])


def test_nothing_is_kept_without_a_limit() -> None:
    bench = Bench(limit=0)
    bench.keep("key", "value")
    assert bench.hot.entries == {}
    bench.hot.resize(LIMIT)
    bench.keep("key", "value")
    assert bench.look("key") == "value"
