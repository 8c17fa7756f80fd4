"""Forged entries: records, keys and files that somebody wrote who does not know the secret, and their names."""

from __future__ import annotations

import pickle
import shutil
import struct
import zlib
from collections.abc import Callable
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

from diskcache_like import Cache, Disk, JSONDisk
from diskcache_like.crypto.signing import Signer
from diskcache_like.disk import file_io
from diskcache_like.encoding import file_names
from diskcache_like.encoding.record import MODE_BINARY, MODE_PICKLE, MODE_RAW, Metadata, Record, pack, pack_simple
from diskcache_like.errors import DecodeError, SignatureError, SignatureWarning

from ..support.cache_kinds import Clock
from ..support.tampering import bomb, database, forged, plant, run_steps, stored_of, value_files

pytestmark = pytest.mark.filterwarnings("ignore::diskcache_like.errors.SignatureWarning")
QUICK: dict[str, Any] = {"durability": "process", "generation_slots": 1 << 10}
SECRET = "a secret of the owner's"
THEIRS = Signer(b"a secret of the attacker's")
POLICIES: dict[str, dict[str, Any]] = {
    "signed": {},
    "never": {"pickle": "never"},
    "secret": {"secret": SECRET},
    "secret and trusted": {"secret": SECRET, "pickle": "trusted"},
}
A, B = b"\xa1a", b"\xa1b"  # the stored keys of "a" and "b"


@pytest.fixture(autouse=True)
def own_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("DISKCACHE_LIKE_PICKLE", raising=False)
    monkeypatch.delenv("DISKCACHE_LIKE_SECRET", raising=False)


@pytest.fixture
def marker(tmp_path: Path) -> Path:
    """Return a path that exists as soon as a bomb has gone off."""
    return tmp_path / "marker"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Return where the test's cache is."""
    return tmp_path / "cache"


def make(directory: Path, **options: Any) -> None:
    """Make a cache with the entries "a" and "b", and a large one, in the place of any other."""
    shutil.rmtree(directory, ignore_errors=True)
    with closing(Cache(directory, **QUICK, **options)) as cache:
        cache["a"], cache["b"], cache["large"] = "one", "two", "x" * 50_000


def replace(directory: Path, blob: bytes, stored: bytes = A) -> None:
    """Put another record into the row of a key."""
    plant(
        directory, "UPDATE entry SET v = ?, expire = NULL, tags = NULL, size = 0, file = NULL WHERE k = ?", blob, stored
    )


def assert_missing(directory: Path, error: type[DecodeError] = DecodeError, **options: Any) -> None:
    """Assert that "a" reads as missing, is counted, and raises where the caller asks for that."""
    with closing(Cache(directory, **options)) as cache:
        assert cache.get("a", "missing", expire_time=True, tag=True) == ("missing", None, None)
        assert cache.get("a", "missing") == "missing"
        assert cache.metrics().damaged + cache.metrics().unauthenticated >= 2
        assert cache["b"] == "two"
    with closing(Cache(directory, strict=True, **options)) as cache, pytest.raises(error, match=rf"{directory}.*'a'"):
        cache.get("a")


# -- pickles ----------------------------------------------------------------------------------------------------------


def forgeries(payload: bytes) -> dict[str, bytes]:
    """Return records with a pickle that are consistent in themselves, of every mode there is and some that are not."""
    found = {}
    for mode in (0, MODE_RAW, MODE_BINARY, 3, MODE_PICKLE, 5, -1, 2**31 - 1):
        found[f"mode {mode}"] = forged(A, payload, mode=mode)
        found[f"mode {mode}, their secret"] = forged(A, payload, THEIRS, mode=mode)
    whole = forged(A, payload)
    found["simple"] = pack_simple(A, payload)
    found["signed by flag alone"] = whole[:1] + b"\x01" + whole[2:]
    found["their tag without its flag"] = (lambda blob: blob[:1] + b"\x00" + blob[2:])(forged(A, payload, THEIRS))
    found["bare pickle"] = payload
    found["with expiry and tag"] = forged(A, payload, expire=9e9, tags=b"\x02\xa1t", size=5)
    return found


