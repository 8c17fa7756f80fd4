"""What tags cost: writes with none, one and eight, new entries and old ones, in one run, interleaved.

``python -m benchmarks.tags`` prints the medians and their ratio to writes without tags; with ``--evict`` it compares
the removal of 10,000 of many tagged entries with DiskCache's, which has an index on tags too. Exit status: 1 if it
takes longer than DiskCache's, beyond the noise.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import sys
import tempfile
import time
from typing import Any

from benchmarks.intervals import median_interval
from diskcache_like import Cache

ENTRIES = 20_000
PART = 500  # writes of one kind in a row
EVICTED = 10_000
EVICTIONS = 9
KINDS: dict[str, dict[str, Any]] = {
    "no tags": {},
    "one tag": {"tags": ["tag 1"]},
    "eight tags": {"tags": [f"tag {number}" for number in range(8)]},
}


def timed(cache: Cache, keys: list[str], options: dict[str, Any]) -> float:
    """Return the microseconds of one write."""
    values = [os.urandom(16) for _ in keys]  # SQLite would skip a page that stays the same
    start = time.perf_counter()
    for key, value in zip(keys, values, strict=True):
        cache.set(key, value, **options)
    return (time.perf_counter() - start) / len(keys) * 1e6


def writes(directory: str) -> None:
    """Print what writes cost."""
    keys = [f"key {number}" for number in random.Random(1).sample(range(10 * ENTRIES), ENTRIES)]
    caches = {kind: Cache(f"{directory}/{kind}") for kind in KINDS}
    for title, parts in (
        ("new entry", [keys[start : start + PART] for start in range(0, ENTRIES, PART)]),
        ("replaced, same tags", [random.sample(keys, PART) for _ in range(ENTRIES // PART)]),
    ):
        found: dict[str, list[float]] = {kind: [] for kind in KINDS}
        for part in parts:
            for kind, options in KINDS.items():
                found[kind].append(timed(caches[kind], part, options))
        base = statistics.median(found["no tags"])
        for kind, times in found.items():
            middle = statistics.median(times)
            print(f"{title:20} {kind:10} {middle:7.2f} us  {middle / base:5.2f}")
    for cache in caches.values():
        cache.close()


def evictions(directory: str, entries: int) -> bool:
    """Print how long it takes to remove 10,000 entries by their tag, and tell whether that is longer than DiskCache."""
    import diskcache

    ours = Cache(f"{directory}/ours", size_limit=1 << 40, eviction_policy="none")
    theirs = diskcache.Cache(f"{directory}/theirs", size_limit=1 << 40, eviction_policy="none", tag_index=True)
    for cache in (ours, theirs):
        with cache.transact():
            for number in range(entries):
                cache.set(number, number, tag=f"tag {number % (entries // EVICTED)}")
    times: dict[str, list[float]] = {"diskcache_like": [], "DiskCache": []}
    for number in range(min(EVICTIONS, entries // EVICTED)):
        for name, cache in (("diskcache_like", ours), ("DiskCache", theirs))[:: 1 if number % 2 else -1]:
            start = time.perf_counter()
            count = cache.evict(f"tag {number}")
            times[name].append(time.perf_counter() - start)
            assert count == EVICTED
    ours.close()
    theirs.close()
    for name, seconds in times.items():
        print(f"{name:15} {EVICTED:,} of {entries:,}: {statistics.median(seconds) * 1e3:8.1f} ms")
    low, high, coverage = median_interval([one / other for one, other in zip(*times.values(), strict=True)])
    print(f"of DiskCache's time: {low:.2f} to {high:.2f} ({coverage:.0%})")
    return low > 1


def main() -> int:
    """Run what is asked for, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--evict", type=int, metavar="ENTRIES", help="compare evictions among so many entries")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        if options.evict:
            return int(evictions(directory, options.evict))
        writes(directory)
    return 0


if __name__ == "__main__":
    sys.exit(main())
