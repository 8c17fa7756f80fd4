"""Disk images: what a disk may hold after the power went, by a log of all that was done to its files (shim.c).

The model is that of a file system which keeps what POSIX says and nothing more, as the studies of crash consistency do
it (Pillai et al., "All File Systems Are Not Created Equal", OSDI 2014) and SQLite's own tests with its crash VFS
(sqlite.org/testing.html, "Crash Testing"):

- What a file held when it was last synced (fsync or fdatasync) is there, and so is its size then.
- Of what was done to it since, every **sector** of 512 bytes may hold any of the contents that it has had since, each
  for itself: writes are lost, reordered and torn at sectors, but a sector never mixes a newer write with the lack of
  an older one, since it is written from memory. Where a write was lost, the bytes it would have covered may be garbage
  instead, as in blocks that were allocated and never filled (ext4 with data=writeback) or were being written when the
  power went; bytes that it does not cover are not harmed (the "powersafe overwrite" that SQLite relies on too).
- Its **size** may be any that it has had since, whatever became of the data; what was never written reads as zeros.
- An **entry** of a directory (create, link, rename, unlink, mkdir, rmdir) is sure to be there, or gone, once that
  directory was synced. Until then each name may show any of the states that it has had since, each for itself. A rename
  is there at both names or at neither, as on every journaling file system.
- Syncing a file does not make its own entry durable. ext4, xfs and btrfs do so, but POSIX does not ask it of them, and
  the cache says that it syncs the directories of what it makes.
- What was written through shared memory maps is not in the log: see `mapped`.

So the images are a superset of what ext4, xfs and btrfs can leave, except for the promises that drives break.
"""

from __future__ import annotations

import enum
import itertools
import os
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import NamedTuple

SECTOR = 512
PAGE = 4096

_RECORD = struct.Struct("=4I3Q")
_EXCHANGED = 2  # RENAME_EXCHANGE


class Kind(enum.IntEnum):
    """What was done, in the numbers of `enum kind` in shim.c."""

    CREATED = 1
    WRITTEN = 2
    TRUNCATED = 3
    SYNCED = 4
    RENAMED = 5
    UNLINKED = 6
    MADE = 7
    REMOVED = 8
    LINKED = 9


class Event(NamedTuple):
    """One record of a log."""

    kind: Kind
    first: str = ""  # the path; of a rename the old one
    second: str = ""  # the new path of a rename
    inode: int = 0
    offset: int = 0  # of a truncation the size
    data: bytes = b""
    end: int = 0  # length of the log after this record


def parse(log: bytes) -> Iterator[Event]:
    """Yield the records of a log; raise ValueError where it is not one."""
    position = 0
    while position < len(log):
        try:
            kind, first, second, _, inode, offset, length = _RECORD.unpack_from(log, position)
        except struct.error:
            raise ValueError(f"the log ends within a record, at byte {position} of {len(log)}") from None
        start = position + _RECORD.size
        ends = [*itertools.accumulate((first, second, length), initial=start)]
        if ends[-1] > len(log):
            raise ValueError(f"the log ends within a record, at byte {position} of {len(log)}")
        parts = [log[begin:end] for begin, end in itertools.pairwise(ends)]
        position = ends[-1]
        yield Event(Kind(kind), os.fsdecode(parts[0]), os.fsdecode(parts[1]), inode, offset, parts[2], position)


Moment = Callable[[], int]


