"""The write lock between threads and processes."""

from __future__ import annotations

import errno
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from diskcache_like.coherence import _native
from diskcache_like.coherence.generations import GenerationFile
from diskcache_like.coherence.write_lock import WriteLock
from diskcache_like.errors import DirectoryError, Timeout, TransactionError, UnsafeDirectory

LIMIT = 60.0  # seconds after which a test gives up on another process; no test waits for it to pass

FORK = multiprocessing.get_context("fork")


@pytest.fixture(params=["bare", "attached"])
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "cache.lock"


class Handle:
    """A write lock with, by mode, the generation file it is attached to."""

    def __init__(self, path: Path, mode: str) -> None:
        self.lock = WriteLock(path)
        file = path.with_name("cache.gen")
        self.file = None if mode == "bare" else GenerationFile.open_existing(file) or GenerationFile.create(file, 16)
        if self.file is not None:
            self.lock.attach(self.file.header)

    def close(self) -> None:
        self.lock.close()
        if self.file is not None:
            self.file.close()


@pytest.fixture
def handle(path: Path, mode: str) -> Iterator[Handle]:
    made = Handle(path, mode)
    yield made
    made.close()


class Child:
    """A forked process that runs `work(connection)`, killed at the end if it is still there."""

    def __init__(self, work: Callable[[Connection], None]) -> None:
        self.connection, theirs = FORK.Pipe()
        self.process = FORK.Process(target=work, args=(theirs,), daemon=True)
        self.process.start()
        theirs.close()

    def hears(self) -> object:
        assert self.connection.poll(LIMIT), "the other process said nothing"
        return self.connection.recv()

    def tell(self) -> None:
        self.connection.send("go on")

    def kill(self) -> None:
        assert self.process.pid is not None
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.join(LIMIT)

    def end(self) -> None:
        if self.process.is_alive():
            self.kill()
        self.process.join(LIMIT)
        self.process.close()
        self.connection.close()


@pytest.fixture
def fork() -> Iterator[Callable[[Callable[[Connection], None]], Child]]:
    children: list[Child] = []

    def start(work: Callable[[Connection], None]) -> Child:
        children.append(Child(work))
        return children[-1]

    yield start
    for child in children:
        child.end()


Fork = Callable[[Callable[[Connection], None]], Child]


def until(condition: Callable[[], bool]) -> None:
    give_up = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < give_up
        os.sched_yield()


def test_it_is_held_between_acquire_and_release(handle: Handle, path: Path, mode: str) -> None:
    other = Handle(path, mode)
    handle.lock.acquire(0)
    assert handle.lock.is_mine()
    with pytest.raises(Timeout, match=r"cache\.lock .* within [\d.]+ s"):
        other.lock.acquire(0)
    assert not other.lock.is_mine()
    handle.lock.release()
    assert not handle.lock.is_mine()
    other.lock.acquire(-1)  # tries once, as 0 does
    other.lock.release()
    other.close()


def test_taking_it_twice_in_one_thread_is_an_error_not_a_hang(handle: Handle) -> None:
    handle.lock.acquire(None)
    with pytest.raises(TransactionError, match="already holds"):
        handle.lock.acquire(None)
    handle.lock.release()


def test_who_forks_keeps_other_threads_out_and_cannot_write_meanwhile(handle: Handle) -> None:
    assert handle.lock.quiesce()
    with pytest.raises(TransactionError, match="signal handler"):
        handle.lock.acquire(None)
    handle.lock.resume()
    handle.lock.acquire(0)
    assert not handle.lock.quiesce()
    handle.lock.release()


def test_only_the_thread_that_holds_it_releases_it(handle: Handle) -> None:
    handle.lock.release()
    handle.lock.acquire(0)
    releasing = threading.Thread(target=handle.lock.release)
    releasing.start()
    releasing.join()
    assert handle.lock.is_mine()
    with pytest.raises(TransactionError):
        handle.lock.refuse_holder()
    handle.lock.release()
    handle.lock.refuse_holder()


def test_threads_exclude_each_other(handle: Handle) -> None:
    handle.lock.acquire(0)
    outcome: list[object] = []

    def attempt() -> None:
        try:
            handle.lock.acquire(0)
        except Timeout as error:
            outcome.append(error)
        outcome.append(handle.lock.is_mine())
        handle.lock.acquire(LIMIT)
        outcome.append(handle.lock.is_mine())
        handle.lock.release()

    thread = threading.Thread(target=attempt)
    thread.start()
    until(lambda: len(outcome) == 2)
    handle.lock.release()
    thread.join(LIMIT)
    assert isinstance(outcome[0], Timeout)
    assert outcome[1:] == [False, True]


