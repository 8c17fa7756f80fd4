"""What the design promises: the rows of its table of budgets, and how what was measured is judged.

A row is met or missed only if the whole interval that the true median lies in says so, so that none fails by chance.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.intervals import median_interval

AIM, MUST, UNCLEAR, MISSED, UNMEASURED = "aim met", "must met", "unclear", "MISSED", "not measured"


@dataclass(frozen=True)
class Budget:
    """One row: a ratio that must not be lower, or a cost that must not be higher, than `must`."""

    key: str
    section: str
    label: str
    must: float
    aim: float | None
    unit: str
    at_least: bool

    def keeps(self, value: float, bound: float | None) -> bool:
        """Tell whether `value` is on the right side of `bound`."""
        if bound is None or math.isnan(value):
            return False
        return value >= bound if self.at_least else value <= bound

    def show(self, value: float | None) -> str:
        """Write a value in the unit of the row."""
        if value is None:
            return "-"
        digits = 0 if float(value).is_integer() else 1 if abs(value) >= 10 else 2
        sign = "+" if self.unit == " %" and value > 0 else ""
        return f"{sign}{value:.{digits}f}{self.unit}"


@dataclass(frozen=True)
class Outcome:
    """What one row came to; `low` to `high` is the interval of the median, with its coverage."""

    budget: Budget
    value: float | None
    low: float | None
    high: float | None
    verdict: str
    coverage: float | None = None


def speed(key: str, section: str, label: str, must: float, aim: float | None) -> Budget:
    """Return a row for how many times faster the subject must be."""
    return Budget(key, section, label, must, aim, "x", True)


def cost(key: str, section: str, label: str, must: float, aim: float | None, unit: str) -> Budget:
    """Return a row for what something may cost at most."""
    return Budget(key, section, label, must, aim, unit, False)


BUDGETS = (
    speed("hot_get", "operations", "hot get, p50, vs DiskCache", 25, 40),
    speed("cold_get", "operations", "cold get, p50, vs DiskCache", 1.2, 1.5),
    speed("set", "operations", "set, p50, vs DiskCache", 5, 8),
    speed("delete", "operations", "delete, p50, vs DiskCache", 4, 6),
    speed("classic_one", "classic", "90/9/1, 1 process, total time vs DiskCache", 7, 10),
    speed("classic_many", "classic", "90/9/1, 8 processes, total time vs DiskCache", 7, 10),
    speed("fanout_many", "fanout", "90/9/1, 8 processes, FanoutCache(8) vs DiskCache's", 3.5, 6),
    speed("set_tail_many", "classic", "set, mean of the slowest 1 %, 8 processes, vs DiskCache", 2, None),
    speed("get_many", "bulk", "get_many, per key, batches of 1,000, vs one by one (cold)", 4, 8),
    speed("set_many", "bulk", "set_many, per new key, batches of 1,000, vs set of DiskCache", 5, 8),
    speed("hot_get_memcached", "peers", "hot get, p50, vs Memcached", 60, 100),
    speed("set_memcached", "peers", "set, p50, vs Memcached", 1.3, 2),
    speed("set_redis", "peers", "set, p50, vs Redis", 4, 8),
    cost("lru", "policies", "LRU: hot get, over the default policy", 30, 10, " %"),
    cost("lfu", "policies", "LFU: hot get, over the default policy", 30, 10, " %"),
    cost("metrics", "policies", 'metrics: hot get, over metrics_level="off"', 10, 5, " %"),
    cost("open", "growth", "open an existing large cache and get one key (budget: 1 M entries)", 5, 2, " ms"),
    cost("len", "growth", "len of it", 1, None, " ms"),
    cost("growth_get", "growth", "cold get, large cache vs 10 k entries (budget: 1 M)", 2, 1.5, "x"),
    cost("growth_set", "growth", "set, large cache vs 10 k entries (budget: 1 M)", 2, 1.5, "x"),
    cost("growth_delete", "growth", "delete, large cache vs 10 k entries (budget: 1 M)", 2, 1.5, "x"),
    cost("encrypted_numbers", "encrypted", "encrypted: cold get of 10 KB of numbers, vs in the clear", 1.05, None, "x"),
    cost("encrypted_records", "encrypted", "encrypted: cold get of 10 KB of records, vs in the clear", 1.05, None, "x"),
    cost("encrypted_texts", "encrypted", "encrypted: cold get of 10 KB in 10 texts, vs in the clear", 1.05, None, "x"),
    speed("incr", "buffered", "incr, p50, vs DiskCache", 6, 10),
    speed("set_lmdb", "buffered", "set, p50, vs LMDB (sync=False)", 0.65, 1.1),
    speed("classic_lmdb", "buffered", "90/9/1, 8 processes, total time vs LMDB (sync=False)", 0.8, 1),
    cost("large_100k", "large", "cold get of 100 KB, verified, p50, vs DiskCache", 1.3, 1.1, "x"),
    cost("large_1m", "large", "cold get of 1 MB, verified, p50, vs DiskCache", 1.3, 1.1, "x"),
    cost("large_10m", "large", "cold get of 10 MB, verified, p50, vs DiskCache", 1.3, 1.1, "x"),
    cost("limit_cost", "limit", "writes under a full size_limit, per write, vs unlimited", 2, None, "x"),
    cost("limit_overshoot", "limit", "largest size over a full size_limit", 1, None, " %"),
    speed("full_p50", "full", "set in a full cache of 4 MiB, p50, vs DiskCache", 4, 6),
    speed("full_p99", "full", "the same, p99", 0.5, 1),
    speed("full_max", "full", "the same, slowest", 1, None),
    cost("full_p999_ms", "full", "the same, p99.9", 2, 1, " ms"),
    speed("mix_touch", "mixes", "touch, vs DiskCache", 2, 4),
    speed("mix_set_touch", "mixes", "set + touch", 2, 4),
    speed("mix_push_pull", "mixes", "push + pull", 1.5, 3),
    speed("mix_set_push_pull", "mixes", "set + push + pull", 1.5, 3),
    speed("mix_deque", "mixes", "Deque append + popleft", 1.5, 3),
    speed("mix_index", "mixes", "Index set + popitem", 1.5, 3),
    speed("mix_set_len", "mixes", "set, len every third", 2, 4),
    speed("mix_set_take", "mixes", "set, iterating 200 keys every twentieth", 2, 4),
    speed("mix_set_transact", "mixes", "set, transact of two every fifth", 2, 3),
    speed("mix_set_evict", "mixes", "set, evict of 50 by tag every fiftieth", 2, 3),
    speed("mix_set_big", "mixes", "set, a value of 20 KB every tenth", 2, 3),
    speed("mix_set_expiring", "mixes", "set with expire", 5, 6),
    speed("mix_set_tagged", "mixes", "set with tag", 5, 6),
    speed("mix_memoize_miss", "mixes", "memoize, all misses", 2, 3),
    speed("mix_threads", "mixes", "set by 4 threads, calls per second", 2, 4),
    speed("django_touch", "everyday", "DjangoCache.touch, vs DiskCache", 2, 3),
    speed("django_incr", "everyday", "DjangoCache.incr", 2, 3),
    speed("django_set_many", "everyday", "DjangoCache.set_many of 10", 2, 3),
    speed("django_get_or_set", "everyday", "DjangoCache.get_or_set of what is missing", 3, 5),
    speed("hot_answer", "everyday", "hot get of an answer of a language model", 3, 10),
    speed("hot_rows", "everyday", "hot get of 200 rows of a table", 3, 10),
    speed("hot_floats", "everyday", "hot get of 1,000 floats", 3, 10),
    speed("hot_words", "everyday", "hot get of 100 words", 3, 10),
    speed("stored_dict", "everyday", "set of a dict of 200 texts", 1.2, 2),
    speed("first_dict", "everyday", "first read of a dict of 200 texts", 1.2, 2),
    speed("first_plain", "everyday", "first read of what another handle wrote", 1.3, 2),
    speed("first_expiring", "everyday", "the same with an expiry", 1.3, 2),
    speed("first_tagged", "everyday", "the same with a tag", 1.3, 2),
    speed("first_fanout", "everyday", "the same with an expiry, FanoutCache", 1.3, 2),
    speed("cold_100", "everyday", "get that memory cannot answer, 100 B", 1.3, 1.5),
    speed("cold_1k", "everyday", "get that memory cannot answer, 1 KB", 1.3, 1.5),
    speed("cold_10k", "everyday", "get that memory cannot answer, 10 KB", 1, 1.5),
    speed("array_1m", "everyday", "the same of a NumPy array of 1 MB", 1, 2),
    speed("array_10m", "everyday", "the same of a NumPy array of 10 MB", 1, 2),
    speed("threads_2_p50", "everyday", "set by 2 threads, p50", 2, 4),
    speed("threads_2_p99", "everyday", "set by 2 threads, p99", 1, 2),
    speed("threads_4_p50", "everyday", "set by 4 threads, p50", 2, 4),
    speed("threads_4_p99", "everyday", "set by 4 threads, p99", 1, 2),
    speed("threads_8_p50", "everyday", "set by 8 threads, p50", 2, 4),
    speed("threads_8_p99", "everyday", "set by 8 threads, p99", 1, 2),
    speed("import", "everyday", "import of the package", 0.6, 1),
    speed("open_small", "everyday", "first open of a small cache and a get", 1, None),
    speed("many_cache", "everyday", "8 processes, 90/9/1, whole run: Cache", 3, 5),
    speed("many_cache_expiring", "everyday", "the same with an expiry", 3, 5),
    speed("many_fanout_expiring", "everyday", "the same with an expiry, FanoutCache", 3, 5),
    speed("many_django", "everyday", "the same, DjangoCache, 100 keys", 3, 5),
    speed("many_django_1100", "everyday", "the same, DjangoCache, 1,100 keys", 3, 5),
    cost("awaited_hot_over", "awaited", "awaited: hot get, over a coroutine that does nothing", 0.35, None, " µs"),
    cost("awaited_hot", "awaited", "awaited: hot get, vs not awaited", 2.5, None, "x"),
    cost("awaited_cold", "awaited", "awaited: cold get, vs not awaited", 1.3, None, "x"),
    cost("awaited_set", "awaited", "awaited: set, vs not awaited", 1.3, None, "x"),
    cost("awaited_late", "awaited", "awaited: ticks beside 8 writers late at p99.9, over no cache", 1, None, " ms"),
    cost("machines_hot", "machines", "remote: hot get, vs a plain Cache", 1.5, None, "x"),
    cost("machines_set", "machines", "remote: set, not in the listener, vs redis-py", 1.5, None, "x"),
    cost("machines_set_listener", "machines", "remote: set, in the listener, vs redis-py", 1.5, None, "x"),
    cost("machines_seen_p50", "machines", "remote: a write seen on another machine, p50", 1, None, " ms"),
    cost("machines_seen_p99", "machines", "remote: a write seen on another machine, p99", 10, None, " ms"),
    speed("machines_large", "machines", "remote: 100 KB from the local disk, vs redis-py", 5, None),
    cost("machines_stall", "machines", "remote: longest read while 1,000 entries change", 20, None, " ms"),
)


def assess(measured: Mapping[str, Sequence[float]], budgets: Sequence[Budget] = BUDGETS) -> list[Outcome]:
    """Return the outcome of every row."""
    return [_assessment(budget, measured.get(budget.key, ())) for budget in budgets]


def of_sections(names: Collection[str]) -> list[Budget]:
    """Return the rows that some sections measure."""
    return [budget for budget in BUDGETS if budget.section in names]


def _assessment(budget: Budget, values: Sequence[float]) -> Outcome:
    if not values:
        return Outcome(budget, None, None, None, UNMEASURED)
    if any(map(math.isnan, values)):
        return Outcome(budget, math.nan, None, None, MISSED)
    low, high, coverage = median_interval(values)
    best, worst = (high, low) if budget.at_least else (low, high)
    if budget.keeps(worst, budget.must):
        verdict = AIM if budget.keeps(worst, budget.aim) else MUST
    else:
        verdict = UNCLEAR if budget.keeps(best, budget.must) else MISSED
    return Outcome(budget, statistics.median(values), low, high, verdict, coverage)
