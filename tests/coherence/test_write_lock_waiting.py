"""Waiting for the write lock, by a clock that only moves while somebody sleeps: pauses, deadlines, turns, interrupts."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import gc
import itertools
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from diskcache_like.coherence import write_lock
from diskcache_like.coherence._native import Words
from diskcache_like.coherence.generations import GenerationFile, Header
from diskcache_like.coherence.write_lock import (
    FIRST_SLICE,
    GRACE,
    LONGEST_PAUSE,
    LONGEST_SLICE,
    PATIENCE,
    SPINS,
    YIELDS,
    WriteLock,
)
from diskcache_like.errors import Timeout

LIMIT = 60.0  # seconds after which a test gives up on another thread; no test waits for it to pass


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "cache.lock"


class Waiting:
    """A clock that only moves while somebody sleeps, as a sleep function and as the kernel's futex."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.pauses: list[float] = []
        self.at: dict[int, Callable[[], None]] = {}
        self.woken = 0
        self.has_futex = True
        self.header = WaitingHeader(bytearray(4096), 0, 512)
        self.header.waiting = self
        self.header[Header.WAKE] = 2**32 + 7

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.pauses.append(seconds)
        self.at.get(len(self.pauses), lambda: None)()

    def wait(self, timeout_us: int) -> int:
        self.sleep(max(timeout_us, 1) / 1e6)
        return errno.ETIMEDOUT


class WaitingHeader(Words):
    """Words of which a wait passes by the clock of `Waiting`."""

    waiting: Waiting

    def wait(self, index: int, expected: int, timeout_us: int, /) -> int:
        if not self.waiting.has_futex:
            return errno.ENOSYS
        assert (index, expected & 0xFFFFFFFF) == (Header.WAKE, 7)
        assert self[Header.WAITERS]
        return self.waiting.wait(timeout_us)

    def wake(self, index: int, waiters: int, /) -> int:
        assert (index, waiters) == (Header.WAKE, 1)
        assert self[Header.WAKE] == 2**32 + 8
        self.waiting.woken += 1
        return 0

    def add(self, index: int, amount: int, /) -> int:
        assert not self[Header.WAITERS]
        return super().add(index, amount)


@pytest.fixture
def holder(path: Path) -> Iterator[WriteLock]:
    made = WriteLock(path)
    made.acquire(0)
    yield made
    made.close()


@pytest.fixture
def waiting() -> Waiting:
    return Waiting()


@pytest.fixture
def waiter(path: Path, waiting: Waiting) -> Iterator[WriteLock]:
    made = WriteLock(path, clock=waiting.clock, sleep=waiting.sleep)
    made.attach(waiting.header)
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

    monkeypatch.setattr(write_lock, "flock", counted)
    waiter.acquire(1.0)
    waiter.release()
    assert not waiting.pauses
    assert not waiter.contended(), "nobody need wake who does not sleep"


def test_who_waits_longer_offers_its_processor_before_the_first_pause(
    holder: WriteLock, waiter: WriteLock, waiting: Waiting, monkeypatch: pytest.MonkeyPatch
) -> None:
    offers: list[None] = []

    def offered() -> None:
        offers.append(None)
        if len(offers) == YIELDS // 2:
            holder.release()

    monkeypatch.setattr(write_lock, "_yield", offered)
    waiter.acquire(1.0)
    waiter.release()
    assert len(offers) == YIELDS // 2
    assert not waiting.pauses


@pytest.mark.parametrize("timeout", [PATIENCE / 3, None])
def test_who_gets_the_processor_back_late_offers_it_no_more(
    holder: WriteLock, waiter: WriteLock, waiting: Waiting, monkeypatch: pytest.MonkeyPatch, timeout: float | None
) -> None:
    offers: list[None] = []

    def offered() -> None:
        offers.append(None)
        waiting.now += PATIENCE / 2

    monkeypatch.setattr(write_lock, "_yield", offered)
    waiting.at = {1: holder.release}
    with contextlib.nullcontext() if timeout is None else pytest.raises(Timeout):
        waiter.acquire(timeout)
    assert len(offers) == (2 if timeout is None else 1)
    if timeout is None:
        waiter.release()


def test_zero_seconds_are_one_attempt(holder: WriteLock, waiter: WriteLock, monkeypatch: pytest.MonkeyPatch) -> None:
    attempts: list[int] = []

    def refuse(descriptor: int, operation: int) -> None:
        if operation & fcntl.LOCK_NB:
            attempts.append(operation)
        fcntl.flock(descriptor, operation)

    monkeypatch.setattr(write_lock, "flock", refuse)
    with pytest.raises(Timeout):
        waiter.acquire(0)
    assert len(attempts) <= 2, "and a last one after the announcement"


