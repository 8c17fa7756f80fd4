"""Encrypted caches: nothing legible on disk, nothing believed that was changed, and clear words for a wrong secret."""

from __future__ import annotations

import gc
import os
import pickle
import random
import shutil
import sqlite3
import struct
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

from diskcache_like import (
    Cache,
    Disk,
    FanoutCache,
    JSONDisk,
    Lock,
    RLock,
    SecretError,
    SettingError,
    SignatureError,
    throttle,
)
from diskcache_like.cli import main
from diskcache_like.crypto.keyring import Keyring, MasterKey
from diskcache_like.crypto.signing import Signer
from diskcache_like.encoding.record import MODE_RAW, Metadata, Record, pack, pack_simple
from diskcache_like.entries.handle import Opening
from diskcache_like.errors import (
    CacheError,
    CorruptDatabase,
    CorruptDatabaseWarning,
    DecodeError,
    KeyringError,
    NewerFormat,
    StorageError,
)
from diskcache_like.storage.sqlite import statements
from diskcache_like.storage.upkeep import data_keys

from ..support.cache_kinds import Clock, Opener
from ..support.tampering import damage, database, plant, value_files
from ..support.workers import Crew, Link

SECRET, OTHER = "one secret of sixteen", "another of sixteen bytes"
SEALED: dict[str, Any] = {"secret": SECRET, "encrypt": True, "durability": "process", "generation_slots": 64}
SIGNED: dict[str, Any] = {"secret": SECRET, "durability": "process", "generation_slots": 64}
BIG = 100_000


