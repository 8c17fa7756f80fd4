"""Trained dictionaries: what they gain, who learns of them, how they are replaced, and what damage to them does."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from diskcache_like import Cache, DictionaryError, FanoutCache, TrainingError, TransactionError
from diskcache_like.encoding.compressors import COMPRESSED, DICTIONARY_REACH, Zstd, make_dictionary
from diskcache_like.encoding.record import MODE_RAW
from diskcache_like.encoding.values import encode_value
from diskcache_like.entries import dictionaries
from diskcache_like.entries.dictionaries import GRACE, ShardDictionaries
from diskcache_like.storage import dictionaries as rows

from ..support.cache_kinds import Clock
from ..support.sample_values import ANSWERS, RECORDS
from ..support.tampering import bomb, database, forged, plant, stored_of, value_files
from ..support.workers import Link, forked

SECRET = b"a secret of the test's own"
HOLD = "SELECT value FROM setting WHERE name = 'dictionary.1'"


def filled(directory: Path, values: list[Any] = ANSWERS, **options: Any) -> Cache:
    cache = Cache(directory, **{"compressor": "zstd", **options})
    cache.set_many(enumerate(values))
    return cache


def volume(cache: Cache, values: list[Any]) -> int:
    """Return the bytes of the entries' payloads, all written anew."""
    cache.set_many(enumerate(values))
    return sum(cache.get_entry(number).size for number in range(len(values)))


def used(cache: Cache, key: object) -> int:
    """Return the version of the dictionary that an entry was made with."""
    stored, h, store = location = cache._rows.locate(key)
    record = cache._rows.verified(key, location, store.read(h, stored))
    assert record is not None
    return store.disk.dictionary_of(record)


def versions(cache: Cache) -> list[int]:
    return rows.versions(cache._shards.stores[0])


@pytest.mark.parametrize("serializer", ["msgpack", "json"])
def test_small_values_that_resemble_each_other_shrink_three_times_more(tmp_path: Path, serializer: str) -> None:
    sizes = [len(encode_value(value)) for value in ANSWERS]
    assert min(sizes) >= 200
    assert max(sizes) <= 2000
    with filled(tmp_path / "cache", ANSWERS[:750], serializer=serializer) as cache:
        without = volume(cache, ANSWERS)
        cache.clear()
        cache.set_many(enumerate(ANSWERS[:750]))
        training = cache.train()
        assert training.version == 1
        assert training.samples == 750
        assert training.after * 3 < training.before
        assert volume(cache, ANSWERS) * 3 < without  # half of them were not there to learn from
        cache.close()
        assert [cache[number] for number in range(len(ANSWERS))] == ANSWERS


def test_what_was_stored_before_and_after_comes_back_later(tmp_path: Path) -> None:
    with filled(tmp_path / "cache") as cache:
        cache.train()
        cache["after"] = ANSWERS[7]
        assert (used(cache, 7), used(cache, "after")) == (0, 1)
    with Cache(tmp_path / "cache") as cache:
        assert cache["after"] == cache[7] == ANSWERS[7]
        cache["again"] = ANSWERS[8]
        assert used(cache, "again") == 1
        assert cache.check() == []
        assert cache.reset("size_limit") == 1 << 30  # the dictionary is no setting


def test_other_handles_and_processes_learn_of_it_at_once(tmp_path: Path) -> None:
    def work(link: Link) -> None:
        with Cache(tmp_path / "cache") as cache:
            cache["before"] = ANSWERS[1]
            link.tell()
            link.hear()
            cache["theirs"] = ANSWERS[2]
            assert cache["ours"] == ANSWERS[3]

    with filled(tmp_path / "cache") as cache, Cache(tmp_path / "cache") as second, forked(work) as child:
        second["early"] = ANSWERS[0]
        child.link.connection.poll(30)
        assert child.link.hear() == ("message", None)
        cache.train()
        cache["ours"] = ANSWERS[3]
        second["late"] = ANSWERS[4]
        child.link.tell()
        assert child.link.hear() == ("done", None)
        assert [used(cache, key) for key in ("early", "before", "ours", "late", "theirs")] == [0, 0, 1, 1, 1]
        assert (second["theirs"], second["late"]) == (ANSWERS[2], ANSWERS[4])


