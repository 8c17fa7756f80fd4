"""Rotation: another secret for a cache that is in use, whatever interrupts it."""

from __future__ import annotations

import shutil
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from diskcache_like import Cache, FanoutCache, SecretError, SettingError
from diskcache_like.crypto.keyring import Sealer
from diskcache_like.encoding.record import Record
from diskcache_like.errors import DiskFull, KeyringError, TransactionError
from diskcache_like.storage import rekeying, rows

from ..support.crash_scenarios import NEW, OLD, nurse, victims
from ..support.integrity import mend, opened
from ..support.sample_writes import LARGE
from ..support.tampering import plant, value_files
from ..support.workers import Crew, Link, Worker

THIRD = "a third one of twenty"
SEALED: dict[str, Any] = {"encrypt": True, "durability": "process", "generation_slots": 16}
VALUES: dict[Any, Any] = {
    **{f"key {number}": {"value": number} for number in range(4)},
    ("a", 1.0): "spelled",
    "large": LARGE,
    "object": KeyringError("an object"),
}


@pytest.fixture(params=[Cache, FanoutCache])
def kind(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rekeying, "BATCH", 3)


def fill(cache: Cache) -> None:
    for key, value in VALUES.items():
        cache.set(key, value, tag="tag")
    cache.set("dated", 1, expire=1e6)
    cache.touch("dated", 2e6)
    cache.push("item", prefix="p")


def content(cache: Cache) -> dict[Any, Any]:
    """Return all that `fill` stores, as the cache has it."""
    found = {key: cache.get(key) for key in [*VALUES, "dated"]}
    assert {str(key) for key in cache if "key" in str(key)} == {str(key) for key in VALUES if "key" in str(key)}
    assert cache.peek("p", retry=True)[1] == "item"
    assert cache.get("large", tag=True)[1] == "tag"
    return {**found, "object": str(found["object"])}


WHOLE = {**VALUES, "dated": 1, "object": "an object"}


def epochs(cache: Cache) -> set[bytes]:
    """Return the epochs that anything in the cache is sealed in."""
    found = set()
    for store in cache._shards.stores:
        sealer = store.disk.sealer
        assert sealer is not None
        for stored, v, spelling in store.select("SELECT k, v, spelling FROM entry"):
            record: Record = sealer.open(stored, v)
            found |= {v[1:5], spelling[:4], *([record.payload] if record.file is not None else [])}
    return found


def assert_rotated(directory: Path, kind: Any, secret: str = NEW) -> None:
    """Assert that all is there, under this secret alone and one data key per shard."""
    for other in {OLD, NEW, THIRD} - {secret}:
        with pytest.raises(SecretError, match="another secret"):
            kind(directory, secret=other)
    with kind(directory, secret=secret, encrypt=True) as cache:
        assert content(cache) == WHOLE
        keyrings = [store.disk.sealer.keyring for store in cache._shards.stores]
        assert {(len(keyring.data), len(keyring.wraps)) for keyring in keyrings} == {(1, 1)}
        assert epochs(cache) <= {keyring.epoch for keyring in keyrings}
        mend(cache)


def test_a_cache_gets_another_secret(tmp_path: Path, kind: Any) -> None:
    told: list[tuple[int, int]] = []
    with kind(tmp_path, secret=OLD, **SEALED) as cache:
        fill(cache)
        before = epochs(cache)
        files = value_files(tmp_path)
        cache.rotate(NEW, lambda *progress: told.append(progress))
        assert not epochs(cache) & before
        buffers = [path.read_bytes() for path in tmp_path.rglob("cache.buffer")]
        assert not any(epoch in content for epoch in before for content in buffers)
        assert value_files(tmp_path) != files
        assert content(cache) == WHOLE
        cache["after"] = 1
        cache.touch("after", 1000)
        assert cache.evict("tag") == len(VALUES)
        fill(cache)
    assert told[-1] == (len(VALUES) + 2, len(VALUES) + 2)
    assert told == sorted(told)
    assert len(told) >= 3
    assert_rotated(tmp_path, kind)


