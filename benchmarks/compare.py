"""Compare the speed of two revisions of the package on this machine: `python -m benchmarks.compare BASE HEAD`.

Both are exported and measured by the present benchmark code, taking turns every few milliseconds. What a call of HEAD
may cost beside another one of HEAD is measured likewise.

Exit status: 0 no call became slower; 1 one did, by more than the threshold, or is beyond its bound; 2 a revision is
unknown or the command line is wrong; 3 a measurement failed; 130 interrupted.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from benchmarks.command import GOOD, add_only, explained, positive, progress, refuse_lost, run_as_command, seconds
from benchmarks.crew import Crew
from benchmarks.duel import BOUNDS, CALLS, Block, Bound, Side, measure_block, measure_together, take_side
from benchmarks.intervals import median_interval
from benchmarks.measure import measure_costs
from benchmarks.report import Table, duration, machine_facts
from benchmarks.revisions import Revision, RevisionError, build_helpers, export, repository
from benchmarks.workspace import Workspace, workspace

SLOWER_FOUND = 1
SLOWER, FASTER, SAME = "SLOWER", "faster", "same within noise"
BEYOND, WITHIN, UNCLEAR = "BEYOND", "within", "unclear"
BASE, HEAD = "base", "head"
TURNS = (BASE, HEAD, HEAD, BASE)
TURNS_BACK = (HEAD, BASE, BASE, HEAD)
# Two processes of one revision differ for good by a few percent, as memory happens to be laid out: several are asked.
GENERATIONS = 4
# Processes that start together wait for each other first, so their blocks are longer, and fewer.
CONTENDED_BLOCK = 3
LARGEST_BLOCK = 100_000


@dataclass(frozen=True)
class Effort:
    """How much is measured."""

    repeats: int
    seconds: float
    processes: int

    @property
    def block(self) -> float:
        """Return how many nanoseconds one block may take."""
        return self.seconds * 1e9 / (self.repeats * len(TURNS))


@dataclass
class Comparison:
    """One call: one ratio HEAD/BASE per repetition, and the nanoseconds per call of each block of either revision."""

    name: str
    ratios: list[float] = field(default_factory=list)
    per_call: dict[str, list[float]] = field(default_factory=lambda: {BASE: [], HEAD: []})

    def add(self, times: Mapping[str, Sequence[float]]) -> None:
        """Take in one repetition: both blocks of both revisions, in nanoseconds per call."""
        self.ratios.append(sum(times[HEAD]) / max(sum(times[BASE]), 1e-9))
        for role, found in times.items():
            self.per_call[role] += found

    @property
    def ratio(self) -> float:
        """Return how many times as long HEAD takes, in the median."""
        return statistics.median(self.ratios)

    @property
    def interval(self) -> tuple[float, float]:
        """Return what that median may really be."""
        low, high, _ = median_interval(self.ratios)
        return low, high

    def verdict(self, threshold: float) -> str:
        """Call it slower or faster only if the whole interval says so, the threshold included."""
        low, high = self.interval
        if low > 1 + threshold:
            return SLOWER
        return FASTER if high < 1 / (1 + threshold) else SAME

    def verdict_on(self, bound: Bound) -> str:
        """Call it beyond a bound, or within, only if the whole interval says so."""
        low, high = self.interval
        return BEYOND if low > bound.most else WITHIN if high <= bound.most else UNCLEAR

    def as_dict(self, threshold: float) -> dict[str, object]:
        """Return everything for JSON."""
        low, high, coverage = median_interval(self.ratios)
        told = {"ratio": self.ratio, "low": low, "high": high, "coverage": coverage, "verdict": self.verdict(threshold)}
        return {**told, **asdict(self)}


@dataclass
class Result:
    """What a whole comparison found; `lacking` names the calls that a revision does not have.

    In those of `bounds` HEAD is the call that has one, and BASE the one beside it.
    """

    comparisons: dict[str, Comparison] = field(default_factory=dict)
    bounds: dict[Bound, Comparison] = field(default_factory=dict)
    lacking: dict[str, set[str]] = field(default_factory=lambda: {BASE: set(), HEAD: set()})

    def slower(self, threshold: float) -> list[Comparison]:
        """Return the calls that became slower."""
        return [one for one in self.comparisons.values() if one.verdict(threshold) == SLOWER]

    def beyond(self) -> list[Bound]:
        """Return the bounds that are not kept."""
        return [bound for bound, one in self.bounds.items() if one.verdict_on(bound) == BEYOND]


def percentage(text: str) -> float:
    """Read a threshold such as `10%`."""
    try:
        share = float(text.strip().removesuffix("%")) / 100
    except ValueError:
        share = -1.0
    if not 0 <= share < 100:
        raise argparse.ArgumentTypeError(f"expected a percentage such as 10%, not {text!r}")
    return share


def parser() -> argparse.ArgumentParser:
    """Describe the command line."""
    made = argparse.ArgumentParser("python -m benchmarks.compare", description=(__doc__ or "").partition("\n")[0])
    add = made.add_argument
    add("base", metavar="BASE", help="a branch, tag or commit, or . for the working tree as it is")
    add("head", metavar="HEAD", help="the revision that must not be slower, likewise")
    add("--threshold", type=percentage, default="10%", metavar="PERCENT", help="slower by so much fails (%(default)s)")
    add(
        "--repeats",
        type=positive,
        default=100,
        help="ratios per call, each from two blocks of both; a third of it for contended ones (%(default)s)",
    )
    add("--seconds", type=seconds, default=2.0, help="time per call, roughly (%(default)s)")
    add("--processes", type=positive, default=4, help="processes of the contended calls (%(default)s)")
    add_only(made, "call", CALLS)
    add("--directory", type=Path, default=Path(tempfile.gettempdir()), help="where caches are made (%(default)s)")
    add("--json", type=Path, metavar="FILE", help="write everything that was measured to FILE")
    return made


class Duel:
    """Crews of both revisions, one generation of them: they live, measure, and are replaced."""

    def __init__(self, revisions: Mapping[str, Revision], space: Workspace, size: int) -> None:
        self._revisions, self._space, self._size = revisions, space, size
        self._crews: dict[str, Crew] = {}

    @contextmanager
    def running(self) -> Iterator[dict[str, set[str]]]:
        """Run the crews for a `with` block, and give the calls that each revision lacks."""
        lacking: dict[str, set[str]] = {}
        places = {role: self._space.fresh(role) for role in self._revisions}
        with ExitStack() as stack:
            for role, revision in self._revisions.items():
                crew = self._crews[role] = stack.enter_context(Crew(self._size))
                sides = [Side(revision.directory, places[role], number) for number in range(self._size)]
                lacking[role] = set(crew.run(take_side, sides)[0])
            yield lacking
        self._space.discard(*places.values())

    def block(self, role: str, block: Block) -> float:
        """Measure one block and return its nanoseconds, from the first start to the last end."""
        job = measure_together if CALLS[block.call].contended else measure_block
        spans = self._crews[role].run(job, [block] * self._size)
        return max(ended for _, ended in spans) - min(began for began, _ in spans)

    def calls_within(self, call: str, target: float) -> int:
        """Return how many calls fit into a block of `target` nanoseconds, whichever revision is the slower."""
        count = 1
        while True:
            slowest = max(self.block(role, Block(call, 0, count)) for role in self._crews)
            if slowest >= target / 2 or count == LARGEST_BLOCK:
                return count
            count = min(int(count * min(max(target / max(slowest, 1.0), 2), 10)), LARGEST_BLOCK)

    def repetition(self, call: str, number: int, count: int, turns: Sequence[str]) -> dict[str, list[float]]:
        """Let the revisions take turns, and return nanoseconds per call of each."""
        times: dict[str, list[float]] = {role: [] for role in turns}
        for place, role in enumerate(turns):
            # Both revisions' first blocks have one seed, and both their second ones another.
            times[role].append(self.block(role, Block(call, 2 * number + place // 2, count)) / count)
        return times

    def beside(self, bound: Bound, number: int, count: int, turns: Sequence[str]) -> dict[str, list[float]]:
        """Let two calls of HEAD take turns, the one with the bound as HEAD and the other one as BASE."""
        times: dict[str, list[float]] = {role: [] for role in turns}
        for place, role in enumerate(turns):
            call = bound.call if role == HEAD else bound.over
            times[role].append(self.block(HEAD, Block(call, 2 * number + place // 2, count)) / count)
        return times


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
        duel = Duel(revisions, space, effort.processes if many else 1)
        with duel.running() as lacking:
            for place, name in enumerate(chosen[many]):
                note(f"{CALLS[name].label}, {generation + 1} of {GENERATIONS}", (step + place / len(names)) / len(jobs))
                _measure_call(duel, name, mine, effort, lacking, result)
            for bound in BOUNDS:
                if bound.call in chosen[many] and not {bound.call, bound.over} & lacking[HEAD]:
                    _measure_bound(duel, bound, mine, effort, result)
    return result


def _measure_bound(duel: Duel, bound: Bound, mine: Sequence[int], effort: Effort, result: Result) -> None:
    """Measure one call beside another one."""
    comparison = result.bounds.setdefault(bound, Comparison(str(bound)))
    count = duel.calls_within(bound.call, effort.block)
    for place, number in enumerate(mine):
        comparison.add(duel.beside(bound, number, count, TURNS if place % 2 else TURNS_BACK))


def _measure_call(
    duel: Duel, name: str, mine: Sequence[int], effort: Effort, lacking: Mapping[str, set[str]], result: Result
) -> None:
    """Measure one call if both revisions have it."""
    without = [role for role, names in lacking.items() if name in names]
    for role in without:
        result.lacking[role].add(name)
    if without:
        return
    comparison = result.comparisons.setdefault(name, Comparison(name))
    longer = CONTENDED_BLOCK if CALLS[name].contended else 1
    count = duel.calls_within(name, effort.block * longer)
    for place, number in enumerate(mine[::longer]):
        comparison.add(duel.repetition(name, number, count, TURNS if place % 2 else TURNS_BACK))


def comparison_table(result: Result, revisions: Mapping[str, Revision], threshold: float, effort: Effort) -> Table:
    """Show every call with its ratio and verdict."""
    columns = ("call", "BASE, median", "HEAD, median", "HEAD / BASE", "interval", "pairs", "verdict")
    table = Table(f"{revisions[HEAD].name} against {revisions[BASE].name}", columns)
    for name, one in result.comparisons.items():
        medians = [duration(statistics.median(one.per_call[role])) for role in (BASE, HEAD)]
        low, high = one.interval
        cells = (f"{one.ratio:.3f}", f"{low:.3f}..{high:.3f}", f"{len(one.ratios)}", one.verdict(threshold))
        table.rows.append((CALLS[name].label, *medians, *cells))
    for name in CALLS:
        verdict = _missing(name, result)
        if verdict:
            table.rows.append((CALLS[name].label, "-", "-", "-", "-", "0", verdict))
    coverage = min((median_interval(one.ratios)[2] for one in result.comparisons.values()), default=0.0)
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
        low, high = one.interval
        cells = f"{one.ratio:.3f}", f"{low:.3f}..{high:.3f}", f"{bound.most:g}", one.verdict_on(bound)
        table.rows.append((str(bound), *cells))
    return table


def _missing(name: str, result: Result) -> str:
    """Say which revision lacks a call, if one does."""
    base, head = (name in result.lacking[role] for role in (BASE, HEAD))
    if base and head:
        return "in neither"
    return "new in HEAD" if base else "gone in HEAD" if head else ""


def write_json(path: Path, facts: Mapping[str, str], asked: argparse.Namespace, result: Result) -> None:
    """Write everything that was measured."""
    everything = {
        "machine": dict(facts),
        "options": {name: getattr(asked, name) for name in ("threshold", "repeats", "seconds", "processes")},
        "calls": {name: one.as_dict(asked.threshold) for name, one in result.comparisons.items()},
        "bounds": {
            str(bound): {"most": bound.most, "ratio": one.ratio, "interval": one.interval, "ratios": one.ratios}
            for bound, one in result.bounds.items()
        },
        "lacking": {role: sorted(names) for role, names in result.lacking.items()},
    }
    path.write_text(json.dumps(everything, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def compare(asked: argparse.Namespace) -> int:
    """Do what the command line asks for."""
    top = repository(Path.cwd())
    effort = Effort(asked.repeats, asked.seconds, asked.processes)
    with workspace(asked.directory) as space:
        names = {BASE: asked.base, HEAD: asked.head}
        revisions = {role: export(top, name, space.fresh(f"{role}-package")) for role, name in names.items()}
        helper = build_helpers(list(revisions.values()), space.fresh("compiler"))
        facts = {role.upper(): revision.label for role, revision in revisions.items()}
        machine = machine_facts(space.root.parent, measure_costs())
        del machine["clock"]  # read twice per block of milliseconds, it costs nothing that shows
        facts |= {"helper": helper, **machine}
        print(*(f"{name}: {fact}" for name, fact in facts.items()), "", sep="\n", flush=True)
        with progress({"compare": 1}) as show:
            result = measure_all(revisions, effort, asked.only or list(CALLS), space, show("compare"))
    if asked.json:
        write_json(asked.json, facts, asked, result)
    print(comparison_table(result, revisions, asked.threshold, effort).text())
    if result.bounds:
        print(bounds_table(result).text())
    return conclude(result, asked.threshold)


def conclude(result: Result, threshold: float) -> int:
    """Name what became slower or is beyond its bound, and return the exit status."""
    slower = result.slower(threshold)
    for one in slower:
        low, high = one.interval
        print(f"SLOWER: {one.name}: HEAD takes {one.ratio:.2f} times as long as BASE (from {low:.2f} to {high:.2f})")
    beyond = result.beyond()
    for bound in beyond:
        low, high = result.bounds[bound].interval
        print(
            f"BEYOND: {bound.call} takes {low:.2f} to {high:.2f} times as long as {bound.over}, {bound.most:g} at most"
        )
    return SLOWER_FOUND if slower or beyond else GOOD


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare, and explain what prevents it."""
    made = parser()
    asked = made.parse_args(arguments)
    refuse_lost(made, asked.directory, asked.json)
    return explained(made, lambda: compare(asked), RevisionError)


if __name__ == "__main__":
    run_as_command(main)