def test_every_shard_has_its_own_copy(tmp_path: Path) -> None:
    with FanoutCache(tmp_path / "cache", shards=3, compressor="zstd") as cache:
        cache.set_many(enumerate(ANSWERS))
        assert cache.train().samples == len(ANSWERS)
        assert volume(cache, ANSWERS) < 100 * len(ANSWERS)
        assert [rows.versions(store) for store in cache._shards.stores] == [[1]] * 3
        cache.close()
        assert [cache[number] for number in range(len(ANSWERS))] == ANSWERS


def test_old_versions_stay_until_no_entry_uses_them(tmp_path: Path, clock: Clock) -> None:
    with filled(tmp_path / "cache", clock=clock) as cache:
        cache.train()
        cache.set_many((f"old{number}", ANSWERS[number]) for number in range(40))
        cache.set_many((f"new{number}", value) for number, value in enumerate(RECORDS))
        second = cache.train()
        assert second.version == 2
        cache["second"] = RECORDS[0]
        assert (versions(cache), used(cache, "old3"), used(cache, "second")) == ([1, 2], 1, 2)
        clock.advance(2 * GRACE)
        cache.train()
        assert 1 in versions(cache)
        cache.close()
        assert [cache[f"old{number}"] for number in range(40)] == ANSWERS[:40]
        for number in range(40):
            del cache[f"old{number}"]
        cache.set_many((f"new{number}", value) for number, value in enumerate(RECORDS))
        cache.train()
        assert 1 not in versions(cache)
        assert [cache[f"new{number}"] for number in range(len(RECORDS))] == RECORDS


def test_a_version_that_was_just_replaced_stays_for_writes_under_way(tmp_path: Path, clock: Clock) -> None:
    with filled(tmp_path / "cache", clock=clock) as cache:
        cache.train()
        cache.set_many((f"new{number}", value) for number, value in enumerate(RECORDS))
        cache.train()
        cache.train()
        assert versions(cache)[:2] == [1, 2]
        clock.advance(GRACE + 1)
        cache.train()
        assert 1 not in versions(cache)


def test_value_files_are_looked_into_before_a_version_goes(tmp_path: Path, clock: Clock) -> None:
    with filled(tmp_path / "cache", clock=clock) as cache:
        cache.train()
        cache.reset("disk_min_file_size", 16)
        cache["file"] = ANSWERS[19]
        assert value_files(tmp_path / "cache")
        assert used(cache, "file") == 1
        cache.reset("disk_min_file_size", 1 << 15)
        cache.set_many(enumerate(RECORDS))
        assert cache.train().version == 2
        clock.advance(GRACE + 1)
        cache.train()
        assert 1 in versions(cache)
        cache.close()
        assert cache["file"] == ANSWERS[19]


def test_one_that_gains_nothing_is_not_taken(tmp_path: Path) -> None:
    noise = [random.Random(number).randbytes(300) for number in range(200)]
    with filled(tmp_path / "cache", noise) as cache:
        training = cache.train()
        assert training.version == 0
        assert training.after >= training.before
        assert versions(cache) == []


def test_long_data_is_compressed_without(tmp_path: Path) -> None:
    with filled(tmp_path / "cache") as cache:
        cache.train()
        cache["long"] = "abc" * DICTIONARY_REACH
        cache["short"] = "abc" * 100
        assert (used(cache, "long"), used(cache, "short")) == (0, 1)


@pytest.mark.parametrize("options", [{"compressor": "none"}, {"compressor": "zlib"}, {"compressor": "lz4"}])
def test_only_zstd_has_dictionaries(tmp_path: Path, options: dict[str, Any]) -> None:
    with filled(tmp_path / "cache", **options) as cache, pytest.raises(TrainingError, match="compressor='zstd'"):
        cache.train()


