"""Show the promises of the cache by force: faults, races and hostile input, and one table of what came of them."""

from __future__ import annotations

import argparse
import os
import random
import re
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.status import Status
from rich.table import Table

from benchmarks.command import INTERRUPTED, add_only, run_as_command, seconds
from benchmarks.page import marked, put

from . import report
from .catalogue import PROOFS
from .proof import WHOLE, Part
from .runner import Outcome, Runner

CATALOGUE = "prove.catalogue"
MARK = "proofs"
UNDER_LOAD = 5  # the promise whose proofs, and controls, are judged by time
HELD, VIOLATED = 0, 1


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser("python -m prove", description=__doc__)
    add = made.add_argument
    add("--seconds", type=seconds, default=600.0, help="time for all that is run, roughly (%(default)s)")
    add("--seed", type=int, help="what every case is drawn from (drawn itself, and printed)")
    add_only(made, "proof", PROOFS)
    add("--case", type=int, help="run only this case of the one proof chosen")
    add(
        "--share", type=share, default=WHOLE, metavar="K/N", help="run the K-th of N equal parts of what can be counted"
    )
    add("--list", action="store_true", help="list the proofs and end")
    add("--json", type=Path, metavar="FILE", help="write everything that was found to FILE")
    add("--docs", type=Path, metavar="PAGE", help="put the table into PAGE, between its marks")
    return made


def share(text: str) -> Part:
    """Read K/N, the K-th of N parts; with the same seed all N together are everything once."""
    asked = re.fullmatch("([0-9]{1,9})/([0-9]{1,9})", text)
    number, of = map(int, asked.groups()) if asked else (0, 0)
    if not 1 <= number <= of:
        raise argparse.ArgumentTypeError(f"expected K/N with 1 <= K <= N, such as 2/3, not {text!r}")
    return Part(number - 1, of)


def prove(
    names: Sequence[str], seed: int, seconds: float, case: int | None, part: Part, console: Console
) -> list[Outcome]:
    """Run the proofs; what one leaves of its time goes to those after it.

    Controls that no time judges come last, one per processor at once.
    """
    began, outcomes = time.monotonic(), dict[str, Outcome]()
    processors = len(os.sched_getaffinity(0))
    last = [name for name in names if PROOFS[name].control and PROOFS[name].promise != UNDER_LOAD]
    first = [name for name in names if name not in last]
    with Status("", console=console) as status, Runner(seed, partial(_note, status), CATALOGUE, share=part) as runner:

        def run(name: str, left: Sequence[str], at_once: int = 1) -> None:
            remaining = began + seconds - time.monotonic()
            part_of_it = min(
                at_once * PROOFS[name].weight(seconds) / sum(PROOFS[each].weight(seconds) for each in left), 1
            )
            outcomes[name] = outcome = runner.run(name, PROOFS[name], max(remaining * part_of_it, 0.1), case)
            if not (outcome.held or runner.is_stopped):
                console.print(f"{name}: {report.violations(outcome)}", markup=False)

        for number, name in enumerate(first):
            run(name, [*first[number:], *last])
        with ThreadPoolExecutor(processors) as pool:
            running = [pool.submit(run, name, last[number:], processors) for number, name in enumerate(last)]
            try:
                for control in running:
                    control.result()
            except BaseException:  # an interrupt, for one
                pool.shutdown(wait=False, cancel_futures=True)
                runner.stop()
                raise
    return [outcomes[name] for name in names]


def _note(status: Status, outcome: Outcome) -> None:
    status.update(escape(f"{outcome.name}: {report.how_often(outcome)}"))


def table(outcomes: Sequence[Outcome]) -> Table:
    made = Table(*report.HEADS)
    for row in report.rows(outcomes):
        made.add_row(*map(escape, row))
    return made


def main() -> int:
    """Run the command line; return 0 if every promise held, 1 if one did not or, in CI, could not be tested."""
    arguments = parser()
    asked = arguments.parse_args()
    console = Console(width=None if sys.stdout.isatty() else 160, soft_wrap=False)
    if asked.list:
        listed = Table("proof", "promise", "what is done")
        for name, proof in PROOFS.items():
            listed.add_row(name, str(proof.promise), escape(("control: " if proof.control else "") + proof.what))
        console.print(listed)
        return HELD
    if asked.docs:
        marked(asked.docs, MARK)  # now, rather than after all has been run
    names = [name for name in PROOFS if not asked.only or name in asked.only]
    if asked.case is not None and len(names) != 1:
        arguments.error("--case goes with one --only")
    seed = random.SystemRandom().getrandbits(32) if asked.seed is None else asked.seed
    console.print(f"seed {seed}" + (f", share {asked.share}" if asked.share != WHOLE else ""), markup=False)
    began = time.monotonic()
    try:
        outcomes = prove(names, seed, asked.seconds, asked.case, asked.share, console)
    except KeyboardInterrupt:
        console.print("interrupted", markup=False)
        return INTERRUPTED
    console.print(table(outcomes))
    for text in report.failures(outcomes, seed):
        console.print(text, markup=False, highlight=False)
    if asked.json:
        asked.json.write_text(report.as_json(outcomes, seed, asked.share), encoding="utf-8")
    if asked.docs:
        told = report.page(outcomes, seed, (asked.seconds, time.monotonic() - began), asked.share)
        put(asked.docs, MARK, told)
    return _status(outcomes)


def _status(outcomes: Sequence[Outcome]) -> int:
    """Return the exit status; in CI a proof that lacked what should be there counts as violated."""
    hidden = os.environ.get("CI") == "true"
    return HELD if all(one.held or (one.skipped and (one.excused or not hidden)) for one in outcomes) else VIOLATED


if __name__ == "__main__":
    run_as_command(main)
