"""The command line: which caches its commands open, and what they need for that."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from diskcache_like import Cache, FanoutCache, JSONDisk
from diskcache_like.cli import opening

from ..support.cache_kinds import NEEDS_CIPHER, SECRET
from ..support.command_line import LIMIT, Shell


@pytest.fixture
def cache(stocked: Cache) -> Cache:
    return stocked


@pytest.mark.parametrize("make", [Cache, FanoutCache])
def test_a_cache_of_jsondisk_is_recognised(make: type[Cache], shell: Shell, tmp_path: Path) -> None:
    shell.directory = tmp_path / "json"
    with make(shell.directory, disk=JSONDisk) as cache:
        cache.set("key", [1], tag="t")
    assert shell.run("get", "key") == "[1]\n"
    shell.run("set", "other", '{"a": 1}', "--value-type", "json")
    assert shell.json("sizes", "--by", "tag")[0]["entries"] == 1
    assert shell.run("check") == "nothing found\n"
    assert '"key":"other"' in shell.run("export")
    shell.run("copy", tmp_path / "same")
    shell.run("copy", tmp_path / "zlib", "--compressor", "zlib")
    with Cache(tmp_path / "same", disk=JSONDisk) as same, Cache(tmp_path / "zlib") as other:
        assert same["other"] == other["other"] == {"a": 1}


class OwnDisk(JSONDisk):
    """A disk that the command line cannot know."""


def test_a_disk_of_a_programs_own_is_named(shell: Shell, tmp_path: Path) -> None:
    shell.directory = tmp_path / "own"
    Cache(shell.directory, disk=OwnDisk).close()
    for command in (("stats",), ("get", "key")):
        shell.run(*command, code=2)
        assert "its disk class is 'OwnDisk': open it with a program that has that class" in shell.err


def test_a_shared_cache_is_recognised_by_its_mode(shell: Shell, tmp_path: Path) -> None:
    shell.directory = tmp_path / "shared"
    Cache(shell.directory, shared=True).close()
    shell.run("set", "key", "value")
    assert shell.run("get", "key") == "value\n"
    assert shell.run("check") == "nothing found\n"
    shell.directory.chmod(0o777)
    shell.run("get", "key", code=2)
    assert "chmod it to 0700, or give --shared" in shell.err
    assert shell.run("get", "key", "--shared") == "value\n"


@NEEDS_CIPHER
def test_a_key_context_can_be_given(shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shell.directory = tmp_path / "encrypted"
    with Cache(shell.directory, encrypt=True, secret=SECRET, key_context="billing") as cache:
        cache["key"] = "value"
    shell.run("get", "key", code=2)
    assert "needs its secret: set DISKCACHE_LIKE_SECRET" in shell.err
    monkeypatch.setenv("DISKCACHE_LIKE_SECRET", SECRET)
    shell.run("get", "key", code=2)
    assert "give the --key-context that it was made with" in shell.err
    assert shell.run("get", "key", "--key-context", "billing") == "value\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can look at everything")
def test_root_looks_at_a_cache_of_a_service_and_leaves_its_files_alone(shell: Shell, cache: Cache) -> None:
    cache.close()
    for path in (shell.directory, *shell.directory.rglob("*")):
        os.chown(path, 65534, 65534)
    assert len(shell.run("keys").splitlines()) == 4
    assert "belongs to another user" in shell.err
    assert "entries" in shell.run("stats")
    shell.run("set", "key", "value", code=2)
    assert "belongs to user 65534, not to user 0 (mode 0700); give --shared" in shell.err
    assert {path.stat().st_uid for path in shell.directory.rglob("*")} == {65534}


LOOKS = (
    ["stats"],
    ["keys"],
    ["get", "user:1"],
    ["sizes"],
    ["check"],
    ["export", "--output", "/dev/null"],
)


@pytest.fixture
def unwritable(shell: Shell, cache: Cache, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the directory of the cache, closed and as if this user, whoever that is, could not write it."""
    cache.close()
    access = os.access

    def answer(path: Any, mode: int, **more: Any) -> bool:
        is_it = os.path.realpath(path) == str(shell.directory.resolve())
        return not (mode & os.W_OK and is_it) and access(path, mode, **more)

    monkeypatch.setattr(os, "access", answer)
    return shell.directory


