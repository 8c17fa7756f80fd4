"""Payloads that nobody wrote: damage at every place, bombs, false lengths, nesting, extensions and marks unknown."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import zstandard

from diskcache_like import Cache, DecodeError
from diskcache_like.disk.codec import Codec
from diskcache_like.encoding.compressors import COMPRESSED, EXPANDED_LIMIT, STORED, Lz4, PayloadCompressor, Zlib, Zstd
from diskcache_like.encoding.record import MODE_BYTES, MODE_RAW
from tools.fuzz_codecs import codec, mutated, targets, try_one

from ..support.hostile_content import CLAIMS, MB, NESTED, UNKNOWN, lz4_bomb, zlib_bomb, zstd_bomb
from ..support.sample_objects import OBJECTS
from ..support.sample_values import RECORDS
from ..support.tampering import database, forged, plant, stored_of

PAIRS = [
    (serializer, compressor) for serializer in ("msgpack", "json") for compressor in ("none", "zlib", "zstd", "lz4")
]


@contextmanager
def memory_below(limit: int) -> Iterator[None]:
    """Fail if the body allocates more than that at any moment, by Python's own count."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < limit
    finally:
        tracemalloc.stop()


def changes(payload: bytes) -> Iterator[bytes]:
    """Yield the payload with each bit flipped in turn, and cut off at each length."""
    for place in range(len(payload)):
        for bit in range(8):
            yield payload[:place] + bytes((payload[place] ^ 1 << bit,)) + payload[place + 1 :]
        yield payload[:place]


@pytest.mark.parametrize("pair", PAIRS, ids="+".join)
def test_every_flipped_bit_and_every_cut_is_a_value_or_a_decode_error(pair: tuple[str, str]) -> None:
    one = codec(*pair)
    values: list[Any] = [RECORDS[0], "text " * 20, [1.5] * 30]
    values += OBJECTS if pair[0] == "msgpack" else []
    for value in values:
        for changed in changes(one.encode(value)):
            with suppress(DecodeError):
                one.decode(changed)


@pytest.mark.filterwarnings("ignore::diskcache_like.SignatureWarning")
@pytest.mark.parametrize("secret", [None, b"a secret of the test's own"])
@pytest.mark.parametrize("compressor", ["none", "zlib", "zstd", "lz4"])
def test_no_flipped_bit_of_an_entry_becomes_another_value(
    tmp_path: Path, compressor: str, secret: bytes | None
) -> None:
    """What a codec may not notice, the checksum or tag of the record does."""
    directory = tmp_path / "cache"
    with Cache(directory, compressor=compressor, secret=secret, write_buffer=0) as cache:
        cache["key"] = "text " * 40
    with database(directory) as connection:
        ((whole,),) = connection.execute("SELECT v FROM entry").fetchall()
    with Cache(directory, secret=secret, hot_size_limit=0) as cache, database(directory) as connection:
        for count, changed in enumerate(changes(whole)):
            if count % 9 == 8 or len(whole) < 80 or count % 5 == 0:  # every cut, and of the bits of long ones a fifth
                connection.execute("UPDATE entry SET v = ?", (changed,))
                assert cache.get("key") is None
        connection.execute("UPDATE entry SET v = ?", (whole,))
        assert cache.get("key") == "text " * 40


# -- bombs --------------------------------------------------------------------------------------------------------


