"""Compare the speed of two revisions of the package on this machine: `python -m benchmarks.compare BASE HEAD`.

Both are exported and measured by the present benchmark code, taking turns many times a second. What a call of HEAD may
cost beside another one of HEAD is judged likewise.

Exit status: 0 no call became slower; 1 one did, by more than the threshold, or is beyond its bound; 2 a revision is
unknown or the command line is wrong; 3 a measurement failed; 130 interrupted.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import fmean, median

from benchmarks.command import (
    GOOD,
    MISSED_ONE,
    add_amounts,
    add_only,
    amounts_of,
    follows,
    parser,
    print_facts,
    progress,
    run_as_command,
    write_json,
)
from benchmarks.crew import Crew, Gate
from benchmarks.intervals import Spread
from benchmarks.measure import Costs, alternate, amount, measure_costs, ratios
from benchmarks.peers.spec import OURS, BenchmarkError, MissingFeature, Spec
from benchmarks.report.machine import machine_facts
from benchmarks.report.text import NOTHING, Table, duration
from benchmarks.revisions import Revision, RevisionError, export, repository
from benchmarks.workloads import calls
from benchmarks.workloads.trial import Plan, Report, load, work
from benchmarks.workspace import Workspace, workspace

SLOWER, FASTER, SAME = "SLOWER", "faster", "same within noise"
BEYOND, WITHIN, UNCLEAR = "BEYOND", "within", "unclear"
BASE, HEAD = "base", "head"
# Two processes of one revision differ for good by a few percent, as memory happens to be laid out: several are asked.
GENERATIONS = 4
COLD = OURS.having(hot_size_limit=0)


@dataclass(frozen=True)
class Group:
    """A workload, and its kinds of calls by what they are called here; `many`: by several processes at once.

    `whole`: what counts is the mean, with the flushes that a few calls make for all, not the median.
    """

    workload: calls.Workload
    names: Mapping[str, str]
    spec: Spec = OURS
    many: bool = False
    whole: bool = False


GROUPS = (
    Group(calls.Hits(), {"hot-get": "hits"}),
    Group(calls.Singles(1_000), {"set": "set", "delete": "delete", "set-new": "insert"}),
    Group(calls.Singles(1_000, ("get",)), {"cold-get": "get"}, COLD),
    Group(calls.Singles(1_000, ("delete", "add")), {"add": "add"}),
    Group(calls.Singles(1_000, ("incr",)), {"incr": "incr"}),
    Group(calls.Tagged(0), {"set-untagged": "set"}, whole=True),
    Group(calls.Tagged(1), {"set-tagged": "set_tagged"}, whole=True),
    Group(calls.Tagged(8), {"set-tags": "set_tags"}, whole=True),
    Group(calls.Listed(), {"keys-small": "keys_small", "keys-both": "keys_both"}),
    Group(calls.Tags(), {"evict": "evict"}),
    Group(calls.Queue(), {"push": "push", "pull": "pull"}),
    Group(calls.Bulk(1_000), {"get-many": "get_many", "set-many": "set_many"}, COLD),
    Group(calls.Memoized(), {"memoize": "hit"}),
    Group(calls.Opening(), {"open": "open"}),
    Group(calls.Mix(100, calls.WRITES), {"contended-set": "set"}, many=True),
    Group(calls.Mix(100, calls.CLASSIC), {"contended-mix": "get"}, many=True),
)
CALLS = {name: group for group in GROUPS for name in group.names}


@dataclass(frozen=True)
class Bound:
    """What a call may cost at most, as a multiple of another one of the same revision."""

    call: str
    over: str
    most: float


BOUNDS = (
    Bound("set-tagged", "set-untagged", 1.25),
    Bound("set-tags", "set-untagged", 3),
    Bound("keys-both", "keys-small", 2),
)


@dataclass(frozen=True)
class Effort:
    """How much is measured."""

    repeats: int = amount(40, "ratios per call, dealt out to several generations of processes")
    operations: int = amount(500, "calls of a process in a turn; fewer where one takes long")
    processes: int = amount(4, "processes of the contended calls")


@dataclass
class Result:
    """What was found: nanoseconds per call of each side and repetition by name, and who lacks a call or does it wrong.

    `lacking` has pairs of a call and a side.
    """

    times: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    lacking: set[tuple[str, str]] = field(default_factory=set)

    def add(self, name: str, side: str, time: float) -> None:
        """Take in one repetition."""
        self.times.setdefault(name, {BASE: [], HEAD: []})[side].append(time)

    def spread(self, name: str) -> Spread:
        """Return how many times as long HEAD takes, in the median, and what that may really be."""
        return Spread.of(ratios(self.times[name][HEAD], self.times[name][BASE]))

    def bounds(self) -> dict[Bound, Spread]:
        """Return how many times as long as another call of HEAD those take that have a bound."""
        return {
            one: Spread.of(ratios(self.times[one.call][HEAD], self.times[one.over][HEAD]))
            for one in BOUNDS
            if {one.call, one.over} <= self.times.keys()
        }


def verdict(spread: Spread, threshold: float) -> str:
    """Call it slower or faster only if the whole interval says so, the threshold included."""
    low, high, _ = spread.interval
    return SLOWER if low > 1 + threshold else FASTER if high < 1 / (1 + threshold) else SAME


def verdict_on(bound: Bound, spread: Spread) -> str:
    """Call it beyond a bound, or within, only if the whole interval says so."""
    low, high, _ = spread.interval
    return BEYOND if low > bound.most else WITHIN if high <= bound.most else UNCLEAR


def percentage(text: str) -> float:
    """Read a threshold such as `10%`."""
    try:
        share = float(text.strip().removesuffix("%")) / 100
    except ValueError:
        share = -1.0
    if not 0 <= share < 100:
        raise argparse.ArgumentTypeError(f"expected a percentage such as 10%, not {text!r}")
    return share


def options() -> argparse.ArgumentParser:
    made = parser("benchmarks.compare", __doc__, "directory", "json")
    add = made.add_argument
    add("base", metavar="BASE", help="a branch, tag or commit, or . for the working tree as it is")
    add("head", metavar="HEAD", help="the revision that must not be slower, likewise")
    add("--threshold", type=percentage, default="10%", metavar="PERCENT", help="slower by so much fails (%(default)s)")
    add_amounts(made, Effort())
    add_only(made, "call", CALLS)
    return made


def take_side(gate: Gate, package: Path) -> None:
    """Import a revision's package in this process, and make sure that it is that one."""
    sys.path.insert(0, str(package))
    found = Path(OURS.load().__file__).resolve()
    if not found.is_relative_to(package.resolve()):
        raise BenchmarkError(f"{OURS.module} came from {found} instead of the revision in {package}")


