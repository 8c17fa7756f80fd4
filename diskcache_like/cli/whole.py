"""The commands on a whole cache: `stats`, `check`, `reset`, `expire`, `cull` and `clear`."""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from typing import Any

from ..cache import Cache
from ..entries.encryption import check_without_secret
from ..errors import CorruptDatabase, CorruptDatabaseWarning, SecretError, SettingError
from ..tier.tier import stats_in
from .arguments import setting
from .opening import WithoutRecovery, add_namespace, existing, is_shared, namespace_of, readable, to_look_at
from .terminal import as_text, print_json, print_removed, shown

REMOVALS = {
    "expire": ("remove entries that have expired", Cache.expire),
    "cull": ("remove expired entries, then others by policy until the size limit holds", Cache.cull),
}


def add(commands: Any, common: argparse.ArgumentParser) -> None:
    """Add the commands of this module."""
    about = "show what a cache holds, its limit, and how full it is"
    commands.add_parser("stats", parents=[common], help=about).set_defaults(command=stats)

    test = commands.add_parser("check", parents=[common], help="look for damage; 1 if there is any")
    test.add_argument("--fix", action="store_true", help="repair what can be repaired")
    test.set_defaults(command=check)

    change = commands.add_parser("reset", parents=[common], help="show a setting as stored, or store a value for it")
    change.add_argument("name", metavar="NAME", help="the setting")
    change.add_argument("value", nargs="?", type=setting, metavar="VALUE", help="what it is from now on; null for None")
    change.set_defaults(command=reset)

    for name, (about, remove) in REMOVALS.items():
        commands.add_parser(name, parents=[common], help=about).set_defaults(command=removal, remove=remove)

    empty = commands.add_parser("clear", parents=[common], help="remove every entry; asks first")
    add_namespace(empty)
    empty.add_argument("--yes", action="store_true", help="do not ask")
    empty.set_defaults(command=clear)


def stats(options: argparse.Namespace) -> int:
    """Print the number of entries, the volume beside its limit, and the hits and misses so far."""
    with to_look_at(options, values=False) as cache:
        counted = cache.metrics()
        found: dict[str, Any] = {"entries": len(cache), "bytes": cache.volume()}
        found |= {name: cache.reset(name) for name in ("size_limit", "max_entries", "eviction_policy")}
        found |= {"hits": counted.hits, "misses": counted.misses}
    servers = stats_in(options.directory)
    if options.json:
        print_json({**found, **({"remote": [server._asdict() for server in servers]} if servers else {})})
        return 0
    notes = {"bytes": f"  {found['bytes'] / max(found['size_limit'], 1):.0%} of size_limit"}
    if found["eviction_policy"] == "none":
        notes = {"size_limit": "  not in force: nothing is evicted"}
    for name, value in found.items():
        if name == "max_entries" and value is None:
            continue
        text = value if isinstance(value, str) else f"{value:>16,}"
        print(f"{name:<16}{text}{notes.get(name, '')}")
    for server in servers:
        heard = "never heard" if server.heard is None else f"heard {server.heard:,.1f} s ago"
        print(shown(f"remote {server.namespace}: {server.state}, {heard}"))
        for name, number in server.counts.items():
            print(f"  {name:<16}{number:>16,}")
    return 0


def check(options: argparse.Namespace) -> int:
    """Print what is wrong with the cache, and repair it if asked to; return 1 if anything was wrong.

    If the cache needs a secret that was not given, check what can be checked without it, and repair nothing.
    """
    found = _findings(options)
    if options.json:
        print_json({"problems": found, "fixed": bool(found and options.fix)})
        return 1 if found else 0
    for text in found:
        print(shown(text))
    if not found:
        print("nothing found")
    elif options.fix:
        print("repaired what could be repaired, and removed entries that were damaged")
    return 1 if found else 0


def _findings(options: argparse.Namespace) -> list[str]:
    """Return what is wrong with the cache; an unreadable database is quarantined only if it may be repaired."""
    directory = options.directory
    if options.fix:
        return _checked(options, directory)
    with readable(options) as path:
        try:
            found = _checked(options, path)
        except SecretError:
            found = [str(warning.message) for warning in check_without_secret(path, is_shared(options, path))]
        except CorruptDatabase as damage:
            found = [str(damage)]
    return found if path == directory else [text.replace(path, os.path.abspath(directory)) for text in found]


def _checked(options: argparse.Namespace, directory: str) -> list[str]:
    with warnings.catch_warnings(record=True) as met:
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", CorruptDatabaseWarning)
        with existing(options, Cache if options.fix else WithoutRecovery, directory) as cache:
            found = [*met, *cache.check(fix=options.fix)]  # check also returns what it warns of
    return [str(warning.message) for warning in found]


def reset(options: argparse.Namespace) -> int:
    """Print a setting as stored, after storing a value for it if one is given."""
    with to_look_at(options, values=False) if options.value is None else existing(options) as cache:
        value = cache.reset(options.name, *options.value or ())
    if options.json:
        print_json({options.name: value})
    else:
        print(as_text(value))
    return 0


def removal(options: argparse.Namespace) -> int:
    """Remove entries, and print how many there were."""
    with existing(options) as cache:
        removed = options.remove(cache, retry=True)
    print_removed(removed, options.json)
    return 0


def clear(options: argparse.Namespace) -> int:
    """Remove every entry and print how many there were; return 1 if the user does not want that."""
    with existing(options) as whole:
        cache, where = namespace_of(whole, options), "/".join([options.directory, *options.namespace])
        if not options.yes and not _confirmed(f"remove all {len(cache):,} entries of {where}? [y/N] "):
            print("nothing removed", file=sys.stderr)
            return 1
        removed = cache.clear()
    print_removed(removed, options.json)
    return 0


def _confirmed(question: str) -> bool:
    """Ask on the terminal; raise SettingError where there is none."""
    if not sys.stdin.isatty():
        raise SettingError("there is no terminal to ask on: give --yes")
    print(shown(question), end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")
