"""Where a cache may be: remote file systems are refused, FUSE is warned of, and Linux's own are fine."""

from __future__ import annotations

import errno
import os
import pickle
import re
import shutil
import subprocess
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from diskcache_like import Cache, DirectoryError, FanoutCache, FileSystemWarning, Index, SettingError
from diskcache_like.storage.opening import file_system
from diskcache_like.system import mounts
from diskcache_like.system.mounts import Mount, mount_of

from ..support.small_disks import Disk

MAKERS = pytest.mark.parametrize("make", [Cache, FanoutCache])
REMOTE = ["9p", "virtiofs", "drvfs", "nfs", "nfs4", "cifs", "smb3", "smbfs", "fakeowner", "vboxsf", "fuse.osxfs"]
LOCAL = ["ext4", "xfs", "btrfs", "zfs", "tmpfs", "overlay", "f2fs", "ramfs", "fuseblk", "bcachefs"]

Pretend = Callable[[str], None]


@pytest.fixture
def pretend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pretend:
    """Return a function that has the system say that the tests' directory is on a mount of some type."""
    descriptor = os.open(tmp_path, os.O_RDONLY)
    (number,) = re.findall(r"^mnt_id:\s*(\d+)", Path(f"/proc/self/fdinfo/{descriptor}").read_text(), re.MULTILINE)
    os.close(descriptor)
    table = tmp_path / "mountinfo"

    def say(kind: str) -> None:
        table.write_text(
            f"1{number} 1 0:50 / /wrong rw - proc proc rw\n"
            f"{number} 1 0:51 / /mnt/with\\040blank rw,relatime shared:1 master:2 - {kind} some\\040source rw,x=- y\n"
            "2 1 0:52 / /other rw - proc proc rw\n"
        )
        monkeypatch.setattr(mounts, "MOUNTS", str(table))
        monkeypatch.setattr(os, "major", lambda _: 0)

    monkeypatch.setattr(file_system, "_warned", set())
    return say


@MAKERS
@pytest.mark.parametrize("kind", REMOTE)
def test_a_remote_file_system_is_refused_before_anything_is_made(
    make: type[Cache], kind: str, pretend: Pretend, tmp_path: Path
) -> None:
    pretend(kind)
    with pytest.raises(DirectoryError, match=rf"type {kind} \(/mnt/with blank\).*allow_filesystem=True") as raised:
        make(tmp_path / "some" / "cache")
    assert raised.value.errno == errno.EOPNOTSUPP
    assert raised.value.filename == str(tmp_path / "some" / "cache")
    assert not (tmp_path / "some").exists()


@MAKERS
@pytest.mark.parametrize("kind", ["9p", "fuse.bindfs"])
def test_it_can_be_allowed_and_copies_of_the_handle_allow_it_too(
    make: type[Cache], kind: str, pretend: Pretend, tmp_path: Path
) -> None:
    pretend(kind)
    with make(tmp_path / "cache", allow_filesystem=True) as cache:
        cache["key"] = "value"
        with pickle.loads(pickle.dumps(cache)) as other:
            assert other["key"] == "value"
        if isinstance(cache, FanoutCache):
            cache.cache("child").close()
            assert len(cache.index("index")) == len(cache.deque("deque")) == 0
        assert list(Index.fromcache(cache)) == ["key"]


@pytest.mark.parametrize("kind", LOCAL)
def test_linuxs_own_file_systems_are_fine(kind: str, pretend: Pretend, tmp_path: Path) -> None:
    pretend(kind)
    Cache(tmp_path / "cache").close()


@pytest.mark.parametrize("kind", ["fuse", "fuse.bindfs", "fuse.sshfs", "fuse.fuse-overlayfs"])
def test_fuse_is_warned_of_once_with_the_consequence(kind: str, pretend: Pretend, tmp_path: Path) -> None:
    pretend(kind)
    with pytest.warns(FileSystemWarning, match=rf"type {kind} .*reads may be stale and writes lost") as caught:
        Cache(tmp_path / "cache").close()
    assert [warning.filename for warning in caught] == [__file__]
    FanoutCache(tmp_path / "another").close()  # warnings are errors here


def test_a_warning_that_is_an_error_refuses_each_time(pretend: Pretend, tmp_path: Path) -> None:
    pretend("fuse.bindfs")
    for _ in range(2):
        with pytest.raises(FileSystemWarning):
            Cache(tmp_path / "cache")


@pytest.mark.parametrize("given", [1, "yes", None])
def test_the_option_is_checked(given: Any, tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"allow_filesystem is .*, expected True or False"):
        Cache(tmp_path / "cache", allow_filesystem=given)


@pytest.mark.parametrize("missing", ["MOUNTS", "DESCRIPTORS"])
def test_what_cannot_be_known_is_not_refused(missing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "major", lambda _: 0)
    monkeypatch.setattr(mounts, missing, str(tmp_path / "nothing"))
    Cache(tmp_path / "cache").close()
    (tmp_path / "file").touch()
    assert mount_of(str(tmp_path / "file")) is None


@contextmanager
def mounted_as(point: Path, *command: str) -> Iterator[Path]:
    """Run a command that mounts something at a new directory, for the length of a with-block."""
    point.mkdir()
    done = subprocess.run([*command, str(point)], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"mount is not permitted: {done.stderr.strip()}")
    try:
        yield point
    finally:
        subprocess.run(["umount", "--lazy", str(point)], check=True)


def test_overlay_and_tmpfs_are_fine_where_they_are_mounted(disk: Disk, tmp_path: Path) -> None:
    for name in ("lower", "upper", "work"):
        (disk.path / name).mkdir(mode=0o700)
    places = ",".join(f"{name}dir={disk.path / name}" for name in ("lower", "upper", "work"))
    with mounted_as(tmp_path / "over lay", "mount", "-t", "overlay", "overlay", "-o", places) as point:
        assert mount_of(str(point / "cache")) == Mount("overlay", str(point))
        Cache(point / "cache").close()
    assert mount_of(str(disk.path)) == Mount("tmpfs", str(disk.path))
    Cache(disk.path / "cache").close()


@pytest.mark.skipif(not shutil.which("bindfs"), reason="bindfs is not installed")
def test_a_mount_of_fuse_is_recognised(tmp_path: Path) -> None:
    (tmp_path / "below").mkdir(mode=0o700)
    with mounted_as(tmp_path / "mounted", "bindfs", "--no-allow-other", str(tmp_path / "below")) as point:
        with pytest.warns(FileSystemWarning, match=re.escape(str(point))):
            Cache(point / "cache").close()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            Cache(point / "cache").close()
            Cache(tmp_path / "below" / "cache").close()
