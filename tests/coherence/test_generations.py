"""The generation file: layout, marking, repair in place, and refusals."""

from __future__ import annotations

import errno
import mmap
import os
import signal
import stat
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from diskcache_like.coherence import generations
from diskcache_like.coherence.generations import HEADER_WORDS, LEAST_MARKS, MOST_MARKS, PAGE, GenerationFile, Header
from diskcache_like.coherence.write_lock import WriteLock
from diskcache_like.errors import DirectoryError, DiskFull, UnsafeDirectory
from diskcache_like.system import boot as system_boot

SLOTS = 64
CELLS = 4 * MOST_MARKS  # bytes
USED = PAGE + 8 * SLOTS + 4 * LEAST_MARKS
SIZE = PAGE + 8 * SLOTS + CELLS

Make = Callable[..., GenerationFile]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "cache.gen"


@pytest.fixture
def opened() -> Iterator[list[GenerationFile]]:
    files: list[GenerationFile] = []
    yield files
    for file in files:
        file.close()


@pytest.fixture
def make(path: Path, opened: list[GenerationFile]) -> Make:
    def create(slots: int = SLOTS, tick: int | None = None, epoch: int = 0) -> GenerationFile:
        opened.append(GenerationFile.create(path, slots, tick=tick, epoch=epoch))
        return opened[-1]

    return create


@pytest.fixture
def reopen(path: Path, opened: list[GenerationFile]) -> Callable[[], bool]:
    """Return whether the file is accepted as it is; if so it is the last in `opened`."""

    def accepted() -> bool:
        found = GenerationFile.open_existing(path)
        if found is not None:
            opened.append(found)
        return found is not None

    return accepted


def poke(path: Path, word: int, value: int) -> None:
    with path.open("r+b") as file:
        file.seek(8 * word)
        file.write(array("Q", [value]).tobytes())


def test_a_new_file_is_whole_private_and_allocated(make: Make, path: Path) -> None:
    file = make(tick=10, epoch=3)
    status = path.stat()
    assert (status.st_size, stat.S_IMODE(status.st_mode)) == (SIZE, 0o600)
    assert status.st_blocks * 512 >= USED
    assert (file.mask, len(file.slots), len(file.header)) == (SLOTS - 1, SLOTS, HEADER_WORDS)
    assert [file.slots[index] for index in range(SLOTS)] == [22] * SLOTS
    assert not any(file.marks[4 * home] for home in range(LEAST_MARKS))
    assert (file.header[Header.TICK], file.header[Header.EPOCH], file.header[Header.SLOTS]) == (10, 3, SLOTS)
    assert file.is_intact()


def test_the_default_takes_less_than_a_megabyte(path: Path, opened: list[GenerationFile]) -> None:
    opened.append(GenerationFile.create(path))
    assert 2**19 < opened[0].allocated <= path.stat().st_blocks * 512 < 2**20
    assert opened[0].mask == 2**16 - 1


def test_a_thread_may_ask_for_its_size_while_another_one_closes_it(make: Make) -> None:
    file = make()
    allocated = file.allocated
    file.close()
    assert file.allocated == allocated


def test_a_new_file_makes_writers_look_for_themselves(make: Make) -> None:
    header = make().header
    assert header[Header.NEXT_EXPIRE] == 0
    assert (header[Header.FILES], header[Header.DISPLACED]) == (1, 1)
    assert header[Header.CROSS_SHARD] != 0


def test_two_mappings_are_one_memory(make: Make, reopen: Callable[[], bool], opened: list[GenerationFile]) -> None:
    first = make()
    assert reopen()
    tick = first.next_tick()
    first.begin((3, 9), tick)
    second = opened[-1]
    assert (second.slots[3], second.slots[9], second.header[Header.TICK]) == (2 * tick + 1, 2 * tick + 1, tick)
    second.marks.put(5, 77)
    assert first.marks[5] == 77


def test_marks_are_odd_then_even_and_only_grow(make: Make) -> None:
    file = make(tick=100)
    seen = [file.slots[4]]
    for _ in range(3):
        tick = file.next_tick()
        file.begin([4], tick)
        seen.append(file.slots[4])
        file.settle([4], tick)
        seen.append(file.slots[4])
    assert seen == [202, 203, 204, 205, 206, 207, 208]
    assert file.slots[5] == 202


