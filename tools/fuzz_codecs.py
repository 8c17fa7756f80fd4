"""Feed the decoders what nobody wrote: mutated payloads, random bytes, hand-made structures.

Those of serializers, compressors, records, keys, arrays and tables of other libraries, and of what is
sealed, of which nothing may be taken but what was sealed.

    make fuzz SECONDS=600
    python -m tools.fuzz_codecs --seconds 600 --seed 7

Every input has to come back as a value or as a `DecodeError`; any other exception is a finding, and so is memory beyond
what the bounds allow. The input at work is in a file, in case one ends the process. `fuzz_by_coverage` has atheris choose
the inputs instead.
"""

from __future__ import annotations

import argparse
import faulthandler
import io
import mmap
import random
import resource
import struct
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

from diskcache_like.crypto.aead import (
    CHUNK,
    SEALED,
    DataKey,
    SealedFile,
    decrypt,
    encrypt,
    epoch_of,
    epoch_of_key,
    sealed_pieces,
)
from diskcache_like.disk.codec import Codec
from diskcache_like.disk.columnar import arrow, registry
from diskcache_like.disk.serializers import new_serializer
from diskcache_like.encoding.classes import registry_of
from diskcache_like.encoding.compressors import PayloadCompressor, new_compressor
from diskcache_like.encoding.keys import decode_key, encode_key
from diskcache_like.encoding.record import MODE_ARRAY, MODE_ARROW, Metadata, Record, pack, pack_simple, unpack
from diskcache_like.errors import DecodeError
from tests.support.sample_arrays import (
    look_at,
    polars_frames,
    strange_arrays,
    strange_frames,
    strange_scalars,
    string_arrays,
    tables,
)
from tests.support.sample_objects import CLASSES, OBJECTS
from tests.support.sample_values import MIXED, RECORDS

LIMIT = 1 << 22
"""Bytes that a payload may expand to here."""
MEMORY = 1 << 30
"""Bytes of address space that the process may gain."""
STORED = b"\xa3key"
EXTREMES = (0, 1, 0x7F, 0x80, 0xC1, 0xC9, 0xDD, 0xDF, 0xFF)
LENGTHS = (0, 1, 0xFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF)


MANY_PAIRS = {f"key{number}": (number, number / 7) for number in range(70)}
KEY = DataKey(b"abcd", bytes(32))
IDENTIFIER = bytes(16)


class Target(NamedTuple):
    """One decoder, and payloads that it reads."""

    name: str
    decode: Callable[[bytes], object]
    seeds: list[bytes]


def codec(serializer: str, compressor: str, limit: int = LIMIT) -> Codec:
    """Return a codec with the sample classes and a low limit."""
    made = new_serializer(serializer, [registry.COLUMNAR_TYPES, registry_of(CLASSES)])
    packer = new_compressor(compressor, None)
    return Codec(made, None if packer is None else PayloadCompressor(packer, 16, limit))


def targets() -> list[Target]:
    """Return every decoder that reads bytes from a database."""
    found = []
    for serializer in ("msgpack", "json"):
        for compressor in ("none", "zlib", "zstd", "lz4"):
            one = codec(serializer, compressor)
            values: list[Any] = [*RECORDS[:8]]
            values += [*MIXED[:4], MANY_PAIRS, *OBJECTS] if serializer == "msgpack" else []
            found.append(Target(f"{serializer}+{compressor}", one.decode, [one.encode(value) for value in values]))
    records = [
        pack_simple(STORED, b"\x01"),
        pack(STORED, Record(1, b"payload", Metadata(5.0, b"\x02\xa1t", 6.0, 1.0, 2.0, b"e"))),
    ]
    found.append(Target("record", lambda blob: unpack(STORED, blob), records))
    keys: list[Any] = ["text", 5, (1, ("a", 2.5)), frozenset({1, 2}), b"bytes", 1 << 80]
    found.append(Target("key", decode_key, [encode_key(key) for key in keys]))
    return [*found, *_library_targets(), *_sealed_targets()]


