"""Proofs that end in every way there is, for the tests of the rig itself."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path

from prove.children import played
from prove.proof import CannotRun, Proof, Trial


def _hold(trial: Trial) -> None:
    def case(chance: random.Random) -> None:
        trial.fresh().mkdir()
        trial.count("operations", 2)
        trial.figure("largest", "5 ms")

    trial.repeat(case, least=3)


def _break(trial: Trial) -> None:
    def case(chance: random.Random) -> None:
        trial.count("operations")
        assert chance.random() < 0.5, "larger than a half"

    trial.repeat(case, least=20)


def _break_late(trial: Trial) -> None:
    def case(chance: random.Random) -> None:
        assert trial.findings.cases < 300, "larger than a half"
        trial.fresh()

    trial.repeat(case)


def _raise(trial: Trial) -> None:
    trial.each(["fine", "also fine", 0], lambda item: 1 / len(item), "items", least=3)  # type: ignore[arg-type]


def _share(trial: Trial) -> None:
    def case(item: int) -> None:
        trial.count(f"item {item}")
        trial.most("largest item", item)
        assert item != BAD, "not this one"
        if item == DEADLY:
            os._exit(3)

    trial.each(range(trial.seed), case, "items", least=trial.seed)


def _die(trial: Trial) -> None:
    trial.repeat(lambda chance: os.kill(os.getpid(), signal.SIGSEGV))


def _die_with_a_child(trial: Trial) -> None:
    def case(chance: random.Random) -> None:
        if os.fork() == 0:
            signal.pause()
        os._exit(3)

    trial.repeat(case)


def _hang(trial: Trial) -> None:
    trial.repeat(lambda chance: signal.pause())


def _lack(trial: Trial) -> None:
    raise CannotRun("needs a machine from the future")


def _litter(trial: Trial) -> None:
    trial.repeat(lambda chance: Path(trial.fresh()).mkdir())
    os.abort()


LARGE = "AssertionError: larger than a half"


def _exceed(chance: random.Random) -> None:
    assert chance.random() < 0, "larger than a half"


def _stumble(chance: random.Random) -> None:
    try:
        _exceed(chance)
    finally:
        raise LookupError("what led to an error is not the error")


def _in_a_child(work: Callable[[random.Random], None], trial: Trial) -> None:
    trial.repeat(lambda chance: played(partial(work, chance)))


BAD, DEADLY = 41, 61
PROOFS = {
    "holds": Proof(1, "nothing", _hold),
    "breaks": Proof(2, "half of it", _break),
    "shared": Proof(2, "everything, in parts", _share, parallel=True),
    "raises": Proof(3, "an error that nobody expected", _raise),
    "dies": Proof(4, "a crash of the interpreter", _die),
    "dies-with-a-child": Proof(4, "an end that a child outlives", _die_with_a_child),
    "hangs": Proof(5, "a hang", _hang),
    "lacks": Proof(6, "something rare", _lack),
    "litters": Proof(6, "a crash with files left", _litter),
    "finds": Proof(1, "a fault", _break, finds=LARGE),
    "finds-in-a-child": Proof(1, "a fault in another process", partial(_in_a_child, _exceed), finds=LARGE),
    "finds-another": Proof(
        1, "an error of its own instead of the fault", lambda trial: trial.repeat(_stumble), finds=LARGE
    ),
    "finds-another-in-a-child": Proof(1, "the same in another process", partial(_in_a_child, _stumble), finds=LARGE),
    "dies-looking": Proof(1, "a crash instead of a fault", _die, finds=LARGE),
    "finds-late": Proof(1, "a fault after hundreds of cases", _break_late, finds=LARGE),
    "finds-nothing": Proof(1, "no fault at all", _hold, finds=LARGE, patience=0.0),
}
