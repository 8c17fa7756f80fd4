"""Copying a directory of DiskCache 5: what comes over, what stays behind, and that the old one is only read."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections import OrderedDict, deque
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from diskcache_like import (
    Cache,
    CacheError,
    DirectoryError,
    DiskFull,
    FanoutCache,
    ForeignDatabase,
    JSONDisk,
    SettingError,
    StorageError,
)
from diskcache_like.cli import main
from diskcache_like.compat.migration import copy
from diskcache_like.compat.migration.copy import Migration, MigrationOptions, Summary
from diskcache_like.encoding.keys import queue_key
from diskcache_like.structures.deque import Deque

from ..support.tampering import snapshot

BIG = 50_000
pytest.importorskip("diskcache")


def migrate(old: Path, new: Path, clock: Callable[[], float] = time.time, **options: Any) -> Summary:
    """Copy, and make sure that the old directory is as it was."""
    before = snapshot(old)
    try:
        with Migration(old, new, MigrationOptions(**options), clock) as running:
            return running.run()
    finally:
        assert snapshot(old) == before


def reasons(summary: Summary) -> dict[str, str]:
    return dict(summary.skipped)


@pytest.fixture
def old(tmp_path: Path) -> Path:
    return tmp_path / "old"


@pytest.fixture
def new(tmp_path: Path) -> Path:
    return tmp_path / "new"


class Odd:
    """Something that is not plain data."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Odd)

    __hash__ = None  # type: ignore[assignment]


def entries() -> dict[Any, Any]:
    """Return keys and values of each kind, small and large."""
    return {
        "text": "a\r\nb\rc\n",
        "long text": "a\r\nb\rc\n" * BIG,
        b"bytes": b"\x00\xff",
        "long bytes": bytes(range(256)) * 200,
        1: 2**70,
        2.5: -1.5,
        -(2**70): 0,
        "none": None,
        ("a", 1, None): [1, {"b": (2.0, True)}, {3}, frozenset([4])],
        frozenset([1, "x"]): bytearray(b"abc"),
        False: True,
        "long data": [["x" * 100, number] for number in range(2000)],
        "when": datetime(2020, 1, 2, 3, 4, 5, 6, tzinfo=UTC),
        "exact": [Decimal("1.50"), Fraction(1, 3), uuid.UUID(int=5), 1 + 2j, range(5), ...],
        "containers": (OrderedDict(b=1, a=2), deque([1, 2], maxlen=5)),
        "": "",
        "ünï\U0001f600": "ünï\U0001f600" * BIG,
    }


def test_a_cache_comes_over_whole(old: Path, new: Path, diskcache: ModuleType) -> None:
    with diskcache.Cache(old, size_limit=10**9, eviction_policy="least-frequently-used", tag_index=1) as theirs:
        wanted = entries()
        for number, (key, value) in enumerate(wanted.items()):
            theirs.set(key, value, expire=10**6 + number if number % 2 else None, tag=("t", 5, b"b", None)[number % 4])
        theirs.set("file", io.BytesIO(b"read" * BIG), read=True)
        theirs.set("gone", 1, expire=1000)
        details = {key: theirs.get(key, expire_time=True, tag=True)[1:] for key in wanted}
        order = [key for key in theirs if key != "gone"]
        (_, end) = theirs.get("gone", expire_time=True)
    summary = migrate(old, new, clock=lambda: float(end))
    assert (summary.copied, summary.present, summary.expired, summary.skipped) == (len(wanted) + 1, 0, 1, [])
    assert sorted(os.listdir(new)) == sorted({*os.listdir(new)} - {"migration"})
    with Cache(new) as ours:
        assert list(ours) == order
        for key, value in wanted.items():
            assert ours[key] == value, key
            assert type(ours[key]) is type(value)
            assert ours.get(key, expire_time=True, tag=True)[1:] == details[key]
        assert ours["file"] == b"read" * BIG
        assert ours.check() == []
        assert [ours.reset(name) for name in ("size_limit", "eviction_policy", "tag_index", "cull_limit")] == [
            10**9,
            "least-frequently-used",
            1,
            10,
        ]


