"""The proofs about directories that a bad disk or an attacker wrote."""

from __future__ import annotations

from . import flips, planted, planted_links
from .proof import Proof

PROOFS: dict[str, Proof] = {**flips.PROOFS, **planted.PROOFS, **planted_links.PROOFS}