@pytest.fixture(params=[Cache, FanoutCache])
def kind(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("DISKCACHE_LIKE_SECRET", raising=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


# -- nothing legible --------------------------------------------------------------------------------------------------

NEEDLES = [b"NEEDLE" + name for name in (b"key", b"value", b"tag", b"prefix", b"item", b"path", b"argument", b"result")]


class NEEDLEclass:
    """No plain data, so it is pickled, with its name and what it holds."""

    def __init__(self, text: str) -> None:
        self.text = text


def compute_needle(argument: str) -> str:
    """Return a result that is stored under the argument."""
    return "NEEDLEresult " + argument


def work(cache: Cache) -> None:
    """Use everything that stores something."""
    for number in range(40):
        cache.set(f"NEEDLEkey {number}", f"NEEDLEvalue {number}", expire=1000 + number, tag=f"NEEDLEtag {number % 3}")
        cache[f"NEEDLEkey plain {number}"] = {"NEEDLEkey": ["NEEDLEvalue", number]}
    cache[("NEEDLEkey", 1.0, True)] = NEEDLEclass("NEEDLEvalue")
    cache[NEEDLEclass] = "NEEDLEvalue of a class"
    cache["NEEDLEkey file"] = b"NEEDLEvalue" * BIG
    cache.set("NEEDLEkey text file", "NEEDLEvalue" * BIG, tag="NEEDLEtag")
    cache["NEEDLEkey file"] = b"NEEDLEvalue of another" * BIG  # the first is in the trash
    cache.set_many({f"NEEDLEkey many {number}": "NEEDLEvalue" for number in range(50)}, tag="NEEDLEtag")
    for prefix in (None, "NEEDLEprefix"):
        for side in ("back", "front"):
            cache.push("NEEDLEitem", prefix=prefix, side=side, tag="NEEDLEtag")
    cache.pull("NEEDLEprefix")
    cache.touch("NEEDLEkey 1", 5000)
    cache.incr("NEEDLEkey number")
    cache.pop("NEEDLEkey 2")
    cache.delete("NEEDLEkey 3")
    cache.create_tag_index()
    cache.evict("NEEDLEtag 2")
    memoized = cache.memoize(name="NEEDLEpath", tag="NEEDLEtag")(compute_needle)
    memoized("NEEDLEargument")
    throttle(cache, 1000, 1, name="NEEDLEkey throttle")(compute_needle)("NEEDLEargument")
    with Lock(cache, "NEEDLEkey lock", tag="NEEDLEtag"), RLock(cache, "NEEDLEkey rlock"):
        cache.add("NEEDLEkey within", "NEEDLEvalue")
    with cache.transact():
        cache["NEEDLEkey transacted"] = "NEEDLEvalue" * 5
    with pytest.raises(ZeroDivisionError), cache.transact():
        cache["NEEDLEkey rolled back"] = "NEEDLEvalue" * 500
        raise ZeroDivisionError
    cache.get("NEEDLEkey 5")
    cache.peekitem()
    for number in range(3):  # last, so that they wait in the write buffer
        cache.set(("NEEDLEkey waits", 1.0 + number), f"NEEDLEvalue {number}", expire=1000, tag="NEEDLEtag")
    cache.delete(("NEEDLEkey waits", 1.0))


def work_elsewhere(link: Link, kind: Any, directory: Path, options: dict[str, Any]) -> int:
    """Work in another process while the first has the cache open, and stay until told to go."""
    with kind(directory, **options) as cache:
        link.tell()
        link.hear()
        work(cache)
        link.tell()
        link.hear()
        return len(cache)


def needles_in(directory: Path) -> set[bytes]:
    """Return the needles that any file of the directory holds, or any name."""
    content = [path.read_bytes() for path in directory.rglob("*") if path.is_file()]
    content += [str(path.relative_to(directory)).encode() for path in directory.rglob("*")]
    assert sum(map(len, content)) > 2_000_000
    return {needle for needle in [*NEEDLES, b"NEEDLE"] for each in content if needle in each}


def waiting(cache: Cache) -> int:
    """Return the bytes that wait in the write buffers."""
    return sum(store.shard.ring.waiting() for store in cache._shards.stores if store.shard.ring is not None)


@pytest.mark.parametrize("options", [SEALED, SIGNED], ids=["sealed", "signed"])
def test_no_file_holds_anything_legible(tmp_path: Path, kind: Any, options: dict[str, Any]) -> None:
    directory = tmp_path / "cache"
    with Crew() as crew, kind(directory, **options) as cache:
        other = crew.start(work_elsewhere, kind, directory, options)
        other.hear()
        work(cache)
        other.tell()
        other.hear()
        if kind is FanoutCache:
            cache.deque("NEEDLE-not").append("NEEDLEitem")
            cache.index("child")["NEEDLEkey"] = "NEEDLEvalue"
        assert waiting(cache), "the write buffer is in use"
        found = needles_in(directory)  # with -wal, -shm, generations and write buffer as they are at work
        other.tell()
        assert other.result() == len(cache)
        if kind is FanoutCache:
            shutil.rmtree(directory / "deque")  # whose name says what it is
            found = needles_in(directory)
        assert found == (set() if options is SEALED else {*NEEDLES, b"NEEDLE"})
    if options is SEALED:
        assert needles_in(directory) == set()
        with kind(directory, secret=SECRET) as cache:
            assert cache.check() == []
            assert cache["NEEDLEkey plain 7"] == {"NEEDLEkey": ["NEEDLEvalue", 7]}
            assert "NEEDLEkey 7" in set(map(str, cache))


def test_the_hot_layer_holds_what_it_is_told_to(tmp_path: Path) -> None:
    with Cache(tmp_path / "cache", **SEALED) as cache:
        cache["key"], cache["list"], cache["file"] = "NEEDLEvalue", ["NEEDLEvalue"], b"NEEDLEvalue" * 5000
        cache.set("dated", "NEEDLEvalue", expire=1000, tag="tag")
    for hot_encoded in (False, True):
        with Cache(tmp_path / "cache", secret=SECRET, hot_encoded=hot_encoded) as cache:
            for _ in range(3):
                assert (cache["list"], cache["dated"]) == (["NEEDLEvalue"], "NEEDLEvalue")
                assert cache["file"] == b"NEEDLEvalue" * 5000
            written = f"NEEDLEvalue {hot_encoded}"
            cache["key"] = written
            assert cache["key"] == written
            kept = [getattr(entry[4], "how", entry[4]) for entry in cache._hot.entries.values()]
            legible = [value for value in kept if "NEEDLE" in repr(value)]
            if hot_encoded:
                assert legible == []
                assert len(kept) == 3, "all but the value in a file"
                assert cache["dated"] == "NEEDLEvalue"  # which keeps it anew where upkeep came in between
                reads = cache._shards.stores[0].read
                cache._shards.stores[0].read = pytest.fail  # type: ignore[assignment]
                assert cache["dated"] == "NEEDLEvalue", "a hit needs no database"
                cache._shards.stores[0].read = reads
            else:
                assert len(legible) == 4


def test_what_compresses_is_sealed_and_rotated_too(tmp_path: Path, kind: Any) -> None:
    """Compressed values are still legible in parts."""
    values = {
        f"key {number}": {
            "NEEDLEvalue": f"NEEDLEitem {number * 7919} of the customer whose order is on its way",
            "address": {"street": f"{number} Long Street", "town": "a town by the sea", "country": "some country"},
            "number": number,
        }
        for number in range(300)
    }
    with kind(tmp_path, compressor="zstd", **SEALED) as cache:
        cache.set_many(values)
        cache["large"] = [*values.values(), random.Random(1).randbytes(50_000)]
        assert value_files(tmp_path)
        cache.rotate(OTHER)
        assert cache.get_many(values) == values
    with kind(tmp_path, secret=OTHER) as cache:
        assert cache.get_many(values) == values
        assert cache["large"] == [*values.values(), random.Random(1).randbytes(50_000)]
    assert all(b"NEEDLE" not in path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())


# -- secrets ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def made(tmp_path: Path, kind: Any) -> Iterator[Path]:
    directory = tmp_path / "cache"
    with kind(directory, key_context="mine", **SEALED) as cache:
        cache["data"] = [1, 2]
        cache["file"] = b"x" * BIG
    yield directory
    with kind(directory, secret=SECRET, key_context="mine") as cache:
        assert (cache["data"], cache["file"]) == ([1, 2], b"x" * BIG), "whatever was tried, nothing is lost"
        assert cache.check() == []


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ({}, SecretError, "needs its secret"),
        ({"secret": OTHER, "key_context": "mine"}, SecretError, "another secret"),
        ({"secret": SECRET}, SecretError, "another key context than ''"),
        ({"secret": SECRET, "key_context": "yours", "encrypt": True}, SecretError, "another key context than 'yours'"),
        ({"secret": SECRET, "key_context": "mine", "encrypt": False}, SettingError, "made encrypted"),
        ({"encrypt": True}, SecretError, "needs its secret"),
        ({"secret": "short", "key_context": "mine"}, SettingError, "16 bytes"),
        ({"secret": SECRET, "key_context": 5}, SettingError, "key_context is 5"),
        ({"secret": SECRET, "encrypt": "yes"}, SettingError, "encrypt is 'yes'"),
        ({"secret": SECRET, "key_context": "mine", "disk": JSONDisk}, SettingError, "codec"),
    ],
)
def test_each_wrong_way_to_open_has_its_own_error(
    made: Path, kind: Any, given: dict[str, Any], error: type[CacheError], words: str
) -> None:
    with pytest.raises(error, match=words):
        kind(made, **given)