@contextmanager
def crews_of(revisions: Mapping[str, Revision], size: int) -> Iterator[dict[str, Crew]]:
    """Run processes of each revision for a `with` block."""
    with ExitStack() as stack:
        crews = {role: stack.enter_context(Crew(size)) for role in revisions}
        for role, crew in crews.items():
            crew.run(take_side, [revisions[role].directory] * size)
        yield crews


def measure_all(
    revisions: Mapping[str, Revision],
    effort: Effort,
    names: Sequence[str],
    space: Workspace,
    costs: Costs,
    note: Callable[[str, float], None] = lambda text, fraction: None,
) -> Result:
    """Measure every call in several generations of processes."""
    result = Result()
    wanted = set(names) | {one.over for one in BOUNDS if one.call in names}
    chosen = {many: [one for one in GROUPS if one.many is many and wanted & {*one.names}] for many in (False, True)}
    for generation in range(GENERATIONS):
        # The repeats are dealt out; with few of them, the last generations get none.
        mine = len(range(generation, effort.repeats, GENERATIONS))
        for many, groups in chosen.items() if mine else ():
            size = effort.processes if many else 1
            with crews_of(revisions, size) as crews:
                for place, group in enumerate(groups):
                    text = f"{', '.join(group.names)}, {generation + 1} of {GENERATIONS}"
                    note(text, (generation + place / len(groups)) / GENERATIONS)
                    _measure(group, crews, size, mine, effort.operations, space, costs, result)
    return result


def _measure(
    group: Group,
    crews: Mapping[str, Crew],
    size: int,
    repeats: int,
    operations: int,
    space: Workspace,
    costs: Costs,
    result: Result,
) -> None:
    """Let both sides take turns with one workload."""
    plans = {}
    for role, crew in crews.items():
        plan = Plan(group.spec, space.fresh(role), group.workload, operations, 60.0)
        plans[role] = [replace(plan, number=number, processes=size) for number in range(size)]
        try:
            crew.run(load_first, plans[role])
        except MissingFeature:
            result.lacking |= {(name, role) for name in group.names}
    if not result.lacking & {(name, role) for name in group.names for role in crews}:
        for _, role in alternate(repeats, list(crews)):
            reports = crews[role].run(work, plans[role])
            if wrong := sum(one.wrong + one.unexpected for one in reports):
                raise BenchmarkError(f"{role.upper()}: {wrong} wrong answers to {', '.join(group.names)}")
            for name, kind in group.names.items():
                result.add(name, role, _per_call(group, reports, kind, costs))
    space.discard(*(some[0].directory for some in plans.values()))


