"""Sealing and the keyring by themselves: what comes back, and that nothing else ever does."""

from __future__ import annotations

import io
import random
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diskcache_like import Cache
from diskcache_like.crypto.aead import (
    CHUNK,
    SEALED,
    SEALED_PLAIN,
    TAG_SIZE,
    DataKey,
    SealedFile,
    epoch_of,
    plain_size,
    sealed_pieces,
)
from diskcache_like.crypto.keyring import Keyring, MasterKey, Sealer
from diskcache_like.encoding.record import MODE_BINARY, MODE_PICKLE, MODE_RAW, Metadata, Record
from diskcache_like.errors import CacheError, DecodeError, KeyringError, MissingDependency, SecretError, SignatureError

KEY = DataKey(b"1234", bytes(range(32)))
STORED, OTHER = b"s" * 32, b"o" * 32
RECORDS = [
    Record(MODE_RAW, b"payload"),
    Record(MODE_RAW, b""),
    Record(MODE_RAW, b"payload", Metadata(1.5, b"\x03tag", 2.5, 1.0, 0.5, b"etag")),
    Record(MODE_PICKLE, b"pickle", Metadata(None, b"\x03tag")),
    Record(MODE_BINARY, b"1234", Metadata(4e9), "ab/" + "0" * 30 + ".val", 12345),
]


@pytest.fixture
def master() -> MasterKey:
    return MasterKey(b"one secret of sixteen", "")


def sealer_of(master: MasterKey, keyring: Keyring) -> Sealer:
    return Sealer(master, "place", keyring.sealed, lambda: 1)


# -- records and keys -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("record", RECORDS)
def test_a_record_comes_back_whole(record: Record) -> None:
    assert KEY.open(STORED, KEY.seal(STORED, record)) == record._replace(signed=True)


def test_the_same_record_is_never_sealed_to_the_same_bytes() -> None:
    assert len({KEY.seal(STORED, RECORDS[0]) for _ in range(100)}) == 100


@pytest.mark.parametrize("record", RECORDS)
def test_every_flipped_byte_of_a_record_is_refused(master: MasterKey, record: Record) -> None:
    sealer = sealer_of(master, Keyring.new(master))
    blob = sealer.seal(STORED, record)
    for position in range(len(blob)):
        for bit in range(8):
            changed = bytearray(blob)
            changed[position] ^= 1 << bit
            with pytest.raises(DecodeError):
                sealer.open(STORED, bytes(changed))
            assert sealer.plain_payload(STORED, bytes(changed)) is None
    for end in range(len(blob)):
        with pytest.raises(DecodeError):
            sealer.open(STORED, blob[:end])
        assert sealer.plain_payload(STORED, blob[:end]) is None
    with pytest.raises(DecodeError):
        sealer.open(STORED, blob + b"\0")


@given(st.binary(max_size=200))
def test_no_bytes_crash_what_opens_them(blob: bytes) -> None:
    for head in (b"", bytes((SEALED,)) + KEY.epoch, bytes((SEALED_PLAIN,)) + KEY.epoch):
        with pytest.raises(DecodeError):
            KEY.open(STORED, head + blob + bytes(TAG_SIZE)) if head else epoch_of(b"\x01" + blob)


def test_a_record_opens_at_its_own_key_and_in_its_own_kind_only(master: MasterKey) -> None:
    sealer = sealer_of(master, Keyring.new(master))
    blob = sealer.seal(STORED, RECORDS[0])
    with pytest.raises(SignatureError):
        sealer.open(OTHER, blob)
    with pytest.raises(SignatureError):
        sealer.open(STORED, bytes((SEALED,)) + blob[1:])
    key = sealer.seal_key(STORED, b"canonical", None)
    with pytest.raises(DecodeError):
        sealer.open(STORED, bytes((SEALED_PLAIN,)) + key)  # a key is sealed with another key than records are