def test_a_pickled_handle_carries_no_secret(made: Path, kind: Any) -> None:
    with kind(made, secret=SECRET, key_context="mine", encrypt=True) as cache:
        keyring = cache._handle.sealer.keyring
        pickled = pickle.dumps(cache)
        for secret in (SECRET.encode(), keyring.kek, keyring.blinding, *(key for _, key in keyring.data)):
            assert secret not in pickled
    with pytest.raises(SecretError):
        pickle.loads(pickled)


def test_key_contexts_keep_caches_with_one_secret_apart(tmp_path: Path) -> None:
    blobs = []
    for name in ("one", "two"):
        with Cache(tmp_path / name, key_context=name, **SEALED) as cache:
            cache["key"] = "value"
        with database(tmp_path / name) as connection:
            blobs.append(connection.execute("SELECT h, k, v, spelling FROM entry").fetchone())
    assert not set(blobs[0]) & set(blobs[1])
    for name in ("keyring", "modulus"):  # even with the other's keyring it does not open under its own key context
        with database(tmp_path / "one") as connection:
            (value,) = connection.execute("SELECT value FROM setting WHERE name = ?", (name,)).fetchone()
        plant(tmp_path / "two", "UPDATE setting SET value = ? WHERE name = ?", value, name)
    with pytest.raises(SecretError, match="key context"):
        Cache(tmp_path / "two", key_context="two", secret=SECRET)


@pytest.mark.parametrize("kept", [b"", b"\x01\x01", "text", 5])
def test_a_damaged_keyring_is_not_a_wrong_secret(tmp_path: Path, kept: Any) -> None:
    with Cache(tmp_path, **SEALED) as cache:
        cache["key"] = "value"
    with database(tmp_path) as connection:
        (whole,) = connection.execute("SELECT value FROM setting WHERE name = 'keyring'").fetchone()
    plant(tmp_path, "UPDATE setting SET value = ? WHERE name = 'keyring'", kept)
    with pytest.raises(KeyringError if isinstance(kept, bytes) else CacheError) as caught:
        Cache(tmp_path, secret=SECRET)
    assert not isinstance(caught.value, SecretError)
    plant(tmp_path, "UPDATE setting SET value = ? WHERE name = 'keyring'", whole)
    with Cache(tmp_path, secret=SECRET) as cache:
        assert cache["key"] == "value"


DAMAGED_KEYRING = "UPDATE setting SET value = zeroblob(60) WHERE name = 'keyring'"


@pytest.mark.parametrize("shards", [1, 2])
def test_a_cache_that_must_be_encrypted_begins_anew_where_every_keyring_is_damaged(tmp_path: Path, shards: int) -> None:
    make = Cache if shards == 1 else partial(FanoutCache, shards=shards)
    with make(tmp_path, **SEALED) as cache:
        cache["key"] = "value"
        made = [Path(store.path) for store in cache._shards.stores]
    for path in made:
        plant(path.parent, DAMAGED_KEYRING)
    before = made[0].read_bytes()
    with pytest.raises(KeyringError, match="encrypt=True"):
        make(tmp_path, secret=SECRET)
    with pytest.warns(CorruptDatabaseWarning, match=r"keyring.*goes on empty in .*cache\.1\.db"):
        cache = make(tmp_path, **SEALED)
    with cache, make(tmp_path, secret=SECRET) as other:
        assert cache.get("key") is None
        for number in range(20):
            cache[number] = number
        assert [other[number] for number in range(20)] == [*range(20)]
        cache.check(fix=True)
        assert other.check() == []
    with pytest.raises(SecretError):
        make(tmp_path, secret=OTHER)
    with make(tmp_path, secret=SECRET) as cache:
        assert [cache[number] for number in range(20)] == [*range(20)]
        cache.rotate(OTHER)
    assert made[0].read_bytes() == before


def test_a_keyring_of_a_newer_format_is_not_a_damaged_one(tmp_path: Path) -> None:
    with Cache(tmp_path, **SEALED) as cache:
        cache["key"] = "value"
    with database(tmp_path) as connection:
        (kept,) = connection.execute("SELECT value FROM setting WHERE name = 'keyring'").fetchone()
    newer = b"\x02" + kept[1:-4]
    plant(tmp_path, "UPDATE setting SET value = ? WHERE name = 'keyring'", newer + struct.pack("<I", crc32(newer)))
    for options in (SEALED, {"secret": SECRET}):
        with pytest.raises(NewerFormat, match="upgrade"):
            Cache(tmp_path, **options)
    plant(tmp_path, "UPDATE setting SET value = ? WHERE name = 'keyring'", kept)
    with Cache(tmp_path, **SEALED) as cache:
        assert cache["key"] == "value"


