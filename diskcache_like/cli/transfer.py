"""The commands that move entries: `export`, `import` and `copy`."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any, BinaryIO

from ..cache import Cache
from ..disk.serializers import Msgpack
from ..encoding.json import Json
from ..encoding.values import NotSerializable, encode_value
from ..entries.rotation import children_of
from ..errors import DecodeError, SettingError
from ..fanout import FanoutCache
from ..operations.inspection import identity_of, records_of
from .arguments import positive
from .opening import to_look_at
from .terminal import print_json, shown

RUNS_CALLERS_CODE = True  # for `interrupts_a_call` of system/signal_safe.py

MAGIC = b"diskcache_like export 1\n"
LENGTH = 4  # bytes of the length before each entry, big endian
LONGEST = (1 << 32) - 1
FIELDS = ("key", "value", "expire_time", "tag")
CARRIED = (
    "size_limit",
    "cull_limit",
    "eviction_policy",
    "statistics",
    "tag_index",
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
        description="Write the live entries with expiry and tag, in order of insertion: as JSON lines, or as msgpack,"
        " which holds everything that is stored as data. What the format cannot hold is left out and listed.",
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
        " there. Entries that have expired are left out.",
    )
    back.add_argument("-i", "--input", metavar="FILE", help="default: the standard input")
    back.set_defaults(command=import_)

    move = commands.add_parser(
        "copy",
        parents=[common],
        help="copy a cache, if you like with another codec or number of shards",
        description="Copy every live entry with expiry and tag, in order of insertion. A target that is not there is"
        " made with the limits, the codec, the shards and the encryption of the cache, except for what is given here.",
        epilog="exit status: 0 everything was copied, 1 something was left out, 2 it failed",
    )
    move.add_argument("target", metavar="TARGET", help="the directory to copy to")
    move.add_argument("--shards", type=positive, metavar="N", help="default: as many as DIRECTORY has")
    move.add_argument("--serializer", metavar="NAME", help="msgpack, json or pickle")
    move.add_argument("--compressor", metavar="NAME", help="none, zlib, zstd or lz4")
    move.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a setting; may be repeated")
    move.set_defaults(command=copy)


# -- export -----------------------------------------------------------------------------------------------------------


def export(options: argparse.Namespace) -> int:
    """Write all live entries; return 1 if some were left out."""
    frame = _json_line if options.format == "json" else _msgpack_frame
    written = left_out = 0
    with ExitStack() as stack:
        cache = stack.enter_context(to_look_at(options.directory))
        file: BinaryIO = sys.stdout.buffer
        if options.output is not None:
            file = stack.enter_context(open(options.output, "wb"))
        if options.format == "msgpack":
            file.write(MAGIC)
        for key, _ in records_of(cache, cache):
            entry = cache.get_entry(key)
            if entry is None:
                continue
            try:
                data = frame((key, entry.value, entry.expire_time, entry.tag))
            except NotSerializable as reason:
                left_out += 1
                print(shown(f"left out {key!r}: {reason}"), file=sys.stderr)
                continue
            file.write(data)
            written += 1
    print(f"{written:,} entries written, {left_out:,} left out", file=sys.stderr)
    return 1 if left_out else 0


def _json_line(item: tuple[Any, ...]) -> bytes:
    return Json().encode(dict(zip(FIELDS, item, strict=True))) + b"\n"


def _msgpack_frame(item: tuple[Any, ...]) -> bytes:
    data = encode_value(item)
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
        cache = stack.enter_context(Cache(options.directory))
        for key, value, expire_time, tag in _items(file):
            left = None if expire_time is None else expire_time - time.time()
            if left is not None and left <= 0:
                expired += 1
            elif cache.set(key, value, left, tag=tag, retry=True):
                stored += 1
            else:
                too_large += 1
                print(shown(f"left out {key!r}: larger than the cache may be"), file=sys.stderr)
    if options.json:
        print_json({"stored": stored, "expired": expired, "left_out": too_large})
    else:
        print(f"{stored:,} entries stored, {expired:,} had expired, {too_large:,} left out")
    return 1 if too_large else 0


def _items(file: BinaryIO) -> Iterator[tuple[Any, Any, float | None, Any]]:
    """Yield the entries of a file; raise DecodeError, with their number, for one that is malformed."""
    first = file.readline()
    read: Callable[[BinaryIO, bytes], Any]
    read, ahead = (_msgpack_item, b"") if first == MAGIC else (_json_item, first)
    number = 0
    while True:
        number += 1
        try:
            item = read(file, ahead)
        except DecodeError as error:
            raise DecodeError(f"entry {number} of the file: {error}; those before it are stored") from error
        if item is None:
            return
        ahead = b""
        yield item


def _json_item(file: BinaryIO, ahead: bytes) -> tuple[Any, ...] | None:
    line = ahead or file.readline()
    if not line:
        return None
    found = Json().decode(line)
    if not isinstance(found, dict) or set(found) != set(FIELDS):
        raise DecodeError(f"expected an object with {', '.join(FIELDS)}")
    return _checked(tuple(found[name] for name in FIELDS))


def _msgpack_item(file: BinaryIO, _: bytes) -> tuple[Any, ...] | None:
    head = file.read(LENGTH)
    if not head:
        return None
    size = int.from_bytes(head, "big")
    data = file.read(size)
    if len(head) < LENGTH or len(data) < size:
        raise DecodeError("the file ends within it")
    found = Msgpack().decode(data)
    if not isinstance(found, tuple) or len(found) != len(FIELDS):
        raise DecodeError(f"expected {', '.join(FIELDS)}")
    return _checked(found)


def _checked(item: tuple[Any, ...]) -> tuple[Any, ...]:
    if not (item[2] is None or (isinstance(item[2], int | float) and not isinstance(item[2], bool))):
        raise DecodeError(f"expire_time is {item[2]!r}, expected seconds since 1970 or nothing")
    return item


# -- copy -------------------------------------------------------------------------------------------------------------


def copy(options: argparse.Namespace) -> int:
    """Copy a cache; return 1 if an entry, or a named child, was left out."""
    given = {name: getattr(options, name) for name in ("serializer", "compressor") if getattr(options, name)}
    given.update(_setting(text) for text in options.set)
    with to_look_at(options.directory) as source:
        carried = {name: source.reset(name) for name in CARRIED}
        shards, identity = identity_of(source)
        settings = {**carried, **identity, **given}
        shards = options.shards or shards
        target = Cache(options.target, **settings) if shards == 1 else FanoutCache(options.target, shards, **settings)
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


def _setting(text: str) -> tuple[str, Any]:
    """Return the name and the value of NAME=VALUE, where VALUE may be a number."""
    name, equals, value = text.partition("=")
    if not equals:
        raise SettingError(f"{text!r} is no setting, expected NAME=VALUE")
    for kind in (int, float):
        try:
            return name, kind(value)
        except ValueError:
            continue
    return name, value
