"""The commands that move entries: `export`, `import` and `copy`."""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any, BinaryIO

from ..cache import Cache
from ..encoding.json import Json
from ..encoding.keys import PrefixedQueueKey, QueueKey
from ..encoding.values import NotSerializable
from ..entries.rotation import children_of
from ..errors import DecodeError, SettingError, ValueEncodeError, named
from ..fanout import FanoutCache
from ..operations.inspection import identity_of, records_of
from ..operations.portable import Item, Portable
from .arguments import positive, setting
from .opening import opened, to_look_at
from .terminal import print_json, shown

RUNS_CALLERS_CODE = True  # for `interrupts_a_call` of system/signal_safe.py

MAGIC = b"diskcache_like export 1\n"
LENGTH = 4  # bytes of the length before each entry, big endian
LONGEST = (1 << 32) - 1
PIECE = 1 << 20  # bytes read at once
FIELDS = ("key", "value", "expire_time", "tags")
CARRIED = (
    "size_limit",
    "cull_limit",
    "eviction_policy",
    "statistics",
    "durability",
    "compress_level",
    "compress_min_size",
    "disk_min_file_size",
    "deque_maxlen",
)


def add(commands: Any, common: argparse.ArgumentParser) -> None:
    """Add the commands of this module."""
    out = commands.add_parser(
        "export",
        parents=[common],
        help="write all entries to a file",
        description="Write the live entries with expiry and tags, in order of insertion: as JSON lines, or as msgpack,"
        " which holds every value; what had to be pickled is signed with the secret of the cache. The file is not"
        " encrypted, and is made for this user alone. What cannot be written is left out and listed.",
        epilog="exit status: 0 everything was written, 1 something was left out, 2 it failed",
    )
    out.add_argument("--format", choices=("json", "msgpack"), default="json", help="default: json")
    out.add_argument("-o", "--output", metavar="FILE", help="default: the standard output")
    out.set_defaults(command=export)

    back = commands.add_parser(
        "import",
        parents=[common],
        help="store the entries of an exported file",
        description="Store the entries of a file that `export` wrote, in either format. The cache is made if it is not"
        " there. Entries that have expired are left out. A pickle in the file is refused if it was not signed with the"
        " secret of this cache.",
    )
    back.add_argument("-i", "--input", metavar="FILE", help="default: the standard input")
    back.set_defaults(command=import_)

    move = commands.add_parser(
        "copy",
        parents=[common],
        help="copy a cache, if you like with another codec or number of shards",
        description="Copy every live entry with expiry and tags, in order of insertion. A target that is not there is"
        " made with the limits, the codec, the shards and the encryption of the cache, except for what is given here.",
        epilog="exit status: 0 everything was copied, 1 something was left out, 2 it failed",
    )
    move.add_argument("target", metavar="TARGET", help="the directory to copy to")
    move.add_argument("--shards", type=positive, metavar="N", help="default: as many as DIRECTORY has")
    move.add_argument("--serializer", metavar="NAME", help="msgpack, json, pickle or arrow")
    move.add_argument("--compressor", metavar="NAME", help="none, zlib, zstd or lz4")
    move.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a setting; may be repeated")
    move.set_defaults(command=copy)


# -- export -----------------------------------------------------------------------------------------------------------


def export(options: argparse.Namespace) -> int:
    """Write all live entries; return 1 if some were left out."""
    written = left_out = 0
    with ExitStack() as stack:
        cache = stack.enter_context(to_look_at(options))
        file: BinaryIO = sys.stdout.buffer
        if options.output is not None:
            file = stack.enter_context(open(options.output, "wb", opener=_private))
        if options.format == "msgpack":
            file.write(MAGIC)
        frame = _json_line if options.format == "json" else partial(_msgpack_frame, Portable(cache))
        for key, _ in records_of(cache, cache):
            entry = cache.get_entry(key)
            if entry is None:
                continue  # gone meanwhile, or counted below
            try:
                data = frame((key, entry.value, entry.expire_time, entry.tags))
            except (NotSerializable, ValueEncodeError) as reason:
                left_out += 1
                print(shown(f"left out {named(key)}: {reason}"), file=sys.stderr)
                continue
            file.write(data)
            written += 1
        unreadable = _unreadable(cache)
    if unreadable:
        print(f"left out {unreadable:,} entries that this command cannot read or trust", file=sys.stderr)
    print(f"{written:,} entries written, {left_out + unreadable:,} left out", file=sys.stderr)
    return 1 if left_out or unreadable else 0


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _unreadable(cache: Cache) -> int:
    """Return how many entries this handle found damaged, signed by another secret, or of a class unknown here."""
    found = cache.metrics
    return found.damaged + found.unauthenticated + found.missing_files


def _json_line(item: Item) -> bytes:
    key, value, expire_time, tags = item
    _refuse_key(key)
    return Json().encode(dict(zip(FIELDS, (key, value, expire_time, list(tags)), strict=True))) + b"\n"


def _refuse_key(key: Any) -> None:
    """Raise NotSerializable, which names the key as the cause, if JSON cannot express it."""
    try:
        Json().encode(key)
    except (NotSerializable, ValueEncodeError) as error:
        kind = "of a queue" if isinstance(key, QueueKey | PrefixedQueueKey) else f"of type {type(key).__name__}"
        raise NotSerializable(f"JSON cannot express a key {kind}; `--format msgpack` can") from error


