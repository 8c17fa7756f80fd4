"""Waiting for the write lock: deadlines, wake-ups, claims of those who have waited long, and signals."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from diskcache_like.coherence.generations import GenerationFile, Header
from diskcache_like.coherence.write_lock import WriteLock
from diskcache_like.errors import Timeout

LIMIT = 60.0  # seconds after which a test gives up on another thread; no test waits for it to pass


@pytest.fixture
def file(tmp_path: Path) -> Iterator[GenerationFile]:
    made = GenerationFile.create(tmp_path / "cache.gen", 16)
    yield made
    made.close()


@pytest.fixture
def make(tmp_path: Path, file: GenerationFile) -> Iterator[Callable[[], WriteLock]]:
    """Return what makes handles on one lock, as those of several processes."""
    locks: list[WriteLock] = []

    def one() -> WriteLock:
        locks.append(WriteLock(tmp_path / "cache.lock"))
        locks[-1].attach(file.header)
        return locks[-1]

    yield one
    for lock in locks:
        lock.close()


def until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < end
        time.sleep(1e-4)


def taking(lock: WriteLock) -> threading.Thread:
    """Return a thread that takes the lock and gives it back."""

    def take() -> None:
        lock.acquire(LIMIT)
        lock.release()

    thread = threading.Thread(target=take)
    thread.start()
    return thread


def test_the_deadline_is_for_the_whole_wait(make: Callable[[], WriteLock]) -> None:
    holder, waiter = make(), make()
    holder.acquire(0)
    began = time.monotonic()
    with pytest.raises(Timeout, match=r"cache\.lock .* within 0\.05 s"):
        waiter.acquire(0.05)
    assert time.monotonic() - began >= 0.05
    assert waiter.contended()
    assert not waiter.is_mine()
    holder.release()
    waiter.acquire(0)
    waiter.release()


def test_a_release_lowers_the_flag_and_wakes_one_but_only_if_somebody_waits(
    make: Callable[[], WriteLock], file: GenerationFile
) -> None:
    mine, header = make(), file.header
    mine.acquire(0)
    mine.release()
    assert header[Header.WAKE] == 0
    mine.acquire(0)
    header[Header.WAITERS] = 1
    mine.release()
    assert (header[Header.WAKE], mine.contended()) == (1, False)


@pytest.mark.parametrize("within", [False, True], ids=["process", "thread"])
def test_who_has_waited_long_claims_a_turn_until_it_has_the_lock(
    make: Callable[[], WriteLock], file: GenerationFile, within: bool
) -> None:
    holder = make()
    holder.acquire(0)
    thread = taking(holder if within else make())
    until(lambda: file.header[Header.FAIRNESS_CLAIM])
    now = time.monotonic() * 1e6
    assert file.header[Header.FAIRNESS_CLAIM] - now < 31_000, "a claim stands for one sleep and a little more"
    holder.release()
    thread.join(LIMIT)
    assert not file.header[Header.FAIRNESS_CLAIM], "its turn is over"


def test_who_gives_up_ends_its_turn(make: Callable[[], WriteLock], file: GenerationFile) -> None:
    holder, waiter = make(), make()
    holder.acquire(0)
    with pytest.raises(Timeout):
        waiter.acquire(0.1)
    assert not file.header[Header.FAIRNESS_CLAIM]


def test_a_newcomer_queues_while_a_turn_is_claimed_but_not_for_long(
    make: Callable[[], WriteLock], file: GenerationFile
) -> None:
    newcomer = make()
    began = time.monotonic()
    file.header[Header.FAIRNESS_CLAIM] = int((began + 0.025) * 1e6)
    newcomer.acquire(None)
    assert time.monotonic() - began >= 0.02
    newcomer.release()


def test_zero_seconds_wait_for_no_turn(make: Callable[[], WriteLock], file: GenerationFile) -> None:
    newcomer = make()
    claim = int((time.monotonic() + 0.025) * 1e6)
    for timeout in (0, -1):
        file.header[Header.FAIRNESS_CLAIM] = claim
        newcomer.acquire(timeout)
        newcomer.release()
        assert file.header[Header.FAIRNESS_CLAIM] == claim, "nor does it look at the clock"


@pytest.mark.parametrize("turn", [1, 10**6, 2**63 + 5, 2**64 - 1])
def test_a_claim_that_ran_out_or_is_damaged_delays_nobody(
    make: Callable[[], WriteLock], file: GenerationFile, turn: int
) -> None:
    newcomer = make()
    file.header[Header.FAIRNESS_CLAIM] = turn
    newcomer.acquire(None)
    newcomer.release()
    assert not file.header[Header.FAIRNESS_CLAIM]


@pytest.mark.parametrize("within", [False, True], ids=["process", "thread"])
def test_who_takes_it_again_and_again_lets_others_have_it(make: Callable[[], WriteLock], within: bool) -> None:
    hog = make()
    thread, turns = taking(hog if within else make()), 0
    end = time.monotonic() + LIMIT
    while thread.is_alive() and time.monotonic() < end:
        hog.acquire(LIMIT)
        turns += 1
        hog.release()
    thread.join(0)
    assert not thread.is_alive(), f"it had the lock {turns} times meanwhile"


@pytest.mark.parametrize("within", [False, True], ids=["process", "thread"])
def test_a_handler_that_raises_ends_a_wait_with_nothing_held(
    make: Callable[[], WriteLock], file: GenerationFile, within: bool
) -> None:
    class Alarm(Exception):
        pass

    def ring(*_: object) -> None:
        raise Alarm

    holder = make()
    waiter = holder if within else make()
    taken, done = threading.Event(), threading.Event()

    def hold() -> None:
        holder.acquire(0)
        taken.set()
        done.wait(LIMIT)
        holder.release()

    thread = threading.Thread(target=hold)
    thread.start()
    assert taken.wait(LIMIT)
    before = signal.signal(signal.SIGALRM, ring)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(Alarm):
            waiter.acquire(LIMIT)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert not waiter.is_mine()
    assert not file.header[Header.FAIRNESS_CLAIM]
    done.set()
    thread.join(LIMIT)
    waiter.acquire(0)
    waiter.release()


def test_who_waits_finds_out_that_the_lock_was_closed(make: Callable[[], WriteLock]) -> None:
    lock, failed = make(), []
    lock.acquire(0)

    def wait() -> None:
        try:
            lock.acquire(LIMIT)
        except OSError as error:
            failed.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    until(lock.contended)
    lock.release_and_close()
    thread.join(LIMIT)
    assert "closed" in str(failed[0])
