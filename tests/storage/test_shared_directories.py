"""`shared=True`: several users of one group have one cache open, whatever their umasks are."""

from __future__ import annotations

import codecs
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from diskcache_like import Cache, DirectoryError, FanoutCache, UnreadableFileWarning, UnsafeDirectory
from diskcache_like.coherence.control_files import open_control_file
from diskcache_like.disk import file_io
from diskcache_like.storage.sqlite.connection import prepare_file

from ..support.workers import Link, forked

GROUP = 60_100
LARGE = b"x" * 100_000
MAKERS = pytest.mark.parametrize("make", [Cache, FanoutCache])
NEEDS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as other users")


class User(NamedTuple):
    """Somebody, mostly in the group; `primary` is the group of what they make elsewhere."""

    uid: int
    umask: int = 0o077
    primary: int = GROUP
    groups: tuple[int, ...] = (GROUP,)

    def __call__(self, work: Callable[[], Any]) -> Any:
        """Return what `work` returns in a child process of this user."""
        with forked(lambda _: self.become(work)) as child:
            return child.result()

    def become(self, work: Callable[[], Any]) -> Any:
        """Become this user for good and return what `work` returns."""
        codecs.lookup("ascii")  # while the files of this Python can be read: they may be in root's home
        os.setgroups(self.groups)
        os.setgid(self.primary)
        os.setuid(self.uid)
        os.umask(self.umask)
        return work()


ADA, BEN = User(60_001), User(60_002)


@pytest.fixture
def public() -> Iterator[Path]:
    """Return a directory in which everybody in the group may make others; pytest's own can be reached by nobody."""
    path = Path(tempfile.mkdtemp(prefix="public-"))
    os.chown(path, 0, GROUP)
    path.chmod(0o775)
    yield path
    shutil.rmtree(path)


@pytest.fixture(params=[0, 0o022, 0o077])
def umask(request: pytest.FixtureRequest) -> Iterator[None]:
    before = os.umask(request.param)
    yield
    os.umask(before)


def fill(make: type[Cache], directory: Path, **options: Any) -> None:
    with make(directory, shared=True, **options) as cache:
        for number in range(20):
            cache[number] = number
            cache["large", number] = LARGE
        cache.set("stream", BytesIO(LARGE), read=True)
        cache["array"] = np.zeros(100_000)
        with cache.open("written", "wb") as file:
            file.write(LARGE)


def use(make: type[Cache], directory: Path) -> None:
    """Read, replace and remove what another user stored, and store new."""
    with make(directory, shared=True) as cache:
        for number in range(20):
            assert cache[number] == number
            assert cache["large", number] == LARGE
            assert cache.incr(number) == number + 1
            cache["large", number] = LARGE + b"y"
            cache["mine", number] = LARGE
        assert cache["stream"] == cache["written"] == LARGE
        assert len(cache["array"]) == 100_000
        with cache.transact():
            del cache["stream"]
            assert cache.pop("written") == LARGE
        assert cache.check(fix=True) == []
        cache.cull()


def modes(root: Path) -> dict[bool, set[int]]:
    """Return the modes of all folders (True) and of all files (False) at and below a directory."""
    found: dict[bool, set[int]] = {True: set(), False: set()}
    for path in (root, *root.rglob("*")):
        found[path.is_dir()].add(stat.S_IMODE(path.stat().st_mode))
    return found


@MAKERS
@pytest.mark.usefixtures("umask")
def test_files_are_0660_and_folders_2770_whatever_the_umask(make: type[Cache], tmp_path: Path) -> None:
    with make(tmp_path / "some" / "cache", shared=True) as cache:
        fill(make, Path(cache.directory))  # while it is open, so that SQLite's own files are there
        assert {path.suffix for path in Path(cache.directory).rglob("*")} >= {".db", ".db-wal", ".db-shm", ".val"}
        assert modes(tmp_path / "some") == {True: {0o2770}, False: {0o660}}


