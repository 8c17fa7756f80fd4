"""Compare the speed of two revisions of the package on this machine: `python -m benchmarks.compare BASE HEAD`.

Both are exported and measured by the present benchmark code, taking turns every few milliseconds. What a call of HEAD
may cost beside another one of HEAD is measured likewise.

Exit status: 0 no call became slower; 1 one did, by more than the threshold, or is beyond its bound; 2 a revision is
unknown or the command line is wrong; 3 a measurement failed; 130 interrupted.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median

from benchmarks.command import (
    GOOD,
    MISSED_ONE,
    add_amounts,
    add_only,
    follows,
    parser,
    print_facts,
    progress,
    run_as_command,
    write_json,
)
from benchmarks.crew import Crew
from benchmarks.duel import BOUNDS, CALLS, Block, Bound, Side, measure_block, take_side
from benchmarks.intervals import Spread
from benchmarks.measure import measure_costs
from benchmarks.report.machine import machine_facts
from benchmarks.report.text import Table, duration
from benchmarks.revisions import Revision, RevisionError, build_helpers, export, repository
from benchmarks.workspace import Workspace, workspace

SLOWER, FASTER, SAME = "SLOWER", "faster", "same within noise"
BEYOND, WITHIN, UNCLEAR = "BEYOND", "within", "unclear"
BASE, HEAD = "base", "head"
TURNS = ((BASE, HEAD, HEAD, BASE), (HEAD, BASE, BASE, HEAD))
# Two processes of one revision differ for good by a few percent, as memory happens to be laid out: several are asked.
GENERATIONS = 4
# Processes that start together wait for each other first, so their blocks are longer, and fewer.
CONTENDED_BLOCK = 3
LARGEST_BLOCK = 100_000


@dataclass(frozen=True)
class Effort:
    """How much is measured."""

    repeats: int = 100
    seconds: float = 2.0
    processes: int = 4

    @property
    def block(self) -> float:
        """Return how many nanoseconds one block may take."""
        return self.seconds * 1e9 / (self.repeats * len(TURNS[0]))


@dataclass
class Comparison:
    """One call: one ratio HEAD/BASE per repetition, and the nanoseconds per call of each block of either."""

    ratios: list[float] = field(default_factory=list)
    per_call: dict[str, list[float]] = field(default_factory=lambda: {BASE: [], HEAD: []})

    def add(self, times: Mapping[str, Sequence[float]]) -> None:
        """Take in one repetition: both blocks of both revisions, in nanoseconds per call."""
        self.ratios.append(sum(times[HEAD]) / max(sum(times[BASE]), 1e-9))
        for role, found in times.items():
            self.per_call[role] += found

    @property
    def spread(self) -> Spread:
        """Return how many times as long HEAD takes, in the median, and what that may really be."""
        return Spread.of(self.ratios)

    def verdict(self, threshold: float) -> str:
        """Call it slower or faster only if the whole interval says so, the threshold included."""
        low, high, _ = self.spread.interval
        return SLOWER if low > 1 + threshold else FASTER if high < 1 / (1 + threshold) else SAME

    def verdict_on(self, bound: Bound) -> str:
        """Call it beyond a bound, or within, only if the whole interval says so."""
        low, high, _ = self.spread.interval
        return BEYOND if low > bound.most else WITHIN if high <= bound.most else UNCLEAR

    def cells(self) -> tuple[str, str]:
        """Write the ratio and its interval."""
        return f"{self.spread.median:.3f}", "{:.3f}..{:.3f}".format(*self.spread.interval[:2])


@dataclass
class Result:
    """What a whole comparison found; `lacking` names the calls that a revision does not have.

    In those of `bounds` HEAD is the call that has one, and BASE the one beside it.
    """

    comparisons: dict[str, Comparison] = field(default_factory=dict)
    bounds: dict[Bound, Comparison] = field(default_factory=dict)
    lacking: dict[str, set[str]] = field(default_factory=lambda: {BASE: set(), HEAD: set()})


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
    meanings = {
        "repeats": "ratios per call, each from two blocks of both; a third of it for contended ones",
        "seconds": "time per call, roughly",
        "processes": "processes of the contended calls",
    }
    add_amounts(made, Effort(), meanings)
    add_only(made, "call", CALLS)
    return made


@dataclass
class Duel:
    """Crews of both revisions, one generation of them: they live, measure, and are replaced."""

    revisions: Mapping[str, Revision]
    space: Workspace
    size: int
    crews: dict[str, Crew] = field(default_factory=dict)

    @contextmanager
    def running(self) -> Iterator[dict[str, set[str]]]:
        """Run the crews for a `with` block, and give the calls that each revision lacks."""
        lacking: dict[str, set[str]] = {}
        places = {role: self.space.fresh(role) for role in self.revisions}
        with ExitStack() as stack:
            for role, revision in self.revisions.items():
                crew = self.crews[role] = stack.enter_context(Crew(self.size))
                sides = [Side(revision.directory, places[role], number) for number in range(self.size)]
                lacking[role] = set(crew.run(take_side, sides)[0])
            yield lacking
        self.space.discard(*places.values())

    def block(self, role: str, block: Block) -> float:
        """Measure one block and return its nanoseconds, from the first start to the last end."""
        spans = self.crews[role].run(measure_block, [block] * self.size)
        return max(ended for _, ended in spans) - min(began for began, _ in spans)

    def calls_within(self, call: str, target: float) -> int:
        """Return how many calls fit into a block of `target` nanoseconds, whichever revision is the slower."""
        count = 1
        while True:
            slowest = max(self.block(role, Block(call, 0, count)) for role in self.crews)
            if slowest >= target / 2 or count == LARGEST_BLOCK:
                return count
            count = min(int(count * min(max(target / max(slowest, 1.0), 2), 10)), LARGEST_BLOCK)

    def repeat(
        self, found: Comparison, numbers: Sequence[int], count: int, sides: Mapping[str, tuple[str, str]]
    ) -> None:
        """Let two sides take turns as ABBA, each a revision and its call, and take in nanoseconds per call of each."""
        for place, number in enumerate(numbers):
            times: dict[str, list[float]] = {BASE: [], HEAD: []}
            for turn, side in enumerate(TURNS[1 - place % 2]):
                role, call = sides[side]
                # Both sides' first blocks have one seed, and both their second ones another.
                times[side].append(self.block(role, Block(call, 2 * number + turn // 2, count)) / count)
            found.add(times)


def measure_all(
    revisions: Mapping[str, Revision],
    effort: Effort,
    names: Sequence[str],
    space: Workspace,
    note: Callable[[str, float], None] = lambda text, fraction: None,
) -> Result:
    """Measure every call in several generations of processes."""
    result = Result()
    chosen = {many: [name for name in names if CALLS[name].contended is many] for many in (False, True)}
    jobs = [(number, many) for number in range(GENERATIONS) for many, calls in chosen.items() if calls]
    for step, (generation, many) in enumerate(jobs):
        # The repeats are dealt out; with few of them, the last generations get none.
        mine = range(generation, effort.repeats, GENERATIONS)
        if not mine:
            continue
        longer = CONTENDED_BLOCK if many else 1
        duel = Duel(revisions, space, effort.processes if many else 1)
        with duel.running() as lacking:
            for place, name in enumerate(chosen[many]):
                note(f"{CALLS[name].label}, {generation + 1} of {GENERATIONS}", (step + place / len(names)) / len(jobs))
                without = [role for role, missing in lacking.items() if name in missing]
                for role in without:
                    result.lacking[role].add(name)
                if not without:
                    count = duel.calls_within(name, effort.block * longer)
                    found = result.comparisons.setdefault(name, Comparison())
                    duel.repeat(found, mine[::longer], count, {BASE: (BASE, name), HEAD: (HEAD, name)})
            for bound in BOUNDS:
                if bound.call in chosen[many] and not {bound.call, bound.over} & lacking[HEAD]:
                    count = duel.calls_within(bound.call, effort.block)
                    found = result.bounds.setdefault(bound, Comparison())
                    duel.repeat(found, mine, count, {BASE: (HEAD, bound.over), HEAD: (HEAD, bound.call)})
    return result


def comparison_table(result: Result, revisions: Mapping[str, Revision], threshold: float, effort: Effort) -> Table:
    """Show every call with its ratio and verdict."""
    columns = ("call", "BASE, median", "HEAD, median", "HEAD / BASE", "interval", "pairs", "verdict")
    table = Table(f"{revisions[HEAD].name} against {revisions[BASE].name}", columns)
    for name, one in result.comparisons.items():
        medians = [duration(median(one.per_call[role])) for role in (BASE, HEAD)]
        table.rows.append((CALLS[name].label, *medians, *one.cells(), f"{len(one.ratios)}", one.verdict(threshold)))
    words = {(True, True): "in neither", (True, False): "new in HEAD", (False, True): "gone in HEAD"}
    for name in CALLS:
        missing = name in result.lacking[BASE], name in result.lacking[HEAD]
        if missing in words:
            table.rows.append((CALLS[name].label, "-", "-", "-", "-", "0", words[missing]))
    coverage = min((one.spread.interval.coverage for one in result.comparisons.values()), default=0.0)
    table.notes += [
        "HEAD / BASE: times as long, the median of one ratio per repetition, in which both take turns as ABBA;",
        f"interval: where that median lies with a confidence of at least {coverage:.1%}; slower or faster only if",
        f"all of it is beyond the threshold of {threshold:.0%}; contended, and one sets: {effort.processes} processes,",
        "the time until the last one ends",
    ]
    return table


def bounds_table(result: Result) -> Table:
    """Show what has a bound, and whether it keeps it."""
    table = Table("HEAD alone", ("call / other call", "times as long", "interval", "at most", "verdict"))
    for bound, one in result.bounds.items():
        table.rows.append((str(bound), *one.cells(), f"{bound.most:g}", one.verdict_on(bound)))
    return table


def told(result: Result, threshold: float) -> dict[str, object]:
    """Return everything that was measured, for JSON."""
    calls, bounds = {}, {}
    for name, one in result.comparisons.items():
        low, high, coverage = one.spread.interval
        found = {"ratio": one.spread.median, "low": low, "high": high, "coverage": coverage}
        calls[name] = {**found, "verdict": one.verdict(threshold), **asdict(one)}
    for bound, one in result.bounds.items():
        bounds[str(bound)] = {"most": bound.most, "interval": one.spread.interval[:2], "ratios": one.ratios}
    return {"calls": calls, "bounds": bounds, "lacking": {role: sorted(some) for role, some in result.lacking.items()}}


def compare(asked: argparse.Namespace) -> int:
    """Do what the command line asks for."""
    top = repository(Path.cwd())
    effort = Effort(asked.repeats, asked.seconds, asked.processes)
    with workspace(asked.directory) as space:
        names = {BASE: asked.base, HEAD: asked.head}
        revisions = {role: export(top, name, space.fresh(f"{role}-package")) for role, name in names.items()}
        helper = build_helpers(list(revisions.values()), space.fresh("compiler"))
        machine = machine_facts(space.root.parent, measure_costs())
        del machine["clock"]  # read twice per block of milliseconds, it costs nothing that shows
        facts = {role.upper(): revision.label for role, revision in revisions.items()} | {"helper": helper, **machine}
        print_facts(facts)
        with progress({"compare": 1}) as show:
            result = measure_all(revisions, effort, asked.only or list(CALLS), space, show("compare"))
    if asked.json:
        amounts = {"threshold": asked.threshold, **asdict(effort)}
        write_json(asked.json, {"machine": facts, "options": amounts, **told(result, asked.threshold)})
    print(comparison_table(result, revisions, asked.threshold, effort).text())
    if result.bounds:
        print(bounds_table(result).text())
    return conclude(result, asked.threshold)


def conclude(result: Result, threshold: float) -> int:
    """Name what became slower or is beyond its bound, and return the exit status."""
    bad = [
        f"SLOWER: {name}: HEAD takes {one.spread.median:.2f} times as long as BASE (from {{:.2f}} to {{:.2f}})".format(
            *one.spread.interval
        )
        for name, one in result.comparisons.items()
        if one.verdict(threshold) == SLOWER
    ]
    for bound, one in result.bounds.items():
        if one.verdict_on(bound) == BEYOND:
            low, high, _ = one.spread.interval
            times = f"{low:.2f} to {high:.2f} times as long as {bound.over}"
            bad.append(f"BEYOND: {bound.call} takes {times}, {bound.most:g} at most")
    print(*bad, sep="\n")
    return MISSED_ONE if bad else GOOD


main = follows(options, compare, RevisionError)


if __name__ == "__main__":
    run_as_command(main)