@dataclass(eq=False)
class File:
    """A file: as it is, as it was when it was last synced, and what was done since: (offset, data), or a new size."""

    now: bytearray = field(default_factory=bytearray)
    durable: bytes = b""
    changes: list[tuple[int, bytes] | int] = field(default_factory=list)

    def write(self, offset: int, data: bytes) -> None:
        """Write, leaving zeros where that is beyond the end."""
        _write(self.now, offset, data)
        self.changes.append((offset, data))

    def truncate(self, size: int) -> None:
        """Cut the file, or extend it by zeros."""
        _resize(self.now, size)
        self.changes.append(size)

    def sync(self) -> None:
        """Make all that was done durable."""
        if self.changes:
            self.durable = bytes(self.now)
            self.changes.clear()

    def survivor(self, random: Random) -> bytes:
        """Return what of the file may be on the disk."""
        match random.randrange(6):
            case _ if not self.changes:
                return self.durable
            case 0:
                return self.durable
            case 1:
                return bytes(self.now)
            case 2:  # all of it as it was at one moment
                moment = random.randint(0, len(self.changes))
                return self._mixture(random, moment, lambda: moment, 0.0)
            case 3:  # each sector at a moment of its own
                last = len(self.changes)
                return self._mixture(random, random.randint(0, last), lambda: random.randint(0, last), 0.0)
            case _:  # some sectors as they are now, the others not written since, or garbage
                reached, garbage = random.choice((0.0, 0.5, 0.9, random.random())), random.choice((0.0, 0.0, 0.3, 1.0))
                moment = random.choice((len(self.changes), random.randint(0, len(self.changes))))
                return self._mixture(
                    random, moment, lambda: len(self.changes) if random.random() < reached else 0, garbage
                )

    def _mixture(self, random: Random, sized: int, draw: Moment, garbage: float) -> bytes:
        """Return the file with its size after `sized` of the changes and each sector after as many as `draw` says."""
        content, size = bytearray(self.durable), len(self.durable)
        moments: dict[int, int] = {}
        for index, change in enumerate(self.changes):
            if isinstance(change, int):
                if index < sized:
                    size = change
                start, data = change, bytes(max(0, len(content) - change))
            else:
                start, data = change
                if index < sized:
                    size = max(size, start + len(data))
                if start + len(data) > len(content):
                    _resize(content, start + len(data))
            for begin in _sectors(start, len(data)):
                sector, piece = begin // SECTOR, slice(begin, min((begin // SECTOR + 1) * SECTOR, start + len(data)))
                if sector not in moments:
                    moments[sector] = draw()
                if index < moments[sector]:
                    content[piece] = data[piece.start - start : piece.stop - start]
                elif garbage and not isinstance(change, int) and random.random() < garbage:
                    content[piece] = random.randbytes(piece.stop - piece.start)
        _resize(content, size)
        return bytes(content)


