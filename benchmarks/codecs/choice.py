"""What to choose, derived from the numbers by rules that are stated beside the answer.

Each kind and size that a rule looks at has the same weight (geometric means). Candidates are codecs of msgpack, which
takes every value that is data; JSON takes fewer, so it competes only where that is said. Pickle is no candidate: it is
for values that are not data.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from benchmarks.codecs.matrix import Matrix, geometric_mean
from benchmarks.codecs.subjects import Subject
from benchmarks.intervals import Spread, ratio_spread

PLAIN = Subject("msgpack")
TIED_TIME, TIED_SHARE = 1.05, 1.01
WORTH_SAVING = 1 / 8  # of a payload; what compressing has to save for the cache to store the compressed form


@dataclass(frozen=True)
class Candidate:
    """One codec over the cells that a rule looks at.

    `times` are nanoseconds of encoding and decoding 1,000 bytes of plain size, for each repetition.
    """

    subject: Subject
    times: tuple[float, ...]
    share: float

    @property
    def time(self) -> float:
        """Return the median time."""
        return Spread.of(self.times).median


def _default(subject: Subject) -> bool:
    return subject.serializer == "msgpack"


@dataclass(frozen=True)
class Rule:
    """A goal, the cells that decide it, and how."""

    goal: str
    rule: str
    kinds: tuple[str, ...]
    sizes: tuple[str, ...]
    choose: Callable[[Sequence[Candidate]], Candidate]
    allowed: Callable[[Subject], bool] = _default


@dataclass(frozen=True)
class Recommendation:
    """The codec that a rule chose; `time`: as a multiple of the default's in the same repetition."""

    rule: Rule
    chosen: Candidate
    time: Spread | None


def fastest(candidates: Sequence[Candidate]) -> Candidate:
    """Return the one of least time; of those within 5 % of it the first, which needs the least."""
    limit = min(one.time for one in candidates) * TIED_TIME
    return next(one for one in candidates if one.time <= limit)


def smallest(candidates: Sequence[Candidate], tied: float = TIED_SHARE) -> Candidate:
    """Return the one of smallest share; of those within 1 % of it the fastest."""
    limit = min(one.share for one in candidates) * tied
    return fastest([one for one in candidates if one.share <= limit])


def worthwhile(candidates: Sequence[Candidate]) -> Candidate:
    """Return the fastest of those that no other one makes smaller by more than an eighth."""
    return smallest(candidates, 1 / (1 - WORTH_SAVING))


def front(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Return those that no other one beats in one of time and share without losing in the other, fastest first."""
    found: list[Candidate] = []
    for one in sorted(candidates, key=lambda one: (one.time, one.share)):
        if not found or one.share < found[-1].share:
            found.append(one)
    return found


def knee(candidates: Sequence[Candidate]) -> Candidate:
    """Return the one of the front that gives up least of both: the lowest sum of time and share.

    Both as logarithms, from 0 at the best of the front to 1 at the worst.
    """
    best = front(candidates)
    start, end = best[0], best[-1]

    def sacrifice(one: Candidate) -> float:
        time = math.log(one.time / start.time) / math.log(end.time / start.time)
        return time + math.log(one.share / end.share) / math.log(start.share / end.share)

    return min(best, key=sacrifice) if len(best) > 1 else start


COMPRESSIBLE, INCOMPRESSIBLE = ("records", "text"), ("floats", "bytes")
TO_10KB, TO_100KB = ("1KB", "10KB"), ("1KB", "10KB", "100KB")
TO_1MB = (*TO_100KB, "1MB")
RULES = (
    Rule(
        "speed",
        "least time of encoding and decoding records and text of 1 KB and 10 KB; within 5 %, what needs less",
        COMPRESSIBLE,
        TO_10KB,
        fastest,
    ),
    Rule(
        "balance",
        "over records and text of 1 KB to 100 KB, of the codecs that none beats in both time and size, the lowest sum "
        "of both, as logarithms from 0 for the best to 1 for the worst",
        COMPRESSIBLE,
        TO_100KB,
        knee,
    ),
    Rule(
        "balance, values that JSON can represent",
        "the same over records of 1 KB to 100 KB, with codecs of JSON as candidates",
        ("records",),
        TO_100KB,
        knee,
        lambda subject: subject.serializer in ("msgpack", "json"),
    ),
    Rule(
        "size",
        "smallest payloads of records and text of 1 KB to 1 MB; within 1 %, the fastest",
        COMPRESSIBLE,
        TO_1MB,
        smallest,
    ),
    Rule(
        "interchange",
        "payloads that any program reads: JSON, not compressed, since the compressed form is this package's own",
        COMPRESSIBLE,
        TO_10KB,
        fastest,
        lambda subject: (subject.serializer, subject.compressor) == ("json", "none"),
    ),
    Rule(
        "floats, images, archives",
        "floats and incompressible bytes of 1 KB to 1 MB: the fastest that none makes smaller by more than an eighth",
        INCOMPRESSIBLE,
        TO_1MB,
        worthwhile,
    ),
)


def recommendations(matrix: Matrix) -> Iterator[Recommendation]:
    """Yield what each rule chooses; one whose kinds and sizes were not all measured chooses nothing."""
    for rule in RULES:
        found = {one: made for one in matrix.subjects if (made := candidate(matrix, rule, one))}
        if allowed := [made for one, made in found.items() if rule.allowed(one)]:
            chosen, plain = rule.choose(allowed), found.get(PLAIN)
            yield Recommendation(rule, chosen, ratio_spread(chosen.times, plain.times) if plain else None)


def candidate(matrix: Matrix, rule: Rule, subject: Subject) -> Candidate | None:
    """Return one codec over all cells of a rule; None if one is missing."""
    cells = [cell for kind in rule.kinds for size in rule.sizes for cell in matrix.of(kind, size)]
    own = [cell for cell in cells if cell.subject == subject]
    if len(own) < len(rule.kinds) * len(rule.sizes):
        return None
    times = zip(*([max(time, 1.0) / cell.plain * 1_000 for time in cell.both] for cell in own), strict=True)
    return Candidate(subject, tuple(geometric_mean(turn) for turn in times), geometric_mean(cell.share for cell in own))