def test_nothing_is_evicted_while_it_is_copied(old: Path, new: Path, diskcache: ModuleType) -> None:
    with diskcache.Cache(old, eviction_policy="none", size_limit=100_000) as theirs:
        for number in range(300):
            theirs[number] = "x" * 1000
        theirs.reset("eviction_policy", "least-recently-stored")
    seen = set()

    def look(_: int) -> None:
        with Cache(new) as ours:
            seen.add(ours.reset("eviction_policy"))

    with Migration(old, new) as running:
        summary = running.run(look)
    assert seen == {"none"}
    assert summary.copied == 300
    assert "size limit" in "".join(summary.notes)
    with Cache(new) as ours:
        assert len(ours) == 300
        ours["more"] = 1
        assert len(ours) < 300


def test_a_fanout_cache_comes_over_with_what_is_named_below_it(old: Path, new: Path, diskcache: ModuleType) -> None:
    with diskcache.FanoutCache(old, shards=3, size_limit=3 * 10**7) as theirs:
        for number in range(50):
            theirs.set(number, f"value {number}", tag="even" if number % 2 == 0 else None)
        theirs.cache("small/one")["a"] = 1
        theirs.deque("tasks").extend("abc")
        theirs.deque("tasks").appendleft("z")
        theirs.index("names").update([("b", 1), ("a", [2])])
        for inner in (theirs.cache("small/one"), theirs.deque("tasks").cache, theirs.index("names").cache):
            inner.close()
    summary = migrate(old, new)
    assert (summary.copied, summary.skipped) == (57, [])
    with FanoutCache(new, timeout=60) as ours:
        assert len(list(new.glob("00?"))) == 3
        assert {number: ours[number] for number in range(50)} == {number: f"value {number}" for number in range(50)}
        assert ours.evict("even") == 25
        assert ours.reset("size_limit") == 3 * 10**7
        assert ours.cache("small/one")["a"] == 1
        assert list(ours.deque("tasks")) == ["z", "a", "b", "c"]
        assert list(ours.index("names").items()) == [("b", 1), ("a", [2])]
        assert ours.check() == []


def test_a_deque_is_a_deque_again(old: Path, new: Path, diskcache: ModuleType) -> None:
    theirs = diskcache.Deque([1, [2], "x" * BIG], directory=str(old))
    theirs.appendleft("first")
    del theirs[2]
    theirs.cache.close()
    with Migration(old, new) as running:
        assert [part.kind for part in running.parts] == ["deque"]
        assert running.run().copied == 3
    ours = Deque(directory=new)
    assert list(ours) == ["first", 1, "x" * BIG]
    ours.append("last")
    ours.appendleft("zero")
    assert [ours.popleft(), ours.pop(), len(ours)] == ["zero", "last", 3]
    assert ours.cache.reset("eviction_policy") == "none"
    ours.cache.close()


@pytest.mark.parametrize("disk", ["auto", "json"])
def test_what_json_disk_wrote_comes_over(old: Path, new: Path, diskcache: ModuleType, disk: str) -> None:
    with diskcache.Cache(old, disk=diskcache.JSONDisk, disk_compress_level=6) as theirs:
        theirs["key"] = {"a": [1, None, "ü"]}
        theirs[["list", 1]] = "x\r\n" * BIG
        theirs.set("file", io.BytesIO(b"no json"), read=True)
        theirs["numbers"] = list(range(50_000))
    assert migrate(old, new, disk=disk).skipped == []
    with Cache(new, disk=JSONDisk) as ours:
        assert ours["key"] == {"a": [1, None, "ü"]}
        assert ours[["list", 1]] == "x\r\n" * BIG
        with ours.read("file") as file:
            assert file.read() == b"no json"
        assert ours["numbers"] == list(range(50_000))
        assert ours.check() == []


