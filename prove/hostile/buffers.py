"""Write buffers damaged: each byte flipped, cut and zeroed, and contents that nobody can have written planted."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from ..proof import Proof, Trial
from .flips import Places, bytes_of, cuts_of, try_place
from .samples import BUFFER, Sample, Workbench, make, own_surroundings


def samples(place: Path) -> list[Sample]:
    """Make a cache whose writes wait, the same as a copy has it, and one where nothing waits any more."""
    live = make("buffered", place, live=True)
    return [live, Sample("buffered, copied", live.options, live.files, live.entries, True), make("buffered", place)]


def prove_damage(trial: Trial) -> None:
    """Flip bits, cut and zero."""
    with own_surroundings() as place:
        items = Places(
            run
            for sample in samples(place)
            for run in (
                *((sample, BUFFER, bytes_of(sample, BUFFER), "flip", is_open) for is_open in (False, True)),
                *cuts_of(sample, BUFFER, 0),
            )
        )
        trial.each(items, partial(try_place, trial, Workbench(place)), "places", first=items.of_first)


PROOFS: dict[str, Proof] = {
    "buffer-damage": Proof(
        3,
        "a bit flipped in every byte of a small write buffer, at rest, in a copy and in use; it is cut at every byte at"
        " rest, and every sector zeroed",
        prove_damage,
        bulk=10.0,
        parallel=True,
    ),
}
