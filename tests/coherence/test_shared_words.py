"""64-bit words: what both implementations do, which one a machine may use, and the word that tells of a fork."""

from __future__ import annotations

import importlib
import mmap
import os
import platform
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from diskcache_like.coherence import atomics, native
from diskcache_like.coherence.atomics import Implementation, NativeWords, Words
from diskcache_like.coherence.native import NativeModule
from diskcache_like.errors import SettingError
from diskcache_like.system import forks
from diskcache_like.system.forks import ForkGuard

from ..support.cache_kinds import NEEDS_HELPER

BIGGEST = 2**64 - 1


@pytest.fixture(params=["python", "native"])
def implementation(request: pytest.FixtureRequest) -> Implementation:
    name: Implementation = request.param
    if name == "native":
        request.getfixturevalue("helper")
    return name


@pytest.fixture
def helper() -> NativeModule:
    loaded = native.load()
    if loaded is None:
        off = os.environ.get(native.VARIABLE) == "0"
        pytest.skip("switched off by DISKCACHE_LIKE_NATIVE=0" if off else "the native helper is not built")
    return loaded


@pytest.fixture
def memory() -> memoryview[int]:
    return memoryview(mmap.mmap(-1, 8 * 1000)).cast("Q")


@pytest.fixture
def sample(memory: memoryview[int], implementation: Implementation) -> Words:
    return atomics.over(memory, implementation)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Pretend to be a machine: set `.cpu` and `.helper`."""
    pretended = SimpleNamespace(cpu="x86_64", helper=None)
    monkeypatch.setattr(platform, "machine", lambda: pretended.cpu)
    monkeypatch.setattr(sys, "implementation", SimpleNamespace(name="cpython"))
    monkeypatch.setattr(native, "load", lambda: pretended.helper)
    monkeypatch.delenv(atomics.VARIABLE, raising=False)
    return pretended


def test_words_hold_64_unsigned_bits(sample: Words, memory: memoryview[int]) -> None:
    sample[0], sample[7], sample[999] = 1, BIGGEST, 2**63
    assert (sample[0], sample[7], sample[999], sample[8]) == (1, BIGGEST, 2**63, 0)
    assert list(memory[6:9]) == [0, BIGGEST, 0]
    assert len(sample) == 1000


def test_an_index_outside_is_refused(sample: Words) -> None:
    with pytest.raises(IndexError):
        sample[1000]
    with pytest.raises(IndexError):
        sample[1000] = 1


def test_the_helper_never_sees_a_negative_index(memory: memoryview[int], implementation: Implementation) -> None:
    sample = atomics.over(memory, implementation)
    if isinstance(sample, NativeWords):
        with pytest.raises(IndexError):
            sample[-1]
        with pytest.raises(IndexError):
            sample[-1] = 1


@pytest.mark.parametrize("value", [-1, 2**64])
def test_a_value_outside_is_refused(sample: Words, value: int) -> None:
    with pytest.raises((ValueError, OverflowError)):
        sample[3] = value
    assert sample[3] == 0


@pytest.mark.parametrize("length", [0, 1, 127, 128, 129, 1000])
def test_fill_sets_all_words_and_no_others(
    memory: memoryview[int], implementation: Implementation, length: int
) -> None:
    part = atomics.over(memory[:length], implementation)
    atomics.fill(part, BIGGEST - 5)
    assert list(memory) == [BIGGEST - 5] * length + [0] * (1000 - length)


def test_raw_is_the_memory_itself(sample: Words, memory: memoryview[int]) -> None:
    atomics.raw(sample)[5] = 17
    assert memory[5] == 17


def test_python_words_are_the_bare_memoryview(memory: memoryview[int]) -> None:
    assert atomics.over(memory, "python") is memory
    assert atomics.over(memory, "off") is memory


def test_fill_is_never_seen_half_done_within_a_word(implementation: Implementation) -> None:
    """A child fills with words whose halves and bytes all differ from the other value's; both must stay whole."""
    count, rounds, values = 4096, 300, (0x0101010101010101, 0xFEFEFEFEFEFEFEFE)
    mapping = mmap.mmap(-1, 8 * (count + 1))
    view = memoryview(mapping).cast("Q")
    shared, done = atomics.over(view[:count], implementation), view[count:]
    atomics.fill(shared, values[0])
    child = os.fork()
    if not child:
        for round_ in range(rounds):
            atomics.fill(shared, values[round_ % 2])
        done[0] = 1
        os._exit(0)
    seen: set[int] = set()
    while not done[0]:
        seen.update(view[:count])
    assert os.waitpid(child, 0)[1] == 0
    assert seen <= set(values)


