"""Byte locks: each has one owner among handles, threads and processes, and none outlives its process."""

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
from diskcache_like.coherence.byte_locks import ByteLocks

from ..support.workers import Crew, Link, forked

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux has these locks in this form")

NUMBER = (1 << 61) - 1  # the largest


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / "cache.gen"
    made.touch(0o600)
    return made


@pytest.fixture
def crew() -> Iterator[Crew]:
    with Crew() as made:
        yield made


def hold(link: Link, path: Path) -> None:
    locks = ByteLocks(path)
    link.tell(locks.hold(NUMBER, object()))
    link.hear()


@linux
def test_what_a_process_holds_is_free_once_it_is_killed_and_not_before(crew: Crew, path: Path) -> None:
    with closing(ByteLocks(path)) as mine:
        worker = crew.start(hold, path)
        assert worker.hear()
        assert not mine.hold(NUMBER, object())
        worker.stop()
        assert not mine.hold(NUMBER, object()), "it is only slow"
        assert mine.hold(NUMBER - 1, object()), "another byte"
        worker.kill()
        worker.join()
        assert mine.hold(NUMBER, object())


@linux
def test_a_zombie_holds_nothing(path: Path) -> None:
    child = os.fork()
    if not child:
        os._exit(not ByteLocks(path).hold(NUMBER, object()))
    try:
        ended = os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)  # its parent has not reaped it
        assert ended is not None
        assert ended.si_status == 0, "it held the byte"
        with closing(ByteLocks(path)) as mine:
            assert mine.hold(NUMBER, object())
    finally:
        os.waitpid(child, 0)


@linux
def test_handles_and_owners_of_one_process_exclude_each_other(path: Path) -> None:
    one, two = object(), object()
    with closing(ByteLocks(path)) as mine, closing(ByteLocks(path)) as other:
        assert mine.hold(NUMBER, one)
        assert not mine.hold(NUMBER, two)
        assert not other.hold(NUMBER, two)
        mine.let_go(NUMBER, two)
        assert not other.hold(NUMBER, two), "only its owner lets go"
        mine.let_go(NUMBER, one)
        assert other.hold(NUMBER, two)


@linux
def test_what_was_closed_holds_nothing_and_the_others_of_its_process_do(path: Path) -> None:
    with closing(ByteLocks(path)) as mine, closing(ByteLocks(path)) as other:
        gone = ByteLocks(path)
        assert gone.hold(1, object())
        assert other.hold(2, object())
        gone.close()
        gone.close()
        assert mine.hold(1, object())
        assert not mine.hold(2, object())


@linux
def test_what_another_thread_closes_meanwhile_holds_nothing(path: Path) -> None:
    gone = ByteLocks(path)
    before, after = object(), object()
    assert gone.hold(1, before)
    gone.close()
    assert not gone.hold(2, after)
    gone.let_go(1, before)
    with closing(ByteLocks(path)) as mine:
        assert mine.hold(1, after), "it ended with the one that was closed"


def test_what_a_handler_interrupts_at_once_is_dropped_without_a_word() -> None:
    begun = ByteLocks.__new__(ByteLocks)  # as far as it is when the handler raises
    begun.__del__()


def test_without_such_locks_none_is_available(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(22, "Invalid argument")

    monkeypatch.setattr(fcntl, "fcntl", refuse)
    with closing(ByteLocks(path)) as mine:
        assert not mine.available


@linux
def test_they_are_available_to_all_at_once(path: Path) -> None:
    with closing(ByteLocks(path)) as mine, closing(ByteLocks(path)) as other:
        assert mine.available
        assert other.available


@linux
def test_they_tell_whether_another_handle_has_them_open_until_it_is_closed_or_killed(crew: Crew, path: Path) -> None:
    with closing(ByteLocks(path)) as mine:
        assert not mine.are_shared()
        with closing(ByteLocks(path)) as other:
            assert mine.are_shared()
            assert other.are_shared()
            with closing(ByteLocks(path)) as third:
                assert third.available, "to look takes nothing from who comes next"
        assert not mine.are_shared()
        worker = crew.start(hold, path)
        assert worker.hear()
        assert mine.are_shared()
        worker.kill()
        worker.join()
        assert not mine.are_shared()
    assert not mine.are_shared(), "closed"


@linux
def test_who_leaves_is_gone_though_a_child_forked_from_c_has_the_same_open_file(path: Path) -> None:
    with closing(ByteLocks(path)) as mine:
        other = ByteLocks(path)
        inherited = os.dup(other.descriptor)
        try:
            other.leave()
            assert not mine.are_shared()
        finally:
            os.close(inherited)


def locks_of(cache: Cache) -> ByteLocks:
    """Return the byte locks of a cache's handle, opened if it was closed."""
    shard = cache._shards.stores[0].shard
    shard.ready()
    return shard.byte_locks


@linux
def test_a_forked_child_does_not_keep_what_its_parent_holds(tmp_path: Path, crew: Crew) -> None:
    worker = crew.start(fork_and_wait, tmp_path / "cache")
    child = worker.hear()
    with Cache(tmp_path / "cache") as cache:
        assert not locks_of(cache).hold(NUMBER, object())
        worker.kill()
        worker.join()
        try:
            assert locks_of(cache).hold(NUMBER, object())
        finally:
            os.kill(child, signal.SIGKILL)  # which fails if it has ended with its parent


def stay(link: Link) -> None:
    link.tell()
    signal.pause()  # beyond the end of its parent


def fork_and_wait(link: Link, directory: Path) -> None:
    """Hold a byte, fork a child that stays, and tell of it."""
    cache = Cache(directory)
    assert locks_of(cache).hold(NUMBER, object())
    with forked(stay) as child:
        child.hear()
        link.tell(child.pid)
        link.hear()


@linux
def test_a_cache_that_was_closed_holds_nothing_and_can_hold_anew(tmp_path: Path) -> None:
    owner = object()
    with Cache(tmp_path / "cache") as cache, Cache(tmp_path / "cache") as other:
        assert locks_of(cache).hold(NUMBER, owner)
        cache.close()
        assert locks_of(other).hold(NUMBER, owner)
        assert not locks_of(cache).hold(NUMBER, owner)
        assert locks_of(cache).hold(NUMBER - 1, owner)