def test_what_cannot_be_trained_says_why(tmp_path: Path) -> None:
    with filled(tmp_path / "cache", ANSWERS[:5]) as cache:
        with pytest.raises(TrainingError, match=r"5 entries .* too few"):
            cache.train()
        for size in (0, 1 << 30, "large", None):
            with pytest.raises(TrainingError, match="size is"):
                cache.train(size)  # type: ignore[arg-type]
        with cache.transact(), pytest.raises(TransactionError, match="undo"):
            cache.train()


@pytest.mark.parametrize("more", [-1, 0, 1])
def test_what_is_too_long_for_a_sample_takes_no_room_from_others(
    more: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dictionaries, "SAMPLE_BYTES", sum(len(encode_value(answer)) for answer in ANSWERS) + more)
    with filled(tmp_path / "cache", ["shrinks " * 3_000] * 100) as cache:
        cache.set_many((f"answer {number}", answer) for number, answer in enumerate(ANSWERS))  # behind the others
        assert cache.train().samples == len(ANSWERS) - (more < 0)


def test_two_that_train_at_once_do_not_replace_each_others(tmp_path: Path) -> None:
    with filled(tmp_path / "cache") as cache:
        store = cache._shards.stores[0]
        dictionaries = ShardDictionaries(store, None)
        content = make_dictionary(4096, [encode_value(value) for value in ANSWERS], 1)
        assert dictionaries.add(1, content, None)
        assert not dictionaries.add(1, b"another one", None)
        assert dictionaries.find(1) == content