@MAKERS
@pytest.mark.usefixtures("umask")
def test_without_shared_nobody_else_gets_in(make: type[Cache], tmp_path: Path) -> None:
    with make(tmp_path / "cache") as cache:
        cache["large"] = LARGE
        assert modes(tmp_path / "cache") == {True: {0o700}, False: {0o600}}


@pytest.mark.usefixtures("umask")
def test_a_database_that_takes_the_place_of_a_damaged_one_is_shared_too(tmp_path: Path) -> None:
    with Cache(tmp_path / "cache", shared=True) as cache:
        cache[1] = 1
    (tmp_path / "cache" / "cache.db").write_bytes(b"damaged")
    with pytest.warns(UserWarning, match="goes on empty"):
        cache = Cache(tmp_path / "cache", shared=True)
    with cache:
        cache[1] = 1
        assert stat.S_IMODE((tmp_path / "cache" / "cache.1.db").stat().st_mode) == 0o660


@NEEDS_ROOT
@MAKERS
@pytest.mark.parametrize("umasks", [(0o077, 0o077), (0o022, 0o077), (0o077, 0o002)])
def test_two_users_of_a_group_share_a_cache(make: type[Cache], umasks: tuple[int, int], public: Path) -> None:
    ada, ben = ADA._replace(umask=umasks[0]), BEN._replace(umask=umasks[1])
    ada(lambda: fill(make, public / "cache"))
    ben(lambda: use(make, public / "cache"))
    ada(lambda: use_again(make, public / "cache"))


def use_again(make: type[Cache], directory: Path) -> None:
    with make(directory, shared=True) as cache:
        assert all(cache["large", number] == LARGE + b"y" for number in range(20))
        assert all(cache.pop(("mine", number)) == LARGE for number in range(20))
        assert cache.check() == []


@NEEDS_ROOT
@MAKERS
@pytest.mark.parametrize("mode", [0o770, 0o2770])
def test_they_do_in_a_directory_of_the_group_that_was_made_for_them(make: type[Cache], mode: int, public: Path) -> None:
    directory = public / "cache"
    directory.mkdir()
    os.chown(directory, ADA.uid, GROUP)
    directory.chmod(mode)
    ada, ben = ADA._replace(primary=ADA.uid), BEN._replace(primary=BEN.uid)  # each in a group of their own, too
    ada(lambda: fill(make, directory))
    ben(lambda: use(make, directory))
    assert {path.stat().st_gid for path in directory.rglob("*")} == {GROUP}
    assert {path.stat().st_uid for path in directory.rglob("*.val")} == {ADA.uid, BEN.uid}
    ada(lambda: use_again(make, directory))


@NEEDS_ROOT
def test_a_directory_that_everybody_or_nobody_else_may_write_keeps_its_mode(public: Path) -> None:
    for mode in (0o700, 0o750, 0o777):
        directory = public / f"cache {mode:o}"
        directory.mkdir()
        directory.chmod(mode)
        Cache(directory, shared=True).close()
        assert stat.S_IMODE(directory.stat().st_mode) == mode


@NEEDS_ROOT
def test_both_at_once(public: Path) -> None:
    """Each makes folders that the other enters."""

    def write() -> None:
        with Cache(public / "cache", shared=True) as cache:
            for number in range(150):
                cache[os.getuid(), number] = LARGE[:40_000]
                assert cache[os.getuid(), number] == LARGE[:40_000]

    with forked(lambda _: ADA.become(write)) as first, forked(lambda _: BEN.become(write)) as second:
        first.result()
        second.result()
    with Cache(public / "cache", shared=True) as cache:
        assert len(cache) == 300
        assert cache.check() == []


@NEEDS_ROOT
def test_who_is_not_in_the_group_or_does_not_say_shared_is_refused(public: Path) -> None:
    ADA(lambda: fill(Cache, public / "cache"))

    def refusal(**options: Any) -> str:
        with pytest.raises(DirectoryError) as raised:
            Cache(public / "cache", **options)
        return type(raised.value).__name__

    assert BEN(refusal) == UnsafeDirectory.__name__
    stranger = BEN._replace(primary=BEN.uid, groups=())
    assert stranger(lambda: refusal(shared=True)) == DirectoryError.__name__