def test_commands_look_at_what_came_over_from_json_disk(
    old: Path, new: Path, diskcache: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    with diskcache.Cache(old, disk=diskcache.JSONDisk) as theirs:
        theirs.set("key", [1], tag="t")
    assert main.main(["migrate", str(old), str(new)]) == 0
    for command in (["stats"], ["sizes", "--by", "tag"], ["check"], ["get", "key"]):  # as docs/migrating.md names them
        name, *options = command
        assert main.main([name, str(new), *options]) == 0, capsys.readouterr().err
    assert capsys.readouterr().out.endswith("nothing found\n[1]\n")


def test_bytes_of_a_plain_disk_are_not_taken_for_json(old: Path, new: Path, diskcache: ModuleType) -> None:
    with diskcache.Cache(old) as theirs:
        theirs[b"key"] = b"value"
    migrate(old, new)
    with Cache(new) as ours:
        assert ours[b"key"] == b"value"


def test_commits_in_the_wal_are_read_and_nothing_is_left_beside(
    tmp_path: Path, new: Path, diskcache: ModuleType
) -> None:
    with diskcache.Cache(tmp_path / "live") as theirs:
        for number in range(10):
            theirs[number] = number
        shutil.copytree(tmp_path / "live", tmp_path / "old")  # as after a crash
    (tmp_path / "old" / "cache.db-shm").unlink()
    assert (tmp_path / "old" / "cache.db-wal").stat().st_size > 0
    assert migrate(tmp_path / "old", new).copied == 10
    assert migrate(tmp_path / "old", tmp_path / "other", dry_run=True).copied == 10
    assert not (tmp_path / "other").exists()
    assert sorted(path.name for path in (tmp_path / "old").iterdir()) == ["cache.db", "cache.db-wal"]
    with Cache(new) as ours:
        assert [ours[number] for number in range(10)] == list(range(10))


def test_items_of_queues_stay_keys_or_become_items(old: Path, tmp_path: Path, diskcache: ModuleType) -> None:
    with diskcache.Cache(old) as theirs:
        theirs["user"] = "mine"
        for number in range(3):
            theirs.push(f"a{number}", prefix="jobs")
            theirs.push(f"b{number}")
        theirs.push("front", prefix="jobs", side="front")
        theirs["x-500000000000000"] = 1
    summary = migrate(old, tmp_path / "keys")
    assert [note.split(" keys")[0] for note in summary.notes] == ["3", "4", "1"]
    with Cache(tmp_path / "keys") as ours:
        assert ours["jobs-500000000000000"] == "a0"
        assert ours[500_000_000_000_000] == "b0"
        assert ours.pull() == (None, None)
    summary = migrate(old, tmp_path / "items", queues=["jobs", ""])
    assert [note.split(" keys")[0] for note in summary.notes] == ["1"]
    with Cache(tmp_path / "items") as ours:
        assert [ours.pull("jobs")[1] for _ in range(5)] == ["front", "a0", "a1", "a2", None]
        assert [ours.pull()[1] for _ in range(4)] == ["b0", "b1", "b2", None]
        assert sorted(map(str, ours)) == ["user", "x-500000000000000"]


def test_an_entry_whose_key_equals_another_is_listed(old: Path, new: Path, diskcache: ModuleType) -> None:
    with diskcache.Cache(old) as theirs:
        theirs[1] = "one"
        theirs[True] = "true"
        theirs[1, 2.0] = theirs[1.0, 2] = "same"
    summary = migrate(old, new)
    assert (summary.copied, summary.present) == (2, 1)
    assert "another value under an equal key" in reasons(summary)["True"]
    with Cache(new) as ours:
        assert ours[1] == "one"


# -- pickles ------------------------------------------------------------------------------------------------------


def test_what_is_not_plain_data_is_listed_and_copied_if_trusted(
    old: Path, tmp_path: Path, diskcache: ModuleType
) -> None:
    with diskcache.Cache(old) as theirs:
        theirs["odd"] = Odd()
        theirs["nested"] = [1, {"x": Odd()}]
        theirs[Odd] = 1
        theirs["plain"] = [1]
    summary = migrate(old, tmp_path / "careful")
    assert summary.copied == 1
    assert all("Odd" in reason for reason in reasons(summary).values())
    assert {*reasons(summary)} == {"'odd'", "'nested'", "row 3 of cache.db"}
    summary = migrate(old, tmp_path / "trusting", trust_pickles=True)
    with Cache(tmp_path / "trusting") as ours:
        assert ours["odd"] == Odd()
        assert ours["nested"] == [1, {"x": Odd()}]
        assert ours["plain"] == [1]


def test_nothing_is_pickled_where_that_is_forbidden(
    old: Path, new: Path, diskcache: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DISKCACHE_LIKE_PICKLE", "never")
    with diskcache.Cache(old) as theirs:
        theirs["plain"] = [1]
        theirs["ordered"] = OrderedDict(a=1)
    summary = migrate(old, new)
    assert summary.copied == 1
    assert "OrderedDict" in reasons(summary)["'ordered'"]


# -- going on -----------------------------------------------------------------------------------------------------


def fill(module: ModuleType, directory: Path) -> dict[Any, Any]:
    wanted: dict[Any, Any] = {f"key {number}": number for number in range(7)}
    wanted.update({("a", 1): "x" * BIG, 5: [1], b"b": bytes(BIG)})
    with module.Cache(directory, eviction_policy="least-recently-used") as theirs:
        for key, value in wanted.items():
            theirs.set(key, value, tag="tag", expire=10**6)
        theirs["odd"] = Odd()
    return wanted


@pytest.mark.parametrize("how", ["raise", "kill"])
def test_a_copy_interrupted_at_any_entry_goes_on(
    old: Path, tmp_path: Path, diskcache: ModuleType, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    wanted = fill(diskcache, old)
    monkeypatch.setattr(copy, "BATCH_ENTRIES", 2)
    copy_one = Migration._copy_one
    for stop in range(len(wanted) + 2):
        new = tmp_path / f"new {stop}"
        seen = 0

        def stopping(self: Migration, cache: Cache, entry: Any, stop: int = stop) -> None:
            nonlocal seen
            copy_one(self, cache, entry)
            seen += 1
            if seen > stop:
                if how == "kill":
                    os.kill(os.getpid(), signal.SIGKILL)
                raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(Migration, "_copy_one", stopping)
            if how == "raise":
                with contextlib.suppress(KeyboardInterrupt):
                    migrate(old, new)
            elif (child := os.fork()) == 0:
                migrate(old, new)
                os._exit(0)
            else:
                os.waitpid(child, 0)
        finished = not (new / "migration").exists()
        assert finished == (stop >= len(wanted))
        if not finished:
            summary = migrate(old, new)
            assert summary.copied + summary.present == len(wanted)
            assert summary.present == stop // 2 * 2
            assert [*reasons(summary)] == ["'odd'"]
        with Cache(new) as ours:
            assert {key: ours[key] for key in ours} == wanted
            assert list(ours) == list(wanted)
            assert ours.evict("tag") == len(wanted)
            assert ours.reset("eviction_policy") == "least-recently-used"
            ours.check(fix=True)  # a killed copy may leave a value file that no row knows
            assert ours.check() == []


def interrupted(old: Path, new: Path, monkeypatch: pytest.MonkeyPatch, **options: Any) -> None:
    """Leave a copy of two batches of two entries."""
    monkeypatch.setattr(copy, "BATCH_ENTRIES", 2)
    done = 0

    def stop(number: int) -> None:
        nonlocal done
        done += number
        if done == 4:
            raise KeyboardInterrupt

    with Migration(old, new, MigrationOptions(**options)) as running, pytest.raises(KeyboardInterrupt):
        running.run(stop)


def test_what_was_changed_in_the_new_cache_meanwhile_stays(
    old: Path, new: Path, diskcache: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = fill(diskcache, old)
    interrupted(old, new, monkeypatch)
    with Cache(new) as ours:
        assert len(ours) == 4
        ours["key 1"] = "mine"
        ours["key 6"] = "mine too"
        ours[5] = "and this"
    summary = migrate(old, new)
    with Cache(new) as ours:
        assert [ours["key 1"], ours["key 6"], ours[5]] == ["mine", "mine too", "and this"]
        assert len(ours) == len(wanted)
    assert "keeps it" in reasons(summary)["5"]


def test_a_deque_goes_on_where_it_was(
    old: Path, new: Path, diskcache: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    diskcache.Deque(range(9), directory=str(old)).cache.close()
    interrupted(old, new, monkeypatch)
    summary = migrate(old, new)
    assert (summary.copied, summary.present, summary.skipped) == (5, 4, [])
    ours = Deque(directory=new)
    assert list(ours) == list(range(9))
    ours.cache.close()


def test_an_unfinished_copy_is_gone_on_with_only_as_it_was_begun(
    old: Path, new: Path, tmp_path: Path, diskcache: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(diskcache, old)
    fill(diskcache, tmp_path / "other")
    interrupted(old, new, monkeypatch)
    for source, options in (
        (tmp_path / "other", {}),
        (old, {"disk": "json"}),
        (old, {"queues": ["a"]}),
        (old, {"kind": "index"}),
    ):
        with pytest.raises(DirectoryError, match="unfinished copy of something else"):
            migrate(source, new, **options)
    migrate(old, new)
    with pytest.raises(DirectoryError, match="not empty"):
        migrate(old, new)


def test_two_copies_into_one_directory_do_not_meet(old: Path, new: Path, diskcache: ModuleType) -> None:
    fill(diskcache, old)
    with Migration(old, new) as first:
        with pytest.raises(DirectoryError, match="another migration"):
            Migration(old, new)
        assert first.run().copied == 10


def test_a_full_disk_is_told_and_the_copy_goes_on_when_there_is_room(
    old: Path, new: Path, diskcache: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    wanted = fill(diskcache, old)
    monkeypatch.setattr(copy, "BATCH_ENTRIES", 2)
    real, calls = Cache.set, []

    def full(self: Cache, *arguments: Any, **options: Any) -> bool:
        calls.append(arguments)
        if len(calls) > 5:
            raise DiskFull("no room", str(new))
        return real(self, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Cache, "set", full)
        assert main.main(["migrate", str(old), str(new)]) == 2
    assert "no room" in capsys.readouterr().err
    assert migrate(old, new).present == 4
    with Cache(new) as ours:
        assert len(ours) == len(wanted)


# -- bad input ----------------------------------------------------------------------------------------------------


def test_a_directory_that_cannot_be_copied_is_told_from_one_that_can(
    tmp_path: Path, new: Path, diskcache: ModuleType
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    for old in ("missing", "empty", "file"):
        with pytest.raises(FileNotFoundError, match=old):
            Migration(tmp_path / old, new)
    Cache(tmp_path / "ours").close()
    with pytest.raises(ForeignDatabase, match="already"):
        Migration(tmp_path / "ours", new)
    diskcache.Cache(tmp_path / "both").close()
    diskcache.FanoutCache(tmp_path / "both", shards=2).close()
    with pytest.raises(SettingError, match="--kind"):
        Migration(tmp_path / "both", new)
    with pytest.raises(SettingError, match="kind is 'odd'"):
        Migration(tmp_path / "both", new, MigrationOptions(kind="odd"))
    assert not new.exists()
    assert migrate(tmp_path / "both", new, kind="fanout").skipped == []


def test_a_new_directory_that_cannot_be_used_is_refused(old: Path, tmp_path: Path, diskcache: ModuleType) -> None:
    fill(diskcache, old)
    before = snapshot(old)
    full = tmp_path / "full"
    (full / "migration" / "photos").mkdir(parents=True)
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(old)
    for new in (old, old / "inner", tmp_path, full, tmp_path / "file", tmp_path / "link", Path("/proc/nowhere")):
        with pytest.raises(DirectoryError):
            Migration(old, new)
    assert snapshot(old) == before
    assert (full / "migration" / "photos").is_dir()


def test_a_directory_in_use_is_refused(old: Path, new: Path, diskcache: ModuleType) -> None:
    program = "import diskcache, sys; c = diskcache.Cache(sys.argv[1]); c[1] = 1; print(flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", program, old], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as user:
        assert user.stdout is not None
        user.stdout.readline()
        with pytest.raises(StorageError, match=f"in use by process {user.pid}"):
            Migration(old, new)
        user.communicate()
    with diskcache.Cache(old) as theirs:
        assert theirs[1] == 1
        with pytest.raises(StorageError, match="open in this process"):
            Migration(old, new)
    assert not new.exists()
    assert migrate(old, new).copied == 1


def test_a_directory_that_changes_meanwhile_is_told(old: Path, new: Path, diskcache: ModuleType) -> None:
    fill(diskcache, old)
    with Migration(old, new) as running:
        with diskcache.Cache(old) as theirs:
            theirs["more"] = 1
        with pytest.raises(StorageError, match="changed while it was read"):
            running.run()


def garble(path: Path, start: int, number: int) -> None:
    with path.open("r+b") as file:
        file.seek(start)
        file.write(b"\xa5" * number)


def test_a_database_without_its_first_page_is_told(old: Path, tmp_path: Path, diskcache: ModuleType) -> None:
    with diskcache.Cache(old) as theirs:
        for number in range(400):
            theirs[number] = "x" * 500
    garble(old / "cache.db", 0, 100)
    with pytest.raises(CacheError, match=r"cache\.db.*damaged"):
        Migration(old, tmp_path / "garbled")
    (old / "cache.db").write_bytes(b"")
    with pytest.raises(CacheError, match=r"cache\.db"):
        Migration(old, tmp_path / "emptied")
    assert not (tmp_path / "garbled").exists()


def test_damaged_pages_cost_only_what_was_in_them(old: Path, new: Path, diskcache: ModuleType) -> None:
    with diskcache.Cache(old, sqlite_auto_vacuum=0) as theirs:
        for number in range(400):
            theirs[number] = "x" * 500
    size = (old / "cache.db").stat().st_size
    garble(old / "cache.db", size // 4096 * 4096 - 8 * 4096, 4096)
    summary = migrate(old, new)
    assert summary.copied < 400
    assert summary.copied > 350
    assert any("some entries cannot be read" in reason for reason in reasons(summary).values())
    with Cache(new) as ours:
        assert all(ours[number] == "x" * 500 for number in ours)
        assert list(ours) == sorted(ours)


def test_a_damaged_shard_does_not_keep_the_others_back(old: Path, new: Path, diskcache: ModuleType) -> None:
    with diskcache.FanoutCache(old, shards=3) as theirs:
        for number in range(60):
            theirs[number] = number
    garble(old / "001" / "cache.db", 0, 200)
    summary = migrate(old, new)
    assert summary.copied == 40
    assert [*reasons(summary)] == ["001"]


def test_value_files_that_are_gone_or_cut_are_listed(old: Path, new: Path, diskcache: ModuleType) -> None:
    with diskcache.Cache(old) as theirs:
        for key in ("gone", "cut", "text", "whole"):
            theirs[key] = "\xff" * BIG
        paths = {
            key: old / theirs._sql("SELECT filename FROM Cache WHERE key = ?", (key,)).fetchone()[0] for key in theirs
        }
    paths["gone"].unlink()
    paths["cut"].write_bytes(b"x")
    paths["text"].write_bytes(b"\xff" * 2 * BIG)
    summary = migrate(old, new)
    found = reasons(summary)
    assert (summary.copied, [*found]) == (1, ["'gone'", "'cut'", "'text'"])
    assert ["missing" in found["'gone'"], "1 bytes" in found["'cut'"], "UTF-8" in found["'text'"]] == [True] * 3


# -- the command --------------------------------------------------------------------------------------------------


def test_the_command_reports_and_says_by_its_status_whether_all_was_copied(
    old: Path, tmp_path: Path, diskcache: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    wanted = fill(diskcache, old)
    before = snapshot(old)
    for number, (arguments, code) in enumerate(
        ((["--dry-run"], 1), ([], 1), (["--trust-pickles"], 0), (["--kind", "index", "--queue", "a"], 1))
    ):
        new = tmp_path / str(number)
        assert main.main(["migrate", str(old), str(new), *arguments]) == code
        said = capsys.readouterr().out
        assert f"{len(wanted) + (code == 0):,} " in said
        assert ("skipped 'odd': pickle of an instance of" in said) == (code == 1)
        assert new.exists() == ("--dry-run" not in arguments)
    assert main.main(["migrate", str(old), str(tmp_path / "as json"), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["copied"], [each["key"] for each in found["skipped"]]) == (len(wanted), ["'odd'"])
    assert main.main(["migrate", str(tmp_path / "missing"), str(tmp_path / "x")]) == 2
    assert "missing" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main.main(["migrate", "--help"])
    assert "exit status: 0" in " ".join(capsys.readouterr().out.split())
    assert snapshot(old) == before


def test_an_interrupted_command_says_how_to_go_on(
    old: Path, new: Path, diskcache: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(diskcache, old)

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Migration, "_copy_one", interrupt)
        assert main.main(["migrate", str(old), str(new)]) == 130
    assert "same command" in capsys.readouterr().err
    assert main.main(["migrate", str(old), str(new)]) == 1


def test_a_queue_key_is_what_a_push_makes(tmp_path: Path) -> None:
    with Cache(tmp_path) as cache:
        pushed = cache.push(1, "p")
        assert pushed == queue_key("p", pushed.number)