class Strict(Cache):
    """A cache whose entries are not to be replaced by nothing."""

    _OPENING = Opening(recover=False)


def test_who_does_not_want_an_empty_cache_is_told_of_a_damaged_keyring(tmp_path: Path) -> None:
    with Strict(tmp_path, **SEALED) as cache:
        cache["key"] = "value"
    plant(tmp_path, DAMAGED_KEYRING)
    with pytest.raises(KeyringError):
        Strict(tmp_path, **SEALED)
    assert not (tmp_path / "cache.1.db").exists()


@pytest.mark.parametrize("harm", ["database", "keyring"])
def test_a_handle_is_of_no_use_where_the_cache_has_begun_anew_under_other_keys(tmp_path: Path, harm: str) -> None:
    """It would store what no other finds, and find nothing that others store."""
    with Cache(tmp_path, **SEALED) as cache:
        cache["key"] = "value"
        if harm == "database":
            damage(tmp_path / "cache.db", "header")
        else:
            plant(tmp_path, DAMAGED_KEYRING)
        with pytest.warns(CorruptDatabaseWarning):
            new = Cache(tmp_path, **SEALED)
        with new:
            new["key"] = "new"
            for use in (cache.get, cache.get, cache.delete, cache.incr, lambda key: cache.set(key, 1), cache.pop):
                with pytest.raises(KeyringError, match="open it again"):
                    use("key")
                cache.close()
            assert new["key"] == "new"
            assert new.check() == []
    with Cache(tmp_path, **SEALED) as cache:
        assert cache["key"] == "new"


def test_a_handle_is_of_no_use_where_its_shard_got_the_keyring_of_one_that_has_begun_anew(tmp_path: Path) -> None:
    """As where whoever set all shards with damaged keyrings aside was killed after the first."""
    with Cache(tmp_path, **SEALED) as cache:
        cache["key"] = "value"
        (store,) = cache._shards.stores
        store.replace_keyring(Keyring.new(cache._handle.master()), None)
        for _ in range(2):
            with pytest.raises(KeyringError, match="open it again"):
                cache["key"] = "other"
    with Cache(tmp_path, **SEALED) as cache:
        assert len(cache) == 1
        cache.check(fix=True)
        assert len(cache) == 0


@pytest.mark.parametrize("harm", [lambda path: damage(path, "header"), Path.unlink])
def test_a_handle_that_begins_the_cache_anew_goes_on_with_its_own_keys(
    tmp_path: Path, harm: Callable[[Path], object]
) -> None:
    with Cache(tmp_path, **SEALED) as cache:
        cache["key"] = "value"
    with Cache(tmp_path, **SEALED) as cache:  # which did not make it
        cache.rotate(OTHER)
    harm(tmp_path / "cache.db")
    with pytest.warns(CorruptDatabaseWarning):
        cache["key"] = "new"
    for value in range(2):
        cache["key"] = value
        assert cache["key"] == value
        cache.close()
    with Cache(tmp_path, secret=OTHER) as cache:
        assert cache["key"] == 1


def test_a_handle_of_before_a_rotation_begins_the_cache_anew_under_the_new_secret(tmp_path: Path) -> None:
    with Cache(tmp_path, **SEALED) as cache:
        cache["key"] = "value"
        with Cache(tmp_path, **SEALED) as other:
            other.rotate(OTHER)
        (store,) = cache._shards.stores
        store.connection.open().execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        with (tmp_path / "cache.db").open("r+b") as file:  # it claims free pages that it does not have
            file.seek(36)
            file.write(struct.pack(">I", 3))
        with pytest.warns(CorruptDatabaseWarning):
            assert store.shard.recover(CorruptDatabase("damaged"))
        with pytest.raises(SecretError):
            cache["key"] = "other"
    with pytest.raises(SecretError):
        Cache(tmp_path, **SEALED)
    with Cache(tmp_path, secret=OTHER) as cache:
        assert len(cache) == 0


@pytest.mark.parametrize("statistics", [0, 1])
def test_a_handle_that_does_not_follow_to_other_keys_leaves_nothing_and_can_be_closed(
    tmp_path: Path, statistics: int
) -> None:
    clock = Clock()
    with Cache(tmp_path, clock=clock, statistics=statistics, **SEALED) as cache:
        cache["key"] = b"value" * BIG
        cache["key"] = b"other" * BIG  # the first is in the trash
    cache["key"] = b"third" * BIG  # opened anew
    clock.advance(60)  # and may be unlinked by now
    plant(tmp_path, DAMAGED_KEYRING)
    with Cache(tmp_path, clock=clock, **SEALED) as new:
        new["key"] = "new"
        with pytest.raises(KeyringError):
            cache.get("key")
        files = value_files(tmp_path)
        with pytest.raises(KeyringError):
            cache["key"] = b"fourth" * BIG
        assert value_files(tmp_path) == files
        before = dumped(tmp_path)
        cache.close()
        assert dumped(tmp_path) == before
        assert new["key"] == "new"


