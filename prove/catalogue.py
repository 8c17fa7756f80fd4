"""Every proof, by name, in the order of the table: the modules register them when they are imported."""

# ruff: noqa: F401, I001
from __future__ import annotations

from .linearizability import proofs as _linearizability
from .remote import proofs as _remote
from .crashes import any_moment, every_step, lock_owners
from .system import posix_locks
from .power import losses
from .system import failing_calls, disks, clocks
from .hostile import flips, swapped_files, planted_rows, planted_files
from .load import everything_at_once, soak, fairness
from .lives import processes, threads, cancelled_tasks, renewals
from .signals import proofs as _signals
from .proof import PROOFS

__all__ = ["PROOFS"]
