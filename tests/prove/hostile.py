"""The proofs about directories that a bad disk or an attacker wrote."""

from __future__ import annotations

from . import flips, planted, planted_links, swapped
from .proof import Proof

PROOFS: dict[str, Proof] = {**flips.PROOFS, **swapped.PROOFS, **planted.PROOFS, **planted_links.PROOFS}
