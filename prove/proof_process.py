"""Run one proof in a process of its own, so that its end, whatever it is, can be told from outside.

What it finds goes as lines of JSON to a pipe; the case that it is in, into a file that is mapped by both sides, so
that it is known even if the interpreter dies in it.
"""

from __future__ import annotations

import importlib
import json
import mmap
import sys
import time
from dataclasses import asdict
from typing import Any

from .proof import CannotRun, Findings, Part, Proof, Trial

TELL_SECONDS = 0.2


class Telling:
    """Tell the outside how far a proof is."""

    def __init__(self, pipe: int, place: int) -> None:
        self._pipe = open(pipe, "w", encoding="utf-8", closefd=False)  # noqa: SIM115 - lives as long as the process
        self._place = mmap.mmap(place, 8)
        self._next = 0.0

    def __call__(self, case: int, findings: Findings) -> None:
        """Note the case; tell what was found so far, but not too often."""
        self._place[:8] = case.to_bytes(8, "little")
        if time.monotonic() >= self._next:
            self.tell(findings=asdict(findings))
            self._next = time.monotonic() + TELL_SECONDS

    def tell(self, **message: Any) -> None:
        """Send one line."""
        self._pipe.write(json.dumps(message) + "\n")
        self._pipe.flush()


def main(
    catalogue: str, name: str, seed: str, seconds: str, only: str, number: str, of: str, pipe: str, place: str
) -> None:
    """Run a proof of the module `catalogue`, or that part of it, and tell what it found."""
    telling = Telling(int(pipe), int(place))
    proof: Proof = importlib.import_module(catalogue).PROOFS[name]
    trial = Trial(int(seed), float(seconds), int(only) if only else None, part=Part(int(number), int(of)), note=telling)
    if proof.control:
        trial.sought, trial.patience = proof.sought, proof.patience
    with trial:
        try:
            proof.run(trial)
        except CannotRun as reason:
            telling.tell(skipped=str(reason))
        telling.tell(findings=asdict(trial.findings))


if __name__ == "__main__":
    main(*sys.argv[1:])
