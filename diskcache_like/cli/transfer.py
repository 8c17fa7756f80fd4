"""The commands that move entries: `export`, `import` and `copy`."""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import time
from base64 import b64decode, b64encode
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any, BinaryIO

from ..cache import Cache
from ..encoding.json import Json
from ..encoding.values import NotSerializable
from ..entries.rotation import children_of
from ..errors import DecodeError, SettingError, ValueEncodeError, named
from ..operations.inspection import identity_of, records_of
from ..operations.portable import Item, Portable
from ..structures.fanout import FanoutCache
from .arguments import positive, setting
from .opening import opened, to_look_at
from .terminal import print_json, shown

FIELDS = ("key", "value", "expire_time", "tags")
PACKED = "packed"  # the only field of an entry that JSON does not say exactly: its portable bytes, in base64
CARRIED = (
    "size_limit",
    "max_entries",
    "default_expire",
    "max_age",
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
        description="Write the live entries with expiry and tags, in order of insertion, as JSON lines. What JSON does"
        " not say exactly is packed, for `import` alone to read; what had to be pickled is signed with the secret of"
        " the cache. The file is not encrypted, and is made for this user alone. What cannot be written is left out and"
        " listed.",
        epilog="exit status: 0 everything was written, 1 something was left out, 2 it failed",
    )
    out.add_argument("-o", "--output", metavar="FILE", help="default: the standard output")
    out.set_defaults(command=export)

    back = commands.add_parser(
        "import",
        parents=[common],
        help="store the entries of an exported file",
        description="Store the entries of a file that `export` wrote. The cache is made if it is not"
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
        cache = stack.enter_context(to_look_at(options, metrics_level="off"))  # only what is met here counts
        file: BinaryIO = sys.stdout.buffer
        if options.output is not None:
            file = stack.enter_context(open(options.output, "wb", opener=partial(os.open, mode=0o600)))
        portable = Portable(cache)
        for key, _ in records_of(cache, cache):
            entry = cache.get_entry(key)
            if entry is None:
                continue  # gone meanwhile, or counted below
            try:
                line = _line((key, entry.value, entry.expire_time, entry.tags), portable)
            except ValueEncodeError as reason:
                left_out += 1
                print(shown(f"left out {named(key)}: {reason}"), file=sys.stderr)
                continue
            file.write(line + b"\n")
            written += 1
        found = cache.metrics()  # what was damaged, signed by another secret, or of a class unknown here
        unreadable = found.damaged + found.unauthenticated + found.missing_files
    if unreadable:
        print(f"left out {unreadable:,} entries that this command cannot read or trust", file=sys.stderr)
    print(f"{written:,} entries written, {left_out + unreadable:,} left out", file=sys.stderr)
    return 1 if left_out or unreadable else 0


def _line(item: Item, portable: Portable) -> bytes:
    key, value, expire_time, tags = item
    try:
        return Json().encode(dict(zip(FIELDS, (key, value, expire_time, list(tags)), strict=True)))
    except (NotSerializable, ValueEncodeError):
        return Json().encode({PACKED: b64encode(portable.pack(item)).decode("ascii")})


# -- import -----------------------------------------------------------------------------------------------------------


def import_(options: argparse.Namespace) -> int:
    """Store the entries of a file; return 1 if one can never fit the size limit."""
    stored = expired = too_large = 0
    with ExitStack() as stack:
        file: BinaryIO = sys.stdin.buffer
        if options.input is not None:
            file = stack.enter_context(open(options.input, "rb"))
        first = file.readline()
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
        if first:
            _fields(first)
    except DecodeError as error:
        where = "the standard input" if name is None else repr(name)
        raise DecodeError(f"{where} is not what `export` writes; its first line: {error}") from error


def _items(file: BinaryIO, first: bytes, portable: Portable) -> Iterator[Item]:
    """Yield the entries of a file whose first line was read; raise DecodeError for one that is malformed."""
    for number, line in enumerate(itertools.chain([first] if first else [], file), 1):
        try:
            yield _item(_fields(line), portable)
        except DecodeError as error:
            before = "; those before it are stored" if number > 1 else ""
            raise DecodeError(f"entry {number} of the file: {error}{before}") from error


def _fields(line: bytes) -> dict[str, Any]:
    found = Json().decode(line)
    if not isinstance(found, dict) or set(found) not in (set(FIELDS), {PACKED}):
        raise DecodeError(f"expected an object with {', '.join(FIELDS)}")
    return found


def _item(found: dict[str, Any], portable: Portable) -> Item:
    if PACKED in found:
        return _unpacked(found[PACKED], portable)
    key, value, expire_time, tags = (found[name] for name in FIELDS)
    if isinstance(expire_time, bool) or not isinstance(expire_time, int | float | None):
        raise DecodeError(f"expire_time is {expire_time!r}, expected seconds since 1970 or null")
    if not isinstance(tags, list | tuple):
        raise DecodeError(f"tags is {tags!r}, expected a list")
    return key, value, expire_time, tuple(tags)


def _unpacked(text: Any, portable: Portable) -> Item:
    try:
        data = b64decode(text, validate=True)
    except (TypeError, ValueError) as error:
        raise DecodeError(f"{PACKED} is no text in base64: {error}") from error
    return portable.unpack(data)


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
