"""Directories that cannot be used, or not safely: each is refused with its own error, and left as it was."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import sqlite3
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from diskcache_like import AsyncCache, Cache, Deque, FanoutCache, Index
from diskcache_like.errors import (
    CacheError,
    CorruptDatabaseWarning,
    DirectoryError,
    DiskCacheDirectory,
    ForeignDatabase,
    SettingError,
    UnsafeDirectory,
)

from ..support.tampering import database, snapshot
from ..support.workers import Link, forked

NOBODY = 65534
MAKERS = pytest.mark.parametrize("make", [Cache, FanoutCache])
NEEDS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")


@pytest.fixture
def public() -> Iterator[Path]:
    """Return a directory that every user can reach, which pytest's own ones are not."""
    path = Path(tempfile.mkdtemp(prefix="public-"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


def as_nobody(work: Callable[[], Any]) -> Any:
    """Return what `work` returns in a child process that has become another user for good."""

    def run(_: Link) -> Any:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
        return work()

    with forked(run) as child:
        return child.result()


def refusal(directory: Path, make: type[Cache] = Cache, **options: Any) -> tuple[str, int | None, str]:
    """Return class, number and text of the error with which a directory is refused."""
    try:
        make(directory, **options).close()
    except CacheError as error:
        return type(error).__name__, getattr(error, "errno", None), str(error)
    return "accepted", None, ""


def make_cache(directory: Path, make: type[Cache] = Cache) -> None:
    """Make a cache with an entry in the row and one in a file."""
    with closing(make(directory)) as cache:
        cache["a"] = 1
        cache["large"] = b"x" * 50_000


def is_whole(directory: Path, make: type[Cache] = Cache) -> bool:
    """Tell whether what `make_cache` stored is there."""
    with closing(make(directory)) as cache:
        return cache.get_many(["a", "large"]) == {"a": 1, "large": b"x" * 50_000} and cache.check() == []


# -- no directory, or not ours ----------------------------------------------------------------------------------------


@MAKERS
def test_a_file_is_no_directory(tmp_path: Path, make: type[Cache]) -> None:
    (tmp_path / "file").write_text("precious")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(DirectoryError, match=rf"is a file.*{path}"):
            make(path)
    assert (tmp_path / "file").read_text() == "precious"


def test_a_link_that_leads_nowhere(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("nowhere")
    with pytest.raises(DirectoryError, match="link"):
        Cache(tmp_path / "link")
    assert [path.name for path in tmp_path.iterdir()] == ["link"]


@NEEDS_ROOT
@MAKERS
def test_a_directory_that_cannot_be_written(public: Path, make: type[Cache]) -> None:
    for mode in (0o500, 0o600, 0o300, 0o000):
        path = public / f"{mode:o}"
        path.mkdir()
        os.chown(path, NOBODY, NOBODY)
        path.chmod(mode)
        kind, _, text = as_nobody(partial(refusal, path, make))
        assert kind == "DirectoryError"
        assert "must be readable and writable" in text
        assert str(path) in text
        assert list(path.iterdir()) == []


@NEEDS_ROOT
def test_a_cache_that_cannot_be_written(public: Path) -> None:
    make_cache(public / "cache")
    for path in (public / "cache", *(public / "cache").rglob("*")):
        os.chown(path, NOBODY, NOBODY)
        path.chmod(0o500 if path.is_dir() else 0o400)
    before = snapshot(public / "cache")
    assert as_nobody(lambda: refusal(public / "cache"))[0] == "DirectoryError"
    assert snapshot(public / "cache") == before


@NEEDS_ROOT
def test_files_that_cannot_be_written_in_a_directory_that_can(public: Path) -> None:
    for name in ("cache.db", "cache.gen", "cache.lock"):
        directory = public / name
        make_cache(directory)
        for path in (directory, *directory.rglob("*")):
            os.chown(path, NOBODY, NOBODY)
        (directory / name).chmod(0o000)
        kind, _, text = as_nobody(partial(refusal, directory))
        assert kind == "DirectoryError"
        assert str(directory / name) in text
        (directory / name).chmod(0o600)
        assert as_nobody(partial(is_whole, directory))


@NEEDS_ROOT
def test_a_parent_that_cannot_be_written(public: Path) -> None:
    kind, _, text = as_nobody(lambda: refusal(public / "new" / "cache"))
    assert kind == "DirectoryError"
    assert "Permission denied" in text
    assert f"{public}/new" in text
    assert list(public.iterdir()) == []


@NEEDS_ROOT
@MAKERS
def test_a_directory_of_somebody_else(public: Path, make: type[Cache]) -> None:
    mine, theirs = public / "mine", public / "theirs"
    make_cache(mine, make)
    theirs.mkdir()
    os.chown(theirs, NOBODY, NOBODY)
    before = snapshot(mine), snapshot(theirs)
    refused = (
        (NOBODY, refusal(theirs, make), "shared=True"),
        (0, as_nobody(partial(refusal, mine, make)), "have its owner give it to this user"),
    )
    for owner, (kind, _, text), advice in refused:
        assert kind == "UnsafeDirectory"
        assert f"belongs to user {owner}" in text
        assert advice in text
    assert (snapshot(mine), snapshot(theirs)) == before
    with closing(make(theirs, shared=True)) as cache:
        cache["a"] = 1
        assert cache["a"] == 1


@MAKERS
@pytest.mark.parametrize("mode", [0o777, 0o770, 0o720, 0o702])
def test_a_directory_that_others_can_write(tmp_path: Path, make: type[Cache], mode: int) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache").chmod(mode)
    with pytest.raises(UnsafeDirectory, match=rf"written by others \(mode {mode:04o}\); chmod it to 0700.*shared=True"):
        make(tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []
    with closing(make(tmp_path / "cache", shared=True)) as cache:
        cache["a"] = 1
        assert cache["a"] == 1


INSIDE = r"use a directory within it, such as '(.*)'"


@MAKERS
def test_in_a_place_for_everybody_a_directory_within_is_advised_and_works(tmp_path: Path, make: type[Cache]) -> None:
    tmp_path.chmod(0o1777)  # as /tmp
    with pytest.raises(UnsafeDirectory, match=INSIDE) as raised:
        make(tmp_path)
    assert not re.search(r"chmod|shared=True", str(raised.value))
    advised = re.search(INSIDE, str(raised.value))
    assert advised
    with closing(make(advised[1])) as cache:
        cache["a"] = 1


@NEEDS_ROOT
@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o2777, 0o2775])
def test_in_a_volume_of_root_a_directory_within_is_advised_and_works(public: Path, mode: int) -> None:
    """An emptyDir of Kubernetes is root's and for everybody, or for the group that `fsGroup` names."""
    volume = public / "volume"
    volume.mkdir()
    os.chown(volume, 0, NOBODY)
    volume.chmod(mode)
    kind, _, text = as_nobody(partial(refusal, volume))
    assert (kind, "chmod" in text) == ("UnsafeDirectory", False)
    advised = re.search(INSIDE, text)
    assert advised
    assert as_nobody(partial(refusal, Path(advised[1])))[0] == "accepted"


@NEEDS_ROOT
def test_in_a_cache_that_others_share_to_share_it_is_advised(public: Path) -> None:
    make_cache(public / "cache")
    os.chown(public / "cache", 0, NOBODY)
    (public / "cache").chmod(0o2770)
    kind, _, text = as_nobody(partial(refusal, public / "cache"))
    assert kind == "UnsafeDirectory"
    assert "; pass shared=True" in text


@MAKERS
@pytest.mark.parametrize("empty", ["", b"", "$NO_PLACE", Path("")], ids=repr)
def test_an_empty_path_is_not_the_current_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[..., Cache], empty: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NO_PLACE", "")
    if isinstance(empty, Path):  # cannot be told from Path(".")
        with closing(make(empty)) as cache:
            assert cache.directory == str(tmp_path)
        return
    kinds: list[Callable[..., Any]] = [make, Index, partial(Deque, ()), lambda path: AsyncCache(path).get("key")]
    for kind in kinds:
        with pytest.raises(DirectoryError, match=r"is empty, expected a path: '\.' for the current"):
            asyncio.run(kind(empty))
    assert os.listdir() == []


@MAKERS
def test_what_is_no_path_is_refused(make: Callable[..., Cache]) -> None:
    for given in (5, 5.0, {"a": 1}, ["cache"], True):
        with pytest.raises(SettingError, match=r"directory is .*, expected a path"):
            make(given)


@MAKERS
@pytest.mark.parametrize("umask", [0o000, 0o022, 0o277])
def test_what_is_made_is_private_whatever_the_umask(tmp_path: Path, make: type[Cache], umask: int) -> None:
    before = os.umask(umask)
    try:
        if umask == 0o277 and os.geteuid() != 0:
            pytest.skip("only root can use files that their owner may not write")
        make_cache(tmp_path / "cache", make)
    finally:
        os.umask(before)
    for path in (tmp_path / "cache", *(tmp_path / "cache").rglob("*")):
        assert path.stat().st_mode & 0o077 == 0, path


@NEEDS_ROOT
def test_a_link_of_somebody_else_is_not_followed(public: Path) -> None:
    make_cache(public / "real" / "cache")
    (public / "real").chmod(0o755)
    before = snapshot(public / "real")
    (public / "planted").symlink_to(public / "real" / "cache")
    (public / "parent").symlink_to(public / "real")
    for link, path in (("planted", "planted"), ("parent", "parent/cache"), ("planted", "planted/new")):
        os.chown(public / link, NOBODY, NOBODY, follow_symlinks=False)
        with pytest.raises(UnsafeDirectory, match=rf"link of user {NOBODY}.*{public / link}"):
            Cache(public / path)
        assert snapshot(public / "real") == before
        os.chown(public / link, 0, 0, follow_symlinks=False)
    assert is_whole(public / "planted")  # one's own link is


# -- control files, shards and the database ---------------------------------------------------------------------------

PLANTED: dict[str, Callable[[Path, Path], object]] = {
    "symbolic link": lambda path, target: path.symlink_to(target),
    "dangling link": lambda path, target: path.symlink_to(target.with_name("not-there")),
    "hard link": lambda path, target: path.hardlink_to(target),
    "FIFO": lambda path, _: os.mkfifo(path),
    "directory": lambda path, _: path.mkdir(),
}


@pytest.mark.parametrize("how", PLANTED)
def test_control_files_that_are_something_else(tmp_path: Path, how: str) -> None:
    precious = tmp_path / "precious"
    precious.write_bytes(b"precious" * 1000)
    for name in (
        "cache.lock",
        "cache.gen",
        "cache.buffer",
        "cache.metrics",
        "cache.db",
        "cache.db-wal",
        "cache.db-shm",
    ):
        directory = tmp_path / f"in {name}"
        make_cache(directory)
        (directory / name).unlink(missing_ok=True)
        PLANTED[how](directory / name, precious)
        with pytest.raises(DirectoryError, match=name):
            Cache(directory)
        assert precious.read_bytes() == b"precious" * 1000
        assert not (tmp_path / "not-there").exists()


@pytest.mark.parametrize("how", PLANTED)
def test_a_new_cache_among_what_is_something_else(tmp_path: Path, how: str) -> None:
    precious = tmp_path / "precious"
    precious.write_bytes(b"precious" * 1000)
    for name in ("cache.lock", "cache.gen", "cache.db", "cache.metrics"):
        directory = tmp_path / f"in {name}"
        directory.mkdir()
        PLANTED[how](directory / name, precious)
        with pytest.raises(DirectoryError, match=name):
            Cache(directory)
        assert precious.read_bytes() == b"precious" * 1000
        assert not (tmp_path / "not-there").exists()


@NEEDS_ROOT
def test_files_in_our_directory_that_others_own_or_write(tmp_path: Path) -> None:
    make_cache(tmp_path / "cache")
    for name in ("cache.lock", "cache.gen", "cache.db"):
        path = tmp_path / "cache" / name
        path.chmod(0o622)
        with pytest.raises(UnsafeDirectory, match=rf"written by other users.*{name}"):
            Cache(tmp_path / "cache")
        path.chmod(0o600)
        os.chown(path, NOBODY, NOBODY)
        with pytest.raises(UnsafeDirectory, match=rf"belongs to user {NOBODY}.*{name}"):
            Cache(tmp_path / "cache")
        os.chown(path, 0, 0)
    assert is_whole(tmp_path / "cache")


@NEEDS_ROOT
def test_a_shard_that_is_a_link_or_of_somebody_else(tmp_path: Path) -> None:
    make_cache(tmp_path / "cache", FanoutCache)
    shard, moved = tmp_path / "cache" / "003", tmp_path / "moved"
    shard.chmod(0o770)
    assert refusal(tmp_path / "cache", FanoutCache)[0] == "UnsafeDirectory"
    shard.chmod(0o700)
    os.chown(shard, NOBODY, NOBODY)
    assert refusal(tmp_path / "cache", FanoutCache)[0] == "UnsafeDirectory"
    os.chown(shard, 0, 0)
    assert is_whole(tmp_path / "cache", FanoutCache)
    shard.rename(moved)
    shard.symlink_to(moved)
    os.chown(shard, NOBODY, NOBODY, follow_symlinks=False)
    kind, _, text = refusal(tmp_path / "cache", FanoutCache)
    assert kind == "UnsafeDirectory"
    assert str(shard) in text


# -- databases of other programs --------------------------------------------------------------------------------------

DISKCACHE = """
import os, sys, diskcache
cache = getattr(diskcache, sys.argv[1])(sys.argv[2])
cache["a"], cache["large"] = 1, "x" * 100_000
if sys.argv[3] == "close": cache.close()
elif sys.argv[3] == "die": os._exit(0)
else: print("ready", flush=True); sys.stdin.readline()
"""


def run_diskcache(directory: Path, kind: str, how: str) -> None:
    pytest.importorskip("diskcache")
    subprocess.run([sys.executable, "-c", DISKCACHE, kind, directory, how], check=True)


@MAKERS
@pytest.mark.parametrize("how", ["close", "die"])
@pytest.mark.parametrize("kind", ["Cache", "FanoutCache"])
def test_a_directory_of_diskcache_is_left_as_it_is(tmp_path: Path, make: type[Cache], kind: str, how: str) -> None:
    directory = tmp_path / "old"
    run_diskcache(directory, kind, how)
    before = snapshot(directory)
    command = f"python -m diskcache_like migrate {directory} NEW_DIRECTORY"
    for options in ({}, {"shared": True}, {"secret": "s" * 16}):
        with pytest.raises(DiskCacheDirectory, match=rf"{directory}.*DiskCache 5.*untouched.*{command}"):
            make(directory, **options)
    assert snapshot(directory) == before


@MAKERS
@pytest.mark.parametrize("kind", ["Cache", "FanoutCache"])
def test_a_directory_of_diskcache_in_use_elsewhere(tmp_path: Path, make: type[Cache], kind: str) -> None:
    pytest.importorskip("diskcache")
    directory = tmp_path / "old"
    command = [sys.executable, "-c", DISKCACHE, kind, str(directory), "wait"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "ready\n"
        before = snapshot(directory)
        with pytest.raises(DiskCacheDirectory):
            make(directory)
        assert snapshot(directory) == before
        program.communicate("\n")


def test_a_directory_of_diskcache_in_use_here(tmp_path: Path) -> None:
    diskcache = pytest.importorskip("diskcache")
    with diskcache.Cache(str(tmp_path / "old")) as old:
        old["a"] = 1
        with pytest.raises(DiskCacheDirectory):
            Cache(tmp_path / "old")
        locks = Path("/proc/locks").read_text()
        inode = (tmp_path / "old" / "cache.db").stat().st_ino
        assert f":{inode} " in locks  # closing a descriptor of ours would have dropped SQLite's own lock
        old["b"] = 2
        run_diskcache(tmp_path / "old", "Cache", "close")
        assert (old["a"], old["b"]) == (1, 2)


@MAKERS
@pytest.mark.parametrize("mode", ["delete", "wal"])
def test_a_database_of_another_program_is_left_as_it_is(tmp_path: Path, make: type[Cache], mode: str) -> None:
    (tmp_path / "other").mkdir()
    with database(tmp_path / "other") as other:
        other.execute(f"PRAGMA journal_mode = {mode}")
        other.execute("CREATE TABLE notes (text)")
        other.execute("INSERT INTO notes VALUES ('precious')")
    before = snapshot(tmp_path / "other")
    with pytest.raises(ForeignDatabase, match=rf"{tmp_path}/other/cache\.db.*did not make; choose another directory"):
        make(tmp_path / "other")
    assert snapshot(tmp_path / "other") == before


@MAKERS
def test_a_file_of_another_program_is_left_where_it_is(tmp_path: Path, make: type[Cache]) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "cache.db").write_bytes(b"not a database at all" * 1000)
    with pytest.warns(CorruptDatabaseWarning):
        cache = make(tmp_path / "other")
    with closing(cache):
        cache["a"] = 1
    assert (tmp_path / "other" / "cache.db").read_bytes() == b"not a database at all" * 1000


def test_what_else_lies_in_the_directory_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "notes.txt").write_text("precious")
    make_cache(tmp_path / "cache")
    with closing(Cache(tmp_path / "cache")) as cache:
        cache.clear()
        (problem,) = cache.check()
        assert "notes.txt" in str(problem.message)
    assert (tmp_path / "cache" / "notes.txt").read_text() == "precious"


# -- caches that were never finished ----------------------------------------------------------------------------------


def begin(directory: Path, how: str) -> None:
    """Leave what a process leaves that is killed while it makes the database."""
    directory.mkdir(parents=True, mode=0o700)
    path = directory / "cache.db"
    path.touch(0o600)
    if how == "without a table":
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("PRAGMA journal_mode = wal")
    elif how == "in a transaction":
        command = (
            f"import os, sqlite3; c = sqlite3.connect({str(path)!r}); c.execute('PRAGMA journal_mode = wal');"
            "c.execute('BEGIN IMMEDIATE'); c.execute('CREATE TABLE entry (h)'); os._exit(0)"
        )
        subprocess.run([sys.executable, "-c", command], check=True)


@MAKERS
@pytest.mark.parametrize("how", ["empty", "without a table", "in a transaction"])
def test_a_database_that_was_only_begun_is_finished(tmp_path: Path, make: type[Cache], how: str) -> None:
    begin(tmp_path / "one", how)
    make_cache(tmp_path / "one", make)
    assert is_whole(tmp_path / "one", Cache)
    begin(tmp_path / "many" / "000", how)
    make_cache(tmp_path / "many", make)
    assert is_whole(tmp_path / "many", FanoutCache)
    with closing(FanoutCache(tmp_path / "many")) as cache:
        assert (tmp_path / "many" / "007").exists() == (make is FanoutCache)
        assert len(cache) == 2


@MAKERS
def test_a_cache_without_its_control_files(tmp_path: Path, make: type[Cache]) -> None:
    make_cache(tmp_path / "cache", make)
    for pattern in ("cache.gen", "cache.lock", "cache.buffer", "cache.metrics"):
        for path in (tmp_path / "cache").rglob(pattern):
            path.unlink()
        assert is_whole(tmp_path / "cache", make)


def test_a_fanout_cache_whose_maker_died_after_the_first_shard(tmp_path: Path) -> None:
    make_cache(tmp_path / "cache", FanoutCache)
    for number in range(1, 8):
        shutil.rmtree(tmp_path / "cache" / f"{number:03d}")
    with closing(FanoutCache(tmp_path / "cache", shards=3)) as cache:
        for number in range(20):
            cache[number] = number
        assert [cache[number] for number in range(20)] == list(range(20))
    assert (tmp_path / "cache" / "007").is_dir()  # the first shard says how many there are


def test_directories_are_made_with_their_parents(tmp_path: Path) -> None:
    make_cache(tmp_path / "some" / "where" / "cache")
    assert stat.S_IMODE((tmp_path / "some" / "where" / "cache").stat().st_mode) == 0o700


def test_the_missing_parents_of_a_new_cache_are_private_too(tmp_path: Path) -> None:
    with Cache(tmp_path / "a" / "b" / "cache"):
        for made in ("a", "a/b", "a/b/cache"):
            assert stat.S_IMODE((tmp_path / made).stat().st_mode) == 0o700


@MAKERS
@pytest.mark.parametrize("write_buffer", [0, 1 << 14])
@pytest.mark.parametrize("fate", ["removed", "made anew", "renamed"])
def test_a_directory_that_goes_while_it_is_open_is_noticed(
    tmp_path: Path, make: type[Cache], write_buffer: int, fate: str
) -> None:
    directory = tmp_path / "cache"
    with make(directory, write_buffer=write_buffer) as cache:
        cache["before"] = 1
        if fate == "renamed":
            directory.rename(tmp_path / "elsewhere")
        else:
            shutil.rmtree(directory)
        if fate == "made anew":
            make(directory).close()
        with pytest.raises(DirectoryError, match=r"(removed|replaced) while it was in use; open the cache again"):
            for number in range(20_000):
                cache.set(number, b"x" * 100, retry=True)
        assert number < 16_000
    with make(directory) as cache:
        cache["after"] = 2
        assert list(cache) == ["after"]
