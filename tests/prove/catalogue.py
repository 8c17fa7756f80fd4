"""Every proof, by name, in the order of the table."""

from __future__ import annotations

from . import cancelling, interrupts, lives, load, threads
from .proof import Proof

PROOFS: dict[str, Proof] = {**load.PROOFS, **lives.PROOFS, **threads.PROOFS, **cancelling.PROOFS, **interrupts.PROOFS}