def test_the_successor_of_a_damaged_database_numbers_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A version that a handle still knows from the old database must never be another dictionary in the new one."""
    with filled(tmp_path / "cache") as cache:
        cache.train()
        store = cache._shards.stores[0]
        before = rows.next_version(store)
        from diskcache_like.errors import CorruptDatabase
        from diskcache_like.storage.opening import replacement

        monkeypatch.setattr(replacement, "is_sound", lambda path, config: False)
        with pytest.warns(match="goes on empty"):
            store.session.quarantine(CorruptDatabase("a test says so"))
        cache[1] = ANSWERS[1]
        assert used(cache, 1) == 0
        assert rows.next_version(store) > before + 200
        assert cache[1] == ANSWERS[1]


# -- missing and damaged ------------------------------------------------------------------------------------------

HARM = {
    "missing": "DELETE FROM setting WHERE name = 'dictionary.1'",
    "empty": "UPDATE setting SET value = x'' WHERE name = 'dictionary.1'",
    "text": "UPDATE setting SET value = 'text' WHERE name = 'dictionary.1'",
    "cut off": "UPDATE setting SET value = substr(value, 1, 500) WHERE name = 'dictionary.1'",
    "flipped": "UPDATE setting SET value = CAST(substr(value, 1, 600) || x'00' || substr(value, 602) AS BLOB) "
    "WHERE name = 'dictionary.1'",
}


@pytest.mark.parametrize("harm", HARM)
def test_without_its_dictionary_an_entry_is_a_miss_and_stays(tmp_path: Path, harm: str) -> None:
    directory = tmp_path / "cache"
    with filled(directory) as cache:
        cache.train()
        cache["key"] = ANSWERS[5]
        assert cache.push(ANSWERS[6], prefix="queue") is not None
        cache.set("whole", "x" * 50)
    with database(directory) as connection:
        ((kept,),) = connection.execute(HOLD).fetchall()
    plant(directory, HARM[harm])
    with Cache(directory) as cache:
        assert cache.get("key", "missing") == "missing"
        assert cache.metrics.damaged == 1
        assert cache["whole"] == "x" * 50
        assert cache[5] == ANSWERS[5]  # made before there was a dictionary
        assert cache.pull("queue") == (None, None)
        cache["new"] = ANSWERS[5]
        assert (used(cache, "new"), cache["new"]) == (0, ANSWERS[5])
        assert cache.check(fix=True) == []
        assert "key" in cache
    with Cache(directory, strict=True) as cache, pytest.raises(DictionaryError, match="dictionary 1 is missing or dam"):
        cache.get("key")
    plant(directory, "INSERT OR REPLACE INTO setting (name, value) VALUES ('dictionary.1', ?)", kept)
    with Cache(directory) as cache:
        assert cache["key"] == ANSWERS[5]
        assert cache.pull("queue")[1] == ANSWERS[6]


def test_rows_that_only_look_like_dictionaries_do_no_harm(tmp_path: Path) -> None:
    directory = tmp_path / "cache"
    filled(directory).close()
    for name in ("dictionary.", "dictionary.0", "dictionary.-1", "dictionary.x", "dictionary.99999", "dictionary.²"):
        plant(directory, "INSERT INTO setting (name, value) VALUES (?, ?)", name, b"content")
    with Cache(directory) as cache:
        assert versions(cache) == []
        assert cache.train().version == 1
        cache["key"] = ANSWERS[0]
        assert (used(cache, "key"), cache["key"]) == (1, ANSWERS[0])


def test_a_frame_that_names_a_version_that_never_was(tmp_path: Path) -> None:
    directory = tmp_path / "cache"
    with filled(directory, write_buffer=0) as cache:
        stored = stored_of(cache, "key")
        cache["key"] = ANSWERS[0]
    content = make_dictionary(4096, [encode_value(value) for value in ANSWERS], 77)

    class Foreign:
        def current(self) -> int:
            return 77

        def find(self, version: int) -> bytes:
            return content

    payload = COMPRESSED + Zstd(3, Foreign()).compress(encode_value(ANSWERS[0]), True)
    plant(directory, "UPDATE entry SET v = ? WHERE k = ?", forged(stored, payload, mode=MODE_RAW), stored)
    with Cache(directory) as cache:
        assert cache.get("key") is None


def test_of_many_dictionaries_a_few_are_kept_ready() -> None:
    content = make_dictionary(4096, [encode_value(value) for value in ANSWERS], 1)
    data = encode_value(ANSWERS[0])

    class Many:
        version = 1

        def current(self) -> int:
            return self.version

        def find(self, version: int) -> bytes:
            return content[:4] + version.to_bytes(4, "little") + content[8:]

    dictionaries = Many()
    frames = []
    for dictionaries.version in range(1, 100):
        frames.append(Zstd(3, dictionaries).compress(data, True))
    zstd = Zstd(3, dictionaries)
    for frame in [*frames, *frames]:
        assert zstd.expand(memoryview(frame), 1 << 20, True) == data
        assert len(zstd._expanders) < 20


def test_no_pickle_is_made_or_read_with_a_dictionary(tmp_path: Path) -> None:
    """The signature of a pickle does not cover a dictionary: who exchanges that could choose what is unpickled."""
    directory = tmp_path / "cache"
    marker = tmp_path / "marker"
    with filled(directory, secret=None, write_buffer=0) as cache:
        cache.train()
        cache["pickle"] = {"object": Holder("text " * 40), **ANSWERS[0]}
        assert used(cache, "pickle") == 0
        assert cache["pickle"]["object"].value == "text " * 40
        codec = cache.disk.value_codec
        payload = codec.pack(bomb(marker) + bytes(200))
        assert codec.dictionary_of(payload) == 1
        stored = stored_of(cache, "pickle")
        signed = forged(stored, payload, cache._session.secret.signer)
    plant(directory, "UPDATE entry SET v = ? WHERE k = ?", signed, stored)
    with Cache(directory) as cache:
        assert cache.get("pickle", "missing") == "missing"
    assert not marker.exists()


class Holder:
    def __init__(self, value: str) -> None:
        self.value = value


def test_with_a_secret_no_dictionary_of_somebody_else_is_believed(tmp_path: Path) -> None:
    directory = tmp_path / "cache"
    with filled(directory, secret=SECRET) as cache:
        cache.train()
        cache["key"] = ANSWERS[0]
        assert used(cache, "key") == 1
        unsigned = ShardDictionaries(cache._shards.stores[0], None)
        other = make_dictionary(8192, [encode_value(value) for value in RECORDS], 1)
        proof = unsigned._proof(1, bytes(8) + other)
    plant(directory, "UPDATE setting SET value = ? WHERE name = 'dictionary.1'", proof + bytes(8) + other)
    with Cache(directory, secret=SECRET, strict=True) as cache:
        with pytest.raises(DictionaryError):
            cache.get("key")
        cache["new"] = RECORDS[0]
        assert used(cache, "new") == 0
