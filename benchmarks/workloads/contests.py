"""The sections that compare subjects in workloads of `calls`: who takes part, and which numbers the budgets are about.

The harness measures them like any other scenario: total times in a pass without a clock inside, percentiles in a second
one in which each call is timed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.measure import awake, ratios, time_once
from benchmarks.peers.catalogue import SUBJECTS, Candidate
from benchmarks.peers.spec import SPECS, BenchmarkError, Spec, Subject, feature
from benchmarks.report.record import Record, ScenarioFacts, Trial
from benchmarks.report.tables import scenario_tables
from benchmarks.report.text import Table, duration, size
from benchmarks.workloads.calls import READS, WRITES, BulkOrEach, Fill, Hits, Mix, Singles, Workload
from benchmarks.workloads.harness import Amounts, Harness
from benchmarks.workloads.scenarios import Scenario, always
from benchmarks.workloads.section import Findings, Run
from benchmarks.workloads.values import Bytes, key_of

ENDLESS = 600.0  # seconds; a pass ends with its script
ENTRIES, SMALL = 10_000, 100
OPENS = 5  # in each repetition
WRITTEN = ("set", "incr", "delete", "insert")
POLICIES: dict[str, dict[str, Any]] = {
    "default": {},
    "lru": {"eviction_policy": "least-recently-used"},
    "lfu": {"eviction_policy": "least-frequently-used"},
    "off": {"metrics_level": "off"},
}
# The bytes of a value and how many there are, by what the budgets call them.
LARGE = {"large_100k": (100_000, 50), "large_1m": (1_000_000, 20), "large_10m": (10_000_000, 4)}
LARGE_OPERATIONS, LARGE_SECONDS = 200, 0.2
UNLIMITED = 2**40
WALK_EVERY = 125
JOURNALS = ("-wal", "-shm", "-journal", ".gen", ".buffer", ".lock")
PEER_SECONDS = 0.1  # some sync each write


def contest(
    run: Run,
    findings: Findings,
    scenario: Scenario,
    candidates: Mapping[str, Candidate],
    operations: int | None = None,
    seconds: float = ENDLESS,
    then: Callable[[Mapping[str, Path]], None] | None = None,
) -> Record:
    """Let candidates take turns in one scenario, and tell what ours does wrong, which no speed makes up for.

    `then` is called while the directories of the candidates are still there.
    """
    name, options = scenario.facts.title, run.options
    amounts = Amounts(options.repeats, operations or options.operations, seconds, options.processes)
    facts = {subject: one.facts for subject, one in candidates.items()}
    record = Record({}, asdict(amounts), facts, {name: scenario.facts})
    harness = Harness(record, amounts, run.costs, run.workspace, run.note, candidates)
    for _ in harness.run({name: scenario}, list(candidates)):
        findings.tables += scenario_tables(record, name)
        if then:
            then(harness.places)
    findings.details[name] = {"trials": [asdict(one) for one in record.trials]}
    ours = {subject for subject, one in candidates.items() if one.spec.module == run.ours.module}
    for one in record.absences:
        if one.subject in ours:
            findings.problems.append(f"{candidates[one.subject].title}: {one.reason}")
        elif not one.failed:
            findings.skipped.append(f"{candidates[one.subject].title} skipped: {one.reason}")
    for what in ("wrong", "unexpected"):
        if count := sum(getattr(one, what) for one in record.trials if one.subject in ours):
            findings.problems.append(f"{run.ours.name}: {count} {what} answers in {name}")
    return record


def scenario_of(title: str, workload: Workload, candidates: Mapping[str, Candidate], processes: int = 1) -> Scenario:
    """Return a scenario without steps."""
    facts = ScenarioFacts(title, "What does a call cost?")
    return Scenario(facts, always(workload), tuple(candidates), processes=lambda step, most: processes)


def candidates_of(specs: Mapping[str, Spec], told: str = "{label}") -> dict[str, Candidate]:
    """Return subjects as candidates; `told` says how each is shown."""
    return {name: Candidate(one, told.format(label=one.label, name=name)) for name, one in specs.items()}


def quotients(
    record: Record,
    measure: Callable[[Trial], float],
    top: str = "peer",
    bottom: str = "ours",
    over: Callable[[Trial], float] | None = None,
    step: int | None = None,
) -> list[float]:
    """Return one subject's number by another's, per repetition; none where one of the two failed.

    `over`: the number of the other one, if it is not the same.
    """
    (name,) = record.scenarios
    found = record.of(name, step)
    tops, bottoms = found.get(top, []), found.get(bottom, [])
    if len(tops) != len(bottoms):
        return []
    return ratios([measure(one) for one in tops], [(over or measure)(one) for one in bottoms])


def p50(call: str) -> Callable[[Trial], float]:
    """Return what tells the median of one kind of call."""
    return lambda trial: trial.calls[call].p50


def mean_of_hits(trial: Trial) -> float:
    """Return the mean of hits, in which batched work counts that most of them leave to one."""
    return trial.calls["hits"].total / trial.calls["hits"].count


def faster(record: Record) -> list[float]:
    """Return how many times shorter our total time was, per repetition."""
    return quotients(record, lambda trial: trial.seconds)


def operations(run: Run) -> Findings:
    """Compare single calls on ten thousand entries, and hits in memory; a cold get finds no hot layer."""
    findings, pair = Findings(), candidates_of(run.pair)
    hits = contest(run, findings, scenario_of("Hot gets of 100 keys, in blocks", Hits(), pair), pair)
    three = pair | candidates_of({"cold": run.cold["ours"]}, "{label}, no hot layer")
    title = f"Single calls, {ENTRIES:,} entries, values of 100 bytes"
    singles = contest(run, findings, scenario_of(title, Singles(ENTRIES), three), three)
    findings.measured = {
        "hot_get": quotients(hits, p50("hits")),
        "cold_get": quotients(singles, p50("get"), bottom="cold"),
        **{call: quotients(singles, p50(call)) for call in ("set", "delete")},
    }
    return findings


def policies(run: Run) -> Findings:
    """Measure what eviction policies and counts of all processes add to a hot get."""
    findings = Findings()
    some = candidates_of({name: run.ours.having(**one) for name, one in POLICIES.items()}, "{label}, {name}")
    record = contest(run, findings, scenario_of("Hot gets under policies", Hits(), some), some)
    for name in POLICIES:
        pair, key = (("default", "off"), "metrics") if name == "off" else ((name, "default"), name)
        over = [(ratio - 1) * 100 for ratio in quotients(record, mean_of_hits, *pair)]
        findings.measured |= {} if name == "default" else {key: over}
    return findings


def bulk(run: Run) -> Findings:
    """Compare `get_many` and `set_many` with calls one by one; what is read is not hot, what is written is new."""
    findings = Findings()
    three = candidates_of(run.pair) | candidates_of({"cold": run.cold["ours"]}, "{label}, no hot layer")
    record = contest(
        run, findings, scenario_of("A thousand keys at once and one by one", BulkOrEach(ENTRIES), three), three
    )
    findings.measured = {
        "get_many": quotients(record, p50("get_each"), "cold", "cold", p50("get_many")),
        "set_many": quotients(record, p50("set_each"), over=p50("set_many")),
    }
    return findings


@awake()
def peers(run: Run) -> Findings:
    """Measure single calls of every subject that is there, but for those of which nothing can be changed."""
    ours = {spec.module for spec in SPECS.values()}
    others = {name: one for name, one in SUBJECTS.items() if one.spec.module not in ours and not one.fixed}
    findings, every = Findings(), candidates_of(run.pair) | others
    hits, singles = (
        contest(run, findings, scenario_of(title, workload, every), every, seconds=PEER_SECONDS)
        for title, workload in (
            ("Gets of 100 keys in blocks, beside the peers", Hits()),
            (f"Single calls beside the peers, {SMALL} keys", Singles(SMALL)),
        )
    )
    for peer in ("memcached", "redis"):
        found = {"hot_get": quotients(hits, p50("hits"), peer), "set": quotients(singles, p50("set"), peer)}
        findings.measured |= {f"{call}_{peer}": ratios for call, ratios in found.items()}
    return findings


def buffered(run: Run) -> Findings:
    """Measure small writes with and without a write buffer, beside DiskCache and LMDB; then a usual mix beside LMDB.

    Calls that flush what waits to the database show in the totals and in the last percentiles.
    """
    findings, lmdb = Findings(), SUBJECTS["lmdb"]
    ours = run.ours.having(size_limit=1 << 40)
    every = candidates_of({"without": ours.having(write_buffer=0)}, "{label}, write_buffer=0")
    every |= candidates_of({"ours": ours, "peer": run.peer})
    mapped = replace(lmdb, spec=lmdb.spec.having(writemap=True), title=f"{lmdb.title}, writemap")
    every |= {"lmdb": lmdb, "mapped": mapped}
    for count in (SMALL, run.options.entries):
        scenario = scenario_of(f"Small writes, {count:,} keys", Singles(count, WRITTEN), every)
        record = contest(run, findings, scenario, every)
        if count == SMALL:
            findings.measured["incr"] = quotients(record, p50("incr"))
            findings.measured["set_lmdb"] = quotients(record, p50("set"), "lmdb")
    pair = {"ours": Candidate(run.ours, run.ours.label), "peer": lmdb}
    findings.measured["classic_lmdb"] = faster(usual_mix(run, findings, run.options.processes, pair, " beside LMDB"))
    return findings


def usual_mix(
    run: Run, findings: Findings, processes: int, candidates: Mapping[str, Candidate], also: str = ""
) -> Record:
    """Let some processes at once make DiskCache's own mix of calls."""
    many = f"{processes} process{'es' if processes > 1 else ''} x {run.options.operations:,} operations"
    scenario = scenario_of(f"Classic workload, 90/9/1, 100 keys{also}, {many}", Mix(), candidates, processes)
    return contest(run, findings, scenario, candidates)