def test_a_sealed_key_comes_back_where_it_belongs(master: MasterKey) -> None:
    sealer = sealer_of(master, Keyring.new(master))
    stored = sealer.blind_key(b"canonical")
    for spelling in (None, b"\x00spelling"):
        sealed = sealer.seal_key(stored, b"canonical", spelling)
        assert sealer.open_key(stored, sealed) == (b"canonical", spelling)
        with pytest.raises(SignatureError):
            sealer.open_key(sealer.blind_key(b"other"), sealed)
        for position in range(len(sealed)):
            changed = bytearray(sealed)
            changed[position] ^= 1
            with pytest.raises(DecodeError):
                sealer.open_key(stored, bytes(changed))
    with pytest.raises(SignatureError, match="does not belong to its entry"):
        sealer.open_key(stored, sealer.seal_key(stored, b"other", None))
    for nothing in (None, b"", b"short", 5):
        with pytest.raises(DecodeError):
            sealer.open_key(stored, nothing)


def test_blinding_keeps_keys_tags_and_queues_apart(master: MasterKey) -> None:
    one, other = (sealer_of(master, Keyring.new(master)) for _ in range(2))
    assert one.blind_key(b"a") == one.blind_key(b"a") == one.blinder(lambda key: key)(b"a")
    blind = [one.blind_key(b"a")[:16], one.blind_tag(b"a"), one.blind_queue(b"a"), one.blind_key(b"b")[:16]]
    assert len({*blind, other.blind_key(b"a")[:16]}) == 5


# -- files ------------------------------------------------------------------------------------------------------------

SIZES = [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK, 3 * CHUNK + 5]


def sealed(content: bytes, identifier: bytes = b"i" * 16) -> bytes:
    return b"".join(sealed_pieces(KEY.file_cipher(identifier), pieces_of(content)))


def pieces_of(content: bytes) -> Iterator[bytes]:
    """Yield content in pieces of uneven sizes, some of them empty."""
    chance = random.Random(len(content))
    start = 0
    while start < len(content):
        size = chance.choice([0, 1, 1000, CHUNK, 3 * CHUNK])
        yield content[start : start + size]
        start += size


class Named(io.BytesIO):
    """Bytes that have a name, as a file does."""

    name = "the file"


def opened(data: bytes, identifier: bytes = b"i" * 16) -> SealedFile:
    return SealedFile(Named(data), KEY.file_cipher(identifier), len(data))


@pytest.mark.parametrize("size", SIZES)
def test_a_file_comes_back_whole_and_in_any_part(size: int) -> None:
    content = random.Random(size).randbytes(size)
    data = sealed(content)
    assert plain_size(len(data)) == size
    assert b"".join(opened(data).chunks()) == content
    with io.BufferedReader(opened(data), CHUNK) as reader:
        assert reader.read() == content
        assert reader.seek(0, io.SEEK_END) == size
        chance = random.Random(size)
        for _ in range(50):
            start = chance.randrange(size + 1)
            length = chance.choice([0, 1, 100, CHUNK, 2 * CHUNK])
            assert reader.seek(start) == start
            assert reader.read(length) == content[start : start + length]
    raw = opened(data)
    assert (raw.readable(), raw.seekable(), raw.writable(), raw.name) == (True, True, False, "the file")
    with pytest.raises(ValueError, match="seek"):
        raw.seek(-1)


@pytest.mark.parametrize("size", SIZES)
def test_a_file_that_was_changed_is_refused(size: int) -> None:
    content = random.Random(size).randbytes(size)
    data = sealed(content)
    chance = random.Random(size)
    for position in {*range(40), *range(len(data) - 40, len(data)), *(chance.randrange(len(data)) for _ in range(60))}:
        if 0 <= position < len(data):
            changed = bytearray(data)
            changed[position] ^= 1 << chance.randrange(8)
            with pytest.raises(SignatureError):
                list(opened(bytes(changed)).chunks())
    with pytest.raises(SignatureError):
        list(opened(data, b"j" * 16).chunks())


@pytest.mark.parametrize("size", SIZES)
def test_chunks_can_be_neither_cut_nor_added_nor_exchanged(size: int) -> None:
    data = sealed(random.Random(size).randbytes(size))
    step = CHUNK + TAG_SIZE
    chunks = [data[start : start + step] for start in range(0, len(data), step)]
    forgeries = [data[:-1], data + b"\0", data + chunks[-1], *(b"".join(chunks[:end]) for end in range(len(chunks)))]
    if len(chunks) > 2:
        forgeries += [b"".join([chunks[1], chunks[0], *chunks[2:]]), b"".join(chunks[1:])]
    for forgery in forgeries:
        with pytest.raises(DecodeError):
            list(opened(forgery).chunks())