@pytest.mark.parametrize("policy", POLICIES)
def test_a_planted_pickle_is_never_loaded(directory: Path, marker: Path, policy: str) -> None:
    options = POLICIES[policy]
    make(directory, **options)
    for name, blob in forgeries(bomb(marker)).items():
        replace(directory, blob)
        with closing(Cache(directory, **options)) as cache:
            assert cache.get("a", "missing") == "missing", name
            assert run_steps(cache) == [], name
        assert not marker.exists(), name
        make(directory, **options)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_planted_pickle_in_a_file_is_never_loaded(directory: Path, marker: Path, policy: str) -> None:
    options = POLICIES[policy]
    make(directory, **options)
    for mode in (MODE_RAW, MODE_PICKLE, 3, 0):
        content = bomb(marker)
        name = file_names.new_name()
        file_io.write(str(directory), name, [content], sync=False)
        digest = crc32(content).to_bytes(4, "little")
        replace(directory, forged(A, digest, mode=mode, file=name, size=len(content)))
        assert_missing(directory, **options)
        with closing(Cache(directory, **options)) as cache:
            assert run_steps(cache) == []
        assert not marker.exists()
        make(directory, **options)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_planted_pickle_of_a_key_is_never_loaded(directory: Path, marker: Path, policy: str) -> None:
    options = POLICIES[policy]
    make(directory, **options)
    signed = THEIRS.tag(b"key", A, bomb(marker))
    for spelling in (b"\x01" + bomb(marker), b"\x01" + signed + bomb(marker), b"\x01" * 17 + bomb(marker), b"\x01"):
        plant(directory, "UPDATE entry SET spelling = ? WHERE k = ?", spelling, A)
        with closing(Cache(directory, **options)) as cache:
            assert sorted(cache) == ["b", "large"]
            assert sorted(cache.iterkeys()) == ["b", "large"]
            assert cache.peekitem(last=False) == ("b", "two")
            assert cache["a"] == "one"  # the key itself is found by its bytes
            cache.check()
        with closing(Cache(directory, strict=True, **options)) as cache, pytest.raises(SignatureError):
            list(cache)
    assert not marker.exists()


def test_what_is_trusted_is_loaded(directory: Path, marker: Path) -> None:
    """The old behaviour, for those who ask for it: who can write the directory can run code."""
    make(directory, pickle="trusted")
    replace(directory, forged(A, bomb(marker)))
    with closing(Cache(directory, pickle="trusted")) as cache:
        assert cache["a"] is None
        assert marker.exists()


def test_nothing_is_trusted_that_is_not_a_record(directory: Path, marker: Path) -> None:
    make(directory, pickle="trusted")
    replace(directory, bomb(marker))
    assert_missing(directory, pickle="trusted")
    assert not marker.exists()


class Plain(Disk):
    """A Disk with a codec of its own, which unpickles through the default one."""

    def store(self, value: Any, read: bool, key: Any = None) -> tuple[int, int, str | None, Any]:
        return super().store(value, read, key=key)

    def fetch(self, mode: int, filename: str | None, value: Any, read: bool) -> Any:
        return super().fetch(mode, filename, value, read)


@pytest.mark.parametrize("disk", [JSONDisk, Plain])
@pytest.mark.parametrize("policy", POLICIES)
def test_other_disks_load_no_planted_pickle(directory: Path, marker: Path, disk: type[Disk], policy: str) -> None:
    options = {**POLICIES[policy], "disk": disk, "write_buffer": 0}
    make(directory, **options)
    with closing(Cache(directory, **options)) as cache:
        stored = stored_of(cache, "a")
        wrapped = b"\xc5" + len(bomb(marker)).to_bytes(2, "big") + bomb(marker)  # as the contract stores bytes
    for payload in (bomb(marker), wrapped):
        for mode in (0, MODE_RAW, MODE_BINARY, 3, MODE_PICKLE):
            for signer in (None, THEIRS):
                replace(directory, forged(stored, payload, signer, mode=mode), stored)
                with closing(Cache(directory, **options)) as cache:
                    cache.get("a")
                    cache.check()
                    cache.peekitem(last=False)
                    cache.pop("a")
                    cache["a"] = "one"
                assert not marker.exists()