def test_without_another_secret_there_is_another_data_key(tmp_path: Path, kind: Any) -> None:
    with kind(tmp_path, secret=OLD, **SEALED) as cache, kind(tmp_path, secret=OLD) as other:
        fill(cache)
        before = epochs(cache)
        cache.rotate(OLD)
        assert not epochs(cache) & before
        assert content(other) == WHOLE
        other["key 1"] = VALUES["key 1"]
        assert not epochs(cache) & before
    assert_rotated(tmp_path, kind, OLD)


def test_what_cannot_be_rotated_stays_as_it_is(tmp_path: Path, kind: Any) -> None:
    with kind(tmp_path, secret=OLD, **SEALED) as cache:
        fill(cache)
        with pytest.raises(SettingError, match="16 bytes"):
            cache.rotate("short")
        with pytest.raises(TransactionError), cache.transact():
            cache.rotate(NEW)
        assert content(cache) == WHOLE
    assert_rotated(tmp_path, kind, OLD)


def test_a_thread_that_was_overtaken_brings_no_older_keyring_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where it is preempted between reading the keyring and noting it."""
    loaded, go_on = threading.Event(), threading.Event()
    with closing(Cache(tmp_path, secret=OLD, encrypt=True)) as cache:
        cache["key"] = "value"
        sealer = cache.disk.sealer
        assert sealer is not None
        load, reload = sealer._load, Sealer.reload

        def load_slowly() -> bytes:
            found = load()
            if threading.current_thread() is overtaken:
                loaded.set()
                go_on.wait()
            return found

        def let_go_afterwards(self: Sealer) -> None:
            reload(self)
            if changes and threading.current_thread() is not overtaken:
                go_on.set()
                overtaken.join()

        def change(*arguments: Any) -> None:
            changes.append(arguments)
            change_keyring(*arguments)

        changes: list[Any] = []
        change_keyring = cache._shards.stores[0].data_keys.change_keyring
        monkeypatch.setattr(cache._shards.stores[0].data_keys, "change_keyring", change)
        monkeypatch.setattr(sealer, "_load", load_slowly)
        overtaken = threading.Thread(target=sealer.reload)
        overtaken.start()
        loaded.wait()
        monkeypatch.setattr(Sealer, "reload", let_go_afterwards)
        cache.rotate(NEW)
    assert len(changes) == 2
    with closing(Cache(tmp_path, secret=NEW)) as cache:
        assert cache["key"] == "value"


@pytest.mark.filterwarnings("ignore::diskcache_like.SignatureWarning")
def test_damaged_entries_do_not_hinder_a_rotation(tmp_path: Path) -> None:
    with Cache(tmp_path, secret=OLD, **SEALED) as cache:
        fill(cache)
        before = set(value_files(tmp_path))
        cache["no file"] = LARGE
        (file,) = {*value_files(tmp_path)} - before
        file.unlink()
        cache["damaged"] = "value"
    plant(tmp_path, "UPDATE entry SET v = zeroblob(40) WHERE id = (SELECT max(id) FROM entry)")
    with Cache(tmp_path, secret=OLD) as cache:
        cache.rotate(NEW)
    with Cache(tmp_path, secret=NEW) as cache:
        assert (cache.get("damaged"), cache.get("no file")) == (None, None)
        assert len(cache.check(fix=True)) >= 2
    assert_rotated(tmp_path, Cache)


# -- interrupted ------------------------------------------------------------------------------------------------------


@pytest.fixture
def nurse_() -> Iterator[Worker]:
    with Crew() as crew:
        yield crew.start(nurse)


@pytest.mark.parametrize("kind", ["one", "fanout"], indirect=False)
def test_a_rotation_may_die_at_any_step_and_goes_on(nurse_: Worker, tmp_path: Path, kind: str) -> None:
    with opened(tmp_path / "template", kind, secret=OLD, encrypt=True) as cache:
        fill(cache)
    opened_by: set[str] = set()
    for at in victims(nurse_, tmp_path, kind, "rotate"):
        directory = tmp_path / str(at)
        for secret in (OLD, NEW):
            with suppress(SecretError), opened(directory, kind, secret=secret) as cache:
                assert content(cache) == WHOLE
                cache["written"] = secret
                opened_by.add(secret)
                resumer = secret
        with opened(directory, kind, secret=resumer) as cache:
            mend(cache)
            cache.rotate(NEW)
            assert cache["written"] == resumer
        assert_rotated(directory, type(cache))
        shutil.rmtree(directory)
    assert opened_by == {OLD, NEW}
    nurse_.tell(None)


@pytest.mark.parametrize("resumed_by", [OLD, NEW])
def test_an_interrupted_rotation_does_not_begin_anew(tmp_path: Path, kind: Any, resumed_by: str) -> None:
    with kind(tmp_path, secret=OLD, **SEALED) as cache:
        fill(cache)
        with pytest.raises(ZeroDivisionError):
            cache.rotate(NEW, failing_at(3))
        begun = {store.disk.sealer.keyring.epoch for store in cache._shards.stores}
        assert content(cache) == WHOLE
    with kind(tmp_path, secret=resumed_by) as cache:
        cache.rotate(NEW)
        assert {store.disk.sealer.keyring.epoch for store in cache._shards.stores} == begun
    assert_rotated(tmp_path, kind)


def failing_at(number: int) -> Callable[[int, int], None]:
    """Return a progress function that fails when it is called for the n-th time."""
    calls = iter(range(number - 1))

    def progress(done: int, total: int) -> None:
        if next(calls, None) is None:
            raise ZeroDivisionError

    return progress


def test_one_rotation_gives_way_to_another(tmp_path: Path, kind: Any) -> None:
    with kind(tmp_path, secret=OLD, **SEALED) as one, kind(tmp_path, secret=OLD) as other:
        fill(one)
        overtaken = iter([True])

        def overtake(done: int, total: int) -> None:
            if next(overtaken, False):
                other.rotate(THIRD)

        with pytest.raises(SecretError):
            one.rotate(NEW, overtake)
        assert content(other) == WHOLE
    assert_rotated(tmp_path, kind, THIRD)


def test_an_interrupted_rotation_can_be_given_up_for_another_secret(tmp_path: Path, kind: Any) -> None:
    with kind(tmp_path, secret=OLD, **SEALED) as cache:
        fill(cache)
        with pytest.raises(ZeroDivisionError):
            cache.rotate(NEW, failing_at(2))
        cache.rotate(THIRD)
    assert_rotated(tmp_path, kind, THIRD)


# -- in use -----------------------------------------------------------------------------------------------------------


def live_with_the_old_secret(link: Link, kind: Any, directory: Path, name: str) -> str:
    """Read and write with the old secret, a round whenever told to; return what happens when it counts no more."""
    with kind(directory, secret=OLD) as cache:
        rounds = 0
        link.tell()
        while link.hear():
            rounds += 1
            assert content(cache) == WHOLE
            assert cache.incr("count", retry=True) > 0
            cache[f"{name} {rounds}"] = rounds
            cache.set(f"{name} large", LARGE + bytes([rounds]), retry=True)
            cache.touch("dated", 1e6 + rounds, retry=True)
            with cache.transact():
                cache.push(rounds, prefix=name)
                cache["key 1"] = VALUES["key 1"]
            for earlier in range(1, rounds + 1):
                assert cache[f"{name} {earlier}"] == earlier
            link.tell(rounds)
        try:
            cache["too late"] = 1
        except SecretError as error:
            return str(error)
        return "written"


def test_processes_with_the_old_secret_live_through_a_rotation(tmp_path: Path, kind: Any) -> None:
    with Crew() as crew, kind(tmp_path, secret=OLD, **SEALED) as cache:
        fill(cache)
        workers = [crew.start(live_with_the_old_secret, kind, tmp_path, name) for name in ("one", "two")]
        for worker in workers:
            worker.hear()
        rounds = 0

        def everybody_works(done: int, total: int) -> None:
            nonlocal rounds
            rounds += 1
            for worker in workers:
                worker.tell(True)
            assert [worker.hear() for worker in workers] == [rounds, rounds]

        everybody_works(0, 0)
        cache.rotate(NEW, everybody_works)
        for worker in workers:
            worker.tell(False)
            assert "pass the new one" in worker.result()
        assert rounds >= 3
        assert cache["count"] == 2 * rounds
        for name in ("one", "two"):
            assert [cache[f"{name} {number}"] for number in range(1, rounds + 1)] == [*range(1, rounds + 1)]
            assert cache[f"{name} large"] == LARGE + bytes([rounds])
            assert [value for _, value in cache.iterqueue(name)] == [*range(1, rounds + 1)]
        assert "too late" not in cache
        for key in ("too late", "count"):
            cache.delete(key)
    assert_rotated(tmp_path, kind)


@pytest.mark.parametrize("value", ["small", LARGE])
@pytest.mark.parametrize("in_transaction", [False, True])
def test_what_was_sealed_just_before_a_rotation_is_sealed_again(
    tmp_path: Path, value: Any, in_transaction: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Cache(tmp_path, secret=OLD, **SEALED) as writer, Cache(tmp_path, secret=OLD) as other:
        fill(writer)
        (store,) = writer._shards.stores
        put = store.put

        def late(*args: Any, **kwargs: Any) -> int:
            monkeypatch.undo()
            monkeypatch.setattr(rekeying, "BATCH", 3)
            with pytest.raises(ZeroDivisionError):
                other.rotate(NEW, failing_at(1))
            if in_transaction:
                with store.transaction(None):
                    return put(*args, **kwargs)
            return put(*args, **kwargs)

        monkeypatch.setattr(store, "put", late)
        writer["key 1"] = value
        (pending,) = other._shards.stores
        assert pending.disk.sealer is not None
        h = writer._rows.locate("key 1")[1]
        writer.flush()
        ((v,),) = store.select("SELECT v FROM entry WHERE h = ?", (h,))
        assert v[1:5] == pending.disk.sealer.keyring.epoch
        other.rotate(NEW)
        assert other["key 1"] == value
        other["key 1"] = VALUES["key 1"]
        mend(other)
    assert_rotated(tmp_path, Cache)


@pytest.mark.parametrize("size", [8, 16, 100, 300])  # without a value file, and with one
def test_a_write_that_a_rotation_overtook_is_read_by_everybody(
    tmp_path: Path, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {**SEALED, "secret": OLD, "disk_min_file_size": 16}
    with Cache(tmp_path, **options) as writer, Cache(tmp_path, **options) as other:
        (store,) = writer._shards.stores
        put = store.put

        def late(*args: Any, **kwargs: Any) -> int:
            other.rotate(OLD)  # to another data key
            return put(*args, **kwargs)

        monkeypatch.setattr(store, "put", late)
        writer["key"] = bytes(size)
        assert other["key"] == bytes(size)
        assert writer["key"] == bytes(size)


def test_a_value_file_that_is_sealed_again_survives_a_write_that_is_refused_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Cache(tmp_path, secret=OLD, **SEALED) as cache, Cache(tmp_path, secret=OLD) as other:
        (store,) = cache._shards.stores
        put, bind, refusals = store.put, rows._blob, iter([DiskFull("no room", store.path)])

        def late(*args: Any, **kwargs: Any) -> int:
            monkeypatch.setattr(store, "put", put)
            other.rotate(OLD)
            monkeypatch.setattr(rows, "_blob", refused)
            return put(*args, **kwargs)

        def refused(content: bytes) -> bytearray:
            for error in refusals:
                raise error
            return bind(content)

        monkeypatch.setattr(store, "put", late)
        cache["key"] = LARGE
        assert next(refusals, None) is None
        assert other["key"] == LARGE
        assert cache.check() == []


def test_an_entry_that_changes_meanwhile_keeps_its_newest_value(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The entries of a batch are sealed anew before the lock is taken; what was written by then must not go."""
    renewed = rekeying._try_renewed
    with Cache(tmp_path, secret=OLD, **SEALED) as cache, Cache(tmp_path, secret=OLD) as other:
        fill(cache)
        small, large = (cache.disk.stored_key(key) for key in ("key 1", "large"))

        def slowly(store: Any, sealer: Any, row: Any) -> Any:
            found = renewed(store, sealer, row)
            if row[1] == small:
                other["key 1"] = "newer"
            elif row[1] == large:
                other.set("large", LARGE + b"newer", tag="tag")
            return found

        monkeypatch.setattr(rekeying, "_try_renewed", slowly)
        cache.rotate(NEW)
        assert cache["key 1"] == "newer"
        assert cache["large"] == LARGE + b"newer"
        cache["key 1"] = VALUES["key 1"]
        cache.set("large", LARGE, tag="tag")
    assert_rotated(tmp_path, Cache)


