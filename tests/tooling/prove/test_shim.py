"""The layer in front of the C library refuses the calls that it is told to refuse, and no others."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from prove.proof import CannotRun
from prove.shim import build

from ...support.project import ROOT

BEGIN = """
import contextlib, errno, fcntl, mmap, os, sys
from pathlib import Path
from prove.shim import Call, Shim

inside = Path(sys.argv[1]) / "inside"
inside.mkdir()
shim = Shim(inside)
outside = os.open(inside.parent / "outside", os.O_CREAT | os.O_RDWR)
file = os.open(inside / "file", os.O_CREAT | os.O_RDWR)


def refused(do, *arguments):
    try:
        do(*arguments)
    except OSError as error:
        return error.errno
    return 0


"""


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    try:
        return build(tmp_path_factory.mktemp("shim"))
    except CannotRun as reason:
        pytest.skip(str(reason))


def with_shim(shim: Path, directory: Path, code: str) -> None:
    """Run code in a process that has the layer in front."""
    done = subprocess.run(
        [sys.executable, "-c", BEGIN + textwrap.dedent(code), str(directory)],
        env={**os.environ, "LD_PRELOAD": str(shim)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_one_call_is_refused(shim: Path, tmp_path: Path) -> None:
    with_shim(
        shim,
        tmp_path,
        """
        with shim.refusing(Call.WRITE, 2, errno.ENOSPC):
            assert [refused(os.write, file, b"abc") for _ in range(4)] == [0, errno.ENOSPC, 0, 0]
            assert shim.calls(Call.WRITE) == 4
            assert refused(os.write, outside, b"abc") == 0
            assert shim.calls(Call.WRITE) == 4
        assert refused(os.write, file, b"abc") == 0
        assert os.fstat(file).st_size == 12
        """,
    )


def test_all_calls_from_one_on_are_refused(shim: Path, tmp_path: Path) -> None:
    with_shim(
        shim,
        tmp_path,
        """
        with shim.refusing(Call.WRITE, 2, errno.EIO, sticky=True):
            assert [refused(os.pwrite, file, b"abc", 0) for _ in range(3)] == [0, errno.EIO, errno.EIO]
        with shim.refusing(Call.WRITE, 0, errno.EIO, sticky=True):
            assert [refused(os.pwrite, file, b"abc", 0) for _ in range(3)] == [0, 0, 0]
            assert shim.calls(Call.WRITE) == 3, "the count begins anew"
        """,
    )


def test_a_write_is_cut_short(shim: Path, tmp_path: Path) -> None:
    with_shim(
        shim,
        tmp_path,
        """
        with shim.refusing(Call.WRITE, 1, 0, part=250):
            assert os.write(file, bytes(1000)) == 250
            assert os.write(file, bytes(1000)) == 1000
        with shim.refusing(Call.WRITE, 1, 0, part=1, sticky=True):
            assert os.write(file, bytes(10)) == 1, "never nothing, or a caller would try for ever"
        """,
    )


CLASSES = {
    "OPEN": "os.open, inside / 'file', os.O_RDONLY",
    "READ": "os.read, file, 1",
    "WRITE": "os.pwrite, file, b'a', 0",
    "TRUNCATE": "os.ftruncate, file, 5",
    "SYNC": "os.fdatasync, file",
    "LOCK": "fcntl.flock, file, fcntl.LOCK_EX",
    "MAP": "mmap.mmap, file, 3",
    "UNLINK": "os.unlink, inside / 'file'",
    "RENAME": "os.rename, inside / 'file', inside / 'other'",
    "MKDIR": "os.mkdir, inside / 'directory'",
    "LINK": "os.link, inside / 'file', inside / 'link'",
}
OTHERS = {
    "READ": "os.pread, file, 1, 0",
    "TRUNCATE": "os.posix_fallocate, file, 0, 5",
    "SYNC": "os.fsync, file",
    "LOCK": "fcntl.lockf, file, fcntl.LOCK_EX",
    "UNLINK": "os.rmdir, inside / 'file'",
    "RENAME": "os.replace, inside / 'file', inside / 'other'",
}
CALLS = [*CLASSES.items(), *OTHERS.items()]


@pytest.mark.parametrize(("name", "call"), CALLS)
def test_each_class_of_calls_can_be_refused(shim: Path, tmp_path: Path, name: str, call: str) -> None:
    with_shim(
        shim,
        tmp_path,
        f"""
        os.write(file, b"abc")
        os.lseek(file, 0, os.SEEK_SET)
        with shim.refusing(Call.{name}, 1, errno.EXDEV):
            assert refused({call}) == errno.EXDEV
            assert (inside / "file").stat().st_size == 3 and os.listdir(inside) == ["file"]
            assert refused({call}) != errno.EXDEV
        """,
    )


def test_locks_can_be_freed_while_they_are_refused(shim: Path, tmp_path: Path) -> None:
    with_shim(
        shim,
        tmp_path,
        """
        with shim.refusing(Call.LOCK, 1, errno.ENOLCK, sticky=True):
            assert refused(fcntl.flock, file, fcntl.LOCK_UN) == 0
            assert refused(fcntl.lockf, file, fcntl.LOCK_UN) == 0
        """,
    )


@pytest.mark.parametrize("name", ["WRITE", "TRUNCATE", "UNLINK", "RENAME", "MKDIR", "LINK"])
def test_a_file_system_that_became_read_only_refuses_changes(shim: Path, tmp_path: Path, name: str) -> None:
    with_shim(
        shim,
        tmp_path,
        f"""
        os.write(file, b"abc")
        with shim.read_only():
            assert refused({CLASSES[name]}) == errno.EROFS
            for flags in (os.O_WRONLY, os.O_RDWR, os.O_RDONLY | os.O_CREAT):
                assert refused(os.open, inside / "file", flags) == errno.EROFS
            assert (inside / "file").read_bytes() == b"abc"
            assert refused(os.write, outside, b"abc") == 0
        assert refused({CLASSES[name]}) == 0
        """,
    )


def test_children_write_into_one_log_in_the_order_of_their_calls(shim: Path, tmp_path: Path) -> None:
    """What each wrote is there whole, and what was written last to a place is what is found there."""
    with_shim(
        shim,
        tmp_path,
        """
        from prove.power.disk_images import parse
        log = inside.parent / "log"
        with shim.recording(log):
            children = []
            gate, opens = os.pipe()
            for number in range(3):
                if pid := os.fork():
                    children.append(pid)
                    continue
                os.close(opens)
                os.read(gate, 1)  # until all are there
                for turn in range(2_000):
                    os.pwrite(file, b"%d %04d" % (number, turn) * 100, 0)
                    os.sched_yield()  # or a busy machine lets one write all of its own first
                os._exit(0)
            os.close(opens)
            assert [os.waitpid(child, 0)[1] for child in children] == [0, 0, 0]
        events = list(parse(log.read_bytes()))
        assert len(events) == 6_000
        assert events[-1].data == (inside / "file").read_bytes()
        begun = [event.data[:1] for event in events]
        assert sum(one != other for one, other in zip(begun, begun[1:])) > 10, "they did not write at once"
        """,
    )
