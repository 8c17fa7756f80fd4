"""Swapped files: one of a cache replaced by another cache's, by an older one of its own, by another one beside it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np

from diskcache_like.disk.value_files import ValueFiles
from diskcache_like.encoding import file_names
from diskcache_like.errors import CacheError

from ..proof import Trial
from .flips import MAPPED, try_damage
from .samples import (
    BUFFER,
    DATED,
    METADATA,
    OLDER,
    OPTIONS,
    PREFIX,
    TAGGED,
    VALUES,
    Judge,
    Refused,
    Sample,
    Tries,
    Workbench,
    believe,
    entries_of,
    files_of,
    fill,
    let_wait,
    new,
    put_all,
    the_same_names,
    tried,
)

AT_REST, OVERWRITTEN, RENAMED = WAYS = ("at rest", "overwritten in use", "renamed over in use")
PAST, STRANGE = "with older values", "values of another cache"  # what may be read where one cannot tell
CHANGED = frozenset({"text", "file", "number", "twice", "nested", DATED[0], TAGGED[0], PREFIX, "item"})  # by a Judge
DATABASE = ("cache.db", "-wal", "-shm")
AGED = "an older copy"
FIRST = "000/"  # shard: its database says for all of them how keys are placed

Values = Mapping[Any, Any]


def another(value: Any, number: int) -> Any:
    """Return a value of the same type and size that is another one for each number."""
    if isinstance(value, str):
        return f"{number}{value[1:]}"
    if isinstance(value, bytes):
        return b"%d%b" % (number, value[1:])
    if isinstance(value, dict):
        return {**value, "number": number}
    return value + np.array(number, value.dtype) if isinstance(value, np.ndarray) else value and value + number


def all_another(number: int) -> dict[Any, Any]:
    """Return another value for each key, and another value, expiry and tag for each key that has them."""
    metadata = {key: tuple(another(part, number) for part in whole) for key, whole in METADATA.items()}
    return {**{key: another(value, number) for key, value in NEWEST.items()}, **metadata}


NEWEST: dict[Any, Any] = {**VALUES, "other file": "z" * len(VALUES["file"])}
FORMER: dict[Any, Any] = {**all_another(1), **OLDER, "removed": "what was deleted"}
ELSEWHERE: dict[Any, Any] = all_another(2)
ALSO = {PAST: FORMER, STRANGE: ELSEWHERE}
OTHER_SECRET = {"secret": "a secret that the other samples do not have"}
TWINS = {**OPTIONS, **{f"{name} elsewhere": {**OPTIONS[name], **OTHER_SECRET} for name in ("signed", "sealed")}}


class History(NamedTuple):
    """A cache as it was, and as it became; at rest, and as it lay while in use."""

    former: Sample
    former_live: Sample
    newest: Sample
    newest_live: Sample


def history(name: str, place: Path) -> History:
    """Make a cache that is filled, left, opened again and changed."""
    options, directory = OPTIONS[name], place / f"{name} with a past"
    found: list[Sample] = []
    with the_same_names(directory.name):
        for values in (FORMER, NEWEST):
            cache = new(directory, options) if values is FORMER else found[0].open(directory)
            content = {**METADATA, **values}
            with cache:
                if values is FORMER:
                    fill(cache, content, {})
                else:
                    del cache["removed"]
                    put_all(cache, content)
                    let_wait(cache, content, {})
                live, entries = files_of(directory), entries_of(cache, content)
            found += [
                Sample(name, options, files_of(directory), entries),
                Sample(f"{name} in use", options, live, entries),
            ]
    return History(*found)


def twin(name: str, place: Path) -> tuple[Sample, Sample]:
    """Make a cache with other values; return it as it lies at rest and in use."""
    options, directory = TWINS[name], place / f"twin of {name}"
    with the_same_names(directory.name):
        with new(directory, options) as cache:
            fill(cache, ELSEWHERE, {})
            live, entries = files_of(directory), entries_of(cache, ELSEWHERE)
        return Sample(name, options, files_of(directory), entries), Sample(name, options, live, entries)


# -- what is swapped --------------------------------------------------------------------------------------------------


class Swap(NamedTuple):
    """A file of a sample, what is put in its place, and how."""

    sample: Sample
    file: str
    source: str  # what is told of the content
    content: bytes
    also: tuple[str, ...] = ()  # what is as authentic as the newest values, and may be read
    is_foreign: bool = False  # the content is another cache's
    way: str = AT_REST

    @property
    def open(self) -> bool:
        """Whether it is done while a handle is open."""
        return self.way != AT_REST

    def do(self, directory: Path, descriptors: Mapping[str, int]) -> None:
        """Do it. Nothing that SQLite may have open is closed here, which would drop its locks."""
        if self.way == RENAMED or self.file not in descriptors:
            beside = directory.parent / "beside"
            beside.write_bytes(self.content)
            beside.chmod(0o600)
            beside.rename(directory / self.file)
        else:
            os.pwrite(descriptors[self.file], self.content, 0)
            os.ftruncate(descriptors[self.file], len(self.content))
            if self.file == BUFFER and self.source == AGED:
                believe(directory / self.file)

    def judge(self, anew: bool = False) -> Judge:
        """Return who reads the cache, or reads it when another handle had changed it."""
        olds = {name: ALSO[name] for name in self.also}
        return Judge(CHANGED if anew else frozenset(), not anew, self.may_empty(), NEWEST, olds)

    def tell(self, trial: Trial, judge: Judge) -> None:
        """Count what was found of other times and caches."""
        for name in sorted(judge.older):
            trial.count(name)

    def look_anew(self, directory: Path) -> None:
        """Open what the handle, which had the file that is gone, and the swap have left behind."""
        if self.way != RENAMED:
            return
        judge = self.judge(anew=True)
        with suppress(Refused, CacheError), self.sample.open(directory) as handle:
            handle.delete("counter")
            judge.everything(handle)
        assert not judge.wrong, f"{self}, then opened anew: {judge.wrong}"
        lost = judge.lost - CHANGED - self.may_cost()
        assert not lost, f"{self}, then opened anew: entries are missing: {lost}"

    def may_cost(self) -> set[Any]:
        """Return the keys whose entries may be missing then."""
        entries = self.sample.entries
        if self.file.endswith(file_names.SUFFIX):
            return {key for key, entry in entries.items() if entry.file == self.file}
        if self.is_foreign and self.file.startswith(f"{FIRST}cache.db") and self.may_empty():
            return set(entries)
        if self.file == BUFFER or self.may_empty():
            return {key for key, entry in entries.items() if self.file.startswith(entry.shard)}
        return set()

    def may_empty(self) -> bool:
        """Tell whether it may have the database refused or quarantined, with all entries of its shard."""
        if self.file == BUFFER:
            return False
        if self.file.endswith(("cache.gen", "-shm")):  # at rest both are made anew from what is in the database
            return self.way == OVERWRITTEN
        return self.file.endswith(DATABASE)

    def may_refuse(self) -> bool:
        """Tell whether a handle may refuse to go on: once in 64 KiB it looks whether its lock is still the directory's."""
        return self.file.endswith("cache.lock") and self.way == RENAMED

    def __str__(self) -> str:
        return f"{self.file} of {self.sample.name} by {self.source}, {self.way}"