def test_the_helper_adds_atomically_between_processes(helper: NativeModule) -> None:
    view = memoryview(mmap.mmap(-1, 64)).cast("Q")
    pointer = helper.pointer(view)
    child = os.fork()
    for _ in range(20_000):
        helper.add(pointer, 1, 3)
    if not child:
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert view[1] == 2 * 20_000 * 3


def test_a_futex_wait_ends_at_once_when_the_word_has_changed(helper: NativeModule) -> None:
    view = memoryview(mmap.mmap(-1, 64)).cast("Q")
    view[2] = 7 << 32 | 5
    pointer = helper.pointer(view)
    an_hour = 3600 * 1_000_000
    assert helper.futex_wait(pointer, 2, 4, an_hour) != 0
    assert helper.futex_wait(pointer, 2, 5, 1) != 0  # the low half is what is compared; this one times out
    assert helper.futex_wake(pointer, 2, 1) == 0


@pytest.mark.parametrize(
    ("cpu", "helper", "wanted", "answer"),
    [
        ("x86_64", False, None, "python"),
        ("AMD64", True, None, "python"),
        ("x86_64", True, "native", "native"),
        ("x86_64", False, "python", "python"),
        ("aarch64", False, None, "off"),
        ("aarch64", True, None, "native"),
        ("aarch64", True, "auto", "native"),
        ("aarch64", True, "python", "off"),
        ("aarch64", True, "native", "native"),
        ("i686", False, None, "off"),
        ("", False, None, "off"),
    ],
)
def test_the_choice_is_never_wrong(
    machine: SimpleNamespace, cpu: str, helper: bool, wanted: str | None, answer: str
) -> None:
    machine.cpu, machine.helper = cpu, object() if helper else None
    assert atomics.choose_implementation(wanted) == answer


def test_an_unknown_interpreter_or_half_words_are_not_trusted(
    machine: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(sys, "maxsize", 2**31 - 1)
        assert atomics.choose_implementation() == "off"
    monkeypatch.setattr(sys, "implementation", SimpleNamespace(name="pypy"))
    assert atomics.choose_implementation() == "off"


def test_the_argument_wins_over_the_environment(machine: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.helper = object()
    monkeypatch.setenv(atomics.VARIABLE, "native")
    assert atomics.choose_implementation() == "native"
    assert atomics.choose_implementation("auto") == "python"
    monkeypatch.setenv(atomics.VARIABLE, "")
    assert atomics.choose_implementation() == "python"


def test_native_without_the_helper_says_how_to_get_it(machine: SimpleNamespace, memory: memoryview[int]) -> None:
    with pytest.raises(SettingError, match=r"native_build.*C compiler"):
        atomics.choose_implementation("native")
    with pytest.raises(SettingError, match="native_build"):
        atomics.over(memory, "native")


def test_an_unknown_choice_names_where_it_came_from(machine: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SettingError, match=r"coherence must be .* not 'fast'"):
        atomics.choose_implementation("fast")
    monkeypatch.setenv(atomics.VARIABLE, "quick")
    with pytest.raises(SettingError, match=r"DISKCACHE_LIKE_COHERENCE must be .* not 'quick'"):
        atomics.choose_implementation()


def test_the_helper_can_be_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(native.VARIABLE, "0")
    assert native.load() is None


@pytest.mark.parametrize("module", [None, SimpleNamespace(lib=SimpleNamespace(DL_ABI=0), ffi=None)])
def test_a_missing_or_outdated_helper_is_none(monkeypatch: pytest.MonkeyPatch, module: SimpleNamespace | None) -> None:
    def import_module(name: str) -> SimpleNamespace:
        if module is None:
            raise ImportError(name)
        return module

    monkeypatch.setattr(importlib, "import_module", import_module)
    monkeypatch.delenv(native.VARIABLE, raising=False)
    native._load.cache_clear()
    try:
        assert native.load() is None
    finally:
        native._load.cache_clear()


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
from diskcache_like.coherence import atomics, native
from diskcache_like.coherence.write_lock import WriteLock
gc.disable()
for use in (atomics.NativeWords, lambda view, helper: lock.attach(view, helper)):
    lock = WriteLock(PATH)
    view = memoryview(mmap.mmap(-1, 4096)).cast("Q")
    cycle = [view, use(view, native.load()), lock]
    cycle.append(cycle)
    del view, cycle, lock
    gc.collect()
"""


@NEEDS_HELPER
def test_words_that_are_dropped_in_a_cycle_do_not_crash_the_collector(tmp_path: Path) -> None:
    """CPython before 3.12.7 frees an exported memoryview that is part of a cycle twice (gh-77894)."""
    code = DROPPED.replace("PATH", repr(str(tmp_path / "lock")))
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
