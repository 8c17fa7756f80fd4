"""Every proof, by name, in the order of the table."""

from __future__ import annotations

from . import (
    cancelling,
    clocks,
    crash,
    disks,
    fairness,
    hostile,
    interrupts,
    linearizability,
    linearizability_kills,
    linearizability_structures,
    lives,
    load,
    posix_locks,
    power,
    power_twice,
    power_two,
    raising,
    refusals,
    soak,
    threads,
    wal_reset,
)
from .proof import Proof

PROOFS: dict[str, Proof] = {
    **linearizability.PROOFS,
    **linearizability_structures.PROOFS,
    **linearizability_kills.PROOFS,
    **crash.PROOFS,
    **wal_reset.PROOFS,
    **posix_locks.PROOFS,
    **power.PROOFS,
    **power_twice.PROOFS,
    **power_two.PROOFS,
    **refusals.PROOFS,
    **disks.PROOFS,
    **clocks.PROOFS,
    **hostile.PROOFS,
    **load.PROOFS,
    **soak.PROOFS,
    **fairness.PROOFS,
    **lives.PROOFS,
    **threads.PROOFS,
    **cancelling.PROOFS,
    **interrupts.PROOFS,
    **raising.PROOFS,
}