def test_marking_all_marks_every_slot_and_nothing_else(make: Make) -> None:
    file = make(tick=1)
    tick = file.next_tick()
    file.begin_all(tick)
    assert {file.slots[index] for index in range(SLOTS)} == {5}
    file.settle_all(tick)
    assert {file.slots[index] for index in range(SLOTS)} == {6}
    assert not any(file.marks[4 * home] for home in range(LEAST_MARKS))
    assert file.is_intact()


def test_the_next_holder_settles_what_a_killed_one_left(make: Make, path: Path) -> None:
    file = make(tick=1)
    assert not file.settle_unsettled()
    child = os.fork()
    if not child:
        mine = GenerationFile.open_existing(path)
        assert mine is not None
        mine.begin_all(mine.next_tick())
        os.kill(os.getpid(), signal.SIGKILL)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    assert {file.slots[index] for index in range(SLOTS)} == {5}
    assert file.settle_unsettled()
    assert {file.slots[index] for index in range(SLOTS)} == {8}
    assert not file.settle_unsettled()


def test_a_forked_child_shares_the_mapping(make: Make) -> None:
    file = make(tick=1)
    child = os.fork()
    if not child:
        file.settle((6,), file.next_tick())
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert file.slots[6] == 6


@pytest.mark.parametrize("slots", [2**4, 2**20])
def test_the_existing_slot_count_wins(path: Path, opened: list[GenerationFile], slots: int) -> None:
    opened.append(GenerationFile.create(path, slots))
    found = GenerationFile.open_existing(path)
    assert found is not None
    opened.append(found)
    opened.append(GenerationFile.create(path, 2**8))
    assert [file.mask + 1 for file in opened] == [slots] * 3


@pytest.mark.parametrize("slots", [0, 8, 1000, 2**21, -16])
def test_a_slot_count_must_be_a_power_of_two_in_range(path: Path, slots: int) -> None:
    with pytest.raises(ValueError, match="power of two"):
        GenerationFile.create(path, slots)
    assert not path.exists()


def test_a_missing_file_is_none(path: Path) -> None:
    assert GenerationFile.open_existing(path) is None
    assert GenerationFile.open_existing(path.parent / "no" / "cache.gen") is None


