"""Systems that are not Linux on x86-64 with CPython, as far as that can be shown here: names, files, processors."""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from diskcache_like import Cache, DirectoryError, FanoutCache
from diskcache_like.coherence.write_lock import WriteLock
from diskcache_like.storage.shards import LEAST_DESCRIPTORS, OWN_DESCRIPTORS
from diskcache_like.system import boot, forks, paths

from ..support.other_systems import SYSTEMS, VARIABLE
from ..support.project import ROOT

FOLDER = ROOT / "diskcache_like" / "coherence"
CORE = (
    *("api/test_reading.py", "api/test_transactions.py", "api/test_writing.py", "coherence/test_newest_writes.py"),
    *("coherence/test_generations.py", "coherence/test_write_lock.py"),
)
FILES = ("recipes/test_locks.py", "storage/test_directories.py")  # what a processor or an interpreter does not change
# What is about a name that is missing there, or about the boot number of Linux.
LEFT_OUT = "fallocate or full_disk or holes or boot"
TIMEOUT = 600


def run(*command: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **variables}
    return subprocess.run(
        [*map(str, command)], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=TIMEOUT, check=False
    )


@pytest.mark.parametrize("system", SYSTEMS)
def test_the_core_works_as_on_another_system(system: str, tmp_path: Path) -> None:
    options = ["-q", "-p", "tests.support.other_systems", "-p", "no:cacheprovider", f"--basetemp={tmp_path / 'inner'}"]
    chosen = ["-k", f"not ({LEFT_OUT})", *(f"tests/{name}" for name in CORE + FILES)]
    done = run(sys.executable, "-m", "pytest", *options, *chosen, **{VARIABLE: system, "CI": ""})
    assert done.returncode == 0, done.stdout[-4000:]
    assert " passed" in done.stdout


def test_a_pretended_system_lacks_what_it_should() -> None:
    program = """
import os, tests.support.other_systems
from diskcache_like.system import forks, paths
assert not hasattr(os, 'O_TMPFILE') and not forks._guard.wiped_by_kernel and paths.FULL_SYNC == 51
"""
    done = run(sys.executable, "-c", program, **{VARIABLE: "macos"})
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("module", ["diskcache_like", "diskcache_like.compat", "diskcache_like.coherence.ring"])
def test_windows_is_refused_in_one_sentence(module: str) -> None:
    done = run(sys.executable, "-c", f"import sys; sys.platform = 'win32'; import {module}")
    assert done.returncode == 1
    assert done.stderr.count("Traceback") == 1
    assert "ImportError: diskcache_like needs flock and shared memory" in done.stderr.splitlines()[-1]


# -- what another system does in place of what it lacks ---------------------------------------------------------------


@pytest.fixture
def no_allocation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "posix_fallocate")


@pytest.mark.usefixtures("no_allocation")
def test_the_disk_reserve_is_written(tmp_path: Path) -> None:
    with closing(WriteLock(tmp_path / "cache.lock")) as lock:
        lock.acquire()
        lock.keep_disk_reserve(1 << 18)
        assert lock.disk_reserve() >= 1 << 18
        assert lock.drop_disk_reserve()
        assert lock.disk_reserve() == 0
        lock.release()


