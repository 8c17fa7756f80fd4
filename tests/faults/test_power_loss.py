"""Power loss: single cases of what it leaves behind, found by the rig that draws them at random (prove/power/losses.py)."""

from __future__ import annotations

import os
import struct
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from diskcache_like import Cache, FanoutCache
from diskcache_like.errors import CorruptDatabaseWarning, ForeignDatabase
from diskcache_like.storage.sqlite.schema import VERSION
from diskcache_like.system import boot as system_boot

from ..support.tampering import damage, plant

QUICK: dict[str, Any] = {"durability": "process", "generation_slots": 16}
FREE_PAGES = struct.Struct(">I")  # where the header of a database counts them: at byte 36


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "outer" / "cache"


def restart(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Have the machine been started since the generations were made."""
    boot = tmp_path / "boot_id"
    boot.write_text("5eed5eed-5eed-5eed-5eed-5eed5eed5eed")
    monkeypatch.setattr(system_boot, "_BOOT_ID", boot)


def miscount(path: Path) -> None:
    """Have a database claim free pages that it does not have, as where its header is newer than its pages."""
    content = bytearray(path.read_bytes())
    FREE_PAGES.pack_into(content, 36, 3)
    path.write_bytes(content)


def assert_goes_on_empty(directory: Path, problem: str) -> None:
    """Assert that opening quarantines the database, for a problem that is told, and that the next one can be used."""
    with pytest.warns(CorruptDatabaseWarning, match=problem):
        cache = Cache(directory)
    with closing(cache):
        assert "k" not in cache
        cache["k"] = 2
    with closing(Cache(directory)) as cache:
        assert cache["k"] == 2


@pytest.mark.parametrize(("make", "inner"), [(Cache, []), (FanoutCache, ["000", "007"])])
def test_directories_that_are_made_are_synced(
    make: type[Cache], inner: list[str], directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their own entries too: a cache whose directory is lost has lost every write."""
    synced: list[int] = []
    fsync = os.fsync

    def noting(descriptor: int) -> None:
        synced.append(os.fstat(descriptor).st_ino)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", noting)
    make(directory, durability="power").close()
    made = [tmp_path, directory.parent, *[directory] * len(inner)]
    assert [path.stat().st_ino for path in made[:2]] == synced[:2]
    assert synced.count(directory.stat().st_ino) == (8 if inner else 0)
    synced.clear()
    make(directory, durability="power").close()
    assert not synced


@pytest.mark.parametrize(("durability", "synchronous"), [("process", 0), ("system", 1), ("power", 3)])
def test_the_removal_of_a_rollback_journal_is_synced(durability: str, synchronous: int, directory: Path) -> None:
    """With FULL it is not, and a journal that comes back undoes a write that was acknowledged."""
    with closing(Cache(directory, durability=durability, sqlite_journal_mode="delete")) as cache:
        assert cache._shards.stores[0].connection.open().execute("PRAGMA synchronous").fetchone() == (synchronous,)


def test_a_database_that_was_quarantined_does_not_come_back(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The generation file names the database in use, and is never synced."""
    with closing(Cache(directory, **QUICK)) as cache:
        cache["k"] = "old"
    before = (directory / "cache.gen").read_bytes()
    sound = (directory / "cache.db").read_bytes()
    damage(directory / "cache.db", "header")
    with pytest.warns(CorruptDatabaseWarning), closing(Cache(directory)) as cache:
        cache["k"] = "new"
    (directory / "cache.db").write_bytes(sound)  # to tell an old value from a missing one
    (directory / "cache.gen").write_bytes(before)
    restart(monkeypatch, tmp_path)
    with closing(Cache(directory)) as cache:
        assert cache["k"] == "new"


@pytest.mark.parametrize(
    "lost",
    [
        "DELETE FROM setting",
        "UPDATE setting SET value = 0 WHERE name = 'modulus'",
        "ALTER TABLE totals RENAME TO other",
    ],
)
@pytest.mark.parametrize("restarted", [False, True])
def test_settings_or_a_schema_on_a_damaged_page_are_damage(
    lost: str, restarted: bool, directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not somebody else's doing, which would close the cache for good."""
    with closing(Cache(directory, **QUICK)) as cache:
        cache["k"] = 1
    plant(directory, lost)
    with pytest.raises(ForeignDatabase):
        Cache(directory)
    miscount(directory / "cache.db")
    if restarted:
        restart(monkeypatch, tmp_path)
    assert_goes_on_empty(directory, "")


@pytest.mark.parametrize("lost", ["TRIGGER entry_delete", "INDEX entry_expire", "TABLE trash", "TABLE setting"])
@pytest.mark.parametrize("restarted", [False, True])
def test_a_schema_that_lacks_something_is_damage(
    lost: str, restarted: bool, directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page from before `clear` dropped a trigger and one from after it was made again are sound, but lack it."""
    with closing(Cache(directory, **QUICK)) as cache:
        cache["k"] = 1
    plant(directory, f"DROP {lost}")
    if restarted:
        restart(monkeypatch, tmp_path)
    assert_goes_on_empty(directory, "does not have the schema .*unexpected: nothing, missing: 1")


def test_a_rotation_is_durable_step_by_step(directory: Path) -> None:
    """Else its shards might be taken back to different keyrings, and no secret would open all of them."""
    with closing(FanoutCache(directory, shards=2, secret="a secret for tests only", encrypt=True, **QUICK)) as cache:
        cache.set_many({number: number for number in range(10)})
        ran: list[str] = []
        for store in cache._shards.stores:
            store.connection.open().set_trace_callback(ran.append)
        cache.rotate("another secret for tests")
        for store in cache._shards.stores:
            store.connection.open().set_trace_callback(None)
            assert store.connection.open().execute("PRAGMA synchronous").fetchone() == (0,)
    level, syncs = "0", []
    for number, statement in enumerate(ran):
        level = statement.split()[-1] if "synchronous" in statement else level
        if "'keyring'" in statement:
            syncs.append((level, ran[number + 2], "wal_checkpoint" in ran[number + 3], ran[number + 4]))
    anew = f"PRAGMA user_version = {VERSION}"  # a commit that begins the -wal file anew, before anything is written unsynced
    assert syncs == [("3", "COMMIT", True, anew)] * 4  # each shard opened by both secrets, then by one