def dumped(directory: Path) -> list[str]:
    """Return all that the first database of a directory holds."""
    with database(directory) as connection:
        return list(connection.iterdump())


@pytest.mark.filterwarnings("ignore::diskcache_like.SignatureWarning")
def test_a_shard_whose_keyring_is_damaged_gets_that_of_another(tmp_path: Path) -> None:
    with FanoutCache(tmp_path, shards=2, **SEALED) as cache:
        for number in range(20):
            cache[number] = number
    plant(tmp_path / "001", "UPDATE setting SET value = zeroblob(60) WHERE name = 'keyring'")
    with pytest.warns(CorruptDatabaseWarning, match="001.*keyring of another shard"):
        cache = FanoutCache(tmp_path, secret=SECRET)
    with cache:
        first = cache._shards.stores[0]
        for number in range(20):
            assert cache.get(number) in ((number,) if cache._rows.locate(number)[2] is first else (number, None))
            cache[number] = -number
        cache.check(fix=True)
        assert cache.check() == []
    with FanoutCache(tmp_path, secret=SECRET) as cache:
        assert [cache[number] for number in range(20)] == [-number for number in range(20)]
        cache.rotate("another secret of sixteen bytes or more")


def test_a_keyring_is_mended_also_where_warnings_are_errors(tmp_path: Path) -> None:
    with FanoutCache(tmp_path, shards=2, **SEALED) as cache:
        cache["key"] = "value"
    plant(tmp_path / "001", "UPDATE setting SET value = zeroblob(60) WHERE name = 'keyring'")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(CorruptDatabaseWarning, match="keyring of another shard"):
            FanoutCache(tmp_path, secret=SECRET)
        with FanoutCache(tmp_path, secret=SECRET) as cache:
            cache["other"] = "value"


def test_shards_whose_keyrings_do_not_belong_together_are_refused(tmp_path: Path) -> None:
    for name in ("one", "two"):
        with FanoutCache(tmp_path / name, shards=2, **SEALED) as cache:
            cache["key"] = "value"
    shutil.copy(tmp_path / "two" / "001" / "cache.db", tmp_path / "one" / "001" / "cache.db")
    with pytest.raises(CacheError, match="belong together"):
        FanoutCache(tmp_path / "one", secret=SECRET)


def test_a_cache_that_is_not_encrypted_cannot_become_so(tmp_path: Path, kind: Any) -> None:
    with kind(tmp_path / "plain") as cache:
        cache["key"] = 1
    with kind(tmp_path / "signed", secret=SECRET) as cache:
        cache["key"] = 1
        with pytest.raises(SettingError, match="not encrypted"):
            cache.rotate(OTHER)
    for name in ("plain", "signed"):
        with pytest.raises(SettingError, match="without encryption"):
            kind(tmp_path / name, secret=SECRET, encrypt=True)
    with kind(tmp_path / "plain") as cache:
        assert cache["key"] == 1


class Readable(Disk):
    """Give value files names that say what they are."""

    def filename(self, key: Any = None, value: Any = None) -> tuple[str, str]:
        name = f"{key}.val"
        return name, f"{self._directory}/{name}"


@pytest.mark.parametrize("disk", [JSONDisk, Readable])
def test_a_disk_that_would_see_what_is_sealed_is_refused(tmp_path: Path, disk: type[Disk]) -> None:
    with pytest.raises(SettingError, match=disk.__name__):
        Cache(tmp_path / "cache", disk=disk, **SEALED)
    assert not list(tmp_path.rglob("*.db"))


def test_a_damaged_database_is_not_followed_by_one_in_the_clear(tmp_path: Path) -> None:
    with Cache(tmp_path, **SEALED) as cache:
        cache["key"] = "NEEDLEvalue"
    (tmp_path / "cache.db").write_bytes(random.Random(1).randbytes(50_000))
    with pytest.raises(CorruptDatabase, match="encrypt=True"):
        Cache(tmp_path, secret=SECRET)
    with Cache(tmp_path, **SEALED) as cache:
        assert cache.get("key") is None
        cache["key"] = "NEEDLEvalue"
    with Cache(tmp_path, secret=SECRET) as cache:
        assert cache["key"] == "NEEDLEvalue"
    assert all(b"NEEDLE" not in path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())


# -- forgeries --------------------------------------------------------------------------------------------------------

COLUMNS = "h, k, id, version, expire, fresh, tags, size, file, spelling, queue, num, v"


@pytest.fixture
def sealed(tmp_path: Path) -> Path:
    with Cache(tmp_path / "cache", disk_min_file_size=1000, **SEALED) as cache:
        fill(cache)
    return tmp_path / "cache"


def fill(cache: Cache) -> None:
    cache["one"], cache["two"] = "value of one", "value of two"
    cache.set("dated", "value of dated", expire=10, tag="tag")
    cache.set("later", "value of later", expire=10_000, tag="other tag")
    cache["file one"], cache["file two"] = b"1" * BIG, b"2" * BIG
    cache["object one"], cache["object two"] = SettingError("one"), SettingError("two")
    cache.push("item one", prefix="p")
    cache.push("item two", prefix="p")


