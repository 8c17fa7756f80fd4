"""Every proof, by name, in the order of the table."""

from __future__ import annotations

from . import crash
from .proof import Proof

PROOFS: dict[str, Proof] = {**crash.PROOFS}