def classic(run: Run) -> Findings:
    """Measure one process and many on the same cache."""
    findings, pair = Findings(), candidates_of(run.pair)
    findings.measured["classic_one"] = faster(usual_mix(run, findings, 1, pair))
    record = usual_mix(run, findings, run.options.processes, pair)
    findings.measured["classic_many"] = faster(record)
    # Not p99, which lies on the edge between calls that waited for a processor and those that did not.
    findings.measured["set_tail_many"] = quotients(record, lambda trial: trial.calls["set"].tail)
    return findings


def fanout(run: Run) -> Findings:
    """Measure many processes on a FanoutCache of 8 shards, where a call that waits too long for a shard is given up."""
    findings = Findings()
    pair = candidates_of({role: spec.having("FanoutCache", shards=8) for role, spec in run.pair.items()})
    record = usual_mix(run, findings, run.options.processes, pair, ", FanoutCache(shards=8)")
    findings.measured["fanout_many"] = faster(record)
    return findings


def large(run: Run) -> Findings:
    """Measure reads and writes of large values beside DiskCache, which verifies nothing; ours without its hot layer.

    Each trial has a process of its own, since the memory that one cache frees would serve the other.
    """
    findings, sizes, pair = Findings(), dict(LARGE.values()), candidates_of(run.cold)
    for name, shares in (("get", READS), ("set", WRITES)):
        scenario = Scenario(
            ScenarioFacts(f"Large values, {name}", "What do large values cost?", "bytes of a value"),
            lambda size, shares=shares: Mix(sizes[size], shares, Bytes(size)),  # type: ignore[misc]
            tuple(pair),
            steps=tuple(sizes),
        )
        record = contest(run, findings, scenario, pair, LARGE_OPERATIONS, LARGE_SECONDS)
        for key, (each, _) in LARGE.items() if name == "get" else ():
            findings.measured[key] = quotients(record, p50("get"), "ours", "peer", step=each)
    return findings


