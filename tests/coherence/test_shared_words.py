"""64-bit words in shared memory, and the word that tells of a fork."""

from __future__ import annotations

import errno
import mmap
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from diskcache_like.coherence import futex
from diskcache_like.coherence._native import Words
from diskcache_like.system import forks
from diskcache_like.system.forks import ForkGuard

BIGGEST = 2**64 - 1
AN_HOUR = 3600 * 1_000_000


@pytest.fixture
def memory() -> mmap.mmap:
    return mmap.mmap(-1, 8 * 1000)


@pytest.fixture
def sample(memory: mmap.mmap) -> Words:
    return Words(memory, 0, 1000)


def test_words_hold_64_unsigned_bits(sample: Words, memory: mmap.mmap) -> None:
    sample[0], sample[7], sample[999] = 1, BIGGEST, 2**63
    assert (sample[0], sample[7], sample[999], sample[8]) == (1, BIGGEST, 2**63, 0)
    assert memory[48:72] == bytes(8) + b"\xff" * 8 + bytes(8)
    assert len(sample) == len(list(sample)) == 1000
    assert list(Words(memory, 6, 3)) == [0, BIGGEST, 0]


@pytest.mark.parametrize("index", [1000, -1, 2**70])
def test_an_index_outside_is_refused(sample: Words, index: int) -> None:
    with pytest.raises((IndexError, OverflowError)):
        sample[index]
    with pytest.raises((IndexError, OverflowError)):
        sample[index] = 1
    with pytest.raises((IndexError, OverflowError)):
        sample.wait(index, 0, 1)
    with pytest.raises((IndexError, OverflowError)):
        sample.add(index, 1)


@pytest.mark.parametrize("value", [-1, 2**64, "1", None])
def test_a_value_outside_is_refused(sample: Words, value: int) -> None:
    with pytest.raises((TypeError, OverflowError)):
        sample[3] = value
    with pytest.raises((TypeError, OverflowError)):
        sample.fill(value)
    with pytest.raises((TypeError, OverflowError)):
        sample.add(3, value)
    assert sample[3] == 0


def test_words_cannot_be_deleted(sample: Words) -> None:
    with pytest.raises(TypeError):
        del sample[0]  # type: ignore[attr-defined]


@pytest.mark.parametrize(("first", "length"), [(0, 1001), (1000, 1), (-1, 1), (0, -1), (2**61, 2**61)])
def test_no_words_lie_outside_of_their_memory(memory: mmap.mmap, first: int, length: int) -> None:
    with pytest.raises(ValueError, match="outside"):
        Words(memory, first, length)


def test_words_take_no_memory_that_cannot_be_written() -> None:
    with pytest.raises((TypeError, BufferError)):
        Words(bytes(80), 0, 10)


@pytest.mark.parametrize("length", [0, 1, 127, 128, 129, 1000])
def test_fill_sets_all_words_and_no_others(memory: mmap.mmap, sample: Words, length: int) -> None:
    Words(memory, 0, length).fill(BIGGEST - 5)
    assert list(sample) == [BIGGEST - 5] * length + [0] * (1000 - length)


def test_words_keep_the_memory_that_they_are_in() -> None:
    words = Words(mmap.mmap(-1, 80), 0, 10)
    words[5] = 17
    assert words[5] == 17


def test_fill_is_never_seen_half_done_within_a_word() -> None:
    """A child fills with words whose halves and bytes all differ from the other value's; both must stay whole."""
    count, rounds, values = 4096, 300, (0x0101010101010101, 0xFEFEFEFEFEFEFEFE)
    mapping = mmap.mmap(-1, 8 * (count + 1))
    shared, done = Words(mapping, 0, count), Words(mapping, count, 1)
    shared.fill(values[0])
    child = os.fork()
    if not child:
        for round_ in range(rounds):
            shared.fill(values[round_ % 2])
        done[0] = 1
        os._exit(0)
    seen: set[int] = set()
    while not done[0]:
        seen.update(shared)
    assert os.waitpid(child, 0)[1] == 0
    assert seen <= set(values)


