"""The commands on entries: `get`, `set`, `touch`, `retag`, `delete`, `keys`, `evict` and `sizes`."""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from ..cache import Cache
from ..encoding.record import Record
from ..encoding.tags import tags_of
from ..errors import KeyEncodeError, SettingError, ValueEncodeError, named
from ..operations.inspection import records_of
from ..operations.tagging import MATCHES, Selection
from .arguments import positive
from .opening import add_namespace, existing, namespace_of, to_look_at
from .terminal import as_json, as_text, print_json, print_removed, print_table, shown

KINDS: dict[str, Callable[[str], Any]] = {
    "text": str,
    "int": int,
    "float": float,
    "bytes": bytes.fromhex,
    "json": json.loads,
}


def add(commands: Any, common: argparse.ArgumentParser) -> None:
    """Add the commands of this module."""
    common = argparse.ArgumentParser(add_help=False, parents=[common])
    add_namespace(common)
    keyed = argparse.ArgumentParser(add_help=False)
    keyed.add_argument("key", metavar="KEY")
    keyed.add_argument(
        "--key-type", choices=KINDS, default="text", help="what KEY is; bytes are given in hexadecimal (default: text)"
    )
    tagged = argparse.ArgumentParser(add_help=False)
    tagged.add_argument("--tag-type", choices=KINDS, default="text", help="what the tag is (default: text)")

    _add_of_one_key(commands, [common, keyed], tagged)
    _add_of_many(commands, [common, tagged], common)


def _add_of_one_key(commands: Any, keyed: list[argparse.ArgumentParser], tagged: argparse.ArgumentParser) -> None:
    one = commands.add_parser("get", parents=keyed, help="print the value of a key; 1 if there is none")
    one.add_argument("--raw", action="store_true", help="write text or bytes as they are, without a line end")
    one.set_defaults(command=get)

    store = commands.add_parser("set", parents=[*keyed, tagged], help="store a value under a key")
    store.add_argument("value", metavar="VALUE", help="the value, or - to read it from the standard input")
    store.add_argument("--value-type", choices=KINDS, default="text", help="what VALUE is (default: text)")
    store.add_argument("--expire", type=float, metavar="SECONDS", help="remove it after this time")
    store.add_argument("--tag", action="append", default=[], help="a label, for `evict`; may be repeated")
    store.add_argument(
        "--if-version",
        type=int,
        metavar="VERSION",
        help="only if the key still has the version that `get --json` shows, or with 0 if there is none; else 1",
    )
    store.set_defaults(command=set_)

    other = commands.add_parser(
        "retag", parents=[*keyed, tagged], help="change the tags of a key; 1 if there is no entry"
    )
    other.add_argument("--add", action="append", default=[], metavar="TAG", help="give it this tag; may be repeated")
    other.add_argument("--remove", action="append", default=[], metavar="TAG", help="take it away; may be repeated")
    other.set_defaults(command=retag)

    again = commands.add_parser("touch", parents=keyed, help="give a key a new expiry; 1 if there is no entry")
    again.add_argument("--expire", type=float, metavar="SECONDS", help="remove it after this time (default: never)")
    again.set_defaults(command=touch)

    less = commands.add_parser(
        "delete", parents=keyed, help="remove a key, or all keys with a prefix; 1 if there is no such key"
    )
    less.add_argument("--prefix", action="store_true", help="remove every text key that begins with KEY")
    less.set_defaults(command=delete)


def _add_of_many(commands: Any, tagged: list[argparse.ArgumentParser], common: argparse.ArgumentParser) -> None:
    every = commands.add_parser("keys", parents=tagged, help="list keys; all of them in order of insertion")
    every.add_argument("--prefix", help="only text keys that begin with this")
    every.add_argument("--glob", help="only text keys that match this, such as 'user:*:name'")
    _add_selection(every, required=False)
    every.add_argument("--limit", type=positive, metavar="N", help="at most so many")
    every.set_defaults(command=keys)

    gone = commands.add_parser("evict", parents=tagged, help="remove every entry with a tag, or several")
    _add_selection(gone, required=True)
    gone.add_argument("--soft", action="store_true", help="keep what can be had stale, as if it had just expired")
    gone.set_defaults(command=evict)

    sizes_ = commands.add_parser("sizes", parents=[common], help="show what takes the room: entries and bytes by group")
    sizes_.add_argument("--by", choices=GROUPS, default="prefix", help="how to group entries (default: prefix)")
    sizes_.add_argument("--separator", default=":", help="what ends the prefix of a text key (default: a colon)")
    sizes_.set_defaults(command=sizes)