def growth(run: Run) -> Findings:
    """Measure a small and a large cache of each subject, the hot layer off, then how long opening the large one takes.

    Only ours has budgets.
    """
    findings, entries = Findings(), run.options.entries
    sizes = {"small": min(ENTRIES, max(entries // 10, 2)), "large": entries}
    every = {
        f"{role} {name}": Candidate(run.cold[role], f"{run.pair[role].label}, {count:,} entries")
        for role in run.wanted
        for name, count in sizes.items()
    }
    own = {name: Singles(sizes[name.split()[1]]) for name in every}
    scenario = replace(scenario_of("Cost against entries", Singles(entries), every), own=own)
    record = contest(run, findings, scenario, every, run.options.operations // 2, then=partial(opening, run, findings))
    for call in ("get", "set", "delete"):
        findings.measured[f"growth_{call}"] = quotients(record, p50(call), "ours large", "ours small")
    return findings


def opening(run: Run, findings: Findings, places: Mapping[str, Path]) -> None:
    """Time opening a large cache with one get, and `len`."""
    entries, repeats = run.options.entries, run.options.repeats
    found: dict[str, tuple[list[float], list[float]]] = {role: ([], []) for role in run.wanted}

    def opened(role: str, key: str) -> Subject:
        subject = run.pair[role].open(places[f"{role} large"])
        if subject.get(key) is None:
            raise BenchmarkError(f"{run.pair[role].name} lost {key!r}")
        return subject

    for number, role in run.turns(repeats, list(found), "opening, "):
        key = key_of(number * (entries // repeats) // 2 * 2)  # one that is never deleted
        for _ in range(OPENS):
            elapsed, subject = time_once(partial(opened, role, key))
            found[role][0].append(elapsed)
            found[role][1].append(time_once(feature(subject, "__len__"))[0])
            subject.close()
    table = Table(f"Opening a cache of {entries:,} entries", ("subject", "open + get", "len"))
    for role, times in found.items():
        table.rows.append((run.pair[role].label, *(duration(median(some)) for some in times)))
    table.notes.append(f"medians of {repeats * OPENS} openings in one process")
    findings.tables.append(table)
    findings.details["opening_ns"] = found
    for name, some in zip(("open", "len"), found["ours"], strict=True):
        findings.measured[name] = [value / 1e6 for value in some]


def limit(run: Run) -> Findings:
    """Measure what writes under a full size limit cost, and the largest sizes then; only ours has budgets."""
    findings, full = Findings(), limit_for(run.options.writes)
    sizes = {"limited": full, "unlimited": UNLIMITED}
    every = {
        f"{role} {name}": Candidate(spec.having(size_limit=most), f"{spec.label}, {name}")
        for role, spec in run.wanted.items()
        for name, most in sizes.items()
    }
    title = f"Writes of new keys, 1 KB each, every 100th 64 KB, in caches that hold {size(full)}"
    scenario = scenario_of(title, Fill(full * 3 // 2 // 1_000), every)
    record = contest(run, findings, scenario, every, -(-run.options.writes // run.options.repeats))
    cost = quotients(record, lambda trial: trial.calls["fill"].total, "ours limited", "ours unlimited")
    findings.measured["limit_cost"] = cost
    table = Table(f"Largest size under a limit of {size(full)}", ("subject", "volume()", "over", "on disk", "over"))
    for role, spec in run.wanted.items():
        peaks = largest(spec.having(size_limit=full), run.workspace.fresh("limit"), run.options.writes)
        over = [(peak / full - 1) * 100 for peak in peaks]
        cells = [cell for peak, share in zip(peaks, over, strict=True) for cell in (size(peak), f"{share:+.2f} %")]
        table.rows.append((spec.label, *cells))
        findings.details[role] = {"limit": full, "peaks": peaks}
        if role == "ours":
            findings.measured["limit_overshoot"] = [max(over)]
    table.notes.append(f"volume() after every write, database and value files after every {WALK_EVERY}th")
    findings.tables.append(table)
    return findings


def limit_for(writes: int) -> int:
    """Return a limit that so many writes replace at least once, within reason."""
    return min(max(writes * 800, 2**20), 16 * 2**20)


def largest(spec: Spec, directory: Path, writes: int) -> tuple[int, int]:
    """Write new keys into a cache with a limit; return the largest volume that it told, and that was found on disk."""
    told = found = 0
    with spec.opened(directory) as subject:
        volume = feature(subject, "volume")
        for number in range(writes):
            subject.set(number, Fill.value(number))
            told = max(told, volume())
            if number % WALK_EVERY == 0:
                found = max(found, data_bytes(directory))
    return told, found


def data_bytes(directory: Path) -> int:
    """Return the bytes of databases and value files, without journals and locks, which the limit does not govern."""
    found = 0
    for path in directory.rglob("*"):
        with suppress(FileNotFoundError):
            if path.is_file() and not path.name.endswith(JOURNALS):
                found += path.stat().st_blocks * 512  # the counts are a sparse file
    return found
