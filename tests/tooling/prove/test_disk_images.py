"""The model of a disk in the rig: what was synced is always there, and of the rest everything that may happen does."""

from __future__ import annotations

import os
import random
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from prove.power.disk_images import PAGE, SECTOR, Disk, Event, Image, Kind, mapped, parse, read, write
from prove.proof import CannotRun
from prove.shim import build

from ...support import project

ROOT, FILE, OTHER, DIRECTORY = 1, 2, 3, 4
DRAWN = 400


def disk_of(*events: Event) -> Disk:
    """Return a disk on which this was done, below /disk."""
    disk = Disk("/disk", ROOT)
    for event in events:
        disk.apply(event)
    return disk


def images(*events: Event) -> list[Image]:
    """Return many images of such a disk."""
    disk, source = disk_of(*events), random.Random(1)
    return [disk.image(source) for _ in range(DRAWN)]


def created(name: str = "a", inode: int = FILE) -> Event:
    return Event(Kind.CREATED, f"/disk/{name}", inode=inode)


def written(data: bytes, offset: int = 0, inode: int = FILE) -> Event:
    return Event(Kind.WRITTEN, inode=inode, offset=offset, data=data)


def synced(inode: int = FILE) -> Event:
    return Event(Kind.SYNCED, inode=inode)


THERE = (created(), synced(ROOT))  # an empty file that is there for good


def contents(*events: Event) -> set[bytes]:
    """Return what the file of THERE holds in many images."""
    found = {image["a"] for image in images(*THERE, *events)}
    assert None not in found
    return {content for content in found if content is not None}


def names(*events: Event) -> set[tuple[str, ...]]:
    """Return which names are there in many images."""
    return {tuple(sorted(image)) for image in images(*events)}


# -- content ----------------------------------------------------------------------------------------------------------


def test_what_was_synced_is_always_there() -> None:
    assert contents(written(b"one" * SECTOR), written(b"two", SECTOR), synced()) == {
        (b"one" * SECTOR)[:SECTOR] + b"two" + (b"one" * SECTOR)[SECTOR + 3 :]
    }


def test_what_was_not_synced_may_be_there_or_not() -> None:
    found = contents(written(b"old"), synced(), written(b"new"))
    assert {b"old", b"new"} < found  # and garbage


def test_each_sector_is_lost_or_kept_for_itself() -> None:
    found = contents(written(b"-" * 3 * SECTOR), synced(), written(b"+" * 3 * SECTOR))
    wanted = {
        bytes(sign for sign in signs for _ in range(SECTOR))
        for signs in (b"+++", b"++-", b"+-+", b"-++", b"+--", b"-+-", b"--+", b"---")
    }
    assert wanted < found


def test_a_sector_never_has_a_newer_write_without_an_older_one() -> None:
    older, newer = written(b"A" * 200, 0), written(b"B" * 200, 200)
    found = contents(written(b"-" * SECTOR), synced(), older, newer)
    assert any(content[200:400] == b"B" * 200 for content in found)
    assert any(content[:400] == b"A" * 200 + b"-" * 200 for content in found)
    assert all(content[:200] == b"A" * 200 for content in found if content[200:400] == b"B" * 200)


def test_bytes_that_a_lost_write_does_not_cover_are_unharmed() -> None:
    found = contents(written(b"-" * SECTOR), synced(), written(b"+" * 100, 200))
    assert {content[:200] + content[300:] for content in found} == {b"-" * (SECTOR - 100)}
    assert any(content[200:300] not in (b"+" * 100, b"-" * 100) for content in found)  # garbage


def test_a_write_to_another_sector_may_overtake() -> None:
    found = contents(written(b"-" * 2 * SECTOR), synced(), written(b"1" * SECTOR), written(b"2" * SECTOR, SECTOR))
    assert b"-" * SECTOR + b"2" * SECTOR in found


def test_the_size_may_be_kept_while_the_data_is_lost() -> None:
    found = contents(written(b"+" * SECTOR))
    assert {b"", b"+" * SECTOR, bytes(SECTOR)} < found


def test_cutting_a_file_may_be_lost_and_may_be_kept() -> None:
    found = contents(written(b"-" * SECTOR), synced(), Event(Kind.TRUNCATED, inode=FILE, offset=100))
    assert {b"-" * SECTOR, b"-" * 100} <= found
    assert contents(written(b"-" * SECTOR), Event(Kind.TRUNCATED, inode=FILE, offset=100), synced()) == {b"-" * 100}


