"""Planted files: links and special files in place of a cache's own, and generations that nobody can have counted."""

from __future__ import annotations

import os
import random
import resource
import signal
import socket
import stat
import traceback
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import NamedTuple, NoReturn
from unittest import mock

from diskcache_like.coherence.generations import HEADER_WORDS
from diskcache_like.disk import file_io
from diskcache_like.errors import CacheError
from tests.support.audit_hooks import Outside, Watch

from ..proof import CannotRun, Trial
from .samples import (
    BUFFER,
    Judge,
    Refused,
    Sample,
    Tries,
    Workbench,
    attempt,
    believe,
    deadline,
    make,
    tried,
)

WATCH = Watch()
LIKELY = ("cache.db-wal", "cache.db-shm", "cache.db-journal", "cache.1.db")  # that may be there, and are not now


Content = bytes | dict[str, bytes]  # of a file, or of those in a directory

# -- links and special files ------------------------------------------------------------------------------------------


def _link_out(path: Path, outside: Outside, content: Content) -> None:
    path.symlink_to(_same_outside(path, outside, content))


def _hard_link(path: Path, outside: Outside, content: Content) -> None:
    kept = _same_outside(path, outside, content)
    if kept.is_dir():
        path.symlink_to(kept)
    else:
        os.link(kept, path)


def _same_outside(path: Path, outside: Outside, content: Content) -> Path:
    """Put outside what belongs there, or what might, so that following a link would not be noticed by its content."""
    kept = outside.directory / f"same {path.name}"
    if isinstance(content, dict):
        kept.mkdir(mode=0o700)
        for name, inner in content.items():
            (kept / name).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            (kept / name).write_bytes(inner)
    else:
        outside.file(kept.name, content)
    kept.chmod(0o700 if kept.is_dir() else 0o600)
    return kept


def _socket(path: Path, *_: object) -> None:
    handle = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)  # the path itself may be longer than a socket's can be
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(f"/proc/self/fd/{handle}/{path.name}")
    finally:
        os.close(handle)


def _device(path: Path, *_: object) -> None:
    try:
        os.mknod(path, 0o600 | stat.S_IFCHR, os.stat("/dev/zero").st_rdev)
    except PermissionError:
        path.symlink_to("/dev/zero")


def _link_within(path: Path, *_: object) -> None:
    (path.parent / "moved").mkdir(mode=0o700)
    path.symlink_to("moved")


KINDS: dict[str, Callable[[Path, Outside, Content], object]] = {
    "link out": _link_out,
    "hard link": _hard_link,
    "link within": _link_within,
    "link nowhere": lambda path, outside, _: path.symlink_to(outside.directory / "nowhere"),
    "link to itself": lambda path, *_: path.symlink_to(path.name),
    "link to a directory": lambda path, outside, _: path.symlink_to(outside.directory),
    "link to a device": lambda path, *_: path.symlink_to("/dev/zero"),
    "FIFO": lambda path, *_: os.mkfifo(path),
    "socket": _socket,
    "device": _device,
    "directory": lambda path, *_: path.mkdir(),
    "full directory": lambda path, *_: (path / "file").mkdir(parents=True),
}


class Plant(NamedTuple):
    """What is put in the place of which file or directory, before the cache is opened or while it is open."""

    sample: Sample
    name: str
    kind: str
    open: bool

    def plant(self, directory: Path, outside: Outside) -> None:
        path, files = directory / self.name, self.sample.files
        if os.path.lexists(path):
            path.rename(directory.parent / "gone")  # where a handle may still have it open
        below = {
            name.removeprefix(f"{self.name}/"): data for name, data in files.items() if name.startswith(f"{self.name}/")
        }
        KINDS[self.kind](path, outside, files.get(self.name, below or b"something"))


def plants(made: Sequence[Sample]) -> list[Plant]:
    found = []
    for sample in made:
        names = set(sample.files)
        names |= {str(parent) for name in names for parent in Path(name).parents if str(parent) != "."}
        names |= {str(Path(name).parent / likely) for name in names if name.endswith("cache.db") for likely in LIKELY}
        shards = {str(Path(name).parent) for name in sample.files if name.endswith("/cache.db")}
        found += [
            Plant(sample, name, kind, is_open)
            for name in sorted(names)
            for kind in KINDS
            for is_open in ((False,) if name in shards else (False, True))  # docs/safety.md: who may write it meanwhile
        ]
    return found


def try_plant(trial: Trial, bench: Workbench, plant: Plant) -> None:
    """Plant it and use the cache in every way; nothing outside is touched or read."""
    judge = Judge()
    with bench.copy(plant.sample) as directory:
        outside = Outside(directory.parent / "outside")
        outside.file("file")
        with deadline():
            try:
                _use_planted(plant, directory, outside, judge)
            except (CacheError, Refused):
                trial.count("refused")
        _clean_up(directory)
        changes = outside.changes()
    what = f"{plant.kind} for {plant.name} of {plant.sample.name}, {'in use' if plant.open else 'at rest'}"
    assert not judge.wrong, f"{what}: {judge.wrong}"
    assert not changes, f"{what}: {changes}"