def _msgpack_frame(portable: Portable, item: Item) -> bytes:
    data = portable.pack(item)
    if len(data) > LONGEST:
        raise NotSerializable("it is larger than 4 GiB")
    return len(data).to_bytes(LENGTH, "big") + data


# -- import -----------------------------------------------------------------------------------------------------------


def import_(options: argparse.Namespace) -> int:
    """Store the entries of a file; return 1 if one can never fit the size limit."""
    stored = expired = too_large = 0
    with ExitStack() as stack:
        file: BinaryIO = sys.stdin.buffer
        if options.input is not None:
            file = stack.enter_context(open(options.input, "rb"))
        first = file.readline()
        if first != MAGIC:
            _refuse_other_file(first, options.input)  # before a cache is made for it
        cache = stack.enter_context(opened(options, options.directory))
        for key, value, expire_time, tags in _items(file, first, Portable(cache)):
            left = None if expire_time is None else expire_time - time.time()
            if left is not None and left <= 0:
                expired += 1
            elif cache.set(key, value, left, tags=tags, retry=True):
                stored += 1
            else:
                too_large += 1
                print(shown(f"left out {named(key)}: larger than the cache may be"), file=sys.stderr)
    if options.json:
        print_json({"stored": stored, "expired": expired, "left_out": too_large})
    else:
        print(f"{stored:,} entries stored, {expired:,} had expired, {too_large:,} left out")
    return 1 if too_large else 0


def _refuse_other_file(first: bytes, name: str | None) -> None:
    """Raise DecodeError for a first line that `export` did not write."""
    try:
        _json_item(first)
    except DecodeError as error:
        where = "the standard input" if name is None else repr(name)
        raise DecodeError(f"{where} is not what `export` writes; its first line: {error}") from error


def _items(file: BinaryIO, first: bytes, portable: Portable) -> Iterator[Item]:
    """Yield the entries of a file after its first line; raise DecodeError for one that is malformed."""
    lines = itertools.chain([first], iter(file.readline, None))
    for number in itertools.count(1):
        read = partial(_msgpack_item, file, portable) if first == MAGIC else partial(_json_item, next(lines))
        item = _checked(number, read)
        if item is None:
            return
        yield item


def _checked(number: int, read: Callable[[], Item | None]) -> Item | None:
    try:
        return read()
    except DecodeError as error:
        before = "; those before it are stored" if number > 1 else ""
        raise DecodeError(f"entry {number} of the file: {error}{before}") from error


def _json_item(line: bytes) -> Item | None:
    if not line:
        return None
    found = Json().decode(line)
    if not isinstance(found, dict) or set(found) != set(FIELDS):
        raise DecodeError(f"expected an object with {', '.join(FIELDS)}")
    key, value, expire_time, tags = (found[name] for name in FIELDS)
    if isinstance(expire_time, bool) or not isinstance(expire_time, int | float | None):
        raise DecodeError(f"expire_time is {expire_time!r}, expected seconds since 1970 or null")
    if not isinstance(tags, list | tuple):
        raise DecodeError(f"tags is {tags!r}, expected a list")
    return key, value, expire_time, tuple(tags)


def _msgpack_item(file: BinaryIO, portable: Portable) -> Item | None:
    head = file.read(LENGTH)
    if not head:
        return None
    data = bytearray()
    # In pieces: the length may claim more than there is, or than there is memory for.
    while (left := int.from_bytes(head, "big") - len(data)) > 0 and (piece := file.read(min(left, PIECE))):
        data += piece
    if len(head) < LENGTH or left:
        raise DecodeError("the file ends within it")
    return portable.unpack(bytes(data))


# -- copy -------------------------------------------------------------------------------------------------------------


def copy(options: argparse.Namespace) -> int:
    """Copy a cache; return 1 if an entry, or a named child, was left out."""
    given = {name: getattr(options, name) for name in ("serializer", "compressor") if getattr(options, name)}
    given.update(_setting(text) for text in options.set)
    _refuse_inside(options.directory, options.target)
    with to_look_at(options) as source:
        carried = {name: source.reset(name) for name in CARRIED}
        shards, identity = identity_of(source)
        if {"serializer", "compressor"} & given.keys():
            identity.pop("disk", None)  # the class that has a codec of its own
        settings = {**carried, **identity, **given}
        shards = options.shards or shards
        kind = Cache if shards == 1 else partial(FanoutCache, shards=shards)
        target = opened(options, options.target, kind, **settings)
        with target:
            copied = source.copy_to(target)
        left_out = sum(1 for _ in records_of(source, source)) - copied
        children = [f"{kind}/{name}" for kind, name in children_of(options.directory)]
    for child in children:
        print(shown(f"not copied: {child}, a cache of its own; copy {options.directory}/{child}"), file=sys.stderr)
    if options.json:
        print_json({"copied": copied, "left_out": max(left_out, 0), "children": children})
    else:
        print(f"{copied:,} entries copied, {max(left_out, 0):,} left out")
    return 1 if left_out > 0 or children else 0


def _refuse_inside(directory: str, target: str) -> None:
    source, copy = os.path.realpath(directory), os.path.realpath(target)
    if os.path.commonpath((source, copy)) == source:
        raise SettingError(f"{target!r} lies inside {directory!r}: give a directory outside of it")


def _setting(text: str) -> tuple[str, Any]:
    """Return the name and the value of NAME=VALUE."""
    name, equals, value = text.partition("=")
    if not equals:
        raise SettingError(f"{text!r} is no setting, expected NAME=VALUE")
    return name, *setting(value)
