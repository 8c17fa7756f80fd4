"""Measure how many times as long other stores take for a call, and draw one picture: `python -m benchmarks.overview`.

Single calls, get, set and delete, from one process and from eight, on values of 100 bytes to 1 MB, all subjects in
turn. `--docs PAGE.md` draws the picture beside that page and puts it and what it says into the page's marked place.

Exit status: as `python -m benchmarks` has it.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from benchmarks import catalogue, page
from benchmarks.__main__ import judged
from benchmarks.command import GOOD, explained, positive, progress, refuse_lost, run_as_command, seconds
from benchmarks.harness import Amounts, Harness
from benchmarks.intervals import Spread
from benchmarks.measure import awake, measure_costs
from benchmarks.overview_picture import NAME, PERCENTILES, SIZES, TITLE, Grid, draw, explanation, grid
from benchmarks.record import Record, ScenarioFacts, load
from benchmarks.report import Table, machine_facts
from benchmarks.scenarios import Scenario
from benchmarks.scripts import Bytes, Mix
from benchmarks.subjects import BenchmarkError
from benchmarks.tables import machine_text
from benchmarks.workloads import DELETE, GET, SET
from benchmarks.workspace import workspace

SUBJECTS = ("cache", "diskcache", "memcached", "redis", "lmdb")
SHARES = {GET: 80, SET: 15, DELETE: 5}
KEYS = 50
AMOUNTS = Amounts(repeats=7, operations=20_000, seconds=0.25, processes=8)


def scenarios(processes: int) -> dict[str, Scenario]:
    """Return the calls of one process and those of several at once, each over the sizes of values."""
    return {
        f"overview-{count}": Scenario(
            ScenarioFacts(f"80 % get, 15 % set, 5 % delete of {KEYS} keys, {count} process(es)", TITLE, "bytes"),
            lambda size: Mix(KEYS, SHARES, Bytes(size)),
            SUBJECTS,
            steps=SIZES,
            processes=lambda step, most, count=count: count,  # type: ignore[misc]
        )
        for count in sorted({1, processes})
    }


def measure(amounts: Amounts, directory: Path) -> Record:
    """Measure every subject that is installed."""
    chosen, subjects = scenarios(amounts.processes), {name: catalogue.SUBJECTS[name].facts for name in SUBJECTS}
    with workspace(directory) as space, awake(), progress({"overview": 1}) as show:
        costs = measure_costs()
        facts = {name: one.facts for name, one in chosen.items()}
        record = Record(machine_facts(space.root.parent, costs), asdict(amounts), subjects, facts)
        for _ in Harness(record, amounts, costs, space, show("overview")).run(chosen, SUBJECTS):
            pass
    return record


def told(spread: Spread | None) -> str:
    """Write a ratio with its interval."""
    return f"{spread.median:.2f}x ({spread.interval.low:.2f}..{spread.interval.high:.2f})" if spread else "-"


def table(found: Grid, record: Record) -> Table:
    """Return the ratios as text, with their intervals."""
    made = Table(TITLE, ("bytes", "peer", "", *(f"{call}, {count}" for call, count in found.columns)), left=3)
    for size, name in found.rows:
        for percentile in PERCENTILES:
            cells = [found.cells.get((size, name, *column), {}).get(percentile) for column in found.columns]
            made.rows.append((f"{size:,}", record.label(name), percentile, *map(told, cells)))
    made.notes += [explanation(record), "in brackets: interval of the median over the repetitions"]
    made.notes += [f"{record.label(one.subject)} left out: {one.reason}" for one in record.absences]
    return made


def publish(record: Record, target: Path) -> None:
    """Draw the picture beside a page, and put it into the page's marked place."""
    page.marked(target, page.OVERVIEW)
    images = page.IMAGES if target.parent.name == "docs" else Path("docs") / page.IMAGES
    draw(record, target.parent / images)
    text = f"![{TITLE}]({(images / NAME).as_posix()}.svg)\n\n{explanation(record)}\n"
    page.put(target, page.OVERVIEW, text)


def parser() -> argparse.ArgumentParser:
    """Describe the command line."""
    made = argparse.ArgumentParser("python -m benchmarks.overview", description=(__doc__ or "").partition(":")[0])
    add = made.add_argument
    add("--repeats", type=positive, default=AMOUNTS.repeats, help="repetitions of each trial (%(default)s)")
    add("--operations", type=positive, default=AMOUNTS.operations, help="most calls of a process (%(default)s)")
    add("--processes", type=positive, default=AMOUNTS.processes, help="processes at once (%(default)s)")
    add("--seconds", type=seconds, default=AMOUNTS.seconds, help="most seconds of a pass (%(default)s)")
    add("--directory", type=Path, default=Path(tempfile.gettempdir()), help="where stores are made (%(default)s)")
    add("--out", type=Path, default=Path("build/benchmarks"), help="where record and picture go (%(default)s)")
    add("--record", type=Path, metavar="FILE", help="measure nothing; draw what an earlier run recorded")
    add("--docs", type=Path, metavar="PAGE.md", help="also put the picture into this page (may be README.md)")
    return made


def run(asked: argparse.Namespace) -> int:
    """Measure or read, print the ratios, and draw them."""
    if asked.docs:
        page.marked(asked.docs, page.OVERVIEW)
    asked.out.mkdir(parents=True, exist_ok=True)
    if asked.record:
        record, status = load(asked.record), GOOD
    else:
        record = measure(Amounts(asked.repeats, asked.operations, asked.seconds, asked.processes), asked.directory)
        record.save(asked.out / f"{NAME}.json")
        status = judged(record)
    print(machine_text(record), table(grid(record), record).text(), sep="\n")
    draw(record, asked.out)
    if asked.docs:
        publish(record, asked.docs)
    return status


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and explain what prevents it."""
    made = parser()
    asked = made.parse_args(arguments)
    refuse_lost(made, asked.directory)
    return explained(made, lambda: run(asked), BenchmarkError)


if __name__ == "__main__":
    run_as_command(main)