def _add_selection(command: argparse.ArgumentParser, required: bool) -> None:
    text = "only entries with this tag; may be repeated"
    command.add_argument("--tag", action="append", default=[], required=required, help=text)
    command.add_argument("--match", choices=MATCHES, default="any", help="of several tags (default: any)")


def get(options: argparse.Namespace) -> int:
    """Print the value of a key, or with `--json` the whole entry; return 1 if there is none."""
    with to_look_at(options) as cache:
        entry = namespace_of(cache, options).get_entry(_parsed(options.key, options.key_type, KeyEncodeError))
    if entry is None:
        hint = "; keys of other types need --key-type" if options.key_type == "text" else ""
        print(shown(f"no entry under the {options.key_type} key {options.key!r}{hint}"), file=sys.stderr)
        return 1
    if options.json:
        about = _metadata(entry.expire_time, entry.tags, entry.size)
        print_json({"value": as_json(entry.value), **about, "version": entry.version})
    elif options.raw:
        if not isinstance(entry.value, str | bytes):
            raise ValueEncodeError(f"the value of {options.key!r} is a {type(entry.value).__name__}, not text or bytes")
        sys.stdout.buffer.write(
            entry.value if isinstance(entry.value, bytes) else entry.value.encode("utf-8", "surrogatepass")
        )
    else:
        print(as_text(entry.value))
    return 0


def set_(options: argparse.Namespace) -> int:
    """Store a value; return 1 if it can never fit the size limit, or if the key has another version than it should."""
    value = _input(options) if options.value == "-" else _parsed(options.value, options.value_type, ValueEncodeError)
    key, tags = _parsed(options.key, options.key_type, KeyEncodeError), _tags(options, options.tag)
    with existing(options) as cache:
        put = partial(namespace_of(cache, options).set, key, value, options.expire, tags=tags)
        stored = put() if options.if_version is None else put(if_version=options.if_version or None)
    if not stored:
        other = "" if options.if_version is None else "the key has another version, or "
        print(shown(f"{options.key!r}: {other}the value is larger than the cache may be"), file=sys.stderr)
    return 0 if stored else 1


def _input(options: argparse.Namespace) -> Any:
    """Return the value on the standard input, which is UTF-8 unless it is bytes; `get --raw` writes it as it was."""
    data = sys.stdin.buffer.read()
    if options.value_type == "bytes":
        return data
    try:
        return _parsed(data.decode(), options.value_type, ValueEncodeError)
    except UnicodeDecodeError as error:
        raise ValueEncodeError(f"the standard input is not UTF-8 text ({error}): give --value-type bytes") from error


def touch(options: argparse.Namespace) -> int:
    """Give a key a new expiry; return 1 if there was none."""
    key = _parsed(options.key, options.key_type, KeyEncodeError)
    with existing(options) as cache:
        return 0 if namespace_of(cache, options).touch(key, options.expire) else 1


def retag(options: argparse.Namespace) -> int:
    """Change the tags of a key; return 1 if there was none."""
    key = _parsed(options.key, options.key_type, KeyEncodeError)
    more, less = _tags(options, options.add), _tags(options, options.remove)
    with existing(options) as cache:
        return 0 if namespace_of(cache, options).retag(key, more, less) else 1


def delete(options: argparse.Namespace) -> int:
    """Remove a key, and return 1 if there was none; or all text keys with a prefix, and print how many there were."""
    key = _parsed(options.key, options.key_type, KeyEncodeError)
    if options.prefix and not (isinstance(key, str) and key):
        raise SettingError("a prefix is text that is not empty; to remove everything, use `clear`")
    with existing(options) as whole:
        cache = namespace_of(whole, options)
        if not options.prefix:
            return 0 if cache.delete(key) else 1
        removed = cache.evict(prefix=key, retry=True)
    print_removed(removed, options.json)
    return 0


