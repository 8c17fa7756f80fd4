"""Copy a directory of DiskCache 5 into a cache of this package, entry by entry, without running anything stored in it.

Anyone may have made what is in the old directory: rows, file names and pickles are checked before they are used, and
what cannot be copied as data is listed and left out. The old directory is only read.

There is no record of progress: an entry that is in the new cache already is not copied again. So a copy can be
interrupted at any time and goes on where it was, and an entry that a program wrote into the new cache meanwhile stays.
Until the copy is complete, a folder `migration` in the new directory says what it is a copy of.
"""

from __future__ import annotations

import errno
import fcntl
import json
import math
import os
import re
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, BinaryIO, Final, NamedTuple, Self

from ...cache import Cache
from ...disk.contract import Disk
from ...disk.json_disk import JSONDisk
from ...encoding import keys
from ...encoding.pickling import dumps_pickle
from ...errors import (
    CorruptDatabase,
    DecodeError,
    DirectoryError,
    ExpiryError,
    ForeignDatabase,
    KeyEncodeError,
    KeyTooLarge,
    SettingError,
    ValueEncodeError,
    ValueTooLarge,
)
from ...settings.definitions import DEFAULT_SETTINGS, DURABILITY_NAMES, checked
from ...storage.opening.directory import ensure_directory
from ...structures.fanout import FanoutCache
from ...system import paths
from ...system.signals import suppress
from .old_database import QUEUE_SPAN, QUEUE_START, OldDatabase, OldRow
from .source import MAX_IN_MEMORY, Decoder, Part, checked_text, find_layout, is_json

CHOICES: Final = {"disk": ("auto", "pickle", "json"), "kind": ("auto", "cache", "fanout", "deque", "index")}
BATCH_ENTRIES: Final = 500
BATCH_BYTES: Final = 8 << 20

_FOLDER, _STATE, _SCRATCH = "migration", "state.json", "scratch"
_ITEM = re.compile(r"(.*)-([0-9]{15})", re.DOTALL)
_KEPT_SETTINGS = ("size_limit", "cull_limit", "eviction_policy", "statistics", "tag_index", "sqlite_synchronous")
_DISK_SETTINGS = ("disk_min_file_size", "disk_pickle_protocol")
_DEFECTS = (DecodeError, KeyEncodeError, KeyTooLarge, ValueEncodeError, ValueTooLarge, ExpiryError)


class Skipped(NamedTuple):
    """An entry, or a whole database, that was not copied."""

    key: str
    reason: str


@dataclass
class Summary:
    """What happened to the entries."""

    copied: int = 0
    present: int = 0  # copied by an earlier run
    expired: int = 0
    skipped: list[Skipped] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


class _Entry(NamedTuple):
    key: Any
    row: OldRow
    database: OldDatabase
    part: Part
    old_key: Any

    def __str__(self) -> str:
        name = f"{self.part.kind} {self.part.name!r}, " if self.part.name else ""
        return f"{name}{_short(self.old_key)}"


class MigrationOptions(NamedTuple):
    """How to copy.

    `disk`: 'pickle' if DiskCache's Disk wrote the old directory, 'json' for its JSONDisk, 'auto' to find out. `kind`:
    what the old directory is; 'auto' finds out by its layout, and takes a cache without eviction whose keys all belong
    to a queue for a Deque. `queues`: prefixes of queues, '' for the one without, whose items become items of queues in
    the new cache. `trust_pickles`: unpickle what is not plain data, which can run code. `dry_run`: write nothing.
    """

    disk: str = "auto"
    kind: str = "auto"
    queues: Sequence[str] = ()
    trust_pickles: bool = False
    dry_run: bool = False


