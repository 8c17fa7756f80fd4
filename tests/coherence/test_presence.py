"""Presence: others see that a process has ended, and never that one has which runs."""

from __future__ import annotations

import fcntl
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from diskcache_like import Cache
from diskcache_like.coherence.presence import Presence

from ..support.workers import Crew, Link, forked

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux has these locks in this form")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / "cache.gen"
    made.touch(0o600)
    return made


@pytest.fixture
def crew() -> Iterator[Crew]:
    with Crew() as made:
        yield made


def be_present(link: Link, path: Path) -> None:
    link.tell(Presence(path).name)
    link.hear()


@linux
def test_a_process_has_ended_once_it_is_killed_and_not_before(crew: Crew, path: Path) -> None:
    with closing(Presence(path)) as mine:
        worker = crew.start(be_present, path)
        name = worker.hear()
        assert not mine.has_ended(name)
        worker.stop()
        assert not mine.has_ended(name), "it is only slow"
        worker.kill()
        worker.join()
        assert mine.has_ended(name)


@linux
def test_a_zombie_has_ended(path: Path) -> None:
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.write(write, Presence(path).name.encode())
        os._exit(0)
    try:
        os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)  # its parent has not reaped it
        with closing(Presence(path)) as mine:
            assert mine.has_ended(os.read(read, 100).decode())
    finally:
        os.waitpid(child, 0)
        os.close(read)
        os.close(write)


@linux
def test_what_was_closed_has_ended_and_the_others_of_its_process_have_not(path: Path) -> None:
    with closing(Presence(path)) as mine, closing(Presence(path)) as other:
        gone = Presence(path)
        gone.close()
        gone.close()
        assert mine.has_ended(gone.name)
        assert not mine.has_ended(other.name)
        assert not other.has_ended(mine.name)
        assert not mine.has_ended(mine.name), "the kernel does not report one's own lock"


@linux
def test_what_another_thread_closes_meanwhile_holds_nothing(path: Path) -> None:
    gone = Presence(path)
    before, after = object(), object()
    assert gone.hold(1, before)
    gone.close()
    assert not gone.hold(2, after)
    gone.let_go(1, before)
    with closing(Presence(path)) as mine:
        assert mine.hold(1, after), "it ended with the one that was closed"
        assert not gone.has_ended(mine.name)


@pytest.mark.parametrize("name", ["", "x", "-1", "1 2", "1.5", "²", "٣", "9" * 19, "9" * 400])
def test_a_name_that_no_presence_has_is_no_proof_of_an_end(path: Path, name: str) -> None:
    with closing(Presence(path)) as mine:
        assert not mine.has_ended(name)


def test_without_such_locks_nobody_is_known_to_have_ended(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = Presence(path)
    gone.close()

    def refuse(*_: object) -> None:
        raise OSError(22, "Invalid argument")

    monkeypatch.setattr(fcntl, "fcntl", refuse)
    with closing(Presence(path)) as mine:
        assert mine.name == ""
        assert not mine.has_ended(gone.name)


def presence_of(cache: Cache) -> Presence:
    """Return what shows other processes that this one has the cache open."""
    return cache._shards.stores[0].session.presence()


@linux
def test_a_forked_child_does_not_keep_its_parent_present(tmp_path: Path, crew: Crew) -> None:
    worker = crew.start(fork_and_wait, tmp_path / "cache")
    name, child = worker.hear()
    with Cache(tmp_path / "cache") as cache:
        present = presence_of(cache)
        assert not present.has_ended(name)
        worker.kill()
        worker.join()
        try:
            assert present.has_ended(name)
        finally:
            os.kill(child, signal.SIGKILL)  # which fails if it has ended with its parent


def stay(link: Link) -> None:
    link.tell()
    signal.pause()  # beyond the end of its parent


def fork_and_wait(link: Link, directory: Path) -> None:
    """Be present, fork a child that stays, and tell of both."""
    cache = Cache(directory)
    name = presence_of(cache).name
    with forked(stay) as child:
        child.hear()
        link.tell((name, child.pid))
        link.hear()


@linux
def test_a_cache_that_was_closed_is_present_anew(tmp_path: Path) -> None:
    with Cache(tmp_path / "cache") as cache, Cache(tmp_path / "cache") as other:
        name = presence_of(cache).name
        assert presence_of(cache).name == name
        assert not presence_of(other).has_ended(name)
        cache.close()
        assert presence_of(other).has_ended(name)
        assert presence_of(cache).name not in ("", name)
