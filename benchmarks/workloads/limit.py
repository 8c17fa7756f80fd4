"""Whether the size limit holds under writes, and what holding it costs.

Two caches get the same new keys in turn: one is full from the start, the other has no limit. After each write (untimed)
the volume that the cache reports is compared with the limit, and now and then what lies in the directory.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.measure import Calls, alternate, clock, ratios
from benchmarks.peers.spec import Spec, Subject, feature
from benchmarks.report.text import PERCENTILES, Table, size
from benchmarks.workloads.section import Findings, Run, percentile_cells

LIMITS = (2**20, 16 * 2**20)
UNLIMITED = 2**40
SMALL_VALUE = b"s" * 1_000
LARGE_VALUE = b"l" * 64_000
LARGE_EVERY = 100
CHUNK = 250
WALK_EVERY = 125
JOURNALS = ("-wal", "-shm", "-journal", ".gen", ".buffer", ".lock")


@dataclass
class Writer:
    """One cache under new keys, with its times per repetition, and the largest sizes seen of a limited one."""

    subject: Subject
    volume: Callable[[], int]
    directory: Path
    limited: bool
    written: int = 0
    peak: dict[str, int] = field(default_factory=lambda: {"volume": 0, "data": 0, "everything": 0})
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
                self._watch(number)
        self.written += count

    def _watch(self, number: int) -> None:
        """Compare what is stored now with the peak so far."""
        seen = {"volume": self.volume()}
        # Without a limit there are many files to walk over, and nothing to compare them with.
        if self.limited and number % WALK_EVERY == 0:
            seen["data"], seen["everything"] = disk_usage(self.directory)
        for name, found in seen.items():
            self.peak[name] = max(self.peak[name], found)


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


def fight(run: Run, spec: Spec, full: int) -> dict[str, Writer]:
    """Write under a full limit and without one, in alternating chunks."""
    chunks = -(-run.options.writes // (run.options.repeats * CHUNK))
    found: dict[str, Writer] = {}
    with ExitStack() as stack:
        for name, allowed in (("limited", full), ("unlimited", UNLIMITED)):
            directory = run.workspace.fresh(f"limit-{name}")
            subject = stack.enter_context(spec.having(size_limit=allowed).opened(directory))
            found[name] = Writer(subject, feature(subject, "volume"), directory, name == "limited")
            while found[name].written * len(SMALL_VALUE) < full * 3 // 2:  # so that a limited cache is full
                found[name].write(CHUNK)
        for _ in range(run.options.repeats):
            for writer in found.values():
                writer.samples.append([])
            for _number, name in alternate(chunks, list(found)):
                found[name].write(CHUNK, found[name].samples[-1])
    run.workspace.discard(*(writer.directory for writer in found.values()))
    return found


def limit(run: Run) -> Findings:
    """Measure the subjects under a full limit; only ours has a budget."""
    full = limit_for(run.options.writes)
    columns = ("subject", "size_limit", "writes", *PERCENTILES, "per write, limited / unlimited")
    costs_table = Table(f"Writes of new keys, 1 KB each, every {LARGE_EVERY}th 64 KB", columns, left=2)
    costs_table.notes.append("the ratio compares whole repetitions, evictions included, not medians of calls")
    sizes_table = Table(
        f"Largest size under a limit of {size(full)}",
        ("subject", "volume()", "over", "database + value files", "over", "whole directory"),
    )
    sizes_table.notes += [
        f"volume() after every write, the directory after every {WALK_EVERY}th; the whole directory includes the",
        "write-ahead log, which the limit does not govern",
    ]
    findings = Findings([costs_table, sizes_table])
    for step, (role, spec) in enumerate(run.wanted.items()):
        run.note(f"limit, {spec.name}", step / len(run.wanted))
        found = fight(run, spec, full)
        totals = {name: [float(sum(samples)) for samples in writer.samples] for name, writer in found.items()}
        costs = ratios(totals["limited"], totals["unlimited"])
        for name, writer in found.items():
            every = Calls.of((sample for samples in writer.samples for sample in samples), run.costs.clock)
            shown = f"{statistics.median(costs):.2f}x" if name == "limited" else ""
            costs_table.rows.append((spec.label, name, *percentile_cells([every]), shown))
        peak = found["limited"].peak
        over = {name: (peak[name] / full - 1) * 100 for name in ("volume", "data")}
        sizes = [cell for name in over for cell in (size(peak[name]), f"{over[name]:+.2f} %")]
        sizes_table.rows.append((spec.label, *sizes, size(peak["everything"])))
        findings.details[role] = {"cost": costs, "totals_ns": totals, "limit": full, "peak": peak}
        if role == "ours":
            findings.measured |= {"limit_cost": costs, "limit_overshoot": [max(over.values())]}
    return findings