def test_what_must_outlast_a_power_loss_is_synced_fully_on_macos(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []

    def fully(descriptor: int, command: int, _: bytes = b"") -> int:
        if command != 51:
            raise OSError(errno.EINVAL, "macOS has no such locks")
        synced.append(stat.S_IFMT(os.fstat(descriptor).st_mode))
        return 0

    monkeypatch.setattr(paths, "FULL_SYNC", 51)
    monkeypatch.setattr(fcntl, "fcntl", fully)
    for name in ("fdatasync", "fsync"):
        monkeypatch.delattr(os, name)
    with Cache(tmp_path / "cache", durability="power") as cache:
        cache["large"] = b"x" * 100_000
        assert synced.count(stat.S_IFREG) == 1
        assert synced.count(stat.S_IFDIR) >= 3
        connection = cache._shards.stores[0].connection.open()
        assert connection.execute("PRAGMA fullfsync").fetchone() == (1,)


def test_a_file_system_without_full_sync_is_synced_as_it_can(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(code: int) -> None:
        def fully(*_: int) -> int:
            raise OSError(code, os.strerror(code))

        monkeypatch.setattr(fcntl, "fcntl", fully)

    synced: list[int] = []
    monkeypatch.setattr(paths, "FULL_SYNC", 51)
    monkeypatch.setattr(os, "fsync", synced.append)
    refuse(errno.ENOTSUP)
    paths.sync_directory(str(tmp_path))
    assert len(synced) == 1
    refuse(errno.EIO)
    with pytest.raises(OSError, match="Input/output"):
        paths.sync_directory(str(tmp_path))


def test_macos_names_its_boot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boot.sys, "platform", "darwin")  # type: ignore[attr-defined]
    assert boot.boot_id() == 0, "the C library of Linux has no such call"
    monkeypatch.setattr(boot, "_session_uuid", lambda: "0F5A3C52-7D5B-4A11-9B0E-5E8E1A1F7C21")
    assert boot.boot_id() == 0x0F5A3C527D5B4A11


def test_calls_open_nothing_where_the_kernel_cannot_wipe_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There each call asks for the process; none may wait for the lock that guards opening, which a fork holds."""
    with Cache(tmp_path / "cache", hot_size_limit=0) as cache:
        cache["key"] = 1
        monkeypatch.setattr(forks._guard, "wiped_by_kernel", False)
        monkeypatch.setattr("diskcache_like.storage.opening.mutex.mutex", refuse)
        word, forks.token_word[0] = forks.token_word[0], forks._NOBODY
        try:
            assert cache["key"] == 1
            cache["key"] = 2
            assert cache.incr("key") == 3
        finally:
            forks.token_word[0] = word
            monkeypatch.undo()


def refuse() -> None:
    raise AssertionError("the lock that guards opening was taken")


@pytest.mark.parametrize("compiler", ["cc", "musl-gcc"])
def test_the_core_needs_no_headers_of_the_kernel(compiler: str, tmp_path: Path) -> None:
    if shutil.which(compiler) is None:
        pytest.skip(f"{compiler} is not installed" if compiler == "musl-gcc" else "there is no compiler")
    (tmp_path / "linux").mkdir()
    (tmp_path / "linux" / "futex.h").write_text("#error musl comes without it\n")
    source, target = FOLDER / "_ring.c", tmp_path / "ring.o"
    done = run(compiler, "-std=c11", "-Wall", "-Wextra", "-Werror", "-I", tmp_path, "-c", "-o", target, source)
    assert (done.returncode, done.stderr) == (0, "")


# -- descriptors ------------------------------------------------------------------------------------------------------


@contextmanager
def descriptors_left(number: int) -> Iterator[int]:
    """Let this process open only so many more files, and return what its limit is then."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = max(map(int, os.listdir("/proc/self/fd")))
    held = [os.open(os.devnull, os.O_RDONLY) for _ in range(used)]  # so that none below the highest is free
    limit = max(held) + 1 + number
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    try:
        yield limit
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for descriptor in held:
            os.close(descriptor)


@pytest.mark.parametrize("number", [0, 1, 3, 5, 9, 20, 30])
def test_a_cache_that_finds_too_few_descriptors_names_limit_and_need(number: int, tmp_path: Path) -> None:
    with descriptors_left(number) as limit, pytest.raises(DirectoryError) as raised:
        FanoutCache(tmp_path / "cache", shards=8)
    assert raised.value.errno == errno.EMFILE
    text = str(raised.value)
    assert f"this process may have {limit} open (RLIMIT_NOFILE)" in text
    assert "a cache of 8 shards needs 74, and up to 186 with many threads" in text
    assert str(tmp_path / "cache") in text
    with FanoutCache(tmp_path / "cache", shards=8) as cache:
        cache[1] = 1


def test_what_is_said_to_be_needed_suffices(tmp_path: Path) -> None:
    FanoutCache(tmp_path / "cache", shards=4).close()
    with descriptors_left(4 * LEAST_DESCRIPTORS + OWN_DESCRIPTORS), FanoutCache(tmp_path / "cache", shards=4) as cache:
        for number in range(100):
            cache[number] = number
            assert cache[number] == number


def test_a_call_that_finds_no_descriptor_names_the_limit(tmp_path: Path) -> None:
    with Cache(tmp_path / "cache") as cache:
        with descriptors_left(1) as limit, pytest.raises(DirectoryError, match=f"may have {limit} open") as raised:
            cache["key"] = 1  # opens the writing connection
        assert raised.value.errno == errno.EMFILE
        cache["key"] = 1
