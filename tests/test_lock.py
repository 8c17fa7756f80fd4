"""The write lock between threads and processes."""

from __future__ import annotations

import errno
import fcntl
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from diskcache_like.coherence import lock, native
from diskcache_like.coherence.generations import GenerationFile, Header
from diskcache_like.coherence.lock import (
    FIRST_PAUSE,
    FIRST_SLICE,
    GRACE,
    LONGEST_PAUSE,
    LONGEST_SLICE,
    PATIENCE,
    SPINS,
    WriteLock,
)
from diskcache_like.coherence.native import NativeModule
from diskcache_like.errors import DirectoryError, NotOwner, Timeout, TransactionError, UnsafeDirectory

LIMIT = 60.0  # seconds after which a test gives up on another process; no test waits for it to pass

FORK = multiprocessing.get_context("fork")


@pytest.fixture(params=["bare", "attached", "native"])
def mode(request: pytest.FixtureRequest) -> str:
    if request.param == "native" and native.load() is None:
        off = os.environ.get(native.VARIABLE) == "0"
        pytest.skip("switched off by DISKCACHE_LIKE_NATIVE=0" if off else "the native helper is not built")
    return str(request.param)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "cache.lock"


class Handle:
    """A write lock with, by mode, the generation file it is attached to."""

    def __init__(self, path: Path, mode: str) -> None:
        self.lock = WriteLock(path)
        self.file = None if mode == "bare" else GenerationFile.open(path.with_name("cache.gen"), 16)
        if self.file is not None:
            self.lock.attach(self.file.header, native.load() if mode == "native" else None)

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
    assert handle.lock.locked_by_me()
    with pytest.raises(Timeout, match=r"cache\.lock .* within \d+\.\d+ s"):
        other.lock.acquire(0)
    assert not other.lock.locked_by_me()
    handle.lock.release()
    assert not handle.lock.locked_by_me()
    other.lock.acquire(-1)  # tries once, as 0 does
    other.lock.release()
    other.close()


def test_taking_it_twice_in_one_thread_is_an_error_not_a_hang(handle: Handle) -> None:
    handle.lock.acquire(None)
    with pytest.raises(TransactionError, match="already holds"):
        handle.lock.acquire(None)
    handle.lock.release()


class Interrupted:
    """A thread lock after each of whose steps a signal handler runs."""

    def __init__(self, handler: Callable[[], object]) -> None:
        self._lock = threading.RLock()
        self._handler = handler

    def _is_owned(self) -> bool:
        owned: bool = self._lock._is_owned()  # type: ignore[attr-defined]
        return owned

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        got = self._lock.acquire(blocking, timeout)
        if got:
            self._handler()
        return got

    def release(self) -> None:
        self._handler()
        self._lock.release()


def test_a_signal_handler_that_interrupts_the_taking_is_refused(handle: Handle) -> None:
    """Its thread has the thread lock by then, and nothing but the stack says so."""
    refused = []

    def interrupt() -> None:
        with pytest.raises(TransactionError, match="signal handler"):
            handle.lock.acquire(None)
        refused.append(True)

    handle.lock._thread = Interrupted(interrupt)  # type: ignore[assignment]
    handle.lock.acquire(None)
    handle.lock.release()
    assert handle.lock.rest()
    interrupt()
    handle.lock.resume()
    assert len(refused) == 5


def test_releasing_what_is_not_held_is_an_error(handle: Handle) -> None:
    with pytest.raises(NotOwner, match=r"cache\.lock"):
        handle.lock.release()
    handle.lock.acquire(0)
    handle.lock.release()


def test_threads_exclude_each_other(handle: Handle) -> None:
    handle.lock.acquire(0)
    outcome: list[object] = []

    def attempt() -> None:
        try:
            handle.lock.acquire(0)
        except Timeout as error:
            outcome.append(error)
        outcome.append(handle.lock.locked_by_me())
        handle.lock.acquire(LIMIT)
        outcome.append(handle.lock.locked_by_me())
        handle.lock.release()

    thread = threading.Thread(target=attempt)
    thread.start()
    until(lambda: len(outcome) == 2)
    handle.lock.release()
    thread.join(LIMIT)
    assert isinstance(outcome[0], Timeout)
    assert outcome[1:] == [False, True]


