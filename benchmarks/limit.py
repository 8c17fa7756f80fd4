"""Whether the size limit holds under writes, and what holding it costs.

Two caches get the same new keys in turn: one is full from the start, the other has no limit. After each write (untimed)
the volume that the cache reports is compared with the limit, and now and then what lies in the directory.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path

from benchmarks.measure import alternate, clock, ratios, summarise
from benchmarks.report import PERCENTILES, Table, percentile_cells, size
from benchmarks.section import Findings, Run
from benchmarks.subjects import Spec, Subject, feature

LIMITS = (2**20, 16 * 2**20)
UNLIMITED = 2**40
SMALL_VALUE = b"s" * 1_000
LARGE_VALUE = b"l" * 64_000
LARGE_EVERY = 100
CHUNK = 250
WALK_EVERY = 125
JOURNALS = ("-wal", "-shm", "-journal", ".gen", ".buffer", ".lock")


@dataclass
class Peak:
    """The largest sizes seen."""

    volume: int = 0
    data: int = 0
    everything: int = 0


@dataclass
class Writer:
    """One cache under new keys, with its times per repetition."""

    subject: Subject
    volume: Callable[[], int]
    directory: Path
    limit: int
    limited: bool
    written: int = 0
    peak: Peak = field(default_factory=Peak)
    samples: list[list[int]] = field(default_factory=list)

    def write(self, count: int, keep: list[int] | None = None) -> None:
        """Store `count` new keys, timing each; one in a hundred is large enough for a value file."""
        for number in range(self.written, self.written + count):
            value = SMALL_VALUE if number % LARGE_EVERY else LARGE_VALUE
            start = clock()
            self.subject.set(number, value)
            stop = clock()
            if keep is not None:
                keep.append(stop - start)
                self.watch(number)
        self.written += count

    def watch(self, number: int) -> None:
        """Compare what is stored now with the peak so far."""
        self.peak.volume = max(self.peak.volume, self.volume())
        # Without a limit there are many files to walk over, and nothing to compare them with.
        if self.limited and number % WALK_EVERY == 0:
            data, everything = disk_usage(self.directory)
            self.peak.data = max(self.peak.data, data)
            self.peak.everything = max(self.peak.everything, everything)

    def fill(self) -> None:
        """Write half as much again as the limit, so that a limited cache is full."""
        while self.written * len(SMALL_VALUE) < self.limit * 3 // 2:
            self.write(CHUNK)


def disk_usage(directory: Path) -> tuple[int, int]:
    """Return the bytes of databases and value files, and the bytes of everything in the directory."""
    data = everything = 0
    for folder, _, names in os.walk(directory):
        for name in names:
            try:
                found = (Path(folder) / name).lstat().st_size
            except FileNotFoundError:
                continue
            everything += found
            data += 0 if name.endswith(JOURNALS) else found
    return data, everything


def limit_for(writes: int) -> int:
    """Return a limit that so many writes replace at least once, within reason."""
    smallest, largest = LIMITS
    return min(max(writes * len(SMALL_VALUE) * 4 // 5, smallest), largest)


def fight(run: Run, spec: Spec) -> dict[str, Writer]:
    """Write under a full limit and without one, in alternating chunks."""
    full = limit_for(run.options.writes)
    chunks = -(-run.options.writes // (run.options.repeats * CHUNK))
    found: dict[str, Writer] = {}
    with ExitStack() as stack:
        for name, allowed in (("limited", full), ("unlimited", UNLIMITED)):
            directory = run.workspace.fresh(f"limit-{name}")
            subject = stack.enter_context(spec.having(size_limit=allowed).opened(directory))
            found[name] = Writer(subject, feature(subject, "volume"), directory, full, name == "limited")
            found[name].fill()
        for _ in range(run.options.repeats):
            for writer in found.values():
                writer.samples.append([])
            for _number, name in alternate(chunks, list(found)):
                found[name].write(CHUNK, found[name].samples[-1])
    run.workspace.discard(*(writer.directory for writer in found.values()))
    return found


def limit(run: Run) -> Findings:
    """Measure the subjects under a full limit; only ours has a budget."""
    findings = Findings(tables=[_cost_table(), _size_table(limit_for(run.options.writes))])
    for step, (role, spec) in enumerate(run.wanted.items()):
        run.note(f"limit, {spec.name}", step / len(run.wanted))
        found = fight(run, spec)
        totals = {name: [float(sum(samples)) for samples in writer.samples] for name, writer in found.items()}
        costs = ratios(totals["limited"], totals["unlimited"])
        for name, writer in found.items():
            summary = summarise((sample for samples in writer.samples for sample in samples), run.costs.clock)
            shown = f"{statistics.median(costs):.2f}x" if name == "limited" else ""
            findings.tables[0].rows.append((spec.label, name, *percentile_cells(summary), shown))
        full, peak = found["limited"].limit, found["limited"].peak
        sizes = (size(peak.volume), over(peak.volume, full), size(peak.data), over(peak.data, full))
        findings.tables[1].rows.append((spec.label, *sizes, size(peak.everything)))
        findings.details[role] = {"cost": costs, "totals_ns": totals, "limit": full, "peak": asdict(peak)}
        if role == "ours":
            findings.measured["limit_cost"] = costs
            findings.measured["limit_overshoot"] = [(max(peak.volume, peak.data) / full - 1) * 100]
    return findings


def _cost_table() -> Table:
    columns = ("subject", "size_limit", "writes", *PERCENTILES, "per write, limited / unlimited")
    note = "the ratio compares whole repetitions, evictions included, not medians of calls"
    return Table(f"Writes of new keys, 1 KB each, every {LARGE_EVERY}th 64 KB", columns, notes=[note], left=2)


def _size_table(full: int) -> Table:
    notes = [
        f"volume() after every write, the directory after every {WALK_EVERY}th; the whole directory includes the",
        "write-ahead log, which the limit does not govern",
    ]
    columns = ("subject", "volume()", "over", "database + value files", "over", "whole directory")
    return Table(f"Largest size under a limit of {size(full)}", columns, notes=notes)


def over(found: int, full: int) -> str:
    """Write a size as its distance from the limit."""
    return f"{(found / full - 1) * 100:+.2f} %"
