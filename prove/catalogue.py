"""Every proof, by name, in the order of the table."""

from __future__ import annotations

from .crashes import any_moment
from .hostile import buffers, flips, planted_files, planted_rows, swapped_files
from .linearizability import caches, deques_and_indexes, kills, tasks
from .lives import cancelled_tasks, processes, renewals, threads
from .load import everything_at_once, fairness, soak
from .power import one_writer, twice, two_writers
from .proof import Proof
from .remote import tier
from .signals import handlers, raising_handlers
from .system import clocks, disks, failing_calls, posix_locks, wal_reset

PROOFS: dict[str, Proof] = {
    **caches.PROOFS,
    **deques_and_indexes.PROOFS,
    **kills.PROOFS,
    **tasks.PROOFS,
    **tier.PROOFS,
    **any_moment.PROOFS,
    **wal_reset.PROOFS,
    **posix_locks.PROOFS,
    **one_writer.PROOFS,
    **twice.PROOFS,
    **two_writers.PROOFS,
    **failing_calls.PROOFS,
    **disks.PROOFS,
    **clocks.PROOFS,
    **flips.PROOFS,
    **buffers.PROOFS,
    **swapped_files.PROOFS,
    **planted_rows.PROOFS,
    **planted_files.PROOFS,
    **everything_at_once.PROOFS,
    **soak.PROOFS,
    **fairness.PROOFS,
    **processes.PROOFS,
    **threads.PROOFS,
    **cancelled_tasks.PROOFS,
    **renewals.PROOFS,
    **handlers.PROOFS,
    **raising_handlers.PROOFS,
}
