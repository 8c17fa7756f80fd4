"""Every proof, by name, in the order of the table."""

from __future__ import annotations

from . import (
    cancelling,
    clocks,
    crash,
    disks,
    hostile,
    interrupts,
    linearizability,
    lives,
    load,
    power,
    raising,
    refusals,
    threads,
)
from .proof import Proof

PROOFS: dict[str, Proof] = {
    **linearizability.PROOFS,
    **crash.PROOFS,
    **power.PROOFS,
    **refusals.PROOFS,
    **disks.PROOFS,
    **clocks.PROOFS,
    **hostile.PROOFS,
    **load.PROOFS,
    **lives.PROOFS,
    **threads.PROOFS,
    **cancelling.PROOFS,
    **interrupts.PROOFS,
    **raising.PROOFS,
}
