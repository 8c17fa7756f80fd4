"""Write buffers damaged: each byte flipped, cut and zeroed, and contents that nobody can have written planted."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from unittest import mock

from diskcache_like.coherence import ring
from diskcache_like.coherence.ring import LEAST_CAPACITY, PAGE, Word
from tests.support.rings import find_unchecked

from ..proof import Proof, Trial
from .flips import Place, Places, bytes_of, cuts_of, try_place
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


# -- the controls -----------------------------------------------------------------------------------------------------

KEY_SIZE = range(32, 36)  # bytes of a record's header


def _header_before(content: bytes, place: int) -> int:
    """Return where the header of the record begins that has this place in its content."""
    return next(
        at
        for at in range(place // 8 * 8, PAGE - 8, -8)
        if int.from_bytes(content[at : at + 8], "little") % LEAST_CAPACITY == at - PAGE
    )


def prove_control(trial: Trial) -> None:
    """Flip bits of the header of a record that waits, where its checksum is not compared."""
    with own_surroundings() as place:
        sample = make("buffered", place, live=True)
        content, record = sample.files[BUFFER], sample.entries["twice"].record
        waiting = memoryview(content[:PAGE]).cast("Q")[Word.FLUSHED] % LEAST_CAPACITY
        at = _header_before(content, content.index(record, PAGE + waiting))
        items = [Place(sample, BUFFER, at + number, "flip", False) for number in KEY_SIZE]
        with mock.patch.object(ring.Ring, "find", find_unchecked):
            trial.each(items, partial(try_place, trial, Workbench(place)), "bytes")


def prove_words(trial: Trial) -> None:
    """Flip bits of the word that says where walks end, in a copy that believes the words of the original."""
    with own_surroundings() as place:
        sample = samples(place)[1]
        items = [Place(sample, BUFFER, 8 * Word.FLOOR + number, "flip", False) for number in range(8)]
        with mock.patch.object(ring.Ring, "belongs_to", return_value=True):
            trial.each(items, partial(try_place, trial, Workbench(place)), "bytes")


PROOFS: dict[str, Proof] = {
    "buffer-damage": Proof(
        3,
        "a bit flipped in every byte of a small write buffer, at rest, in a copy and in use; it is cut at every byte at"
        " rest, and every sector zeroed",
        prove_damage,
        bulk=10.0,
        parallel=True,
    ),
    "control-buffer": Proof(
        3,
        "a bit flipped in the header of a record in the write buffer, with its checksum not compared",
        prove_control,
        share=0.3,
        finds=r"AssertionError: buffered in use, cache\.buffer at .*: an overwritten value is back",
    ),
    "control-buffer-words": Proof(
        3,
        "a bit flipped in a copied write buffer, in the word that says where walks end, and the words are believed",
        prove_words,
        share=0.3,
        finds=r"AssertionError: buffered, copied, cache\.buffer at .*: an overwritten value is back",
    ),
}
