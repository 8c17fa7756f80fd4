"""The table of what was proved, and the commands that repeat what was not."""

from __future__ import annotations

import json
import os
import platform
import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from .proof import WHOLE, Part
from .runner import Outcome

HEADS = ("promise", "what was done to it", "how often", "violations")


def how_often(outcome: Outcome) -> str:
    """Say how many cases there were, and what was counted and measured in them."""
    found = outcome.findings
    if outcome.skipped:
        return f"not run: {outcome.skipped}"
    told = [f"{found.cases:,} {'case' if found.cases == 1 else 'cases'}"]
    told += [f"{number:,} {what}" for what, number in found.counts.items()]
    told += [f"{what}: {_reached(*numbers)}" for what, numbers in found.reached.items()]
    told += [f"{what}: {value}" for what, (_, value) in found.largest.items()]
    told += [f"{what}: {value}" for what, value in found.figures.items()]
    return ", ".join(told)


def _reached(done: int, known: int) -> str:
    if not known:
        return "none in this share"
    return f"{done:,} of {known:,}" if done < known else f"all {done:,}"


def violations(outcome: Outcome) -> str:
    """Say how many violations there were; of a control, whether it found the one that it must."""
    number = len(outcome.unwanted)
    if outcome.skipped:
        return "-"
    if not outcome.proof.control or outcome.ended:
        return str(number)
    if number and not outcome.held:
        return f"{number} of ANOTHER KIND"
    return "found, as it must" if outcome.held else "NOT FOUND"


def rows(outcomes: Sequence[Outcome]) -> list[tuple[str, str, str, str]]:
    ordered = sorted(outcomes, key=lambda outcome: outcome.proof.promise)
    return [
        (
            str(one.proof.promise),
            ("control: " if one.proof.control else "") + one.proof.what,
            how_often(one),
            violations(one),
        )
        for one in ordered
    ]


def markdown(outcomes: Sequence[Outcome]) -> str:
    lines = [HEADS, tuple("---" for _ in HEADS), *rows(outcomes)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def page(outcomes: Sequence[Outcome], seed: int, seconds: tuple[float, float], share: Part = WHOLE) -> str:
    """Return the table with what it depends on, for the documentation; `seconds`: asked for, and taken."""
    facts = ", ".join(f"{name} {value}" for name, value in machine().items())
    asked, took = seconds
    told = f'`make prove ARGS="--seconds {asked:.0f} --seed {seed}{_shared(share)}"`, {took:.0f} s: {facts}.'
    return f"{told}\n\n{markdown(outcomes)}"


def failures(outcomes: Sequence[Outcome], seed: int) -> Iterator[str]:
    """Tell each violation with the command that repeats its case."""
    for outcome in outcomes:
        if outcome.held or outcome.skipped:
            continue
        if outcome.proof.control and not outcome.findings.violations:
            yield f"{outcome.name}: found nothing, although the cache was broken on purpose; seed {seed}"
        for case, text in outcome.unwanted:
            asked = f"--only {outcome.name} --seed {seed} --case {case} --seconds {outcome.asked:.2f}"
            command = f'make prove ARGS="{asked}{_shared(outcome.share)}"'
            kind = " (not what this control is to find)" if outcome.proof.control else ""
            yield f"{outcome.name}: case {case}{kind}\n{text}\nrepeat it with: {command}"


def _shared(share: Part) -> str:
    return "" if share == WHOLE else f" --share {share}"


def machine() -> dict[str, str]:
    """Return what the figures depend on."""
    return {
        platform.python_implementation(): platform.python_version(),
        "SQLite": sqlite3.sqlite_version,
        platform.system(): f"{platform.release()} {platform.machine()}",
        "processors": str(len(os.sched_getaffinity(0))),
    }


def as_json(outcomes: Sequence[Outcome], seed: int, share: Part = WHOLE) -> str:
    """Return everything that was found, for programs."""
    proofs: list[dict[str, Any]] = [
        {
            "name": one.name,
            "promise": one.proof.promise,
            "what": one.proof.what,
            "control": one.proof.control,
            "held": one.held,
            "skipped": one.skipped,
            "seconds": round(one.seconds, 1),
            **asdict(one.findings),
        }
        for one in outcomes
    ]
    return json.dumps({"seed": seed, "share": str(share), "machine": machine(), "proofs": proofs}, indent=1) + "\n"
