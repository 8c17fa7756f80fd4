"""Feed the decoders what nobody wrote: mutated payloads, random bytes, hand-made structures.

    make fuzz SECONDS=600
    python -m tests.fuzz_codecs --seconds 600 --seed 7

Every input has to come back as a value or as a `DecodeError`; any other exception is a finding, and so is memory beyond
what the bounds allow. The input at work is in a file, in case one ends the process. Where atheris is installed,
`--atheris` has it choose the inputs by coverage of the decoders instead.
"""

from __future__ import annotations

import argparse
import faulthandler
import mmap
import random
import resource
import struct
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from diskcache_like.codecs import encode_value
from diskcache_like.compressors import Packing, make_dictionary, new_compressor
from diskcache_like.errors import DecodeError
from diskcache_like.keys import decode_key, encode_key
from diskcache_like.objects import allowed
from diskcache_like.pipeline import Codec
from diskcache_like.record import Record, pack, pack_simple, unpack
from diskcache_like.serializers import new_serializer

from .sample_objects import CLASSES, OBJECTS
from .sample_values import ANSWERS, MIXED, RECORDS

LIMIT = 1 << 22
"""Bytes that a payload may expand to here."""
MEMORY = 1 << 30
"""Bytes of address space that the process may gain."""
STORED = b"\xa3key"
EXTREMES = (0, 1, 0x7F, 0x80, 0xC1, 0xC9, 0xDD, 0xDF, 0xFF)
LENGTHS = (0, 1, 0xFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF)


class Target(NamedTuple):
    """One decoder, and payloads that it reads."""

    name: str
    decode: Callable[[bytes], object]
    seeds: list[bytes]


class _One:
    """A dictionary that everybody has."""

    def __init__(self) -> None:
        self.content = make_dictionary(4096, [encode_value(value) for value in ANSWERS], 1)

    def current(self) -> int:
        return 1

    def find(self, version: int) -> bytes | None:
        return self.content if version == 1 else None


def codec(serializer: str, compressor: str, limit: int = LIMIT) -> Codec:
    """Return a codec with the sample classes, a dictionary where there are any, and a low limit."""
    made = new_serializer(serializer, [allowed(CLASSES)])
    packer = new_compressor(compressor, None, _One() if compressor == "zstd" else None)
    return Codec(made, None if packer is None else Packing(packer, 16, limit))


def targets() -> list[Target]:
    """Return every decoder that reads bytes from a database."""
    found = []
    for serializer in ("msgpack", "json"):
        for compressor in ("none", "zlib", "zstd", "lz4"):
            one = codec(serializer, compressor)
            values: list[Any] = [*ANSWERS[:4], *RECORDS[:4]]
            values += [*MIXED[:4], *OBJECTS] if serializer == "msgpack" else []
            found.append(Target(f"{serializer}+{compressor}", one.decode, [one.encode(value) for value in values]))
    records = [pack_simple(STORED, b"\x01"), pack(STORED, Record(1, b"payload", 5.0, b"\xa1t"))]
    found.append(Target("record", lambda blob: unpack(STORED, blob), records))
    keys: list[Any] = ["text", 5, (1, ("a", 2.5)), frozenset({1, 2}), b"bytes", 1 << 80]
    found.append(Target("key", decode_key, [encode_key(key) for key in keys]))
    return found


def mutated(dice: random.Random, seeds: list[bytes]) -> bytes:
    """Return a payload with one to four changes, or bytes made up from nothing."""
    if dice.random() < 0.1:
        return dice.randbytes(dice.choice((1, 2, 5, 20, 100, 1000)))
    data = bytearray(dice.choice(seeds))
    for _ in range(dice.choice((1, 1, 2, 4))):
        dice.choice(MUTATIONS)(dice, data, seeds)
    return bytes(data)


def _flip(dice: random.Random, data: bytearray, _: list[bytes]) -> None:
    if data:
        data[dice.randrange(len(data))] ^= 1 << dice.randrange(8)


def _put(dice: random.Random, data: bytearray, _: list[bytes]) -> None:
    if data:
        data[dice.randrange(len(data))] = dice.choice(EXTREMES)