def test_additions_of_two_processes_are_all_made(sample: Words) -> None:
    child = os.fork()
    for _ in range(20_000):
        sample.add(1, 3)
    if not child:
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert sample[1] == 2 * 20_000 * 3


def test_a_wait_ends_at_once_when_the_word_has_changed(sample: Words) -> None:
    sample[2] = 7 << 32 | 5
    assert sample.wait(2, 4, AN_HOUR) != 0
    assert sample.wait(2, 5, 1) != 0  # the low half is what is compared; this one times out
    assert sample.wake(2, 1) == 0


def test_where_the_system_wakes_nobody_a_sleeper_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    class Unwaited(Words):
        def wait(self, *_: int) -> int:
            return errno.ENOSYS

    paused: list[float] = []
    monkeypatch.setattr("time.sleep", paused.append)
    futex.sleep(Unwaited(bytearray(8), 0, 1), 0, 0, 10)
    assert paused == [futex.LONGEST_PAUSE]


@pytest.fixture(params=["wiped", "not wiped"])
def guard(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> ForkGuard:
    if request.param == "not wiped":
        monkeypatch.setattr(sys, "platform", "another")
    return ForkGuard()


def test_the_token_is_one_in_a_process_and_another_in_each_descendant() -> None:
    token = forks.process_token()
    reader, writer = os.pipe()

    def tell() -> None:
        os.write(writer, b"%d %d " % (forks.process_token(), forks.process_token()))

    child = os.fork()
    if not child:
        tell()
        if os.fork() == 0:
            tell()
            os._exit(0)
        os.wait()
        os._exit(0)
    os.waitpid(child, 0)
    first, again, second, and_again = map(int, os.read(reader, 100).split())
    assert (first, second) == (again, and_again)
    assert len({token, first, second}) == 3
    assert forks.process_token() == token
    os.close(reader)
    os.close(writer)


C_FORK = """
import ctypes, os, sys
from diskcache_like.system.forks import ForkGuard
sys.platform = sys.argv[1]
guard = ForkGuard()
token = guard.token()
reader, writer = os.pipe()
if ctypes.PyDLL(None).fork() == 0:
    assert guard.word[0] != token
    os.write(writer, b"%d %d" % (guard.token(), guard.token()))
    os._exit(0)
os.wait()
first, second = map(int, os.read(reader, 50).split())
assert first == second != token == guard.token(), (token, first, second)
"""


@pytest.mark.parametrize("platform", ["linux", "one that wipes no pages"])
def test_a_fork_made_from_c_is_noticed(platform: str) -> None:
    done = subprocess.run([sys.executable, "-c", C_FORK, platform], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_word_is_the_token_or_says_nothing(guard: ForkGuard) -> None:
    assert guard.word[0] == (guard.token() if guard.wiped_by_kernel else 2**64 - 1)
    assert guard.token() == guard.token() != 0


def as_after_a_fork_from_c(guard: ForkGuard) -> None:
    guard.word[0] = 0
    guard._pid = -1


def test_threads_of_a_new_child_agree_on_one_token(guard: ForkGuard) -> None:
    old = guard.token()
    as_after_a_fork_from_c(guard)
    tokens: list[int] = []
    threads = [threading.Thread(target=lambda: tokens.append(guard.token())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(tokens) == {old + 1}


def test_a_lock_copied_while_locked_does_not_stop_the_token(guard: ForkGuard) -> None:
    old = guard.token()
    guard._lock.acquire()
    guard.forked()
    assert guard.token() == guard.token() != old


DROPPED = """
import gc, mmap
from diskcache_like.coherence._native import Words
from diskcache_like.coherence.write_lock import WriteLock
gc.disable()
lock = WriteLock(PATH)
words = Words(mmap.mmap(-1, 4096), 0, 512)
lock.attach(words)
cycle = [words, lock]
cycle.append(cycle)
del words, cycle, lock
gc.collect()
"""


def test_words_that_are_dropped_in_a_cycle_do_not_crash_the_collector(tmp_path: Path) -> None:
    """CPython before 3.12.7 frees an exported memoryview that is part of a cycle twice (gh-77894)."""
    code = DROPPED.replace("PATH", repr(str(tmp_path / "lock")))
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