def test_threads_of_one_process_do_not_announce_themselves(handle: Handle) -> None:
    handle.lock.acquire(0)

    def pass_through() -> None:
        handle.lock.acquire(LIMIT)
        handle.lock.release()

    thread = threading.Thread(target=pass_through)
    thread.start()
    handle.lock.release()
    thread.join(LIMIT)
    assert not handle.lock.contended()


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


class Waiting:
    """A clock that only moves while somebody sleeps, as a sleep function and as the helper's futex."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.pauses: list[float] = []
        self.at: dict[int, Callable[[], None]] = {}
        self.woken = 0
        self.header = memoryview(bytearray(4096)).cast("Q")
        self.header[Header.WAKE] = 2**32 + 7

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.pauses.append(seconds)
        self.at.get(len(self.pauses), lambda: None)()

    def futex_wait(self, pointer: object, index: int, expected: int, timeout_us: int) -> int:
        assert (index, expected) == (Header.WAKE, 7)
        assert self.header[Header.WAITERS]
        self.sleep(max(timeout_us, 1) / 1e6)
        return errno.ETIMEDOUT

    def futex_wake(self, pointer: object, index: int, waiters: int) -> int:
        assert (index, waiters) == (Header.WAKE, 1)
        assert self.header[Header.WAKE] == 2**32 + 8
        self.woken += 1
        return 0

    def add(self, pointer: object, index: int, amount: int) -> int:
        assert not self.header[Header.WAITERS]
        self.header[index] += amount
        return 0


class FakeNative(NativeModule):
    def __init__(self, waiting: Waiting) -> None:
        self.load = lambda pointer, index: waiting.header[index]
        self.add = waiting.add
        self.futex_wait = waiting.futex_wait
        self.futex_wake = waiting.futex_wake

    def pointer(self, view: memoryview[int]) -> object:
        return view


@pytest.fixture
def holder(path: Path) -> Iterator[WriteLock]:
    made = WriteLock(path)
    made.acquire(0)
    yield made
    made.close()


@pytest.fixture
def waiting() -> Waiting:
    return Waiting()


@pytest.fixture(params=["sleep", "futex"])
def waiter(request: pytest.FixtureRequest, path: Path, waiting: Waiting) -> Iterator[WriteLock]:
    made = WriteLock(path, clock=waiting.clock, sleep=waiting.sleep)
    made.attach(waiting.header, FakeNative(waiting) if request.param == "futex" else None)
    yield made
    made.close()


def test_the_deadline_is_for_the_whole_wait(holder: WriteLock, waiter: WriteLock, waiting: Waiting) -> None:
    with pytest.raises(Timeout, match=r"within 0\.05\d s"):
        waiter.acquire(0.05)
    assert waiting.now - 1000.0 == pytest.approx(0.05, abs=2e-6)
    assert waiter.contended()
    assert not waiter.locked_by_me()
    holder.release()
    waiter.acquire(0)
    waiter.release()


def test_who_waits_tries_many_times_before_the_first_pause(
    holder: WriteLock, waiter: WriteLock, waiting: Waiting, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts = 0

    def counted(descriptor: int, operation: int) -> None:
        nonlocal attempts
        attempts += 1
        if attempts == SPINS // 2:
            holder.release()
        fcntl.flock(descriptor, operation)

    monkeypatch.setattr(lock, "flock", counted)
    waiter.acquire(1.0)
    waiter.release()
    assert not waiting.pauses
    assert not waiter.contended(), "nobody need wake who does not sleep"


def test_zero_seconds_are_one_attempt(holder: WriteLock, waiter: WriteLock, monkeypatch: pytest.MonkeyPatch) -> None:
    attempts: list[int] = []

    def refuse(descriptor: int, operation: int) -> None:
        if operation & fcntl.LOCK_NB:
            attempts.append(operation)
        fcntl.flock(descriptor, operation)

    monkeypatch.setattr(lock, "flock", refuse)
    with pytest.raises(Timeout):
        waiter.acquire(0)
    assert len(attempts) <= 2, "and a last one after the announcement"


def test_pauses_double_up_to_a_bound(holder: WriteLock, waiter: WriteLock, waiting: Waiting) -> None:
    with pytest.raises(Timeout):
        waiter.acquire(1.0)
    slices = waiting.pauses[0] >= FIRST_SLICE
    first, longest = (FIRST_SLICE, LONGEST_SLICE) if slices else (FIRST_PAUSE, LONGEST_PAUSE)
    expected = first
    for pause in waiting.pauses[:-2]:
        assert pause == pytest.approx(expected, abs=1e-6)
        expected = min(2 * expected, longest)
    assert expected == longest


def test_a_release_lowers_the_flag_and_wakes_one_but_only_if_somebody_waits(path: Path, waiting: Waiting) -> None:
    mine = WriteLock(path)
    mine.attach(waiting.header, FakeNative(waiting))
    mine.acquire(0)
    mine.release()
    assert (waiting.woken, waiting.header[Header.WAKE]) == (0, 2**32 + 7)
    mine.acquire(0)
    waiting.header[Header.WAITERS] = 1
    mine.release()
    assert (waiting.woken, mine.contended()) == (1, False)
    mine.close()


def claims(waiting: Waiting) -> Callable[[], float]:
    """Return what tells for how many seconds from now on newcomers queue."""
    return lambda: waiting.header[Header.TURN] / 1e6 - waiting.now


def test_who_has_waited_long_claims_a_turn_until_it_has_the_lock(
    holder: WriteLock, waiter: WriteLock, waiting: Waiting
) -> None:
    claimed, seen = claims(waiting), []

    def look() -> None:
        seen.append((waiting.now - waiting.pauses[-1] - 1000.0, waiting.header[Header.TURN], claimed()))
        if len(seen) == 100:
            holder.release()

    waiting.at = dict.fromkeys(range(1000), look)
    waiter.acquire(None)
    assert not waiting.header[Header.TURN], "its turn is over"
    waiter.release()
    patient = [turn for waited, turn, _ in seen if waited < PATIENCE - 1e-6]
    assert patient
    assert not any(patient)
    impatient = [left for waited, _, left in seen if waited > PATIENCE + 1e-6]
    assert impatient == pytest.approx([GRACE] * len(impatient), abs=3e-6), "the claim outlives each pause"


def test_who_gives_up_ends_its_turn(holder: WriteLock, waiter: WriteLock, waiting: Waiting) -> None:
    claimed: list[int] = []
    waiting.at = dict.fromkeys(range(1000), lambda: claimed.append(waiting.header[Header.TURN]))
    with pytest.raises(Timeout):
        waiter.acquire(1.0)
    assert any(claimed)
    assert not waiting.header[Header.TURN]


def test_a_turn_that_another_has_claimed_since_is_left_alone(
    holder: WriteLock, waiter: WriteLock, waiting: Waiting
) -> None:
    def claim_and_release() -> None:
        waiting.header[Header.TURN] += 5
        holder.release()

    waiting.at[200] = claim_and_release
    waiter.acquire(None)
    waiter.release()
    assert waiting.header[Header.TURN]


def test_a_newcomer_queues_while_a_turn_is_claimed(waiter: WriteLock, waiting: Waiting) -> None:
    waiting.header[Header.TURN] = int((waiting.now + LONGEST_SLICE) * 1e6)
    taken: list[bool] = []
    waiting.at = dict.fromkeys(range(1000), lambda: taken.append(waiter.locked_by_me()))
    waiter.acquire(None)
    waiter.release()
    assert taken
    assert not any(taken)
    assert waiting.now - 1000.0 == pytest.approx(PATIENCE, abs=1e-3), "and no longer than that"


def test_a_newcomer_comes_when_the_turn_is_over(waiter: WriteLock, waiting: Waiting) -> None:
    waiting.header[Header.TURN] = int((waiting.now + LONGEST_SLICE) * 1e6)
    waiting.at[1] = lambda: waiting.header.__setitem__(Header.TURN, 0)
    waiter.acquire(None)
    waiter.release()
    assert len(waiting.pauses) == 1


def test_a_newcomer_that_is_woken_comes_at_once_and_has_the_next_one_woken(path: Path, waiting: Waiting) -> None:
    class Woken(Waiting):
        def futex_wait(self, pointer: object, index: int, expected: int, timeout_us: int) -> int:
            super().futex_wait(pointer, index, expected, timeout_us)
            self.header[Header.WAITERS] = 0  # as the releaser did
            return 0

    waking = Woken()
    waking.header[Header.TURN] = int((waking.now + LONGEST_SLICE) * 1e6)
    newcomer = WriteLock(path, clock=waking.clock, sleep=waking.sleep)
    newcomer.attach(waking.header, FakeNative(waking))
    newcomer.acquire(None)
    assert len(waking.pauses) == 1
    assert newcomer.contended()
    newcomer.release()
    assert waking.woken == 1
    newcomer.close()


def test_zero_seconds_wait_for_no_turn(waiter: WriteLock, waiting: Waiting) -> None:
    waiting.header[Header.TURN] = int((waiting.now + LONGEST_SLICE) * 1e6)
    waiter.acquire(0)
    waiter.release()
    assert not waiting.pauses


@pytest.mark.parametrize("turn", [1, 10**9 - 1, 1001 * 10**6, 2**63 + 5, 2**64 - 1])
def test_a_claim_that_ran_out_or_is_damaged_delays_nobody(waiter: WriteLock, waiting: Waiting, turn: int) -> None:
    waiting.header[Header.TURN] = turn
    waiter.acquire(None)
    waiter.release()
    assert not waiting.pauses
    assert waiting.header[Header.TURN] == (turn if turn > waiting.now * 1e6 else 0)


def test_a_thread_that_waits_for_another_claims_a_turn_as_well(path: Path) -> None:
    handle = Handle(path, "attached")
    assert handle.file is not None
    header = handle.file.header
    handle.lock.acquire(0)

    def take() -> None:
        handle.lock.acquire(LIMIT)
        handle.lock.release()

    other = threading.Thread(target=take)
    other.start()
    while not header[Header.TURN] and other.is_alive():
        pass
    assert header[Header.TURN]
    handle.lock.release()
    other.join(LIMIT)
    assert not header[Header.TURN]
    handle.close()


def test_without_a_deadline_it_waits_until_the_lock_is_free(
    holder: WriteLock, waiter: WriteLock, waiting: Waiting
) -> None:
    waiting.at[5000] = holder.release
    waiter.acquire(None)
    assert len(waiting.pauses) == 5000
    waiter.release()


def test_no_clock_and_no_pause_when_free(path: Path) -> None:
    def never() -> float:
        raise AssertionError

    free = WriteLock(path, clock=never, sleep=lambda _: None)
    free.acquire(1.0)
    free.release()
    free.close()


def test_an_interrupt_while_waiting_leaves_nothing_held(holder: WriteLock, waiter: WriteLock, waiting: Waiting) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    waiting.at[3] = interrupt
    with pytest.raises(KeyboardInterrupt):
        waiter.acquire(10)
    assert not waiter.locked_by_me()
    holder.release()
    holder.acquire(0)
    holder.release()
    waiter.acquire(0)
    waiter.release()


def test_an_interrupt_just_after_the_kernel_granted_it_gives_it_back(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def granted_then_interrupted(descriptor: int, operation: int) -> None:
        fcntl.flock(descriptor, operation)
        if operation != fcntl.LOCK_UN:
            raise KeyboardInterrupt

    mine, other = WriteLock(path), WriteLock(path)
    with monkeypatch.context() as patch:
        patch.setattr(lock, "flock", granted_then_interrupted)
        with pytest.raises(KeyboardInterrupt):
            mine.acquire(1)
    other.acquire(0)
    other.release()
    mine.acquire(0)
    mine.close()
    other.close()


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.EOPNOTSUPP, errno.EIO])
@pytest.mark.parametrize("contended", [False, True])
def test_a_file_system_without_locks_is_named(
    path: Path, monkeypatch: pytest.MonkeyPatch, code: int, contended: bool
) -> None:
    answers = [errno.EAGAIN, code, 0] if contended else [code, 0]

    def refuse(descriptor: int, operation: int) -> None:
        answer = answers.pop(0)
        if answer:
            raise OSError(answer, os.strerror(answer))

    mine = WriteLock(path)
    with monkeypatch.context() as patch:
        patch.setattr(lock, "flock", refuse)
        with pytest.raises(DirectoryError, match=r"needs locks.*cache\.lock") as caught:
            mine.acquire(1)
    assert caught.value.errno == code
    mine.acquire(0)
    mine.close()


def test_the_file_is_private_and_refused_if_it_is_not(path: Path) -> None:
    WriteLock(path).close()
    assert path.stat().st_mode & 0o777 == 0o600
    path.chmod(0o606)
    with pytest.raises(UnsafeDirectory):
        WriteLock(path)


def test_closing_drops_what_is_held_and_is_final(path: Path, holder: WriteLock) -> None:
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
        connection.send(handle.lock.locked_by_me())
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
    assert handle.lock.locked_by_me()
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