def seen(directory: Path) -> dict[str, Any]:
    """Return what the cache believes of the forged directory."""
    with Cache(directory, secret=SECRET) as cache:
        found: dict[str, Any] = {
            name: cache.get(name, expire_time=True, tag=True)
            for name in ("one", "two", "dated", "later", "file one", "file two")
        }
        found |= {name: str(cache.get(name)) for name in ("object one", "object two")}
        return {**found, "queue": [value for _, value in cache.iterqueue("p")]}


def rows(directory: Path) -> dict[str, tuple[Any, ...]]:
    """Return the rows by the name of their key."""
    with Cache(directory, secret=SECRET) as cache:
        names = {cache.disk.stored_key(key): str(key) for key in cache}
    with database(directory) as connection:
        return {names[row[1]]: row for row in connection.execute(f"SELECT {COLUMNS} FROM entry")}


def forge(directory: Path, key: str, **columns: Any) -> None:
    """Change columns of the row of a key."""
    h = rows(directory)[key][0]
    for name, value in columns.items():
        plant(directory, f"UPDATE entry SET {name} = ? WHERE h = ?", value, h)


GONE = (None, None, None)


def test_a_record_moved_to_another_key_is_not_believed(sealed: Path) -> None:
    before, all_rows = seen(sealed), rows(sealed)
    for key, donor in (("one", "two"), ("dated", "later"), ("file one", "file two"), ("object one", "one")):
        forge(sealed, key, v=all_rows[donor][12], file=all_rows[donor][8], size=all_rows[donor][7])
    after = seen(sealed)
    for key in ("one", "dated", "file one"):
        assert after[key] == GONE
    assert after["object one"] == "None"
    assert {key: after[key] for key in ("two", "later", "queue")} == {
        key: before[key] for key in ("two", "later", "queue")
    }


def test_a_whole_row_moved_to_another_place_is_not_believed(sealed: Path) -> None:
    one, two = rows(sealed)["one"], rows(sealed)["two"]
    with database(sealed) as connection:
        connection.execute("UPDATE entry SET h = -1 WHERE h = ?", (one[0],))
        connection.execute("UPDATE entry SET h = ? WHERE h = ?", (one[0], two[0]))
        connection.execute("UPDATE entry SET h = ? WHERE h = -1", (two[0],))
    assert seen(sealed)["one"] == seen(sealed)["two"] == GONE
    with Cache(sealed, secret=SECRET) as cache:
        assert not {"one", "two"} & set(map(str, cache))
        assert len(cache.check()) == 2


def test_items_of_a_queue_stay_in_their_place(sealed: Path) -> None:
    items = [row for row in rows(sealed).values() if row[10] is not None]
    assert len(items) == 2
    forge_numbers = [(items[1][11], items[0][0]), (items[0][11], items[1][0])]
    plant(sealed, "UPDATE entry SET num = num + 100 WHERE queue IS NOT NULL")
    for number, h in forge_numbers:
        plant(sealed, "UPDATE entry SET num = ? WHERE h = ?", number, h)
    assert seen(sealed)["queue"] == []


def test_an_expiry_cannot_be_extended(tmp_path: Path) -> None:
    clock = Clock()
    with Cache(tmp_path, clock=clock, **SEALED) as cache:
        cache.set("dated", "value", expire=10)
        older = rows_of(cache)["dated"][12]
        cache.touch("dated", 1)
    plant(tmp_path, "UPDATE entry SET expire = ?", clock.now + 1e6)
    clock.advance(5)
    with Cache(tmp_path, clock=clock, secret=SECRET) as cache:
        assert cache.get("dated") is None
        assert len(cache.check()) == 1
    plant(tmp_path, "UPDATE entry SET v = ?", older)  # which was authentic once, and lives as long as it would have
    with Cache(tmp_path, clock=clock, secret=SECRET) as cache:
        assert cache.get("dated") == "value"
        clock.advance(5.5)
        assert cache.get("dated") is None


def rows_of(cache: Cache) -> dict[Any, tuple[Any, ...]]:
    """Return the rows of an open cache by key."""
    store = cache._shards.stores[0]
    found = store.select(f"SELECT {COLUMNS} FROM entry")
    return {store.disk.user_key(row[1], row[9]): row for row in found}


def test_keys_that_share_a_place_are_kept_apart(tmp_path: Path) -> None:
    with Cache(tmp_path, **SEALED) as cache, Cache(tmp_path, secret=SECRET, hot_encoded=True) as other:
        cache._rows.modulus = other._rows.modulus = 1  # every key has the same place, and four of them room
        for key in ("one", "two", "three", "four"):
            cache.set(key, f"value of {key}", tag=key)
        assert other.get_many(["one", "two", "three", "four"]) == {
            key: f"value of {key}" for key in ("one", "two", "three", "four")
        }
        assert other.get("three", tag=True) == ("value of three", "three")
        assert cache.delete("one")
        cache["two"] = "newer"
        assert [other.get(key) for key in ("one", "two", "four")] == [None, "newer", "value of four"]