@pytest.mark.parametrize(
    ("word", "value"),
    [
        (Header.MAGIC, 0),
        (Header.FORMAT, 1),
        (Header.SLOTS, 2 * SLOTS),
        (Header.SLOTS, SLOTS // 2),
        (Header.SLOTS, 0),
        (Header.READY, 0),
    ],
)
def test_a_damaged_header_is_refused_and_mended_in_place(
    make: Make, reopen: Callable[[], bool], path: Path, word: int, value: int
) -> None:
    file = make(tick=50)
    file.settle(range(SLOTS), 60)
    inode = path.stat().st_ino
    poke(path, word, value)
    assert not reopen()
    mended = make(slots=2**10)
    assert path.stat().st_ino == inode
    assert mended.mask == file.mask
    # The old mapping sees what the new one says, and no stamp of before is valid again.
    assert file.slots[7] == mended.slots[7] > 2 * 60 + 2
    assert reopen()


@pytest.mark.parametrize("size", [0, 1, 100, PAGE - 1, PAGE, PAGE + 1, PAGE + 8 * 16 + CELLS, SIZE - 1])
def test_a_cut_file_is_refused_and_grown_again(
    make: Make, reopen: Callable[[], bool], path: Path, opened: list[GenerationFile], size: int
) -> None:
    opened.append(make(tick=50))
    os.truncate(path, size)
    exact = size == PAGE + 8 * 16 + CELLS  # also the size of a smaller layout; the header says otherwise
    assert not reopen()
    mended = make()
    assert mended.mask + 1 == (16 if exact else SLOTS)
    assert {mended.slots[index] for index in range(mended.mask + 1)} == {2 * mended.header[Header.TICK] + 2}
    assert path.stat().st_blocks * 512 >= mended.allocated
    assert reopen()


def test_a_cut_file_gets_the_count_its_header_notes(make: Make, path: Path) -> None:
    make(slots=2**10)
    os.truncate(path, PAGE + 100)
    assert make(slots=16).mask + 1 == 2**10


def test_without_a_header_a_cut_file_never_gets_fewer_slots_than_fit_its_size(make: Make, path: Path) -> None:
    path.write_bytes(b"\xff" * (PAGE + 8 * 900 + CELLS))
    path.chmod(0o600)
    assert make(slots=16).mask + 1 == 2**10


def test_a_file_larger_than_any_layout_is_cut_to_the_largest(path: Path, opened: list[GenerationFile]) -> None:
    path.touch(0o600)
    os.truncate(path, PAGE + 8 * 2**20 + CELLS + 1)
    assert GenerationFile.open_existing(path) is None
    opened.append(GenerationFile.create(path))
    assert opened[0].mask + 1 == 2**20


def test_a_file_of_noise_is_mended_and_its_impossible_numbers_ignored(make: Make, path: Path) -> None:
    path.write_bytes(b"\xff" * SIZE)
    path.chmod(0o600)
    assert GenerationFile.open_existing(path) is None
    file = make(tick=5)
    assert (file.header[Header.TICK], file.slots[0], file.header[100]) == (5, 12, 0)


def test_a_repair_goes_beyond_everything_found(make: Make, path: Path) -> None:
    file = make(tick=50)
    file.begin((3,), 70)
    assert make(tick=0).slots[9] == 2 * 70 + 2
    poke(path, Header.TICK, 90)
    assert make(tick=0).slots[9] == 2 * 91 + 2
    poke(path, HEADER_WORDS + 5, 2**64 - 2)
    assert make(tick=0).slots[9] == 2 * 92 + 2
    assert make(tick=10**6).slots[9] == 2 * 10**6 + 2


def test_the_default_tick_is_the_time(make: Make) -> None:
    year_2020 = 1_577_836_800 * 1_000_000
    assert year_2020 < make().header[Header.TICK] < 2**53


def test_a_repair_cut_short_is_recognised(
    make: Make, reopen: Callable[[], bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    make(tick=50)
    with monkeypatch.context() as patch:
        patch.setattr(generations, "boot_id", lambda: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            make(tick=60)
    assert not reopen()
    assert make(tick=0).slots[0] > 2 * 60 + 2


def test_boot_is_compared(make: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = make()
    assert system_boot.boot_id() != 0
    assert file.is_current_boot()
    monkeypatch.setattr(system_boot, "_BOOT_ID", tmp_path / "boot_id")
    assert system_boot.boot_id() == 0
    assert not file.is_current_boot()
    (tmp_path / "boot_id").write_text("01234567-89ab-cdef-0123-456789abcdef\n")
    assert system_boot.boot_id() == 0x0123456789ABCDEF
    assert not file.is_current_boot()


def test_an_unknown_boot_is_never_current(make: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(system_boot, "_BOOT_ID", tmp_path / "missing")
    assert not make().is_current_boot()


def test_closing_survives_a_kept_view(make: Make) -> None:
    file = make(tick=1)
    kept = file.slots
    file.close()
    assert kept[3] == 4
    assert (len(file.slots), len(file.header)) == (0, 0)
    file.close()


def test_closing_unmaps_when_nobody_looks(make: Make, path: Path) -> None:
    file = make()
    assert str(path) in Path("/proc/self/maps").read_text()
    file.close()
    assert str(path) not in Path("/proc/self/maps").read_text()


def test_a_full_disk_has_its_own_error(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int, offset: int, length: int) -> None:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(DiskFull, match=r"cache\.gen"):
        GenerationFile.create(path, SLOTS)
    assert GenerationFile.open_existing(path) is None


@pytest.mark.parametrize("code", [errno.EOPNOTSUPP, errno.EINVAL, None])
def test_without_fallocate_real_bytes_are_written(
    make: Make, path: Path, monkeypatch: pytest.MonkeyPatch, code: int | None
) -> None:
    def unsupported(descriptor: int, offset: int, length: int) -> None:
        raise OSError(code, "unsupported")

    if code is None:
        monkeypatch.delattr(os, "posix_fallocate")
    else:
        monkeypatch.setattr(os, "posix_fallocate", unsupported)
    file = make(tick=1)
    assert path.stat().st_size == SIZE
    assert path.stat().st_blocks * 512 >= file.allocated == USED
    file.settle((5,), 30)
    assert make(tick=1).slots[0] == 2 * 31 + 2


def test_a_copy_with_holes_is_filled_when_opened(make: Make, reopen: Callable[[], bool], path: Path) -> None:
    file = make(slots=2**12, tick=7)
    used, allocated = len(path.read_bytes().rstrip(b"\0")), file.allocated
    file.close()
    data = path.read_bytes()
    path.unlink()
    path.touch(0o600)
    path.write_bytes(data[:used])
    os.truncate(path, len(data))
    if path.stat().st_blocks * 512 >= allocated:
        pytest.skip("this file system has no holes")
    assert reopen()
    assert path.stat().st_blocks * 512 >= allocated
    assert path.read_bytes() == data


def test_holes_are_filled_although_blocks_lie_behind_them(make: Make, reopen: Callable[[], bool], path: Path) -> None:
    file = make(slots=2**12, tick=7)
    file.grow_marks(2**17, are_times=True)
    size, start = path.stat().st_size, file.allocated - 2**17
    file.header[Header.MARKS] = 0
    file.close()
    data = path.read_bytes()
    path.unlink()
    path.touch(0o600)
    with path.open("r+b") as copied:
        copied.write(data[:PAGE])
        copied.seek(2 * PAGE)
        copied.write(data[2 * PAGE : 2 * PAGE + 8 * 2**12 - PAGE])
        copied.seek(start)
        copied.write(b"1" * 2**17)
        copied.truncate(size)
    before = path.stat().st_blocks
    assert before * 512 < size - 2 * PAGE, "this file system has no holes"
    assert reopen()
    assert (path.stat().st_blocks - before) * 512 >= PAGE + 4 * LEAST_MARKS, "the page and the cells that were left out"


def test_links_and_special_files_are_refused(path: Path) -> None:
    target = path.parent / "target"
    target.write_bytes(b"precious")
    path.symlink_to(target)
    with pytest.raises(UnsafeDirectory, match="symbolic link"):
        GenerationFile.create(path)
    with pytest.raises(UnsafeDirectory):
        GenerationFile.open_existing(path)
    path.unlink()
    path.hardlink_to(target)
    with pytest.raises(UnsafeDirectory, match="second name"):
        GenerationFile.create(path)
    path.unlink()
    os.mkfifo(path, 0o600)
    with pytest.raises(UnsafeDirectory, match="regular file"):
        GenerationFile.open_existing(path)
    assert target.read_bytes() == b"precious"


def test_a_file_that_others_own_or_write_is_refused_unless_shared(
    make: Make, path: Path, monkeypatch: pytest.MonkeyPatch, opened: list[GenerationFile]
) -> None:
    make()
    path.chmod(0o620)
    with pytest.raises(UnsafeDirectory, match="written by other users"):
        GenerationFile.open_existing(path)
    path.chmod(0o600)
    monkeypatch.setattr(os, "geteuid", lambda: path.stat().st_uid + 1)
    with pytest.raises(UnsafeDirectory, match="belongs to user"):
        GenerationFile.open_existing(path)
    shared = GenerationFile.open_existing(path, shared=True)
    assert shared is not None
    opened.append(shared)


def test_what_cannot_be_opened_names_the_path(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DirectoryError, match=r"cache\.gen") as caught:
        GenerationFile.create(path.parent / "no" / "cache.gen")
    assert caught.value.errno == errno.ENOENT
    path.mkdir()
    with pytest.raises(DirectoryError) as caught:
        GenerationFile.open_existing(path)
    assert caught.value.errno == errno.EISDIR

    def out_of_memory(*_: object) -> None:
        raise OSError(errno.ENOMEM, "no memory")

    monkeypatch.setattr(mmap, "mmap", out_of_memory)
    with pytest.raises(DirectoryError) as caught:
        GenerationFile.create(path.parent / "other.gen")
    assert caught.value.errno == errno.ENOMEM


@pytest.mark.parametrize("code", [errno.EROFS, errno.EACCES])
@pytest.mark.parametrize("open_it", [GenerationFile.create, GenerationFile.open_existing, WriteLock])
def test_a_directory_that_cannot_be_written_is_named(
    path: Path, monkeypatch: pytest.MonkeyPatch, code: int, open_it: Callable[[Path], object]
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refuse)
        with pytest.raises(DirectoryError, match=r"cache\.gen") as caught:
            open_it(path)
    assert caught.value.errno == code


def test_header_words_do_not_collide() -> None:
    numbers = [value for name, value in vars(Header).items() if name.isupper()]
    assert len(numbers) == len(set(numbers))
    assert max(numbers) < HEADER_WORDS