def keys(options: argparse.Namespace) -> int:
    """List the keys of live entries, with their metadata if JSON is asked for."""
    with to_look_at(options, values=False) as cache:
        for key, record in itertools.islice(_selected(namespace_of(cache, options), options), options.limit):
            if options.json:
                print_json(
                    {"key": as_json(key), **_metadata(record.expire, tags_of(record.metadata.tags), record.value_size)}
                )
            else:
                print(shown(key if isinstance(key, str) else named(key)))
    return 0


def _selected(cache: Cache, options: argparse.Namespace) -> Iterator[tuple[Any, Record]]:
    selection = Selection.of(_tags(options, options.tag) or None, options.match, options.prefix, options.glob)
    if selection == Selection():
        yield from records_of(cache, cache)
    else:
        yield from ((found.key, found.record) for found in cache._select(selection))


def evict(options: argparse.Namespace) -> int:
    """Remove every entry with a tag, or several, and print how many there were."""
    tags = _tags(options, options.tag)
    with existing(options) as cache:
        removed = namespace_of(cache, options).evict(tags=tags, match=options.match, soft=options.soft, retry=True)
    print_removed(removed, options.json)
    return 0


def _by_prefix(cache: Cache, key: Any, record: Record, separator: str) -> list[str]:
    if not isinstance(key, str):
        return [f"({type(key).__name__})"]
    prefix, found, _ = key.partition(separator)
    return [prefix + found if found else "(none)"]


def _by_tag(cache: Cache, key: Any, record: Record, separator: str) -> list[str]:
    return [str(tag) for tag in tags_of(record.metadata.tags)] or ["(none)"]


def _by_type(cache: Cache, key: Any, record: Record, separator: str) -> list[str]:
    entry = cache.get_entry(key)  # which counts as no use
    return ["(gone)" if entry is None else type(entry.value).__name__]


GROUPS: dict[str, Callable[[Cache, Any, Record, str], list[str]]] = {
    "tag": _by_tag,
    "prefix": _by_prefix,
    "type": _by_type,
}


def sizes(options: argparse.Namespace) -> int:
    """Print entries and bytes of each group, the largest first; an entry with several tags is in several groups."""
    groups: dict[str, list[int]] = {}
    with to_look_at(options, values=options.by == "type") as whole:
        cache = namespace_of(whole, options)
        for key, record in records_of(cache, cache):
            for name in GROUPS[options.by](cache, key, record, options.separator):
                group = groups.setdefault(name, [0, 0])
                group[0] += 1
                group[1] += record.value_size
    ranked = sorted(groups.items(), key=lambda item: item[1][1], reverse=True)
    if options.json:
        for name, (number, size) in ranked:
            print_json({options.by: name, "entries": number, "bytes": size})
    else:
        rows = [(shown(name), f"{number:,}", f"{size:,}") for name, (number, size) in ranked]
        print_table((options.by, "entries", "bytes"), rows)
    return 0


def _metadata(expire: float | None, tags: Sequence[Any], size: int) -> dict[str, Any]:
    return {"expire_time": expire, "tags": [as_json(tag) for tag in tags], "size": size}


def _tags(options: argparse.Namespace, given: Sequence[str]) -> list[Any]:
    return [_parsed(tag, options.tag_type, KeyEncodeError) for tag in given]


def _parsed(text: str, kind: str, error: type[KeyEncodeError | ValueEncodeError]) -> Any:
    """Return what `text` spells; raise `error` if it does not spell a thing of this kind."""
    try:
        text.encode()  # what the shell gave as other bytes would be stored as other text
        return KINDS[kind](text)
    except UnicodeEncodeError as problem:
        raise error(f"{text!r} is no text in the shell's encoding: give it as bytes, in hexadecimal") from problem
    except (ValueError, RecursionError) as problem:
        raise error(f"{text!r} is not {kind}: {problem}") from problem
