"""Every proof, by name, in the order of the table."""

from __future__ import annotations

from . import hostile
from .proof import Proof

PROOFS: dict[str, Proof] = {**hostile.PROOFS}