def test_tags_cannot_be_exchanged(sealed: Path) -> None:
    all_rows = rows(sealed)
    assert all_rows["dated"][6] != all_rows["later"][6]
    forge(sealed, "dated", tags=all_rows["later"][6])
    assert seen(sealed)["dated"][2] == "tag", "what is believed is the tag that was sealed"
    with Cache(sealed, secret=SECRET) as cache:
        assert len(cache.check()) == 1, "the column does not say what the record says"


def test_what_was_sealed_in_another_cache_is_not_believed(sealed: Path, tmp_path: Path) -> None:
    with Cache(tmp_path / "other", **SEALED) as cache:
        fill(cache)
    foreign = rows(tmp_path / "other")
    for key in ("one", "dated"):
        forge(sealed, key, v=foreign[key][12])
    assert seen(sealed)["one"] == seen(sealed)["dated"] == GONE


def test_records_in_the_clear_are_refused(sealed: Path) -> None:
    own, other = row_key(sealed, "one"), row_key(sealed, "two")
    for stored in (own, other):
        for blob in (
            pack_simple(stored, b"\xa6forged"),
            pack(stored, Record(MODE_RAW, b"\xa6forged", Metadata(4e9))),
            pack(stored, Record(MODE_RAW, b"\xa6forged"), Signer(SECRET.encode())),
        ):
            plant(sealed, "UPDATE entry SET v = ? WHERE k = ?", blob, own)
            assert seen(sealed)["one"] == GONE
            with (
                Cache(sealed, secret=SECRET, strict=True) as cache,
                pytest.raises(SignatureError, match="not encrypted"),
            ):
                cache.get("one")


def row_key(directory: Path, key: str) -> bytes:
    with Cache(directory, secret=SECRET) as cache:
        return cache.disk.stored_key(key)


def test_value_files_cannot_be_exchanged(sealed: Path) -> None:
    with Cache(sealed, secret=SECRET) as cache:
        first, second = (
            sealed / cache._shards.stores[0].disk.sealer.open(row[1], row[12]).file  # type: ignore[union-attr, operator]
            for key, row in rows_of(cache).items()
            if str(key).startswith("file")
        )
    one, two = first.read_bytes(), second.read_bytes()
    first.write_bytes(two)
    second.write_bytes(one)
    assert seen(sealed)["file one"] == seen(sealed)["file two"] == GONE
    with Cache(sealed, secret=SECRET) as cache:
        assert cache.get("file one", read=True) is None
        assert len(cache.check()) == 2
    first.write_bytes(one)
    second.write_bytes(two)
    assert seen(sealed)["file one"] == (b"1" * BIG, None, None)


def test_a_file_changed_while_it_is_read_is_noticed(tmp_path: Path) -> None:
    value = random.Random(1).randbytes(300_000)
    with Cache(tmp_path, **SEALED) as cache:
        cache["key"] = value
        (file,) = value_files(tmp_path)
        with cache.read("key") as reader:
            assert reader.read(1000) == value[:1000]
            assert reader.seek(250_000) == 250_000
            assert reader.read(10) == value[250_000:250_010]
            changed = bytearray(file.read_bytes())
            changed[150_000] ^= 1
            file.write_bytes(changed)
            reader.seek(140_000)
            with pytest.raises(DecodeError, match="chunk"):
                reader.read(20_000)


# -- upkeep -----------------------------------------------------------------------------------------------------------


def test_check_finds_and_mends_with_the_secret(sealed: Path) -> None:
    forge(sealed, "one", v=rows(sealed)["two"][12])
    value_files(sealed)[0].write_bytes(b"x" * 1000)
    with Cache(sealed, secret=SECRET) as cache:
        assert len(cache.check()) >= 2
        cache.check(fix=True)
        assert cache.check() == []
        assert cache["two"] == "value of two"