@pytest.mark.parametrize("size", [0, 15, CHUNK + TAG_SIZE + 1, CHUNK + TAG_SIZE + TAG_SIZE, CHUNK + 2 * TAG_SIZE - 1])
def test_a_size_that_no_file_has_is_refused(size: int) -> None:
    with pytest.raises(DecodeError, match=str(size)):
        plain_size(size)


# -- the keyring ------------------------------------------------------------------------------------------------------


def test_a_keyring_opens_with_its_secret_and_key_context_only(master: MasterKey) -> None:
    keyring = Keyring.new(master)
    assert Keyring.opened(keyring.sealed(), master, "place") == keyring
    with pytest.raises(SecretError, match="another secret"):
        Keyring.opened(keyring.sealed(), MasterKey(b"another secret of it", ""), "place")
    with pytest.raises(SecretError, match="another key context than 'x'"):
        Keyring.opened(keyring.sealed(), MasterKey(b"one secret of sixteen", "x"), "place")
    assert b"one secret" not in keyring.sealed()
    for _, key in keyring.data:
        assert key not in keyring.sealed()
    assert keyring.blinding not in keyring.sealed()


def test_damage_to_a_keyring_is_told_from_a_wrong_secret(master: MasterKey) -> None:
    sealed_ = Keyring.new(master).sealed()
    for position in range(len(sealed_)):
        changed = bytearray(sealed_)
        changed[position] ^= 0x40
        with pytest.raises(KeyringError, match="damaged"):
            Keyring.opened(bytes(changed), master, "place")
    for end in range(len(sealed_)):
        with pytest.raises(KeyringError):
            Keyring.opened(sealed_[:end], master, "place")


def test_a_forged_keyring_with_a_right_checksum_is_refused(master: MasterKey) -> None:
    from zlib import crc32

    sealed_ = Keyring.new(master).sealed()
    for position in range(len(sealed_) - 4):
        changed = bytearray(sealed_[:-4])
        changed[position] ^= 0x40
        with pytest.raises(CacheError):
            Keyring.opened(bytes(changed) + crc32(changed).to_bytes(4, "little"), master, "place")


def test_both_secrets_open_a_keyring_until_the_rotation_is_done(master: MasterKey) -> None:
    new = MasterKey(b"the new secret, longer", "")
    first = Keyring.new(master)
    both = first.opened_by_both(master, new)
    assert len(both.data) == 2
    assert both.epoch != first.epoch
    assert both.blinding == first.blinding
    for one in (master, new):
        assert Keyring.opened(both.sealed(), one, "place") == both
    last = both.opened_by_one(new)
    assert Keyring.opened(last.sealed(), new, "place") == last
    assert [epoch for epoch, _ in last.data] == [both.epoch]
    assert last.kek != both.kek, "who opened the keyring before cannot open it now"
    with pytest.raises(SecretError):
        Keyring.opened(last.sealed(), master, "place")


def test_a_sealer_follows_its_keyring_and_keeps_what_it_knows(master: MasterKey) -> None:
    first = Keyring.new(master)
    second = first.with_new_key()
    present, version = [first], [1]
    sealer = Sealer(master, "place", lambda: present[0].sealed(), lambda: version[0])
    old = sealer.seal(STORED, RECORDS[0])
    present[0] = second
    assert epoch_of(sealer.seal(STORED, RECORDS[0])) == first.epoch, "it was not told"
    version[0] = 2
    new = sealer.seal(STORED, RECORDS[0])
    assert epoch_of(new) == second.epoch
    present[0] = second._replace(data=second.data[-1:])
    version[0] = 3
    sealer.seal(STORED, RECORDS[0])
    assert sealer.open(STORED, old) == sealer.open(STORED, new)
    idle = Sealer(master, "place", lambda: present[0].sealed(), lambda: 1)
    with pytest.raises(SignatureError, match="does not have"):
        idle.open(STORED, old)
    late = sealer_of(master, first)
    late._load = lambda: present[0].sealed()
    assert late.open(STORED, new).payload == b"payload", "an epoch that it does not know makes it look"


def test_without_cryptography_an_error_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("cryptography")]:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingDependency, match=r"pip install 'diskcache-like\[encryption\]'"):
        Cache(tmp_path / "cache", secret="one secret of sixteen", encrypt=True)
    with Cache(tmp_path / "cache", secret="one secret of sixteen") as cache:
        cache["key"] = "value"