def test_what_was_cut_off_does_not_come_back_when_the_file_grows() -> None:
    cut, grown = (Event(Kind.TRUNCATED, inode=FILE, offset=size) for size in (100, 200))
    assert contents(written(b"-" * SECTOR), cut, grown, synced()) == {b"-" * 100 + bytes(100)}


# -- names ------------------------------------------------------------------------------------------------------------


def test_syncing_a_file_does_not_sync_its_name() -> None:
    assert names(created(), written(b"x"), synced()) == {(), ("a",)}
    assert names(created(), written(b"x"), synced(ROOT)) == {("a",)}


def test_names_are_lost_each_for_itself() -> None:
    assert names(created("a"), created("b", OTHER)) == {(), ("a",), ("b",), ("a", "b")}


def test_removing_a_name_may_be_lost_until_the_directory_is_synced() -> None:
    gone = Event(Kind.UNLINKED, "/disk/a")
    assert names(*THERE, gone) == {(), ("a",)}
    assert names(*THERE, gone, synced(ROOT)) == {()}


def test_a_rename_is_there_at_both_names_or_at_neither() -> None:
    assert names(*THERE, Event(Kind.RENAMED, "/disk/a", "/disk/b")) == {("a",), ("b",)}


def test_a_rename_over_a_name_leaves_one_of_the_two_files() -> None:
    both = (created(), written(b"old"), synced(), created("b", OTHER), written(b"new", 0, OTHER), synced(OTHER))
    found = images(*both, synced(ROOT), Event(Kind.RENAMED, "/disk/b", "/disk/a"))
    assert {tuple(image.items()) for image in found} == {(("a", b"new"),), (("a", b"old"), ("b", b"new"))}


def test_a_rename_that_one_directory_knows_the_other_knows_too() -> None:
    made = Event(Kind.MADE, "/disk/d", inode=DIRECTORY)
    moved = Event(Kind.RENAMED, "/disk/a", "/disk/d/a")
    assert names(*THERE, made, synced(ROOT), moved) == {("a", "d"), ("d", "d/a")}
    assert names(*THERE, made, synced(ROOT), moved, synced(DIRECTORY)) == {("d", "d/a")}
    # with it goes what had happened to the old name before
    assert names(created(), made, synced(ROOT), created("b", OTHER), moved, synced(DIRECTORY)) == {
        ("d", "d/a"),
        ("b", "d", "d/a"),
    }


def test_a_directory_takes_what_is_in_it_along() -> None:
    made, inner = Event(Kind.MADE, "/disk/d", inode=DIRECTORY), created("d/a")
    assert names(made, inner, synced(DIRECTORY)) == {(), ("d", "d/a")}
    assert names(made, inner, synced(ROOT)) == {("d",), ("d", "d/a")}
    gone = (Event(Kind.UNLINKED, "/disk/d/a"), Event(Kind.REMOVED, "/disk/d"))
    assert names(made, inner, synced(DIRECTORY), synced(ROOT), *gone, synced(ROOT)) == {()}


def test_a_file_without_a_name_is_there_once_it_is_linked() -> None:
    unnamed = (Event(Kind.CREATED, inode=FILE), written(b"x"), synced())
    assert names(*unnamed) == {()}
    linked = Event(Kind.LINKED, "/disk/a", inode=FILE)
    assert {image["a"] for image in images(*unnamed, linked, synced(ROOT))} == {b"x"}


def test_an_inode_that_is_used_again_is_another_file() -> None:
    again = (Event(Kind.UNLINKED, "/disk/a"), created("b"), written(b"new"), synced())
    found = images(created(), written(b"old"), synced(), synced(ROOT), *again)
    assert {image.get("a", b"old") for image in found} == {b"old"}
    assert {image.get("b", b"new") for image in found} == {b"new"}


# -- the log ----------------------------------------------------------------------------------------------------------


def record(
    kind: int, first: bytes = b"", second: bytes = b"", inode: int = 0, offset: int = 0, data: bytes = b""
) -> bytes:
    """Return a record as shim.c writes it."""
    return struct.pack("=4I3Q", kind, len(first), len(second), 0, inode, offset, len(data)) + first + second + data


