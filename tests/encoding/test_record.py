"""Records: what is packed is unpacked, and whatever was changed or moved since is noticed."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diskcache_like.crypto.signing import Signer
from diskcache_like.encoding.record import (
    MODE_BINARY,
    MODE_PICKLE,
    MODE_RAW,
    SIMPLE,
    VERSION_SIZE,
    Metadata,
    Record,
    open_plain,
    pack,
    pack_full,
    pack_plain,
    pack_simple,
    unpack,
)
from diskcache_like.encoding.values import encode_value
from diskcache_like.errors import DecodeError, SignatureError

SIGNER, OTHER = Signer(b"one secret of 16 bytes and more"), Signer(b"another secret of 16 bytes and more")
NAME = "ab/" + "0" * 30 + ".val"

signers = st.sampled_from([None, SIGNER])
stored_keys = st.binary(max_size=100)
records = st.builds(
    Record,
    mode=st.sampled_from([MODE_RAW, MODE_BINARY, MODE_PICKLE]),
    payload=st.binary(max_size=200),
    metadata=st.builds(
        Metadata,
        expire=st.none() | st.floats(allow_nan=False),
        tags=st.lists(st.binary(min_size=1, max_size=20), max_size=3).map(
            lambda tags: b"".join(bytes((len(tag),)) + tag for tag in tags)
        ),
        retain_until=st.none() | st.floats(allow_nan=False),
        created=st.none() | st.floats(allow_nan=False),
        cost=st.just(0.0),
        etag=st.binary(max_size=64),
        version=st.just(b"") | st.binary(min_size=VERSION_SIZE, max_size=VERSION_SIZE),
    ),
    file=st.none() | st.just(NAME),
    size=st.integers(0, 2**64 - 1),
)

SAMPLES = [
    Record(MODE_RAW, b"payload"),
    Record(MODE_RAW, b""),
    Record(MODE_RAW, b"payload", Metadata(1.7e9, b"\x03tag")),
    Record(MODE_BINARY, b"\0\1\2\3", file=NAME, size=50_000),
    Record(MODE_PICKLE, b"\x80\x05.", Metadata(0.0, b"\x01\0\x02ab")),
    Record(MODE_RAW, b"", Metadata(1.0, b"", 2.0, 0.5, 0.25, b"etag")),
    Record(MODE_RAW, b"x", Metadata(created=0.5, cost=7.0)),
    Record(MODE_RAW, b"x", Metadata(5.0, b"\x01a", None, None, 0.0, b"e" * 64)),
]


@given(stored_keys, records, signers)
def test_what_is_packed_is_unpacked(stored: bytes, record: Record, signer: Signer | None) -> None:
    found = unpack(stored, pack(stored, record, signer), signer, required=signer is not None)
    simple = signer is None and record.is_simple()
    assert found == record._replace(signed=signer is not None, size=0 if simple else record.size)
    assert str(found.expire) == str(record.expire), "-0.0 stays -0.0"


@given(stored_keys, st.binary(max_size=200))
def test_a_value_without_metadata_is_packed_in_five_bytes_more(stored: bytes, payload: bytes) -> None:
    blob = pack_simple(stored, payload)
    assert blob == pack(stored, Record(MODE_RAW, payload))
    assert len(blob) == len(payload) + 5
    assert blob[0] == SIMPLE
    assert unpack(stored, blob).payload == payload


@given(stored_keys, st.binary(max_size=200), st.none() | st.floats(allow_nan=False), st.binary(max_size=200))
def test_the_core_packs_what_python_does(stored: bytes, payload: bytes, expire: float | None, tags: bytes) -> None:
    record = Record(MODE_RAW, payload, Metadata(expire, tags))
    packed = pack_plain(stored, payload, expire, tags)
    assert packed == (pack_simple(stored, payload) if record.is_simple() else pack_full(stored, record))


def test_the_core_packs_bytes_alone_and_no_more_tags_than_fit() -> None:
    with pytest.raises(OverflowError):
        pack_plain(b"key", b"value", None, bytes(65_536))
    for wrong in (("key", b"", None, b""), (b"", "value", None, b""), (b"", b"", "soon", b""), (b"", b"", None, None)):
        with pytest.raises(TypeError):
            pack_plain(*wrong)


PLAIN = st.text(max_size=200) | st.binary(max_size=1_100) | st.integers(-(1 << 63), (1 << 64) - 1)


@given(
    stored_keys,
    PLAIN | st.none() | st.booleans() | st.floats() | st.lists(PLAIN, max_size=2),
    st.none() | st.floats(allow_nan=False),
)
def test_the_core_opens_records_of_texts_bytes_and_numbers(stored: bytes, value: object, expire: float | None) -> None:
    payload = encode_value(value)
    packed = pack_plain(stored, payload, expire, b"")
    opened = open_plain(stored, packed)
    if type(value) in (str, bytes, int) and len(packed) <= 1_024:
        assert opened is not None
        assert (type(opened[0]), *opened) == (type(value), value, expire)
    else:
        assert opened is None
    assert open_plain(stored, pack_plain(stored, payload, expire, b"\x01t")) is None
    assert open_plain(stored + b"x", packed) is None


@pytest.mark.parametrize(
    "metadata", [{"retain_until": 6.0}, {"created": 1.0}, {"etag": b"e"}, {"tags": b"\x01t"}], ids=str
)
def test_the_core_opens_no_record_with_more_metadata(metadata: dict[str, Any]) -> None:
    record = Record(MODE_RAW, b"\xa5value", Metadata(**{"expire": 5.0, "tags": b"", **metadata}))
    assert open_plain(b"key", pack_full(b"key", record)) is None


def test_the_core_opens_nothing_that_is_damaged_or_no_text() -> None:
    for payload in (b"\xa3\xff\xfe\xfd", b"\xa5ab", b"\xa2abc", b"", b"\xc1", b"\xc7\x00\x05"):
        assert open_plain(b"key", pack_plain(b"key", payload, None, b"")) is None
        assert open_plain(b"key", pack_plain(b"key", payload, 5.0, b"")) is None
    for packed in (pack_plain(b"key", b"\xa5value", expire, b"") for expire in (None, 5.0)):
        for position in range(len(packed)):
            for bit in range(8):
                changed = packed[:position] + bytes((packed[position] ^ 1 << bit,)) + packed[position + 1 :]
                assert open_plain(b"key", changed) is None
        for size in range(len(packed)):
            assert open_plain(b"key", packed[:size]) is None
        for other in (bytearray(packed), None, "text", 5):
            assert open_plain(b"key", other) is None


@pytest.mark.parametrize("signer", [None, SIGNER], ids=["checked", "signed"])
@pytest.mark.parametrize("record", SAMPLES, ids=str)
def test_every_flipped_bit_is_noticed(record: Record, signer: Signer | None) -> None:
    stored = b"\xa3key"
    blob = pack(stored, record, signer)
    for position in range(len(blob)):
        for bit in range(8):
            changed = bytearray(blob)
            changed[position] ^= 1 << bit
            with pytest.raises(DecodeError):
                unpack(stored, bytes(changed), signer, required=signer is not None)


@given(stored_keys, stored_keys, records, signers)
def test_a_record_moved_to_another_key_is_noticed(
    one: bytes, other: bytes, record: Record, signer: Signer | None
) -> None:
    blob = pack(one, record, signer)
    if one != other:
        with pytest.raises(DecodeError):
            unpack(other, blob, signer)


@given(stored_keys, records, signers, st.data())
def test_a_cut_or_padded_record_is_noticed(
    stored: bytes, record: Record, signer: Signer | None, data: st.DataObject
) -> None:
    blob = pack(stored, record, signer)
    cut = data.draw(st.integers(0, len(blob) - 1))
    padding = data.draw(st.binary(min_size=1, max_size=20))
    for changed in (blob[:cut], blob[len(blob) - cut :], blob + padding, padding + blob):
        with pytest.raises(DecodeError):
            unpack(stored, changed, signer, required=signer is not None)


@pytest.mark.parametrize("blob", [None, "text", 5, 1.5, bytearray(10), memoryview(b"x" * 10)], ids=type)
def test_what_is_no_blob_is_refused(blob: object) -> None:
    with pytest.raises(DecodeError, match="BLOB"):
        unpack(b"key", blob)


@given(stored_keys, records)
def test_an_authenticated_record_needs_its_secret(stored: bytes, record: Record) -> None:
    blob = pack(stored, record, SIGNER)
    for signer in (None, OTHER):
        with pytest.raises(SignatureError):
            unpack(stored, blob, signer)
    with pytest.raises(SignatureError):
        unpack(stored, pack(stored, record), SIGNER, required=True)
    assert unpack(stored, pack(stored, record), SIGNER).payload == record.payload, "where none is required"


@pytest.mark.parametrize("record", SAMPLES, ids=str)
def test_a_record_cannot_pass_for_one_without_signature(record: Record) -> None:
    blob = bytearray(pack(b"key", record, SIGNER))
    blob[1] &= ~1
    for required in (False, True):
        with pytest.raises(DecodeError):
            unpack(b"key", bytes(blob), SIGNER, required)
