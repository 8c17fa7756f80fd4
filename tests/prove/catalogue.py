"""Every proof, by name, in the order of the table."""

from __future__ import annotations

from . import linearizability, lives, load
from .proof import Proof

PROOFS: dict[str, Proof] = {
    **linearizability.PROOFS,
    **load.PROOFS,
    **lives.PROOFS,
}