class Migration:
    """One copy of `old` into `new`, to be used as a context manager. `clock` returns seconds since 1970.

    `within`: `new` may be a folder of `old`; its name must be none that DiskCache uses.

    Raises FileNotFoundError, DirectoryError, ForeignDatabase, CorruptDatabase, StorageError, SettingError or DiskFull;
    `new` then holds nothing but what was copied before.
    """

    def __init__(
        self,
        old: str | os.PathLike[str],
        new: str | os.PathLike[str],
        options: MigrationOptions = MigrationOptions(),  # noqa: B008 - it is immutable
        clock: Callable[[], float] = time.time,
        within: bool = False,
    ) -> None:
        for name, choices in CHOICES.items():
            value = getattr(options, name)
            if value not in choices:
                raise SettingError(f"{name} is {value!r}, expected one of {', '.join(map(repr, choices))}")
        self.old = os.path.realpath(os.path.expanduser(old))
        self.new = os.path.realpath(os.path.expanduser(new))
        self._queues = frozenset(options.queues)
        self._dry_run = options.dry_run
        self._within = within
        # One time for the whole copy: an expiry is passed on as seconds from now, and so is stored unchanged.
        self._now = clock()
        self._stack = ExitStack()
        self._resumed = self._claimed = self._made = False
        self._items, self.summary = Counter[str](), Summary()
        try:
            self._prepare(options)
        except BaseException:
            self._give_up()
            raise

    def _prepare(self, options: MigrationOptions) -> None:
        kind, disk = options.kind, options.disk
        layout = find_layout(self.old, kind)
        if os.path.commonpath((self.old, self.new)) in (self.old, self.new) and not self._within:
            text = "the new directory must neither be inside the old one nor contain it"
            raise DirectoryError(errno.EINVAL, text, self.new)
        if self._dry_run:
            scratch = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="diskcache-migrate-"))
        else:
            self._claim({"source": self.old, "disk": disk, "kind": kind, "queues": sorted(self._queues)})
            scratch = os.path.join(self.new, _FOLDER, _SCRATCH)
        self.parts = [part for part in self._open_parts(layout, scratch) if part.databases]
        if not self.parts:
            raise CorruptDatabase("; ".join(f"{lost.key}: {lost.reason}" for lost in self.summary.skipped))
        databases = [database for part in self.parts for database in part.databases]
        self.total = sum(database.count for database in databases)
        json_disk = disk == "json" or (disk == "auto" and is_json(databases))
        self._decoder = Decoder(json_disk, options.trust_pickles)
        self.parts = [self._with_kind(part, kind) for part in self.parts]

    def _open_parts(self, layout: list[Part], scratch: str) -> Iterator[Part]:
        number = 0
        for part in layout:
            databases = []
            for folder in part.folders:
                number += 1
                try:
                    databases.append(OldDatabase(folder, os.path.join(scratch, str(number))))
                except (CorruptDatabase, ForeignDatabase, DirectoryError) as error:
                    if not part.name and not isinstance(error, CorruptDatabase):
                        raise
                    self._skip(os.path.relpath(folder, self.old), str(error))
            yield part._replace(databases=tuple(databases))

    def _with_kind(self, part: Part, kind: str) -> Part:
        """Return the part with its kind corrected if its entries show that it is a Deque."""
        first = part.databases[0]
        if (
            (kind, part.kind, part.name) == ("auto", "cache", "")
            and first.settings.get("eviction_policy") == "none"
            and first.holds_queue_only
            and not self._queues
        ):
            return part._replace(kind="deque")
        return part

    # -- the new directory -----------------------------------------------------------------------------------------

    def _claim(self, identity: dict[str, Any]) -> None:
        """Create the new directory and mark it as an unfinished copy, or find the mark of an earlier run."""
        self._made = not paths.mode_of(self.new)
        ensure_directory(self.new, False)
        folder = os.path.join(self.new, _FOLDER)
        path = os.path.join(folder, _STATE)
        present = os.listdir(self.new)
        if present and not _is_claimed(folder, alone=len(present) == 1):
            raise DirectoryError(
                errno.ENOTEMPTY, "is not empty and not the unfinished copy of a migration; choose another", self.new
            )
        os.makedirs(folder, 0o700, exist_ok=True)
        file = self._locked(path)
        self._claimed = True
        known = None
        with suppress(ValueError, RecursionError):  # cut off as it was written
            known = json.loads(file.read(1 << 20))
        if known is None and len(os.listdir(self.new)) == 1:
            file.seek(0)
            file.truncate()
            file.write(json.dumps(identity).encode())
            file.flush()
        elif known != identity:
            raise DirectoryError(
                errno.EEXIST,
                f"holds the unfinished copy of something else or with other options ({known}); finish that one, or"
                " choose another directory",
                self.new,
            )
        self._resumed = len(os.listdir(self.new)) > 1

    def _locked(self, path: str) -> BinaryIO:
        """Open the mark and lock it until the end, so that no two migrations write into one directory."""
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
        file = self._stack.enter_context(os.fdopen(descriptor, "r+b"))
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DirectoryError(errno.EBUSY, "another migration is writing here", self.new) from None
        return file

    def _give_up(self) -> None:
        """Leave no trace in the new directory if nothing was copied."""
        with suppress(OSError):
            if self._claimed and os.listdir(self.new) == [_FOLDER]:
                self._remove_mark()
            if self._made:
                os.rmdir(self.new)  # unless something is in it
        self._stack.close()

    def _remove_mark(self) -> None:
        folder = os.path.join(self.new, _FOLDER)
        shutil.rmtree(os.path.join(folder, _SCRATCH), ignore_errors=True)
        os.unlink(os.path.join(folder, _STATE))
        os.rmdir(folder)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    def _open_target(self, part: Part) -> Cache:
        """Open the new cache of a part, with eviction off while it is being filled."""
        given: dict[str, Any] = {
            "timeout": 60,
            "disk": JSONDisk if self._decoder.json else Disk,
            "clock": lambda: self._now,
            **{name: value for name, value in self._settings(part).items() if name in _DISK_SETTINGS},
            "eviction_policy": "none",
        }
        if part.kind == "fanout":
            return FanoutCache(self.new, shards=len(part.databases), **given)
        folder = os.path.join(self.new, part.kind, *part.name.split("/")) if part.name else self.new
        return Cache(folder, **given)

    # -- settings --------------------------------------------------------------------------------------------------

    def _settings(self, part: Part) -> dict[str, Any]:
        """Return the settings that exist in this package too, validated."""
        found: dict[str, Any] = {}
        stored = part.databases[0].settings
        for name in (*_KEPT_SETTINGS, *_DISK_SETTINGS):
            value = stored.get(name)
            if name == "size_limit":  # each shard stores its share of the limit
                shares: list[Any] = [database.settings.get(name) for database in part.databases]
                if all(isinstance(share, int | float) and math.isfinite(share) for share in shares):
                    value = int(sum(shares))
            if value is not None:
                with suppress(SettingError):
                    found[name] = checked(name, value)
        return found

    def _finish(self, part: Part, cache: Cache) -> None:
        """Store the settings that were not in force while the entries were copied."""
        settings = self._settings(part)
        if part.kind in ("deque", "index"):
            settings["eviction_policy"] = "none"
        settings.setdefault("eviction_policy", DEFAULT_SETTINGS["eviction_policy"])
        synchronous = settings.pop("sqlite_synchronous", 1)
        cache.reset("durability", DURABILITY_NAMES[synchronous])
        limit = settings.get("size_limit")
        for name in _KEPT_SETTINGS:
            if name in settings:
                cache.reset(name, settings[name])
        if limit is not None and settings["eviction_policy"] != "none" and cache.volume() > limit:
            self.summary.notes.append(
                f"{part.name or 'the cache'} holds {cache.volume():,} bytes, more than its size limit of {limit:,}:"
                " the next write evicts"
            )

    # -- copying ---------------------------------------------------------------------------------------------------

    def run(self, advance: Callable[[int], object] = lambda number: None) -> Summary:
        """Copy what is not there yet and return a summary; `advance` is called with the number of entries done.

        Each batch of up to 500 entries is atomic. Raises StorageError if the old directory changes meanwhile, DiskFull,
        and any other error of the new cache; to go on, make another Migration and run it.
        """
        for part in self.parts:
            with ExitStack() as stack:
                cache = None if self._dry_run else stack.enter_context(self._open_target(part))
                for database in part.databases:
                    for batch in self._batches(part, database, advance):
                        if cache is None:
                            self._check_batch(batch)
                        else:
                            self._copy(cache, batch)
                        advance(len(batch))
                if cache is not None:
                    self._finish(part, cache)
        for prefix, number in sorted(self._items.items()):
            self.summary.notes.append(
                f"{number:,} keys look like those of items in the queue {prefix!r}; they are ordinary keys here, unless"
                f" --queue {prefix!r} is given"
            )
        if not self._dry_run:
            self._remove_mark()
        return self.summary

    def _batches(self, part: Part, database: OldDatabase, advance: Callable[[int], object]) -> Iterator[list[_Entry]]:
        batch: list[_Entry] = []
        weight = 0
        try:
            for row in database.rows():
                entry = self._entry(part, database, row)
                if entry is None:
                    advance(1)
                    continue
                batch.append(entry)
                weight += len(row.value) if isinstance(row.value, str | bytes) else 0
                if len(batch) >= BATCH_ENTRIES or weight >= BATCH_BYTES:
                    yield batch
                    batch, weight = [], 0
        except CorruptDatabase as error:
            self._skip(os.path.relpath(database.path, self.old), f"some entries cannot be read: {error}")
        if batch:
            yield batch

    def _entry(self, part: Part, database: OldDatabase, row: OldRow) -> _Entry | None:
        """Return the entry of a row with its key, or None if it is expired or its key cannot be read."""
        shown = None
        try:
            if row.expire_time is not None:
                if not isinstance(row.expire_time, int | float) or math.isnan(row.expire_time):
                    raise DecodeError("an expiry that is not a number")
                if row.expire_time <= self._now:
                    self.summary.expired += 1
                    return None
            key = self._decoder.key(row)
            shown = _Entry(None, row, database, part, key)
            return shown._replace(key=self._new_key(part, key))
        except _DEFECTS as error:
            self._skip(shown or f"row {row.rowid!r:.30} of {os.path.relpath(database.path, self.old)}", str(error))
            return None

    def _copy(self, cache: Cache, batch: list[_Entry]) -> None:
        """Copy a batch in one transaction, so that the lock is held from looking for a key until it is set."""
        before = (self.summary.copied, self.summary.present, len(self.summary.skipped))
        try:
            with cache.transact(retry=True):
                for entry in batch:
                    try:
                        self._copy_one(cache, entry)
                    except _DEFECTS as error:
                        self._skip(entry, str(error))
        except BaseException:
            self.summary.copied, self.summary.present = before[:2]
            del self.summary.skipped[before[2] :]
            raise

    def _copy_one(self, cache: Cache, entry: _Entry) -> None:
        row = entry.row
        if entry.key in cache:
            # Text and bytes equal no key of another type, so an earlier run must have copied what is there.
            if not (self._resumed and type(entry.key) in (str, bytes)):
                self._compare(cache, entry)
            self.summary.present += 1
            return
        value, opened = self._decoder.value(entry.database, entry.row)
        expire = None if row.expire_time is None else row.expire_time - self._now
        try:
            stored = cache.set(entry.key, value, expire=expire, read=opened, tag=checked_text(row.tag), retry=True)
        finally:
            if opened:
                value.close()
        if not stored:
            raise ValueTooLarge("larger than size_limit allows")
        self.summary.copied += 1

    def _compare(self, cache: Cache, entry: _Entry) -> None:
        """Raise DecodeError if the new cache holds another value under a key that equals the entry's."""
        value, opened = self._decoder.value(entry.database, entry.row)
        if opened:
            with value:
                value = value.read(MAX_IN_MEMORY)
        if not _is_same(value, cache.get(entry.key)):
            raise DecodeError("the new cache holds another value under an equal key, and keeps it")

    def _check_batch(self, batch: list[_Entry]) -> None:
        """Decode a batch and copy nothing."""
        for entry in batch:
            try:
                value, opened = self._decoder.value(entry.database, entry.row)
                if opened:
                    value.close()
                checked_text(entry.row.tag)
                keys.encode_key(entry.key)
                self.summary.copied += 1
            except _DEFECTS as error:
                self._skip(entry, str(error))

    def _skip(self, what: object, reason: str) -> None:
        self.summary.skipped.append(Skipped(str(what), reason))

    # -- decoding --------------------------------------------------------------------------------------------------

    def _new_key(self, part: Part, key: Any) -> Any:
        """Return the key in the new cache: a queue key for the items of a deque, and of the queues in the options."""
        if part.kind == "deque":
            if type(key) is not int or not 0 < key < 2 * QUEUE_START:
                raise DecodeError("not an item of a deque")
            return keys.queue_key(None, key)
        prefix, number = None, key
        if isinstance(key, str) and (match := _ITEM.fullmatch(key)):
            prefix, number = match[1], int(match[2])
        if type(number) is not int or not 0 < number < 2 * QUEUE_START:
            return key
        if (prefix or "") in self._queues:
            return keys.queue_key(prefix, number)
        if abs(number - QUEUE_START) < QUEUE_SPAN:
            self._items[prefix or ""] += 1
        return key


def is_finished(new: str) -> bool:
    """Tell whether a directory holds a cache, and not the unfinished copy of one."""
    try:
        present = os.listdir(new)
    except FileNotFoundError:
        return False
    return bool(present) and _FOLDER not in present


def _is_same(value: Any, there: Any) -> bool:
    if type(value) is type(there):
        with suppress(Exception):
            return bool(value == there) or dumps_pickle(value) == dumps_pickle(there)
    return False


def _short(key: Any) -> str:
    text = repr(key)
    return text if len(text) <= 200 else f"{text[:200]}... ({len(text):,} characters)"


def _is_claimed(folder: str, alone: bool) -> bool:
    """Tell whether the folder is the mark of a migration; if that was stopped at once, the folder may be empty."""
    try:
        inner = set(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return False
    return not paths.is_link(folder) and (_STATE in inner or (alone and not inner)) and inner <= {_STATE, _SCRATCH}