def _cut(dice: random.Random, data: bytearray, _: list[bytes]) -> None:
    del data[dice.randrange(len(data) + 1) :]


def _drop(dice: random.Random, data: bytearray, _: list[bytes]) -> None:
    start = dice.randrange(len(data) + 1)
    del data[start : start + dice.randrange(1, 9)]


def _insert(dice: random.Random, data: bytearray, _: list[bytes]) -> None:
    data[dice.randrange(len(data) + 1) : 0] = dice.randbytes(dice.randrange(1, 9))


def _length(dice: random.Random, data: bytearray, _: list[bytes]) -> None:
    """Claim a length: a header of msgpack, or just the number."""
    claim = struct.pack(dice.choice((">I", "<I", ">H")), dice.choice(LENGTHS) & 0xFFFF | 0)
    if dice.random() < 0.5:
        claim = struct.pack(dice.choice((">I", "<I")), dice.choice(LENGTHS))
    head = bytes((dice.choice((0xC6, 0xC9, 0xDB, 0xDD, 0xDF, 0xC5, 0xDC)),)) if dice.random() < 0.7 else b""
    start = dice.randrange(len(data) + 1)
    data[start : start + len(head + claim)] = head + claim


def _splice(dice: random.Random, data: bytearray, seeds: list[bytes]) -> None:
    other = dice.choice(seeds)
    data[dice.randrange(len(data) + 1) :] = other[dice.randrange(len(other)) :]


def _repeat(dice: random.Random, data: bytearray, _: list[bytes]) -> None:
    start = dice.randrange(len(data) + 1)
    piece = data[start : start + dice.choice((1, 2, 8))]
    data[start:start] = piece * dice.choice((2, 50, 600))


MUTATIONS = (_flip, _flip, _put, _cut, _drop, _insert, _length, _splice, _repeat)


def try_one(target: Target, data: bytes) -> bool:
    """Tell whether the decoder takes the bytes; raise whatever it should not have raised."""
    try:
        target.decode(data)
    except DecodeError:
        return False
    return True


class _Notes:
    """A file that holds the input at work, written without a system call."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.write_bytes(bytes(1 << 16))
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 0)

    def write(self, name: str, data: bytes) -> None:
        """Note what is tried next: its length, the target's name, the bytes."""
        entry = struct.pack("<I16s", len(data), name.encode()[:16]) + data[: (1 << 16) - 20]
        self._map[: len(entry)] = entry


def fuzz(seconds: float, seed: int, notes: Path) -> Counter[str]:
    """Try inputs for that long and return how many were taken and refused, per decoder."""
    dice = random.Random(seed)
    found = targets()
    counts: Counter[str] = Counter()
    page = _Notes(notes)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        target = dice.choice(found)
        for _ in range(200):
            data = mutated(dice, target.seeds)
            page.write(target.name, data)
            counts[f"{target.name} {'taken' if try_one(target, data) else 'refused'}"] += 1
    return counts


def fuzz_by_coverage(seconds: float, seed: int) -> None:
    """Hand the choice of inputs to atheris, which ends the process itself."""
    import atheris

    found = targets()

    def one(data: bytes) -> None:
        if data:
            try_one(found[data[0] % len(found)], data[1:])

    atheris.instrument_all()
    atheris.Setup([sys.argv[0], f"-max_total_time={int(seconds)}", f"-seed={seed}", "-max_len=4096"], one)
    atheris.Fuzz()


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description="fuzz the decoders")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--atheris", action="store_true")
    chosen = parser.parse_args()
    faulthandler.enable()
    used = int(Path("/proc/self/statm").read_text().split()[0]) * mmap.PAGESIZE
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, resource.RLIM_INFINITY))
    print(f"seed {chosen.seed}", flush=True)
    if chosen.atheris:
        fuzz_by_coverage(chosen.seconds, chosen.seed)
    with tempfile.TemporaryDirectory() as directory:
        counts = fuzz(chosen.seconds, chosen.seed, Path(directory, "at-work"))
    for name, count in sorted(counts.items()):
        print(f"{name:26}{count:>12,}")
    print(f"{'inputs':26}{counts.total():>12,}")
    print(f"{'most memory':26}{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10:>10,} MB")


if __name__ == "__main__":
    main()
