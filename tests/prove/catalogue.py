"""Every proof, by name, in the order of the table."""

from __future__ import annotations

from . import clocks, disks, refusals
from .proof import Proof

PROOFS: dict[str, Proof] = {**refusals.PROOFS, **disks.PROOFS, **clocks.PROOFS}
