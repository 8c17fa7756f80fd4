"""What encryption adds to a cold get of a dictionary of 10 KB.

The same values lie in three caches: in the clear, encrypted, and in the clear with every entry authenticated, which
encryption does as well. Each key is read from all three right after each other, so that whatever slows the machine down
slows all of them; a repetition's ratio is that of the medians over its keys.
"""

from __future__ import annotations

import random
import statistics
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from types import MappingProxyType
from typing import Any

from benchmarks.intervals import ratio_spread
from benchmarks.measure import clock, ratios
from benchmarks.peers.spec import BenchmarkError, feature, load_items
from benchmarks.report.summaries import confidence
from benchmarks.report.text import Table, between, duration
from benchmarks.workloads.section import Findings, Run
from benchmarks.workloads.values import SEED, keys_of
from diskcache_like.encoding.values import encode_value

ENTRIES = 100
SECRET = "a secret that encrypts nothing but a benchmark"
WAYS: Mapping[str, dict[str, Any]] = MappingProxyType(
    {"clear": {}, "encrypted": {"secret": SECRET, "encrypt": True}, "signed": {"secret": SECRET}}
)
LETTERS = "abcdefghijklmnopqrstuvwxyz "


def numbers(dice: random.Random) -> dict[str, float]:
    """Return a dictionary of numbers."""
    return {f"{number:04}": dice.gauss(20, 5) if number % 3 else dice.randrange(1 << 32) for number in range(800)}


def records(dice: random.Random) -> dict[str, dict[str, Any]]:
    """Return a dictionary of records with five fields."""
    return {
        f"{number:04}": {
            "id": number * 1000,
            "name": "".join(dice.choices(LETTERS, k=12)),
            "price": dice.gauss(20, 5),
            "active": dice.random() < 0.9,
            "tags": ["read", "write"],
        }
        for number in range(135)
    }


def texts(dice: random.Random) -> dict[str, str]:
    """Return a dictionary of ten texts, which is decoded in next to no time."""
    return {str(number): "".join(dice.choices(LETTERS, k=995)) for number in range(10)}


SHAPES: Mapping[str, Callable[[random.Random], dict[str, Any]]] = MappingProxyType(
    {"numbers": numbers, "records": records, "texts": texts}
)


def encrypted(run: Run) -> Findings:
    """Measure every shape of dictionary in every kind of cache, the hot layer off."""
    findings = Findings()
    table = Table(
        "Cold get of a dictionary of 10 KB, encrypted and in the clear",
        ("values", "bytes", "in the clear", "encrypted", "times", "interval", "signed"),
    )
    for number, (shape, make) in enumerate(SHAPES.items()):
        run.note(f"cold get, {shape}", number / len(SHAPES))
        dice = random.Random(f"{SEED} {shape}")
        items = {key: make(dice) for key in keys_of(ENTRIES)}
        found = findings.details[shape] = _measure(run, shape, items)
        times, signed = (ratio_spread(found[way], found["clear"]) for way in ("encrypted", "signed"))
        findings.measured[f"encrypted_{shape}"] = ratios(found["encrypted"], found["clear"])
        size = round(statistics.mean(len(encode_value(value)) for value in items.values()))
        medians = [duration(statistics.median(found[way])) for way in ("clear", "encrypted")]
        interval = between(times, lambda value: f"{value:.3f}")
        table.rows.append((shape, f"{size:,}", *medians, f"{times.median:.3f}x", interval, f"{signed.median:.2f}x"))
    table.notes.append(
        f"times: encrypted by in the clear, {confidence([times])}; signed: the same with every entry authenticated"
    )
    findings.tables.append(table)
    return findings


def _measure(run: Run, shape: str, items: Mapping[str, Any]) -> dict[str, list[float]]:
    """Return the median time of a get for each way and repetition."""
    found: dict[str, list[float]] = {way: [] for way in WAYS}
    rounds = max(run.options.operations // 5_000, 2)
    with ExitStack() as stack:
        caches = {
            way: stack.enter_context(run.cold["ours"].having(**settings).opened(run.workspace.fresh(f"{shape}-{way}")))
            for way, settings in WAYS.items()
        }
        feature(caches["encrypted"], "rotate")  # a subject that cannot encrypt may ignore that it should
        for subject in caches.values():
            load_items(subject, items.items())
            if wrong := [key for key, value in items.items() if subject.get(key) != value]:
                raise BenchmarkError(f"get({wrong[0]!r}) returned another value than was stored")
        gets = deque((way, subject.get) for way, subject in caches.items())
        for _ in range(run.options.repeats):
            times: dict[str, list[int]] = {way: [] for way in caches}
            for _ in range(rounds):
                gets.rotate()
                for key in items:
                    for way, get in gets:
                        start = clock()
                        get(key)
                        times[way].append(clock() - start)
            for way, one in times.items():
                found[way].append(statistics.median(one) - run.costs.clock)
    return found
