"""A cache at its size limit: what a set takes there, beside the peer. Requests follow Zipf's law; a miss is set."""

from __future__ import annotations

from itertools import islice
from statistics import median
from time import perf_counter_ns

from benchmarks.measure import Calls, ratios
from benchmarks.peers.spec import Subject
from benchmarks.report.text import Table, duration
from benchmarks.traces.sources import zipf
from benchmarks.workloads.section import Findings, Run

LIMIT = 4 << 20
LOADS = ((200, 0.9), (1_000, 0.9), (1_000, 1.1))  # bytes of a value, and the exponent
SHOWN = ("p50", "p99", "p999", "max")


def full(run: Run) -> Findings:
    """Measure the sets of a full cache; of each number, the ratio of a repetition is that of the worst load."""
    findings, worst = Findings(), dict[str, list[list[float]]]()
    for length, skew in LOADS:
        found: dict[str, list[Calls]] = {role: [] for role in run.pair}
        title = f"Sets under a limit of 4 MiB, values of {length:,} B, Zipf {skew}"
        for number, role in run.turns(run.options.repeats, list(run.pair), f"{length} B, Zipf {skew}: "):
            directory = run.workspace.fresh("full")
            with run.pair[role].having(size_limit=LIMIT).opened(directory) as subject:
                found[role].append(Calls.of(_sets(subject, length, skew, number, run.options.writes), run.costs.clock))
            run.workspace.discard(directory)
        table = Table(title, ("subject", "p50", "p99", "p99.9", "slowest"))
        for role, spec in run.pair.items():
            medians = (median(getattr(one, name) for one in found[role]) for name in SHOWN)
            table.rows.append((spec.label, *map(duration, medians)))
        table.notes.append("Medians of interleaved repetitions.")
        findings.tables.append(table)
        for name in SHOWN:
            peer, ours = ([getattr(one, name) for one in found[role]] for role in ("peer", "ours"))
            worst.setdefault(name, []).append(ratios(peer, ours))
        worst.setdefault("ms", []).append([one.p999 / 1e6 for one in found["ours"]])
    for name in SHOWN:
        findings.measured[f"full_{name}"] = [min(each) for each in zip(*worst[name], strict=True)]
    findings.measured["full_p999_ms"] = [max(each) for each in zip(*worst["ms"], strict=True)]
    return findings


def _sets(subject: Subject, length: int, skew: float, seed: int, requests: int) -> list[int]:
    """Ask for keys, and set those that miss; return how long each set took."""
    found = list[int]()
    for number, key in enumerate(islice(zipf(skew, seed), requests)):
        name = f"key:{key}"
        if subject.get(name) is None:
            value = f"{seed}:{number}:".ljust(length, "v")
            began = perf_counter_ns()
            subject.set(name, value)
            found.append(perf_counter_ns() - began)
    return found