Source = tuple[str, bytes, tuple[str, ...]]  # what is told of it, the content, and what may then be read


def swaps(made: Sequence[History], twins: Sequence[tuple[Sample, Sample]]) -> list[Swap]:
    """Return everything that can be swapped."""
    found: list[Swap] = []
    for past in made:
        for sample, former, live in ((past.newest, past.former, 0), (past.newest_live, past.former_live, 1)):
            for file in sorted(_in_use(sample)):
                for source in _own(sample, former, file):
                    found += _ways(Swap(sample, file, *source))
                for source in _of_twins(sample, [pair[live] for pair in twins], file):
                    found += _ways(Swap(sample, file, *source, is_foreign=True))
        for file in sorted(past.former_live.files.keys() - past.newest.files.keys()):
            found.append(Swap(past.newest, file, "one of before the end", past.former_live.files[file], (PAST,)))
    return found


def _in_use(sample: Sample) -> set[str]:
    """Return the files without those of values that were overwritten, which nobody reads."""
    known = {entry.file for entry in sample.entries.values()}
    return {file for file in sample.files if not file.endswith(file_names.SUFFIX) or file in known}


def _ways(swap: Swap) -> Iterator[Swap]:
    """Yield it in each way in which it can be done."""
    before = swap.sample.files[swap.file]
    for way in WAYS if swap.content != before else ():
        if way == OVERWRITTEN and swap.file.endswith(MAPPED) and len(swap.content) < len(before):
            continue  # ends who has it mapped (docs/reliability.md); planted_links.py tries that
        # docs/safety.md: other generations make who has the cache open read with older values
        is_past = way != AT_REST and swap.file.endswith(("cache.gen", "-shm"))
        yield swap._replace(way=way, also=(*swap.also, PAST) if is_past else swap.also)


