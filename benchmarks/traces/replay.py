"""A trace replayed on real caches: `get`, and on a miss `set`, under a limit for about so many entries."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from benchmarks.measure import Calls, Costs, clock
from benchmarks.peers.spec import DISKCACHE, OURS, MissingSubject, Spec, Subject, feature
from benchmarks.report.text import Table, duration
from benchmarks.traces.sources import Trace
from benchmarks.workloads.values import value_of
from benchmarks.workspace import Workspace

USUAL = 200  # bytes of a value where neither the trace nor the command line says it
LENGTHS = 3  # of a cache that are stored to find out how many entries it holds
OVERHEAD = 100  # bytes of an entry beside its value, roughly


@dataclass(frozen=True)
class Replay:
    """What came of it: of `wanted` entries those that were there in the end, hits, and nanoseconds of the sets."""

    cache: str
    policy: str
    wanted: int
    entries: int
    hits: float
    sets: Calls


def subjects() -> Iterator[tuple[Spec, str]]:
    """Yield the caches that are installed, with each of their policies of eviction."""
    for spec in (OURS, DISKCACHE):
        with suppress(MissingSubject):
            for policy in spec.load().EVICTION_POLICY:
                if policy != "none":
                    yield spec, policy


def replay(
    trace: Trace, sizes: Sequence[int], spec: Spec, policy: str, entries: int, space: Workspace, costs: Costs
) -> Replay:
    """Ask one cache for everything, in order; `sizes` are those of the objects' values."""
    limit = limit_for(sizes, spec, policy, entries, space)
    times, directory = [], space.fresh("replay")
    with spec.having(size_limit=limit, eviction_policy=policy).opened(directory) as subject:
        get, put = subject.get, subject.set
        for turn, key in enumerate(trace.keys):
            if get(key) is None:
                value = value_of(str(key), turn, sizes[key])
                start = clock()
                put(key, value)
                times.append(clock() - start)
        kept = count(subject)
    space.discard(directory)
    hits = 1 - len(times) / len(trace.keys)
    return Replay(spec.label, policy, entries, kept, hits, Calls.of(times, costs.clock))


def limit_for(sizes: Sequence[int], spec: Spec, policy: str, entries: int, space: Workspace) -> int:
    """Return the size limit with which a cache that is full has about so many entries, by trying one."""
    limit, directory = entries * (sum(sizes) // len(sizes) + OVERHEAD), space.fresh("trial")
    with spec.having(size_limit=limit, eviction_policy=policy).opened(directory) as subject:
        for turn in range(LENGTHS * entries):
            subject.set(turn, value_of(str(turn), turn, sizes[turn % len(sizes)]))
        kept = count(subject)
    space.discard(directory)
    return limit * entries // max(kept, 1)


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