BOMBS: dict[str, tuple[Callable[[], Any], Callable[[], bytes]]] = {
    "zlib": (lambda: Zlib(1), lambda: zlib_bomb(64 * MB)),
    "zstd": (lambda: Zstd(1), lambda: zstd_bomb(64 * MB)),
    "zstd without a size": (lambda: Zstd(1), lambda: zstd_bomb(64 * MB, False)),
    "lz4": (lambda: Lz4(0), lambda: lz4_bomb(64 * MB)),
    "lz4 that lies": (lambda: Lz4(0), lambda: (EXPANDED_LIMIT - 1).to_bytes(4, "little") + lz4_bomb(MB)[4:]),
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_refused_within_the_bound(name: str) -> None:
    make, content = BOMBS[name]
    packing = PayloadCompressor(make(), 16, limit=4 * MB)
    bomb = COMPRESSED + content()
    with memory_below(12 * MB), pytest.raises(DecodeError):
        packing.unpack(bomb)


def test_what_is_within_the_bound_expands() -> None:
    for compressor, content in ((Zlib(1), zlib_bomb(MB)), (Zstd(1), zstd_bomb(MB)), (Lz4(0), lz4_bomb(MB))):
        assert PayloadCompressor(compressor, 16, limit=MB).unpack(COMPRESSED + content) == bytes(MB)
        with pytest.raises(DecodeError):
            PayloadCompressor(compressor, 16, limit=MB - 1).unpack(COMPRESSED + content)


def test_data_beyond_the_bound_is_stored_as_it_is() -> None:
    packing = PayloadCompressor(Zlib(1), 16, limit=1000)
    for size in (999, 1000, 1001):
        payload = packing.pack(bytes(size))
        assert payload[:1] == (COMPRESSED if size <= 1000 else STORED)
        assert packing.unpack(payload) == bytes(size)


def test_a_frame_that_claims_a_gigabyte_costs_nothing() -> None:
    frame = bytearray(zstd_bomb(100_000))
    parameters = zstandard.get_frame_parameters(b"\x28\xb5\x2f\xfd" + bytes(frame[:18]))
    assert parameters.content_size == 100_000
    place = frame.index((100_000).to_bytes(4, "little"))
    frame[place : place + 4] = (EXPANDED_LIMIT + 1).to_bytes(4, "little")
    with memory_below(MB), pytest.raises(DecodeError, match="states no size"):
        PayloadCompressor(Zstd(1), 16).unpack(COMPRESSED + frame)


@pytest.mark.parametrize("compressor", ["zlib", "zstd", "lz4"])
@pytest.mark.parametrize("body", [b"", b"\x00", b"\xff" * 40, bytes(100)], ids=len)
def test_what_no_compressor_wrote_is_a_decode_error(compressor: str, body: bytes) -> None:
    one = codec("msgpack", compressor)
    for mark in (b"\x02", b"\xff", COMPRESSED):
        with pytest.raises(DecodeError):
            one.unpack(mark + body)
    with pytest.raises(DecodeError):
        one.unpack(b"")
    trailing = one.pack(bytes(1000)) + b"more"
    with pytest.raises(DecodeError):
        one.unpack(trailing)


# -- structure ----------------------------------------------------------------------------------------------------


@pytest.fixture(params=["none", "zlib", "zstd", "lz4"])
def one(request: pytest.FixtureRequest) -> Codec:
    return codec("msgpack", request.param)


@pytest.mark.parametrize("name", NESTED)
def test_deep_nesting_is_a_decode_error(one: Codec, name: str) -> None:
    with memory_below(16 * MB), pytest.raises(DecodeError):
        one.decode(one.pack(NESTED[name]))


@pytest.mark.parametrize("name", CLAIMS)
def test_claimed_lengths_are_not_believed(one: Codec, name: str) -> None:
    with memory_below(4 * MB), pytest.raises(DecodeError):
        one.decode(one.pack(CLAIMS[name]))


@pytest.mark.parametrize("payload", UNKNOWN, ids=lambda payload: payload[:6].hex())
def test_unknown_extensions_are_a_decode_error(payload: bytes) -> None:
    with pytest.raises(DecodeError):
        codec("msgpack", "none").decode(payload)


# -- modes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [-1, 0, 2, 3, 4, 5, 6, 99, 1 << 30])
@pytest.mark.parametrize("serializer", ["msgpack", "json", "pickle"])
def test_a_row_does_not_choose_its_decoder(tmp_path: Path, serializer: str, mode: int) -> None:
    """Whatever mode a record names, it is one that this cache writes, or a miss."""
    directory = tmp_path / "cache"
    with Cache(directory, serializer=serializer, write_buffer=0) as cache:
        cache["key"] = [1, 2]
        stored = stored_of(cache, "key")
    written = {"msgpack": (MODE_RAW,), "json": (MODE_RAW, MODE_BYTES), "pickle": (MODE_BYTES,)}[serializer]
    plant(directory, "UPDATE entry SET v = ? WHERE k = ?", forged(stored, b"[1,2]", mode=mode, expire=1e18), stored)
    with pytest.warns(match="authenticated") if mode == 4 else _nothing(), Cache(directory) as cache:
        found = cache.get("key", "missing")
        assert found == ("missing" if mode not in written else b"[1,2]")


@contextmanager
def _nothing() -> Iterator[None]:
    yield


# -- fuzzing, a little --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", targets(), ids=lambda target: target.name)
def test_mutated_payloads_are_values_or_decode_errors(target: Any) -> None:
    """A short run of `make fuzz`, the same each time."""
    dice = random.Random(target.name)
    taken = sum(try_one(target, mutated(dice, target.seeds)) for _ in range(1_500))
    assert 0 < taken < 1_500