def _own(sample: Sample, former: Sample, file: str) -> Iterator[Source]:
    """Yield an older copy of a file, and each other file of the same cache."""
    past = (PAST,) if file.endswith(("cache.db", "-wal", BUFFER)) else ()  # writes in the buffer that are gone, too
    if file in former.files:
        yield AGED, former.files[file], past
    for key, entry in sample.entries.items():
        if entry.file == file and former.entries[key].file:
            yield "that of its older value", former.files[former.entries[key].file], ()
    for other in sorted(sample.files):
        if other != file:
            yield f"its {other}", sample.files[other], past


def _of_twins(sample: Sample, twins: Sequence[Sample], file: str) -> Iterator[Source]:
    """Yield the same file of other caches."""
    for other in twins:
        keys = [key for key, entry in sample.entries.items() if entry.file == file and key in other.entries]
        same = [name for name in sorted(other.files) if Path(name).name == Path(file).name]
        name = other.entries[keys[0]].file if keys else file if file in same else (same or [""])[0]
        if not name:
            continue
        also = (STRANGE,) if _may_believe(sample, other) and not keys and not file.endswith("cache.gen") else ()
        past = (PAST,) if file.endswith(("-wal", BUFFER)) else ()  # commits behind a WAL's damage have not been made
        yield f"that of the cache {other.name!r}", other.files[name], (*also, *past)


def _may_believe(sample: Sample, other: Sample) -> bool:
    """Tell whether nothing distinguishes the entries of another cache (docs/safety.md, docs/encryption.md)."""
    if not sample.proved:
        return True
    same_secret = sample.options["secret"] == other.options.get("secret")
    return same_secret and ("encrypt" in other.options or "encrypt" not in sample.options)


@tried(
    "swapped-files",
    3,
    "any file of a small cache (plain, signed, encrypted, compressed, FanoutCache, with -wal)"
    " replaced by another cache's, by its older copy, by another file of the cache, at rest and in use",
    "swaps",
    bulk=2.0,
    parallel=True,
)
def swap_all(place: Path, _: Workbench) -> Tries:
    yield try_damage, swaps([history(name, place) for name in OPTIONS], [twin(name, place) for name in TWINS])


@tried(
    "control-swapped",
    3,
    "value files swapped, and not compared with their entries",
    "swaps",
    share=0.3,
    finds=r"AssertionError: .*\.val of plain.* by .*'file' reads as ",
)
def comparing_nothing(place: Path, _: Workbench) -> Tries:
    with mock.patch.object(ValueFiles, "_compare"):
        made = [history("plain", place)]
        entry = made[0].newest.entries["file"]
        size = len(made[0].newest.files[entry.file])
        yield try_damage, [swap for swap in swaps(made, []) if swap.file == entry.file and len(swap.content) == size]