def _library_targets() -> list[Target]:
    """Return the decoders of arrays, tables and frames; what they take is looked at, for not to be sound may crash."""

    def looking(decode: Callable[[bytes], object]) -> Callable[[bytes], object]:
        return lambda data: look_at(decode(data))

    def unpacking(mode: int, copy: bool) -> Callable[[bytes], object]:
        return looking(lambda data: registry.unpack(mode, data, copy=copy))

    def as_large(data: bytes) -> object:
        with mock.patch.object(arrow, "_LARGE", 0):
            return registry.unpack(MODE_ARROW, data)

    arrays = [_packed(value) for value in (*strange_arrays(), *string_arrays())]
    kinds = {"tables": tables(), "pandas": strange_frames(), "polars": polars_frames()}
    frames = {name: [_packed(value) for value in values.values()] for name, values in kinds.items()}
    scalars = [_packed(value) for value in strange_scalars()]
    tagged = [codec("arrow", "none").encode(value) for value in (*strange_arrays()[:4], *strange_scalars()[:4])]
    both = codec("msgpack", "none").encode([strange_arrays()[5], (strange_scalars()[0], tables()["lists"])])
    return [
        Target("arrays", unpacking(MODE_ARRAY, True), arrays),
        Target("arrays, mapped", unpacking(MODE_ARRAY, False), arrays),
        Target("scalars", looking(registry._read_scalar), scalars),
        *(Target(name, unpacking(MODE_ARROW, True), some) for name, some in frames.items()),
        Target("large tables", looking(as_large), frames["tables"] + frames["polars"]),
        Target("frames, mapped", unpacking(MODE_ARROW, False), frames["pandas"]),
        Target("arrow", looking(codec("arrow", "none").decode), tagged),
        Target("arrays in msgpack", codec("msgpack", "none").decode, [both]),
    ]


def _packed(value: Any) -> bytes:
    pack = registry.packer(type(value))
    assert pack is not None
    return pack(value).content()


class _Named(io.BytesIO):
    name = "a value file"


def _sealed_targets() -> list[Target]:
    """Return the decoders of what is sealed, of which nothing may be taken but what was sealed.

    Behind the seal is what only this program writes; it is fuzzed as well, sealed anew.
    """
    records = [
        KEY.seal(STORED, one)
        for one in (Record(0, b"payload"), Record(1, b"payload", Metadata(5.0, b"\x02\xa1t", 6.0, 1.0, 2.0, b"e")))
    ]
    names = [KEY.seal_key(STORED, b"canonical", spelling) for spelling in (None, b"spelling")]
    sizes = (0, 5, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK + 7)
    sealed = [b"".join(sealed_pieces(KEY.file_cipher(IDENTIFIER), [bytes(size)])) for size in sizes]

    def stream(data: bytes) -> bytes:
        with SealedFile(_Named(data), KEY.file_cipher(IDENTIFIER), len(data)) as file:
            return b"".join(file.chunks())

    def behind(plain: bytes) -> object:
        head = bytes((SEALED,)) + KEY.epoch
        return KEY.open(STORED, head + encrypt(KEY._record, plain, head + STORED))

    def of_a_key(blob: bytes) -> object:
        return KEY.open_key(STORED, blob) if epoch_of_key(blob) == KEY.epoch else _refuse(blob)

    def of_a_record(blob: bytes) -> object:
        return KEY.open(STORED, blob) if epoch_of(blob) == KEY.epoch else _refuse(blob)

    plain = [decrypt(KEY._record, records[1], 1 + len(KEY.epoch), records[1][:5] + STORED)]
    return [
        Target("sealed records", _authentic(of_a_record, records), records),
        Target("sealed keys", _authentic(of_a_key, names), names),
        Target("sealed streams", _authentic(stream, sealed), sealed),
        Target("behind the seal", behind, plain),
    ]


def _refuse(blob: bytes) -> object:
    raise DecodeError(f"{blob[:9]!r} is of another epoch")


def _authentic(decode: Callable[[bytes], object], seeds: list[bytes]) -> Callable[[bytes], object]:
    """Return a decoder that fails if it takes anything but the seeds' values."""
    wanted = [decode(seed) for seed in seeds]

    def checked(data: bytes) -> object:
        value = decode(data)
        if value not in wanted:
            raise AssertionError(f"{value!r} was taken, which nobody sealed")
        return value

    return checked


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


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description="fuzz the decoders")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    chosen = parser.parse_args()
    faulthandler.enable()
    warnings.simplefilter("ignore")  # of NumPy and pandas about numbers that nobody would have written
    used = int(Path("/proc/self/statm").read_text().split()[0]) * mmap.PAGESIZE
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, resource.RLIM_INFINITY))
    print(f"seed {chosen.seed}", flush=True)
    with tempfile.TemporaryDirectory() as directory:
        counts = fuzz(chosen.seconds, chosen.seed, Path(directory, "at-work"))
    for name, count in sorted(counts.items()):
        print(f"{name:26}{count:>12,}")
    print(f"{'inputs':26}{counts.total():>12,}")
    print(f"{'most memory':26}{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10:>10,} MB")


if __name__ == "__main__":
    main()