@NEEDS_ROOT
@MAKERS
def test_a_value_file_that_cannot_be_read_is_a_miss_with_one_warning(make: type[Cache], public: Path) -> None:
    ADA(lambda: fill(make, public / "cache"))
    for path in (public / "cache").rglob("*.val"):
        path.chmod(0o600)

    def look() -> None:
        with make(public / "cache", shared=True) as cache:
            with pytest.warns(UnreadableFileWarning, match=r"key \('large', 1\): .*Permission denied"):
                assert cache.get(("large", 1), "default") == "default"
            assert cache.get("stream", read=True) is None  # with no second warning, which would be an error here
            assert cache.get("array", mmap=True) is None
            assert cache.get_many(["written", 1]) == {1: 1}
            assert cache.metrics().missing_files == 4
            assert cache.pop("written") is None
            assert cache[1] == 1
            cache["large", 1] = 5
            assert cache["large", 1] == 5
            before = len(cache)
            assert cache.check(fix=True)
            assert len(cache) == before, "who may read them keeps them"
        with make(public / "cache", shared=True, strict=True) as cache, pytest.raises(DirectoryError):
            cache.get(("large", 2))

    BEN(look)
    ADA(lambda: [Cache(public / "cache", shared=True).get(("large", 2)), None][-1])


@NEEDS_ROOT
def test_an_item_of_a_queue_that_cannot_be_read_stays_for_who_can(public: Path) -> None:
    def push() -> None:
        with Cache(public / "cache", shared=True) as cache:
            cache.push(LARGE)

    def pull(prefix: None = None) -> Any:
        with Cache(public / "cache", shared=True) as cache:
            return cache.pull(prefix)[1]

    ADA(push)
    for path in (public / "cache").rglob("*.val"):
        path.chmod(0o600)

    def pull_and_be_warned() -> Any:
        with pytest.warns(UnreadableFileWarning):
            return pull()

    assert BEN(pull_and_be_warned) is None
    assert ADA(pull) == LARGE


def test_another_error_of_a_value_file_is_still_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Cache(tmp_path / "cache", shared=True) as cache:
        cache["large"] = LARGE

        def failing(root: str, name: str, size: int) -> Any:
            raise DirectoryError(5, "the disk fails", root)

        monkeypatch.setattr(file_io, "read", failing)
        with pytest.raises(DirectoryError, match="the disk fails"):
            cache.get("large")


@NEEDS_ROOT
def test_what_another_user_makes_just_now_is_tried_again(public: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between mkdir or open and `set_mode`, the umask keeps the group out."""
    ADA(lambda: Cache(public / "cache", shared=True).close())
    root = public / "cache"
    (root / "ab").mkdir()
    os.chown(root / "ab", ADA.uid, GROUP)
    (root / "ab").chmod(0o700)
    (root / "cache.lock").chmod(0o600)

    def as_root(step: Callable[[], None]) -> None:
        os.seteuid(0)
        step()
        os.seteuid(BEN.uid)

    def run(_: Link) -> None:
        os.setgroups([GROUP])
        os.seteuid(BEN.uid)
        monkeypatch.setattr(time, "sleep", lambda _: as_root(lambda: (root / "ab").chmod(0o2770)))
        file_io.create(str(root), f"ab/{'e' * 30}.val").close()
        monkeypatch.setattr(time, "sleep", lambda _: as_root(lambda: (root / "cache.lock").chmod(0o660)))
        os.close(open_control_file(root / "cache.lock", create=True, shared=True))

    with forked(run) as child:
        child.result()


def test_a_database_file_that_is_there_keeps_its_mode(tmp_path: Path) -> None:
    with Cache(tmp_path / "cache", shared=True) as cache:
        settings = cache._handle.settings
        path = tmp_path / "cache" / "cache.db"
        path.chmod(0o640)
        prepare_file(str(path), settings, 1.0, True).close()
        assert stat.S_IMODE(path.stat().st_mode) == 0o640