def _use_planted(plant: Plant, directory: Path, outside: Outside, judge: Judge) -> None:
    """Plant, settle what is outside, and do everything."""

    def plant_now() -> None:
        plant.plant(directory, outside)
        outside.settle()

    if not plant.open:
        plant_now()
    with WATCH.watching(directory), plant.sample.open(directory, hot_size_limit=0) as cache:
        if plant.open:
            attempt(lambda: cache.get("text"))
            WATCH.on = False
            plant_now()
            WATCH.on = True
        judge.look(cache)
        judge.changed(cache)
        if not (plant.open and Path(plant.name).name.startswith("cache.db")):  # SQLite cannot know of another -wal file
            judge.mended(cache)


def _clean_up(directory: Path) -> None:
    """Remove device files and the like, lest whoever removes the directory meets them."""
    for path in directory.rglob("*"):
        if not path.is_symlink() and not path.is_dir() and not path.is_file():
            path.unlink()


def _settled(bench: Workbench, made: list[Sample]) -> list[Sample]:
    """Return samples when all is imported, and see that a reading can be noticed here."""
    bench.warm_up(made)
    outside = Outside(bench.place / "outside")
    path = outside.file("file")
    outside.settle()
    path.read_bytes()
    if not outside.changes():
        raise CannotRun(f"{path} is on a file system that notes no times of reading: set TMPDIR to one that does")
    return made


@tried(
    "planted-links",
    4,
    "links, hard links, FIFOs, sockets, devices and directories planted for every file and directory of a cache, at"
    " rest and in use",
    "plants",
    bulk=1.5,
    parallel=True,
)
def plant_links(place: Path, bench: Workbench) -> Tries:
    made = [make("plain", place, live=True), make("fanout", place), make("sealed", place)]
    yield try_plant, plants(_settled(bench, [*made, make("buffered", place, live=True)]))


@tried(
    "control-links",
    4,
    "planted links in place of value files are followed",
    "plants",
    share=0.5,
    finds=r"AssertionError: (hard )?link .* for .*\.val of .*/outside/",
)
def following_links(place: Path, bench: Workbench) -> Tries:
    made = _settled(bench, [make("plain", place)])
    with (
        mock.patch.object(file_io, "_READ", file_io._READ & ~os.O_NOFOLLOW),
        mock.patch.object(file_io, "_DIRECTORY", file_io._DIRECTORY & ~os.O_NOFOLLOW),
    ):
        yield try_plant, [one for one in plants(made) if one.name.endswith(".val") and one.kind == "link out"]


# -- generations ------------------------------------------------------------------------------------------------------

Change = Callable[[bytes], bytes]
NUMBERS = (0, 1, 2, 1 << 31, 1 << 62, (1 << 62) + 1, 1 << 63, (1 << 64) - 2, (1 << 64) - 1)
NAMED_WORDS = (*range(11), *range(16, 34), HEADER_WORDS - 1)
SIZES = (0, 1, 7, 8, 511, 4095, 4096, 4097, 4104, 4224, 4351, 4353, 8192, 1 << 16, 1 << 25, 1 << 30)