def test_processes_exclude_each_other(path: Path, mode: str, fork: Fork, tmp_path: Path) -> None:
    counter, rounds = tmp_path / "counter", 150
    counter.write_text("0")

    def count(connection: Connection) -> None:
        mine = Handle(path, mode)
        connection.recv()
        for _ in range(rounds):
            mine.lock.acquire(LIMIT)
            counter.write_text(str(int(counter.read_text()) + 1))
            mine.lock.release()
        connection.send("done")

    first = Handle(path, mode)  # makes the generation file before anybody shares it
    children = [fork(count) for _ in range(4)]
    for child in children:
        child.tell()
    assert [child.hears() for child in children] == ["done"] * 4
    assert int(counter.read_text()) == 4 * rounds
    first.close()


def hold(path: Path, mode: str) -> Callable[[Connection], None]:
    def work(connection: Connection) -> None:
        mine = Handle(path, mode)
        mine.lock.acquire(LIMIT)
        connection.send("held")
        connection.recv()
        mine.lock.release()
        connection.send("released")
        connection.recv()

    return work


def test_a_killed_holder_frees_it(handle: Handle, path: Path, mode: str, fork: Fork) -> None:
    child = fork(hold(path, mode))
    assert child.hears() == "held"
    with pytest.raises(Timeout):
        handle.lock.acquire(0)
    child.kill()
    handle.lock.acquire(LIMIT)
    handle.lock.release()


def test_who_waits_gets_it_on_release(handle: Handle, path: Path, mode: str, fork: Fork) -> None:
    handle.lock.acquire(0)
    child = fork(hold(path, mode))
    until(lambda: mode == "bare" or handle.lock.contended())
    handle.lock.release()
    assert child.hears() == "held"


def test_a_killed_waiter_hangs_nobody(handle: Handle, path: Path, mode: str, fork: Fork) -> None:
    handle.lock.acquire(0)
    victim = fork(hold(path, mode))
    until(lambda: mode == "bare" or handle.lock.contended())
    victim.kill()
    heirs = [fork(hold(path, mode)) for _ in range(2)]
    handle.lock.release()
    for _ in heirs:
        ready = multiprocessing.connection.wait([heir.connection for heir in heirs], LIMIT)
        holder = next(heir for heir in heirs if heir.connection in ready)
        assert holder.hears() == "held"
        holder.tell()
        assert holder.hears() == "released"
        holder.tell()
        heirs = [heir for heir in heirs if heir is not holder]
    handle.lock.acquire(LIMIT)
    handle.lock.release()
    assert not handle.lock.contended()


@pytest.mark.parametrize("timeout", [0, 1, None])
def test_a_file_system_without_locks_is_named(path: Path, timeout: float | None) -> None:
    mine = WriteLock(path)
    with_locks, mine.core = mine.core, _native.Lock(os.open(path, os.O_PATH))  # which cannot be locked
    with pytest.raises(DirectoryError, match=r"needs locks.*cache\.lock") as caught:
        mine.acquire(timeout)
    assert caught.value.errno == errno.EBADF
    mine.core.close(False)
    mine.core = with_locks
    mine.acquire(0)
    mine.close()


def test_the_file_is_private_and_refused_if_it_is_not(path: Path) -> None:
    WriteLock(path).close()
    assert path.stat().st_mode & 0o777 == 0o600
    path.chmod(0o606)
    with pytest.raises(UnsafeDirectory):
        WriteLock(path)


def test_closing_drops_what_is_held_and_is_final(path: Path) -> None:
    holder = WriteLock(path)
    holder.acquire(0)
    other = WriteLock(path)
    holder.close()
    holder.release()
    with pytest.raises(DirectoryError, match="closed"):
        holder.acquire(0)
    other.acquire(0)
    other.close()


def test_a_forked_child_neither_holds_nor_drops_the_lock_of_its_parent(handle: Handle, path: Path, fork: Fork) -> None:
    handle.lock.acquire(0)

    def inherit(connection: Connection) -> None:
        connection.send(handle.lock.is_mine())
        handle.lock.release()  # what leaving a `with` block of the parent does
        own = WriteLock(path)
        try:
            own.acquire(0)
        except Timeout:
            connection.send("refused")
        connection.recv()
        own.acquire(LIMIT)
        connection.send("got")
        connection.recv()

    child = fork(inherit)
    assert [child.hears(), child.hears()] == [False, "refused"]
    assert handle.lock.is_mine()
    handle.lock.release()
    child.tell()
    assert child.hears() == "got"
    with pytest.raises(Timeout):
        handle.lock.acquire(0)


def test_a_child_does_not_keep_the_lock_of_a_killed_parent(path: Path) -> None:
    reader, writer = os.pipe()
    end, keeps_child_alive = os.pipe()
    parent = os.fork()
    if not parent:
        mine = WriteLock(path)
        mine.acquire(0)
        if os.fork() == 0:
            os.close(keeps_child_alive)
            os.write(writer, b"forked")
            os.read(end, 1)
            os._exit(0)
        signal.pause()
    os.close(end)
    assert os.read(reader, 6) == b"forked"
    os.kill(parent, signal.SIGKILL)
    os.waitpid(parent, 0)
    ours = WriteLock(path)
    ours.acquire(LIMIT)
    ours.close()
    for descriptor in (reader, writer, keeps_child_alive):
        os.close(descriptor)