def test_pauses_double_up_to_a_bound(holder: WriteLock, waiter: WriteLock, waiting: Waiting) -> None:
    with pytest.raises(Timeout):
        waiter.acquire(1.0)
    expected = FIRST_SLICE
    for pause in waiting.pauses[:-2]:
        assert pause == pytest.approx(expected, abs=1e-6)
        expected = min(2 * expected, LONGEST_SLICE)
    assert expected == LONGEST_SLICE


def test_where_nobody_is_woken_pauses_are_short(holder: WriteLock, waiter: WriteLock, waiting: Waiting) -> None:
    waiting.has_futex = False
    with pytest.raises(Timeout):
        waiter.acquire(0.1)
    assert max(waiting.pauses) <= LONGEST_PAUSE


def test_a_release_lowers_the_flag_and_wakes_one_but_only_if_somebody_waits(path: Path, waiting: Waiting) -> None:
    mine = WriteLock(path)
    mine.attach(waiting.header)
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
    return lambda: waiting.header[Header.FAIRNESS_CLAIM] / 1e6 - waiting.now


def test_who_has_waited_long_claims_a_turn_until_it_has_the_lock(
    holder: WriteLock, waiter: WriteLock, waiting: Waiting
) -> None:
    claimed, seen = claims(waiting), []

    def look() -> None:
        seen.append((waiting.now - waiting.pauses[-1] - 1000.0, waiting.header[Header.FAIRNESS_CLAIM], claimed()))
        if len(seen) == 100:
            holder.release()

    waiting.at = dict.fromkeys(range(1000), look)
    waiter.acquire(None)
    assert not waiting.header[Header.FAIRNESS_CLAIM], "its turn is over"
    waiter.release()
    patient = [turn for waited, turn, _ in seen if waited < PATIENCE - 1e-6]
    assert patient
    assert not any(patient)
    impatient = [left for waited, _, left in seen if waited > PATIENCE + 1e-6]
    assert impatient == pytest.approx([GRACE] * len(impatient), abs=3e-6), "the claim outlives each pause"


def test_who_gives_up_ends_its_turn(holder: WriteLock, waiter: WriteLock, waiting: Waiting) -> None:
    claimed: list[int] = []
    waiting.at = dict.fromkeys(range(1000), lambda: claimed.append(waiting.header[Header.FAIRNESS_CLAIM]))
    with pytest.raises(Timeout):
        waiter.acquire(1.0)
    assert any(claimed)
    assert not waiting.header[Header.FAIRNESS_CLAIM]


def test_a_turn_that_another_has_claimed_since_is_left_alone(
    holder: WriteLock, waiter: WriteLock, waiting: Waiting
) -> None:
    def claim_and_release() -> None:
        waiting.header[Header.FAIRNESS_CLAIM] += 5
        holder.release()

    waiting.at[200] = claim_and_release
    waiter.acquire(None)
    waiter.release()
    assert waiting.header[Header.FAIRNESS_CLAIM]


def test_a_newcomer_queues_while_a_turn_is_claimed(waiter: WriteLock, waiting: Waiting) -> None:
    taken: list[bool] = []

    def claim() -> None:
        waiting.header[Header.FAIRNESS_CLAIM] = int((waiting.now + LONGEST_SLICE) * 1e6)
        taken.append(waiter.locked_by_me())

    claim()
    waiting.at = dict.fromkeys(range(1000), claim)
    waiter.acquire(None)
    waiter.release()
    assert len(taken) > 1
    assert not any(taken)
    assert waiting.now - 1000.0 == pytest.approx(PATIENCE, abs=1e-3), "and no longer than that"


def test_a_newcomer_comes_when_the_turn_is_over(waiter: WriteLock, waiting: Waiting) -> None:
    waiting.header[Header.FAIRNESS_CLAIM] = int((waiting.now + LONGEST_SLICE) * 1e6)
    waiting.at[1] = lambda: waiting.header.__setitem__(Header.FAIRNESS_CLAIM, 0)
    waiter.acquire(None)
    waiter.release()
    assert len(waiting.pauses) == 1


def test_a_newcomer_that_is_woken_comes_at_once_and_has_the_next_one_woken(path: Path, waiting: Waiting) -> None:
    class Woken(Waiting):
        def wait(self, timeout_us: int) -> int:
            super().wait(timeout_us)
            self.header[Header.WAITERS] = 0  # as the releaser did
            return 0

    waking = Woken()
    waking.header[Header.FAIRNESS_CLAIM] = int((waking.now + LONGEST_SLICE) * 1e6)
    newcomer = WriteLock(path, clock=waking.clock, sleep=waking.sleep)
    newcomer.attach(waking.header)
    newcomer.acquire(None)
    assert len(waking.pauses) == 1
    assert newcomer.contended()
    newcomer.release()
    assert waking.woken == 1
    newcomer.close()