def test_check_without_the_secret_says_what_it_cannot_see(
    sealed: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main.main(["check", str(sealed)]) == 1
    told = capsys.readouterr().out
    assert "10 entries, 2 of them in value files" in told
    assert told.count("\n") == 1
    forge(sealed, "one", v=rows(sealed)["two"][12])  # only the secret can tell
    value_files(sealed)[0].write_bytes(b"x" * 1000)
    value_files(sealed)[1].unlink()
    assert main.main(["check", str(sealed)]) == 1
    told = capsys.readouterr().out
    assert "value file has 1000 bytes" in told
    assert "file not found" in told
    assert main.main(["check", "--fix", str(sealed)]) == 2
    assert "DISKCACHE_LIKE_SECRET" in capsys.readouterr().err
    monkeypatch.setenv("DISKCACHE_LIKE_SECRET", SECRET)
    assert main.main(["check", "--fix", str(sealed)]) == 1
    assert main.main(["check", str(sealed)]) == 0


def test_children_of_an_encrypted_cache_are_encrypted(tmp_path: Path) -> None:
    with FanoutCache(tmp_path, shards=2, **SEALED):
        pass
    with FanoutCache(tmp_path, secret=SECRET) as cache:  # which does not say so itself
        for child in (cache.cache("a/b"), cache.deque("d").cache, cache.index("i").cache):
            assert child._handle.sealer is not None
        cache.cache("a/b")["key"] = "NEEDLEvalue"
    assert all(b"NEEDLE" not in path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())


# -- how much one key seals -------------------------------------------------------------------------------------------


def test_a_data_key_is_followed_by_another_before_it_has_sealed_too_much(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data_keys, "MAX_SEALS", 40)
    monkeypatch.setattr(data_keys, "RESERVED", 10)
    with Cache(tmp_path, **SEALED) as cache, Cache(tmp_path, secret=SECRET) as other:
        for number in range(100):
            (cache, other)[number % 2][number] = number
        with cache.transact():
            for number in range(100, 150):
                cache[number] = number
        for number in range(100):
            cache.touch(number % 7, 1000)
        epochs = {row[12][1:5] for row in rows_of(cache).values()}
        assert len(epochs) >= 4
        most = max(sum(row[12][1:5] == epoch for row in rows_of(cache).values()) for epoch in epochs)
        assert most <= 40 + 50, "a transaction keeps its key to its end"
        assert {number: other[number] for number in range(150)} == {number: number for number in range(150)}
        assert cache.check() == []
    with Cache(tmp_path, secret=SECRET) as cache:
        assert sum(1 for _ in cache) == 150
        assert cache.get_many(range(150)) == {number: number for number in range(150)}


def test_a_cache_that_has_had_thousands_of_data_keys_goes_on(tmp_path: Path) -> None:
    with Cache(tmp_path, **SEALED) as cache:
        cache["first"] = 1
        assert cache._handle.sealer is not None
        keyring = cache._handle.sealer.keyring
        first = keyring.epoch[0] ^ 1
        others = [(bytes((first, 0, *divmod(number, 256))), os.urandom(32)) for number in range(1 << 12)]
        keyring = keyring._replace(data=(*keyring.data, *others)).with_new_key()
        cache._shards.stores[0].replace_keyring(keyring, None)
        cache["last"] = 2
    with Cache(tmp_path, **SEALED) as cache:
        assert cache.get_many(["first", "last"]) == {"first": 1, "last": 2}
        assert cache.check() == []
        cache.rotate(SECRET)
        assert cache._handle.sealer is not None
        assert len(cache._handle.sealer.keyring.data) == 1


def test_no_data_key_has_the_epoch_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    ring = Keyring.new(MasterKey(SECRET.encode(), ""))
    drawn = iter([ring.epoch, b"k" * 32, b"next", b"k" * 32])
    monkeypatch.setattr(os, "urandom", lambda _: next(drawn))
    assert [epoch for epoch, _ in ring.with_new_key().data] == [ring.epoch, b"next"]


def refuse_versions(action: int, name: str | None, *_: str | None) -> int:
    """Refuse, as an SQLite authorizer, to write the number by which a change of the keyring ends."""
    return sqlite3.SQLITE_DENY if (action, name) == (sqlite3.SQLITE_PRAGMA, "user_version") else sqlite3.SQLITE_OK


@pytest.mark.parametrize(
    "write", [lambda cache: cache.set(1, 2), lambda cache: cache.set_many({1: 2}), lambda cache: cache.push(2)]
)
def test_an_error_at_the_end_of_a_change_of_keys_is_one_of_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Callable[[Cache], object]
) -> None:
    monkeypatch.setattr(data_keys, "MAX_SEALS", 1)
    with Cache(tmp_path, **SEALED) as cache:
        (store,) = cache._shards.stores
        assert cache._handle.sealer is not None
        cache._handle.sealer.left = -1  # what is sealed next has to be counted first
        store.connection.open().set_authorizer(refuse_versions)
        with pytest.raises(StorageError):
            write(cache)
        store.connection.open().set_authorizer(None)
        cache["key"] = "value"
        assert cache["key"] == "value"


WRITES: list[Callable[[Cache], object]] = [
    lambda cache: cache.set("a", 2),
    lambda cache: cache.touch("a", 10),
    lambda cache: cache.set_many({"a": 2, "b": 3}),
]


@pytest.mark.parametrize("write", WRITES, ids=["set", "touch", "set_many"])
def test_an_error_as_seals_are_reserved_is_one_of_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Callable[[Cache], object]
) -> None:
    with Cache(tmp_path, **SEALED) as cache:
        cache["a"] = 1
    with Cache(tmp_path, **SEALED) as cache:
        with monkeypatch.context() as patch:
            patch.setattr(statements, "SET_SETTING", "INSERT INTO unknown VALUES (?, ?)")
            with pytest.raises(StorageError):
                write(cache)
            with pytest.raises(StorageError), cache.transact():
                cache["a"] = 2
        assert cache["a"] == 1
        write(cache)


def test_seals_are_counted_ahead_over_handles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_keys, "RESERVED", 10)
    for _ in range(3):
        with Cache(tmp_path, **SEALED) as cache:
            for number in range(25):
                cache[number] = number
    with database(tmp_path) as connection:
        (counted,) = connection.execute("SELECT value FROM setting WHERE name = 'sealed'").fetchone()
    assert 75 <= counted <= 3 * 35
    gc.collect()


def test_opening_and_reading_write_nothing(sealed: Path, open_cache: Opener) -> None:
    before = {path: path.read_bytes() for path in sealed.rglob("*.db")}
    seen(sealed)
    assert {path: path.read_bytes() for path in sealed.rglob("*.db")} == before
