"""The core reads a value file whole, and leaves to Python whatever is not what a value file is."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from diskcache_like.coherence import _native


@pytest.mark.parametrize("content", [b"", b"x", os.urandom(3_000_000)], ids=len)
def test_the_whole_content_is_read(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "file").write_bytes(content)
    assert _native.read_file(str(tmp_path), "file", len(content)) == content
    memory = memoryview(bytearray(len(content)))
    assert _native.read_file(str(tmp_path), "file", memory) is memory
    assert memory == content


def link(path: Path) -> None:
    path.rename(path.with_name("other"))
    path.symlink_to("other")


def link_folder(path: Path) -> None:
    path.parent.rename(path.parent.with_name("elsewhere"))
    path.parent.symlink_to("elsewhere")


def replace_by_fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def replace_by_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


CHANGES: list[Callable[[Path], object]] = [
    Path.unlink,
    link,
    link_folder,
    replace_by_fifo,
    replace_by_folder,
    lambda path: os.link(path, path.with_name("second name")),
    lambda path: os.truncate(path, 2),
    lambda path: os.truncate(path, 4),
]


@pytest.mark.parametrize("change", CHANGES)
def test_what_is_no_such_file_is_left_alone(tmp_path: Path, change: Callable[[Path], object]) -> None:
    path = tmp_path / "folder" / "file"
    path.parent.mkdir()
    path.write_bytes(b"abc")
    descriptors = len(os.listdir("/proc/self/fd"))
    assert _native.read_file(str(path.parent), "file", 3) == b"abc"
    change(path)
    assert _native.read_file(str(path.parent), "file", 3) is None
    assert _native.read_file(str(path.parent), "file", memoryview(bytearray(3))) is None
    assert len(os.listdir("/proc/self/fd")) == descriptors


@pytest.mark.parametrize("size", [-1, 1 << 62, 1 << 80])
def test_no_memory_is_allocated_for_a_size_that_the_file_does_not_have(tmp_path: Path, size: int) -> None:
    (tmp_path / "file").write_bytes(b"abc")
    assert _native.read_file(str(tmp_path), "file", size) is None


def test_a_path_that_is_not_in_utf_8_is_left_to_python(tmp_path: Path) -> None:
    folder = os.fsencode(tmp_path) + b"/\xff"
    os.mkdir(folder)
    Path(os.fsdecode(folder), "file").write_bytes(b"abc")
    assert _native.read_file(os.fsdecode(folder), "file", 3) is None


def test_memory_has_to_be_writable(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"abc")
    with pytest.raises(BufferError):
        _native.read_file(str(tmp_path), "file", memoryview(b"abc"))
    with pytest.raises(TypeError):
        _native.read_file(str(tmp_path), "file")  # type: ignore[call-arg]