def _sectors(start: int, length: int) -> Iterator[int]:
    """Yield where the parts of a range begin that lie in one sector each."""
    if length:
        yield start
        yield from range((start // SECTOR + 1) * SECTOR, start + length, SECTOR)


def _write(content: bytearray, offset: int, data: bytes) -> None:
    if offset > len(content):
        _resize(content, offset)
    content[offset : offset + len(data)] = data


def _resize(content: bytearray, size: int) -> None:
    del content[size:]
    content.extend(bytes(size - len(content)))


class Directory:
    """A directory; what is in it, the disk knows."""


Node = File | Directory
Name = tuple[Directory, str]
Change = dict[Name, Node | None]  # what entries become, all or none of them
Image = dict[str, bytes | None]  # by path from the root: the content of a file, None for a directory, outer ones first


class Disk:
    """A file system below `root`, which is there for good, as the events of a log change it."""

    def __init__(self, root: str, inode: int = 0) -> None:
        self._path = root
        self._root = Directory()
        self._now: dict[Name, Node] = {}
        self._durable: dict[Name, Node] = {}
        self._pending: list[Change] = []
        self._inodes: dict[int, Node] = {inode: self._root}

    @classmethod
    def holding(cls, root: Path) -> Disk:
        """Return a file system on which a directory is as it is now, all of it durable."""
        disk = cls(str(root.resolve()), root.stat().st_ino)
        for path, content in read(root).items():
            node = Directory() if content is None else File(bytearray(content), content)
            disk._inodes[os.lstat(root / path).st_ino] = node
            disk._now[disk._name(str(root.resolve() / path))] = node
        disk._durable = dict(disk._now)
        return disk

    def apply(self, event: Event) -> None:
        match event.kind:
            case Kind.CREATED | Kind.MADE:
                self._inodes[event.inode] = node = File() if event.kind == Kind.CREATED else Directory()
                if event.first:  # not one without a name, which may be linked later
                    self._change({self._name(event.first): node})
            case Kind.LINKED:
                self._change({self._name(event.first): self._inodes[event.inode]})
            case Kind.UNLINKED | Kind.REMOVED:
                self._change({self._name(event.first): None})
            case Kind.RENAMED:
                self._rename(event)
            case Kind.SYNCED:
                self._sync(self._inodes[event.inode])
            case Kind.WRITTEN:
                self._file(event).write(event.offset, event.data)
            case Kind.TRUNCATED:
                self._file(event).truncate(event.offset)

    def _file(self, event: Event) -> File:
        node = self._inodes.get(event.inode)
        if not isinstance(node, File):
            raise ValueError(f"the log writes to inode {event.inode}, which it did not create as a file")
        return node

    def _name(self, path: str) -> Name:
        """Return a path as directory and name; raise ValueError for one that the log did not make."""
        *outer, name = os.path.relpath(path, self._path).split("/")
        directory: Node | None = self._root
        for part in outer:
            directory = self._now.get((directory, part)) if isinstance(directory, Directory) else None
        if not isinstance(directory, Directory):
            raise ValueError(f"{path!r} lies in no directory that the log has made below {self._path!r}")
        return directory, name

    def _rename(self, event: Event) -> None:
        if event.offset & _EXCHANGED:
            raise ValueError(f"exchanging {event.first!r} and {event.second!r} is not modelled")
        old, new = self._name(event.first), self._name(event.second)
        self._change({old: None, new: self._now[old]})

    def _change(self, change: Change) -> None:
        self._pending.append(change)
        _enter(self._now, change)

    def _sync(self, node: Node) -> None:
        """Make a file's content durable, or a directory's entries with all that these depend on."""
        if isinstance(node, File):
            node.sync()
            return
        names: set[Name] = set()
        sure: list[Change] = []
        for change in reversed(self._pending):  # of a name that also changed elsewhere, what happened before as well
            if any(name[0] is node or name in names for name in change):
                names.update(change)
                sure.append(change)
        for change in reversed(sure):
            _enter(self._durable, change)
        self._pending = [change for change in self._pending if not any(change is each for each in sure)]

    def image(self, random: Random) -> Image:
        """Return what may be found on the disk if the power goes now."""
        likely = random.choice((0.0, 0.5, 0.9, 1.0))
        entries, lost = dict(self._durable), set[Name]()
        for change in self._pending:
            if any(name in lost for name in change) or random.random() >= likely:
                lost.update(change)  # and with it all that happened to these names later
            else:
                _enter(entries, change)
        return _image(self._root, entries, random.choice((File.survivor, File.survivor, _kept, _synced)), random)

    def complete(self) -> Image:
        """Return what is there as long as the power does not go."""
        return _image(self._root, self._now, _kept, Random())


def _kept(file: File, _: Random) -> bytes:
    return bytes(file.now)


def _synced(file: File, _: Random) -> bytes:
    return file.durable


def _enter(entries: dict[Name, Node], change: Change) -> None:
    for name, node in change.items():
        if node is None:
            entries.pop(name, None)
        else:
            entries[name] = node


def _image(
    root: Directory, entries: dict[Name, Node], content: Callable[[File, Random], bytes], random: Random
) -> Image:
    """Return what can be reached from the root; a file with two names is found as two files."""
    within: dict[Directory, list[tuple[str, Node]]] = {}
    for (directory, name), node in entries.items():
        within.setdefault(directory, []).append((name, node))
    image: Image = {}
    reached = [("", root)]
    for path, directory in reached:
        for name, node in sorted(within.get(directory, ()), key=lambda entry: entry[0]):
            if isinstance(node, File):
                image[path + name] = content(node, random)
            else:
                image[path + name] = None
                reached.append((f"{path}{name}/", node))
    return image


def mapped(size: int, seen: Sequence[bytes], random: Random) -> bytes:
    """Return what may be found in a file that is written through a map: each page zeros, garbage, or as once seen."""
    kinds = random.choice(("zeros", "garbage", "last", "seen", "any"))
    pages = []
    for start in range(0, size, PAGE):
        kind = random.choice(("zeros", "garbage", "last", "seen")) if kinds == "any" else kinds
        if kind == "garbage":
            page = random.randbytes(PAGE)
        elif kind == "zeros" or not seen:
            page = bytes(PAGE)
        else:
            page = (seen[-1] if kind == "last" else random.choice(seen))[start : start + PAGE].ljust(PAGE, b"\0")
        pages.append(page)
    return b"".join(pages)[:size]


def write(image: Image, directory: Path) -> None:
    """Write an image into a new directory."""
    directory.mkdir(0o700)
    for path, content in image.items():
        if content is None:
            os.mkdir(directory / path, 0o700)
            continue
        descriptor = os.open(directory / path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            os.write(descriptor, content)
        finally:
            os.close(descriptor)


def read(directory: Path) -> Image:
    """Return the image that a directory is of."""
    found = sorted(directory.rglob("*"))
    return {str(path.relative_to(directory)): None if path.is_dir() else path.read_bytes() for path in found}