def load_first(gate: Gate, plan: Plan) -> None:
    """Store what is there before, in the first process only."""
    if plan.number == 0:
        load(gate, plan)


def _per_call(group: Group, reports: Sequence[Report], kind: str, costs: Costs) -> float:
    """Return the nanoseconds of a call: median or mean, or with many processes the mean until the last one ends."""
    if group.many:
        took = max(one.ended for one in reports) - min(one.began for one in reports)
        return took * len(reports) / sum(one.operations for one in reports)
    middle = fmean if group.whole else median
    return (middle(reports[0].calls[kind]) - group.workload.cost(costs)) / group.workload.per_call


def comparison_table(result: Result, revisions: Mapping[str, Revision], threshold: float, processes: int) -> Table:
    """Show every call with its ratio and verdict, and below what has a bound in HEAD."""
    columns = ("call", "BASE, median", "HEAD, median", "HEAD / BASE", "interval", "pairs", "verdict")
    table = Table(f"{revisions[HEAD].name} against {revisions[BASE].name}", columns)

    def add(name: str, base: Sequence[float], head: Sequence[float], spread: Spread, word: str) -> None:
        ratio, interval = f"{spread.median:.3f}", "{:.3f}..{:.3f}".format(*spread.interval[:2])
        medians = duration(median(base)), duration(median(head))
        table.rows.append((name, *medians, ratio, interval, f"{spread.repetitions}", word))

    spreads = {name: result.spread(name) for name in result.times}
    for name, one in spreads.items():
        add(name, result.times[name][BASE], result.times[name][HEAD], one, verdict(one, threshold))
    for name in sorted({name for name, _ in result.lacking}):
        sides = {side for lacks, side in result.lacking if lacks == name}
        word = "in neither" if len(sides) > 1 else "new in HEAD" if BASE in sides else "gone in HEAD"
        table.rows.append((name, *[NOTHING] * 4, "0", word))
    for bound, one in result.bounds().items():
        both = result.times[bound.over][HEAD], result.times[bound.call][HEAD]
        add(f"{bound.call} / {bound.over}", *both, one, f"{verdict_on(bound, one)} {bound.most:g}")
    coverage = min((one.interval.coverage for one in spreads.values()), default=0.0)
    table.notes += [
        "HEAD / BASE: times as long, the median of one ratio per repetition, in which both have their turn;",
        f"interval: where that median lies with a confidence of at least {coverage:.1%}; slower or faster only if",
        f"all of it is beyond the threshold of {threshold:.0%}; contended: {processes} processes, until the last ends;",
        "a call by another one: both of HEAD, and what it may cost at most",
    ]
    return table


def conclude(result: Result, threshold: float) -> int:
    """Name what became slower or is beyond its bound, and return the exit status."""
    slower = {name: one for name in result.times if verdict(one := result.spread(name), threshold) == SLOWER}
    bad = [f"SLOWER: {name}: HEAD takes {told(one)} times as long as BASE" for name, one in slower.items()]
    beyond = {bound: one for bound, one in result.bounds().items() if verdict_on(bound, one) == BEYOND}
    bad += [f"BEYOND: {one.call} takes {told(found)} times as long as {one.over}" for one, found in beyond.items()]
    print(*bad, sep="\n")
    return MISSED_ONE if bad else GOOD


def told(spread: Spread) -> str:
    """Write a ratio and its interval in a sentence."""
    low, high, _ = spread.interval
    return f"{spread.median:.2f} ({low:.2f} to {high:.2f})"


def compare(asked: argparse.Namespace) -> int:
    """Do what the command line asks for."""
    top, effort = repository(Path.cwd()), amounts_of(asked, Effort())
    with workspace(asked.directory) as space:
        names = {BASE: asked.base, HEAD: asked.head}
        revisions = {role: export(top, name, space.fresh(f"{role}-package")) for role, name in names.items()}
        costs = measure_costs()
        facts = {role.upper(): revision.label for role, revision in revisions.items()}
        facts |= machine_facts(space.root.parent, costs)
        print_facts(facts)
        with progress() as note:
            result = measure_all(revisions, effort, asked.only or list(CALLS), space, costs, note)
    if asked.json:
        found = {
            name: {**result.spread(name).interval._asdict(), "verdict": verdict(result.spread(name), asked.threshold)}
            for name in result.times
        }
        amounts = {"threshold": asked.threshold, **asdict(effort)}
        write_json(asked.json, {"machine": facts, "options": amounts, "calls": found, "times_ns": result.times})
    print(comparison_table(result, revisions, asked.threshold, effort.processes).text())
    return conclude(result, asked.threshold)


main = follows(options, compare, RevisionError)


if __name__ == "__main__":
    run_as_command(main)