def test_a_handle_that_slept_through_a_rotation_is_told(tmp_path: Path, kind: Any) -> None:
    with kind(tmp_path, secret=OLD, **SEALED) as cache, kind(tmp_path, secret=OLD) as idle:
        fill(cache)
        assert idle["key 1"] == VALUES["key 1"]
        cache.rotate(NEW)
        with pytest.raises(SecretError, match="pass the new one"):
            idle.get("key 1")
        with pytest.raises(SecretError, match="pass the new one"):
            idle.set("key 1", 1)
        with pytest.raises(SecretError, match="pass the new one"):
            idle.incr("number")
    assert_rotated(tmp_path, kind)


# -- children ---------------------------------------------------------------------------------------------------------


def test_named_children_are_rotated_with_their_cache(tmp_path: Path) -> None:
    with FanoutCache(tmp_path, shards=2, secret=OLD, **SEALED) as cache:
        fill(cache)
        fill(cache.cache("a/b"))
        cache.deque("d").extend(range(10))
        cache.index("i")["key"] = "value"
        with Cache(tmp_path / "cache" / "own", secret=THIRD, **SEALED) as own:
            fill(own)
    with FanoutCache(tmp_path, secret=OLD) as cache:
        assert list(cache.deque("d")) == [*range(10)], "this one is open, the others are not"
        with pytest.raises(ZeroDivisionError):
            cache.rotate(NEW, failing_at(6))
    with FanoutCache(tmp_path, secret=OLD) as cache:
        cache.rotate(NEW)
        assert content(cache.cache("a/b")) == WHOLE
        assert list(cache.deque("d")) == [*range(10)]
        cache.index("i")["other"] = 1
    with FanoutCache(tmp_path, secret=NEW) as cache:
        assert list(cache.index("i").items()) == [("key", "value"), ("other", 1)]
    for name in ("cache/a/b", "deque/d", "index/i"):
        with pytest.raises(SecretError):
            Cache(tmp_path / name, secret=OLD)
    with Cache(tmp_path / "cache" / "own", secret=THIRD) as own:
        assert content(own) == WHOLE
    for name in ("cache", "deque", "index"):  # whose files are not the parent's
        shutil.rmtree(tmp_path / name)
    assert_rotated(tmp_path, FanoutCache)


def test_a_reader_that_holds_up_the_checkpoint_of_a_young_cache_hinders_no_rotation(tmp_path: Path) -> None:
    with opened(tmp_path / "cache", "sealed", secret=OLD) as cache:
        cache["a"] = 1
        with closing(sqlite3.connect(tmp_path / "cache" / "cache.db")) as reader:
            reader.execute("BEGIN")
            reader.execute("SELECT count(*) FROM entry").fetchone()
            cache["a"] = 2
            cache.rotate(NEW)
            reader.execute("ROLLBACK")
            assert cache["a"] == 2