@pytest.mark.parametrize("arguments", LOOKS, ids=lambda arguments: arguments[0])
def test_what_only_looks_needs_no_right_to_write(
    arguments: list[str], shell: Shell, cache: Cache, request: pytest.FixtureRequest
) -> None:
    cache["large"] = "x" * 100_000
    cache.close()
    whole = shell.run(*arguments)
    directory: Path = request.getfixturevalue("unwritable")
    before = {path: path.stat().st_mtime_ns for path in directory.rglob("*")}
    assert shell.run(*arguments) == whole
    assert "temporary copy" in shell.err
    assert {path: path.stat().st_mtime_ns for path in directory.rglob("*")} == before


def test_looking_follows_no_link_and_waits_for_no_pipe(shell: Shell, unwritable: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("secret")
    outside.chmod(0o644)
    (unwritable / "link").symlink_to(outside)
    (unwritable / "folder").symlink_to(tmp_path)
    os.mkfifo(unwritable / "pipe")
    assert "entries" in shell.run("stats")
    assert outside.stat().st_mode & 0o777 == 0o644


def test_the_directory_itself_may_be_given_by_a_link(shell: Shell, unwritable: Path, tmp_path: Path) -> None:
    shell.directory = tmp_path / "link"
    shell.directory.symlink_to(unwritable)
    assert len(shell.run("keys").splitlines()) == 4
    assert "temporary copy" in shell.err


def test_a_look_at_a_copy_names_the_original(shell: Shell, cache: Cache, unwritable: Path) -> None:
    cache["large"] = "x" * 100_000
    cache.close()
    (value_file,) = unwritable.rglob("*.val")
    value_file.unlink()
    found = shell.run("check", code=1)
    assert str(unwritable / "cache.db") in found
    assert "diskcache-" not in found
    (unwritable / "cache.db").write_bytes(b"\xff" * 8192)
    (unwritable / "cache.db-wal").unlink(missing_ok=True)
    shell.run("stats", code=2)
    assert str(unwritable) in shell.err
    assert "diskcache-" not in shell.err.splitlines()[-1].removeprefix("diskcache-like: ")


def test_a_database_that_changes_while_it_is_copied_is_copied_again(
    shell: Shell, unwritable: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = opening._copy
    turns: list[int] = []

    def interrupted(directory: str, target: str, values: bool) -> None:
        copy(directory, target, values)
        if len(turns) < changes:
            turns.append(len(turns))
            os.utime(unwritable / "cache.db", ns=(len(turns), len(turns)))

    monkeypatch.setattr(opening, "_copy", interrupted)
    changes = opening.COPIES - 1
    assert "entries" in shell.run("stats")
    turns.clear()
    changes = opening.COPIES
    shell.run("stats", code=2)
    assert "try again" in shell.err


def test_check_without_the_secret_needs_no_right_to_write(shell: Shell, unwritable: Path, tmp_path: Path) -> None:
    shutil.rmtree(unwritable)
    Cache(tmp_path / "signed", secret="a secret for tests only").close()
    (tmp_path / "signed").rename(unwritable)
    assert "looked at from outside only" in shell.run("check", code=1)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")
def test_stats_on_a_volume_that_is_mounted_read_only(shell: Shell, cache: Cache) -> None:
    cache.close()
    directory = str(shell.directory)
    looks = f'"{sys.executable}" -m diskcache_like stats "{directory}"'
    script = f'mount --bind "{directory}" "{directory}" && mount -o remount,ro,bind "{directory}" && {looks}'
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", script], capture_output=True, text=True, check=False, timeout=LIMIT
    )
    if "unshare failed" in done.stderr or "permission denied" in done.stderr:
        pytest.skip("mounting is not allowed here")
    assert done.returncode == 0, done.stderr
    assert "entries" in done.stdout


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_who_cannot_write_looks(shell: Shell, cache: Cache, tmp_path: Path) -> None:
    cache.close()
    public = Path(tempfile.mkdtemp(dir="/tmp"))  # where the other user gets at it, and at modules imported by then
    try:
        shutil.copytree(shell.directory, public / "cache")
        for path in (public, *public.rglob("*")):
            os.chown(path, 65534, 65534)
            path.chmod(0o500 if path.is_dir() else 0o400)
        program = (
            "import os, sys, encodings.ascii, locale, multiprocessing; from diskcache_like.cli import main, migrate;"
            f" os.setgroups([]); os.setgid(65534); os.setuid(65534); sys.exit(main.main(['keys', {str(public / 'cache')!r}]))"
        )
        done = subprocess.run(
            [sys.executable, "-c", program],
            capture_output=True,
            text=True,
            check=False,
            timeout=LIMIT,
            env={**os.environ, "TMPDIR": "/tmp"},
        )
    finally:
        shutil.rmtree(public)
    assert (done.returncode, len(done.stdout.splitlines())) == (0, 4), done.stderr
