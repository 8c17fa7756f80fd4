"""Measure how many times as long other stores take for a call, and draw one picture: `python -m benchmarks.overview`.

Single calls, get, set and delete, from one process and from eight, on values of 100 bytes to 1 MB, all subjects in
turn. `--docs PAGE.md` draws the picture beside that page and puts it and what it says into the page's marked place.

Exit status: as `python -m benchmarks` has it.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict
from functools import partial
from pathlib import Path

from benchmarks.__main__ import judged
from benchmarks.command import GOOD, add_amounts, amounts_of, follows, parser, progress, run_as_command
from benchmarks.measure import awake, measure_costs
from benchmarks.peers.catalogue import SUBJECTS
from benchmarks.peers.spec import BenchmarkError
from benchmarks.report.machine import machine_facts
from benchmarks.report.overview_picture import SIZES, TITLE, draw, publish, table
from benchmarks.report.record import Record, ScenarioFacts, load
from benchmarks.report.results import OVERVIEW
from benchmarks.report.tables import machine_text
from benchmarks.workloads.calls import DELETE, GET, SET, Mix
from benchmarks.workloads.harness import Amounts, Harness
from benchmarks.workloads.scenarios import Scenario
from benchmarks.workloads.values import Bytes
from benchmarks.workspace import workspace

CHOSEN = ("cache", "diskcache", "memcached", "redis", "lmdb")
SHARES = {GET: 80, SET: 15, DELETE: 5}
KEYS = 50
USUAL = Amounts(repeats=7, operations=20_000, seconds=0.25, processes=8)


def scenarios(processes: int) -> dict[str, Scenario]:
    """Return the calls of one process and those of several at once, each over the sizes of values."""

    def all_of(count: int, step: int, most: int) -> int:
        return count

    return {
        f"overview-{count}": Scenario(
            ScenarioFacts(f"80 % get, 15 % set, 5 % delete of {KEYS} keys, {count} process(es)", TITLE, "bytes"),
            lambda size: Mix(KEYS, SHARES, Bytes(size)),
            CHOSEN,
            steps=SIZES,
            processes=partial(all_of, count),
        )
        for count in sorted({1, processes})
    }


def measure(amounts: Amounts, directory: Path) -> Record:
    """Measure every subject that is installed."""
    chosen = scenarios(amounts.processes)
    subjects = {name: SUBJECTS[name].facts for name in CHOSEN}
    with workspace(directory) as space, awake(), progress() as note:
        costs = measure_costs()
        facts = {name: one.facts for name, one in chosen.items()}
        record = Record(machine_facts(space.root.parent, costs), asdict(amounts), subjects, facts)
        for _ in Harness(record, amounts, costs, space, note).run(chosen, CHOSEN):
            pass
    return record


def options() -> argparse.ArgumentParser:
    made = parser("benchmarks.overview", __doc__, "directory", "out", "docs")
    add_amounts(made, USUAL, "repeats", "operations", "seconds", "processes")
    told = "measure nothing; draw what an earlier run recorded"
    made.add_argument("--record", type=Path, metavar="FILE", help=told)
    return made


def run(asked: argparse.Namespace) -> int:
    """Measure or read, print the ratios, and draw them."""
    asked.out.mkdir(parents=True, exist_ok=True)
    if asked.record:
        record, status = load(asked.record), GOOD
    else:
        record = measure(amounts_of(asked, USUAL), asked.directory)
        record.save(asked.out / f"{OVERVIEW}.json")
        status = judged(record)
    print(machine_text(record), table(record).text(), sep="\n")
    draw(record, asked.out)
    if asked.docs:
        publish(record, asked.docs)
    return status


main = follows(options, run, BenchmarkError, OVERVIEW)


if __name__ == "__main__":
    run_as_command(main)
