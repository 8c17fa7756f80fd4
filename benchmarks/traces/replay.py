"""A trace replayed on real caches: `get`, and on a miss `set`, under a limit for about so many entries."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from benchmarks.measure import Calls, clock, measure_costs
from benchmarks.peers.spec import DISKCACHE, OURS, MissingSubject, Spec, Subject, feature
from benchmarks.report.text import Table, duration
from benchmarks.traces.sources import Trace
from benchmarks.workloads.values import value_of
from benchmarks.workspace import Workspace

USUAL = 200  # bytes of a value where neither the trace nor the command line says it
TRIALS = 2  # to find out how many entries a limit allows
OVERHEAD, EMPTY = 100, 32_768  # bytes of an entry beside its value, and of a cache without entries, roughly


@dataclass(frozen=True)
class Replay:
    """The result: how many entries there were in the end beside how many were wanted, hits, and nanoseconds per set."""

    cache: str
    policy: str
    wanted: int
    entries: int
    hits: float
    sets: Calls


def replays(
    trace: Trace, sizes: Sequence[int], entries: int, space: Workspace, note: Callable[[str, float], None]
) -> Iterator[Replay]:
    """Replay on the caches that are installed, with each of their policies; `sizes` are the objects'."""
    costs = measure_costs()
    for spec in (OURS, DISKCACHE):
        with suppress(MissingSubject):
            limit, policies = 0, [name for name in spec.load().EVICTION_POLICY if name != "none"]
            for place, policy in enumerate(policies):
                note(f"{trace.name}, {spec.name}, {policy}, {entries} entries", place / len(policies))
                limit = limit or limit_for(sizes, spec, entries, space)
                kept, times = replay(trace, sizes, spec.having(size_limit=limit, eviction_policy=policy), space)
                hits = 1 - len(times) / len(trace.keys)
                yield Replay(spec.label, policy, entries, kept, hits, Calls.of(times, costs.clock))


def replay(trace: Trace, sizes: Sequence[int], spec: Spec, space: Workspace) -> tuple[int, list[int]]:
    """Ask one cache for everything, in order; return how many entries it has then, and what each `set` took."""
    times, directory = list[int](), space.fresh("replay")
    with spec.opened(directory) as subject:
        get, put = subject.get, subject.set
        for turn, key in enumerate(trace.keys):
            if get(key) is None:
                value = value_of(str(key), turn, sizes[key])
                start = clock()
                put(key, value)
                times.append(clock() - start)
        kept = count(subject)
    space.discard(directory)
    return kept, times


def limit_for(sizes: Sequence[int], spec: Spec, entries: int, space: Workspace) -> int:
    """Return the size limit with which a cache that is full has about so many entries, by trying some."""
    each = sum(sizes) // len(sizes) + OVERHEAD
    limit = EMPTY + entries * each
    for _ in range(TRIALS):
        directory = space.fresh("trial")
        with spec.having(size_limit=limit).opened(directory) as subject:
            for turn in range(2 * entries):
                subject.set(turn, value_of(str(turn), turn, sizes[turn % len(sizes)]))
            limit = max(limit + (entries - count(subject)) * each, EMPTY)
        space.discard(directory)
    return limit


def count(subject: Subject) -> int:
    return int(feature(subject, "__len__")())


def table(found: Sequence[Replay], trace: Trace) -> Table:
    """Return one row for each cache and policy."""
    made = Table(
        f"{trace.name}: replayed", ("cache", "policy", "wanted", "entries", "hits", "set p50", "p99", "max"), left=2
    )
    for one in found:
        times = map(duration, (one.sets.p50, one.sets.p99, one.sets.max))
        made.rows.append((one.cache, one.policy, f"{one.wanted:,}", f"{one.entries:,}", f"{one.hits:.1%}", *times))
    made.notes.append("the size limit is chosen so that about as many entries are kept as wanted")
    return made
