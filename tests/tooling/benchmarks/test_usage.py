"""What a subject takes of the machine, as the benchmark asks the kernel for it."""

from __future__ import annotations

import mmap
import os
import time
from pathlib import Path

import pytest

from benchmarks import usage
from benchmarks.peers.spec import BenchmarkError

LARGE = 64 << 20


def test_processor_time_and_memory_of_a_process_are_told() -> None:
    before, processor = usage.usage_of(os.getpid()), time.process_time()
    while time.process_time() < processor + 0.05:  # the kernel counts in hundredths of a second
        pass
    after = usage.usage_of(os.getpid())
    assert 0 < after.cpu_seconds - before.cpu_seconds < 5
    assert 1 << 20 < after.resident < 1 << 40


def test_a_process_that_has_ended_is_an_error() -> None:
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    with pytest.raises(BenchmarkError, match="has it ended"):
        usage.usage_of(child)


def test_the_peak_of_memory_is_counted_from_the_last_reset() -> None:
    if not usage.reset_peak_memory():
        pytest.skip("this kernel does not let the peak be reset")
    before = usage.peak_memory()
    with mmap.mmap(-1, LARGE) as block:
        for place in range(0, LARGE, mmap.PAGESIZE):
            block[place] = 1
    assert usage.peak_memory() >= before + LARGE * 9 // 10
    assert usage.reset_peak_memory()
    assert usage.peak_memory() < before + LARGE // 2


def test_a_file_with_several_names_takes_its_room_once(tmp_path: Path) -> None:
    empty = usage.disk_bytes(tmp_path)
    (tmp_path / "inner").mkdir()
    file = tmp_path / "inner" / "file"
    file.write_bytes(os.urandom(1 << 20))
    once = usage.disk_bytes(tmp_path)
    assert once - empty >= 1 << 20
    (tmp_path / "second name").hardlink_to(file)
    assert usage.disk_bytes(tmp_path) - once < 1 << 19


def test_a_hole_takes_no_room(tmp_path: Path) -> None:
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(LARGE)
    assert usage.disk_bytes(tmp_path) < LARGE // 2