def test_a_log_is_read_as_it_was_written() -> None:
    log = (
        record(1, b"/disk/a", inode=7) + record(2, inode=7, offset=3, data=b"data") + record(5, b"/disk/a", b"/disk/b")
    )
    made, wrote, renamed = parse(log)
    assert made == Event(Kind.CREATED, "/disk/a", inode=7, end=47)
    assert wrote == Event(Kind.WRITTEN, inode=7, offset=3, data=b"data", end=91)
    assert renamed == Event(Kind.RENAMED, "/disk/a", "/disk/b", end=len(log))


@pytest.mark.parametrize("left", [1, 39, 41, 46])
def test_a_log_that_is_cut_off_is_refused(left: int) -> None:
    with pytest.raises(ValueError, match="ends within a record"):
        list(parse(record(1, b"/disk/a", inode=7)[:left]))


def test_a_log_that_leaves_something_out_is_refused() -> None:
    with pytest.raises(ValueError, match="inode 2, which it did not create"):
        disk_of(written(b"x"))
    with pytest.raises(ValueError, match="no directory that the log has made"):
        disk_of(created("d/a"))
    with pytest.raises(ValueError, match="exchanging"):
        disk_of(*THERE, Event(Kind.RENAMED, "/disk/a", "/disk/b", offset=2))


WORK = """
import os, sys
from pathlib import Path
from prove.shim import Shim
root = Path(sys.argv[1])
with Shim(root).recording(Path(sys.argv[2])):
    os.makedirs(root / "one/two")
    (root / "one/first").write_bytes(b"first" * 1000)
    with open(root / "one/first", "r+b", buffering=0) as file:
        os.pwrite(file.fileno(), b"changed", 700)
        file.seek(3)
        file.write(b"also")
        file.truncate(4000)
        os.fsync(file.fileno())
        os.posix_fallocate(file.fileno(), 0, 9000)
    with open(root / "one/first", "ab") as file:
        file.write(b"appended")
    (root / "gone").write_bytes(b"x")
    (root / "gone").unlink()
    (root / "gone").write_bytes(b"here again")
    os.rename(root / "gone", root / "one/two/moved")
    os.link(root / "one/first", root / "second name")
    unnamed = os.open(root, os.O_TMPFILE | os.O_WRONLY, 0o600)
    os.write(unnamed, b"without a name")
    inner = os.open(root / "one", os.O_RDONLY)
    os.link(f"/proc/self/fd/{unnamed}", "named", dst_dir_fd=inner, follow_symlinks=True)
    os.mkdir("relative", dir_fd=inner)
    os.rmdir("relative", dir_fd=inner)
    os.fsync(inner)
    open(root / "one/two/moved", "wb").close()
"""


@pytest.fixture(scope="module")
def layer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    try:
        return build(tmp_path_factory.mktemp("layer"))
    except CannotRun as reason:
        pytest.skip(f"no compiler: {reason}")


def test_everything_that_is_done_to_files_is_recorded(layer: Path, tmp_path: Path) -> None:
    root, log = tmp_path / "disk", tmp_path / "log"
    root.mkdir()
    subprocess.run(
        [sys.executable, "-c", WORK, root, log],
        env={**os.environ, "LD_PRELOAD": str(layer)},
        cwd=project.ROOT,
        check=True,
    )
    events = list(parse(log.read_bytes()))
    disk = Disk(str(root), root.stat().st_ino)
    for event in events:
        disk.apply(event)
    assert disk.complete() == read(root)
    assert [event.kind for event in events].count(Kind.SYNCED) == 2
    assert all(
        "one/named" in disk.image(random.Random(seed)) for seed in range(20) if "one" in disk.image(random.Random(seed))
    )


# -- maps and files -----------------------------------------------------------------------------------------------


def test_a_mapped_file_has_pages_of_any_time_zeros_or_garbage() -> None:
    source = random.Random(1)
    seen = [bytes([number]) * 2 * PAGE for number in (1, 2)]
    found = [mapped(PAGE + 100, seen, source) for _ in range(DRAWN)]
    assert {len(content) for content in found} == {PAGE + 100}
    firsts = {content[:PAGE] for content in found}
    assert {bytes(PAGE), seen[0][:PAGE], seen[1][:PAGE]} < firsts
    assert any(content[:1] == b"\1" and content[-1:] == b"\2" for content in found)


def test_an_image_is_what_it_is_written_as(tmp_path: Path) -> None:
    image: Image = {"d": None, "d/inner": b"content", "empty": b""}
    write(image, tmp_path / "disk")
    assert read(tmp_path / "disk") == image