def _slots(number: int) -> Change:
    return lambda content: content[:4096] + number.to_bytes(8, "little") * ((len(content) - 4096) // 8)


def _word(place: int, number: int) -> Change:
    return lambda content: content[: 8 * place] + number.to_bytes(8, "little") + content[8 * place + 8 :]


def _end(number: int) -> Change:
    """Return a change of the last slots, or of the table of a small write buffer."""
    return lambda content: content[:-128] + number.to_bytes(8, "little") * 16


def _words(number: int) -> Change:
    """Return a change of all words that change with each write."""

    def change(content: bytes) -> bytes:
        for place in range(16, 34):
            content = _word(place, number)(content)
        return content

    return change


def _swapped(content: bytes) -> bytes:
    """Exchange the halves of what lies behind the header."""
    middle = (len(content) + 4096) // 2
    return content[:4096] + content[middle:] + content[4096:middle]


def _noise(seed: int) -> Change:
    """Return a change of everything, or of what lies behind the header, or of words of the header."""

    def change(content: bytes) -> bytes:
        dice = random.Random(seed)
        if seed % 3 == 0:
            return dice.randbytes(len(content))
        if seed % 3 == 1:
            return content[:4096] + dice.randbytes(len(content) - 4096)
        for place in dice.sample(NAMED_WORDS, dice.randint(2, 6)):
            content = _word(place, dice.choice([*NUMBERS, dice.getrandbits(64), dice.getrandbits(31)]))(content)
        return content

    return change


CONTENTS: dict[str, Change] = {
    "zeros": lambda content: bytes(len(content)),
    "ones": lambda content: b"\xff" * len(content),
    "swapped halves": _swapped,
    **{f"end of {number}": _end(number) for number in NUMBERS},
    **{f"words of {number}": _words(number) for number in NUMBERS},
    **{f"slots of {number}": _slots(number) for number in (*NUMBERS, 12345, (1 << 64) - 3)},
    **{f"word {place} is {number}": _word(place, number) for place in NAMED_WORDS for number in NUMBERS},
    **{f"noise {seed}": _noise(seed) for seed in range(600)},
}
WAYS = ("at rest", "overwritten in use", "replaced in use")


class Count(NamedTuple):
    """What a file of generations, or a write buffer, holds or how long it is, and since when."""

    sample: Sample
    name: str
    how: str | int  # a content, or a size
    way: str

    def apply(self, directory: Path, descriptor: int) -> None:
        content = self.sample.files[self.name]
        if isinstance(self.how, int):
            os.ftruncate(descriptor, self.how)
        elif self.way == "replaced in use":
            other = directory.parent / "other"
            with open(os.open(other, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as file:
                file.write(CONTENTS[self.how](content))
            other.rename(directory / self.name)
        else:
            os.pwrite(descriptor, CONTENTS[self.how](content), 0)
            if self.name == BUFFER and self.way == "at rest":
                believe(directory / self.name)


def counts(made: Sequence[Sample]) -> list[Count]:
    """Return every file, content, size and way."""
    found = []
    for sample in made:
        for name in sorted(sample.files):
            if name.endswith(("cache.gen", BUFFER)):
                found += [Count(sample, name, how, way) for how in CONTENTS for way in WAYS]
            if name.endswith(("cache.gen", BUFFER, "-shm")):
                found += [Count(sample, name, size, way) for size in SIZES for way in ("at rest", "cut in use")]
    return found


def try_count(trial: Trial, bench: Workbench, item: Count) -> None:
    """Change the file and use the cache; where it is cut under a mapping, in a child that may end of it."""
    judge = Judge()
    with bench.copy(item.sample) as directory, deadline(), suppress(Refused, CacheError):
        if item.way == "cut in use":
            trial.count("files cut while mapped")
            if _is_ended(item, directory):
                trial.count("processes ended by that")
                trial.figure("what ends them", "SIGBUS, on using what is no longer in the file")
            with item.sample.open(directory) as cache:  # whatever the child came to change
                judge.mended(cache)
        else:
            _use_changed(item, directory, judge)
    if judge.older and item.name == BUFFER:  # no checksum guards its words, nor its table
        trial.count("with older values after damage to the write buffer")
    assert not judge.wrong, f"{item.name} of {item.sample.name}, {item.how}, {item.way}: {judge.wrong}"


def _use_changed(item: Count, directory: Path, judge: Judge) -> None:
    """Do everything with a cache one of whose files is changed before it is opened, or then."""
    with ExitStack() as stack:
        descriptor = os.open(directory / item.name, os.O_RDWR)
        stack.callback(os.close, descriptor)  # after the cache is closed: it would drop SQLite's locks
        if item.way == "at rest":
            item.apply(directory, descriptor)
        cache = stack.enter_context(item.sample.open(directory))
        if item.way != "at rest":
            attempt(lambda: cache.get_many(["text", "number"]))
            item.apply(directory, descriptor)
        judge.everything(cache)


def _is_ended(item: Count, directory: Path) -> bool:
    """Cut the file under a child that uses the cache; tell whether that ended it, which is all that may go wrong."""
    told = directory.parent / "told"
    child = os.fork()
    if not child:
        _be_cut(item, directory, told)
    try:
        status = os.waitpid(child, 0)[1]
    except BaseException:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        raise
    assert not told.exists(), told.read_text()
    assert status in (0, signal.SIGBUS), f"the process ended with status {status}"
    return status == signal.SIGBUS


def _be_cut(item: Count, directory: Path, told: Path) -> NoReturn:
    """Use the cache in the child, and write down what was wrong."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    judge = Judge()
    try:
        with deadline(), suppress(Refused, CacheError):
            _use_changed(item, directory, judge)
        assert not judge.wrong, judge.wrong
    except BaseException:
        told.write_text(traceback.format_exc())
    finally:
        os._exit(0)


@tried(
    "planted-generations",
    4,
    "generation files and write buffers of other sizes, of noise, all odd, all ones, with impossible numbers;"
    " replaced, and cut while mapped",
    "changes",
    bulk=1.0,
    parallel=True,
)
def change_counts(place: Path, _: Workbench) -> Tries:
    made = [make("plain", place, live=True), make("fanout", place), make("buffered", place, live=True)]
    yield try_count, counts(made)