@pytest.mark.parametrize("disk", [Disk, Plain])
def test_a_file_exchanged_after_it_was_verified_is_not_loaded(
    directory: Path, marker: Path, disk: type[Disk], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is decoded has to be what was compared, not what lies under the name a moment later."""
    with closing(Cache(directory, disk=disk, disk_min_file_size=16, hot_size_limit=0)) as cache:
        cache["a"] = [complex, "x" * 1000]  # a class: pickled, into a file
        (path,) = value_files(directory)
        real_read = file_io.read

        def read(*args: Any) -> Any:
            found = real_read(*args)
            path.write_bytes(bomb(marker).ljust(path.stat().st_size, b"\0"))
            return found

        monkeypatch.setattr(file_io, "read", read)
        monkeypatch.setattr(file_io, "open_read", None)  # a second look at the file would be a look at another one
        assert cache["a"] == [complex, "x" * 1000]
        monkeypatch.undo()
        assert cache.get("a", "missing") == "missing"
    assert not marker.exists()


# -- metadata and moved entries ---------------------------------------------------------------------------------------


def row_of(directory: Path, stored: bytes) -> tuple[Any, ...]:
    with database(directory) as connection:
        found: tuple[Any, ...] = connection.execute(
            "SELECT v, expire, tags, size, file, spelling FROM entry WHERE k = ?", (stored,)
        ).fetchone()
        return found


@pytest.mark.parametrize("policy", POLICIES)
def test_an_entry_copied_to_another_key_is_missing(directory: Path, policy: str) -> None:
    options = POLICIES[policy]
    make(directory, **options)
    statement = "UPDATE entry SET v = ?, expire = ?, tags = ?, size = ?, file = ?, spelling = ? WHERE k = ?"
    plant(directory, statement, *row_of(directory, B), A)
    assert_missing(directory, SignatureError if "secret" in policy else DecodeError, **options)
    make(directory, **options)
    with database(directory) as connection:  # the rows exchanged, places and all
        places = dict(connection.execute("SELECT k, h FROM entry WHERE k IN (?, ?)", (A, B)).fetchall())
        connection.execute("UPDATE entry SET h = 7 WHERE k = ?", (A,))
        connection.execute("UPDATE entry SET h = ? WHERE k = ?", (places[A], B))
        connection.execute("UPDATE entry SET h = ? WHERE k = ?", (places[B], A))
    with closing(Cache(directory, **options)) as cache:
        assert cache.get_many(["a", "b"]) == {}


def test_an_expiry_extended_in_its_column_is_over_all_the_same(directory: Path, clock: Clock) -> None:
    both: list[dict[str, Any]] = [{"write_buffer": 0}, {"write_buffer": 0, "secret": SECRET}]
    for options in both:
        with closing(Cache(directory / str(len(options)), clock=clock, **options)) as cache:
            cache.set("a", "one", expire=10)
        plant(directory / str(len(options)), "UPDATE entry SET expire = 9e9")
        clock.advance(11)
        with closing(Cache(directory / str(len(options)), clock=clock, **options)) as cache:
            assert cache.get("a", "missing") == "missing"
            assert "a" not in cache
            assert cache.touch("a", 5) is False


def test_an_entry_that_was_authenticated_is_not_believed_without_its_tag(directory: Path) -> None:
    make(directory, secret=SECRET)
    (blob, *_) = row_of(directory, A)
    payload = blob[26:-16]
    for weaker in (pack_simple(A, payload), pack(A, Record(MODE_RAW, payload, Metadata(9e9)))):
        replace(directory, weaker)
        assert_missing(directory, SignatureError, secret=SECRET)


def test_operations_that_write_do_not_authenticate_what_was_planted(directory: Path) -> None:
    make(directory, secret=SECRET)
    operations: list[Callable[[Cache], object]] = [
        lambda cache: cache.touch("a", 100),
        lambda cache: cache.pop("a"),
        lambda cache: cache.add("b", "three"),
        lambda cache: cache.incr("a"),
    ]
    for operation in operations:
        replace(directory, forged(A, b"\x05", mode=MODE_RAW))
        with closing(Cache(directory, secret=SECRET)) as cache:
            assert operation(cache) in (False, None, 1)  # a counter begins anew
            assert cache.get("a") in (None, 1)


def test_a_checksum_alone_is_no_record(directory: Path) -> None:
    """Of some keys it begins like a record, and with the key it is right."""
    with Cache(directory) as cache:
        name = next(str(number) for number in count() if crc32(stored_of(cache, str(number))) & 0xFF == 1)
        stored = stored_of(cache, name)
        cache.set(name, 1)
    replace(directory, crc32(stored).to_bytes(4, "little"), stored)
    with closing(Cache(directory, write_buffer=0)) as cache:
        assert name not in cache
        assert cache.get(name, "missing") == "missing"
        assert cache.incr(name) == 1
        assert cache.metrics().damaged > 0


def test_planted_tags_that_cannot_be_decoded(directory: Path) -> None:
    make(directory)
    tags = [bytes((len(tag),)) + tag for tag in (b"\xc7\x00\x27", b"\x80" * 50, b"\xdd\xff\xff\xff\xff")]
    for packed in (*tags, b"\x00", b"\x05abc", b"\x01a\x00", b"\xff" * 3):
        replace(directory, forged(A, b"\xa1v", mode=MODE_RAW, tags=packed))
        with closing(Cache(directory)) as cache:
            assert cache.get("a", "missing", tag=True) == ("missing", None)
            assert cache.get_entry("a") is None
            assert cache.pop("a", "missing", tag=True) == ("missing", None)
            assert cache.metrics().damaged == 3
            assert run_steps(cache) == []
        make(directory)


# -- bounds -----------------------------------------------------------------------------------------------------------


def test_claims_of_great_length_allocate_nothing(directory: Path) -> None:
    make(directory)
    claims = [
        b"\xdd\xff\xff\xff\xff" * 5,  # lists of four thousand million members
        b"\xdf\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff",
        b"\xdb\xff\xff\xff\xff",
        b"\xc9\xff\xff\xff\xff\x01",
        b"\x91" * 100_000,
        b"\xc7\x00\x20" * 50_000,
    ]
    head = struct.pack("<BBidQHH", 2, 4, MODE_RAW, 0.0, 2**63, 2**16 - 1, 2**16 - 1)
    blobs = [pack_simple(A, claim) for claim in claims] + [
        forged(A, claim, mode=MODE_RAW, tags=bytes((len(tag),)) + tag) for claim in claims for tag in (claim[:255],)
    ]
    blobs.append(head + crc32(head, crc32(A)).to_bytes(4, "little"))
    for blob in blobs:
        replace(directory, blob)
        assert_missing(directory)


def test_compressed_bombs_are_bounded(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("diskcache_like.disk.json_disk.JSON_LIMIT", 1 << 20)
    with closing(Cache(directory, disk=JSONDisk, write_buffer=0)) as cache:
        cache["a"] = "one"
        stored = stored_of(cache, "a")
    packed = zlib.compress(b'"' + b"x" * (1 << 26) + b'"')
    payload = b"\xc6" + len(packed).to_bytes(4, "big") + packed
    replace(directory, pack_simple(stored, payload), stored)
    with closing(Cache(directory, disk=JSONDisk)) as cache:
        assert cache.get("a", "missing") == "missing"
        assert cache.metrics().damaged == 1


def test_a_warning_is_given_once_and_names_the_key(directory: Path) -> None:
    make(directory)
    for stored in (A, B):
        replace(directory, forged(stored, pickle.dumps(complex)), stored)
    with closing(Cache(directory)) as cache:
        with pytest.warns(SignatureWarning, match=rf"{directory}.*'a'.*not authenticated.*said once") as caught:
            assert [cache.get(key) for key in "abab"] == [None] * 4
        assert len(caught) == 1
        assert cache.metrics().unauthenticated == 4