def test_zero_seconds_wait_for_no_turn(waiter: WriteLock, waiting: Waiting) -> None:
    waiting.header[Header.FAIRNESS_CLAIM] = int((waiting.now + LONGEST_SLICE) * 1e6)
    waiter.acquire(0)
    waiter.release()
    assert not waiting.pauses


@pytest.mark.parametrize("turn", [1, 10**9 - 1, 1001 * 10**6, 2**63 + 5, 2**64 - 1])
def test_a_claim_that_ran_out_or_is_damaged_delays_nobody(waiter: WriteLock, waiting: Waiting, turn: int) -> None:
    waiting.header[Header.FAIRNESS_CLAIM] = turn
    waiter.acquire(None)
    waiter.release()
    assert not waiting.pauses
    assert not waiting.header[Header.FAIRNESS_CLAIM]


def test_a_thread_that_waits_for_another_claims_a_turn_as_well(path: Path) -> None:
    file = GenerationFile.create(path.with_name("cache.gen"), 16)
    header, held = file.header, WriteLock(path)
    held.attach(header)
    held.acquire(0)

    def take() -> None:
        held.acquire(LIMIT)
        held.release()

    other = threading.Thread(target=take)
    other.start()
    while not header[Header.FAIRNESS_CLAIM] and other.is_alive():
        pass
    assert header[Header.FAIRNESS_CLAIM]
    held.release()
    other.join(LIMIT)
    assert not header[Header.FAIRNESS_CLAIM]
    held.close()
    file.close()


def test_a_newcomer_sleeps_while_another_thread_has_waited_long(path: Path, waiting: Waiting) -> None:
    lock, got = WriteLock(path, clock=waiting.clock, sleep=waiting.sleep), threading.Event()
    lock.acquire(0)

    def wait_for_it() -> None:
        lock.acquire(LIMIT)
        got.set()
        lock.release()

    def let_it_have_it() -> None:
        got.wait(LIMIT)

    thread = threading.Thread(target=wait_for_it)
    thread.start()
    while not lock._waiting_threads and thread.is_alive():
        pass
    waiting.now += PATIENCE
    waiting.at[1] = let_it_have_it
    lock.release()
    lock.acquire(LIMIT)
    assert got.is_set()
    assert waiting.pauses == [LONGEST_PAUSE]
    lock.release()
    thread.join(LIMIT)
    assert not lock._waiting_threads
    lock.close()


def test_a_waiting_thread_that_is_gone_delays_one_newcomer_at_most(waiter: WriteLock, waiting: Waiting) -> None:
    waiter._waiting_threads[1] = waiting.now - 2 * PATIENCE
    waiter.acquire(None)
    assert PATIENCE <= sum(waiting.pauses) <= PATIENCE + 2 * LONGEST_PAUSE
    waiter.release()
    waiting.pauses.clear()
    waiter.acquire(None)
    assert not waiting.pauses
    waiter.release()


def test_threads_may_come_while_a_newcomer_looks_who_waits(waiter: WriteLock, waiting: Waiting) -> None:
    numbers = itertools.count(1)

    def come(phase: str, _: object) -> None:  # a collection lets other threads run
        if phase == "start":
            waiter._waiting_threads[next(numbers)] = waiting.now

    # More than there are tuples that Python keeps for reuse, which start no collection.
    waiter._waiting_threads.update({-number: waiting.now for number in range(1, 10_000)})
    threshold = gc.get_threshold()
    gc.callbacks.append(come)
    gc.set_threshold(1, 10**6, 10**6)
    try:
        waiter.acquire(None)
    finally:
        gc.set_threshold(*threshold)
        gc.callbacks.remove(come)
    waiter.release()
    assert next(numbers) > 1


def test_zero_seconds_let_no_thread_run(waiter: WriteLock, waiting: Waiting) -> None:
    waiter._waiting_threads[1] = waiting.now - 2 * PATIENCE
    waiter.acquire(0)
    assert not waiting.pauses
    assert waiter._waiting_threads
    waiter.release()


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
        patch.setattr(write_lock, "flock", granted_then_interrupted)
        with pytest.raises(KeyboardInterrupt):
            mine.acquire(1)
    other.acquire(0)
    other.release()
    mine.acquire(0)
    mine.close()
    other.close()
