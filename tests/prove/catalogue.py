"""Every proof, by name, in the order of the table."""

from __future__ import annotations

from . import power
from .proof import Proof

PROOFS: dict[str, Proof] = {**power.PROOFS}
