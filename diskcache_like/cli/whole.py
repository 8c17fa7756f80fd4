"""The commands on a whole cache: `stats`, `watch`, `check` and `clear`."""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import time
import warnings
from typing import Any

from ..cache import Cache
from ..entries.encryption import check_without_secret
from ..errors import CorruptDatabase, CorruptDatabaseWarning, SecretError, SettingError
from ..operations.inspection import work_of
from ..tier.tier import stats_in
from .arguments import interval, positive
from .opening import WithoutRecovery, add_namespace, existing, namespace_of, readable, to_look_at
from .terminal import print_json, print_removed, shown

RUNS_CALLERS_CODE = True  # for `interrupts_a_call` of system/signal_safe.py

WATCHED = ("hits", "misses", "writes", "evictions")
HEADER_EVERY = 20  # lines of `watch`


def add(commands: Any, common: argparse.ArgumentParser) -> None:
    """Add the commands of this module."""
    commands.add_parser("stats", parents=[common], help="show what a cache holds").set_defaults(command=stats)

    look = commands.add_parser(
        "watch",
        parents=[common],
        help="show hits, misses, writes and evictions, every second",
        description="Show how many hits, misses, writes and evictions all processes have in each interval. Hits and"
        " misses are counted if the setting `statistics` is on, and a process adds its own with its next write.",
    )
    look.add_argument("--interval", type=interval, default=1.0, metavar="SECONDS", help="how often (default: 1)")
    look.add_argument("--count", type=positive, metavar="N", help="how many lines (default: until interrupted)")
    look.set_defaults(command=watch)

    test = commands.add_parser("check", parents=[common], help="look for damage; 1 if there is any")
    test.add_argument("--fix", action="store_true", help="repair what can be repaired")
    test.set_defaults(command=check)

    empty = commands.add_parser("clear", parents=[common], help="remove every entry; asks first")
    add_namespace(empty)
    empty.add_argument("--yes", action="store_true", help="do not ask")
    empty.set_defaults(command=clear)


def stats(options: argparse.Namespace) -> int:
    """Print the number of entries, the volume, and the hits and misses so far."""
    with to_look_at(options.directory, values=False) as cache:
        hits, misses = _uses(cache)
        found = {"entries": len(cache), "bytes": cache.volume(), "hits": hits, "misses": misses}
    servers = stats_in(options.directory)
    if options.json:
        print_json({**found, **({"remote": [server._asdict() for server in servers]} if servers else {})})
        return 0
    for name, number in found.items():
        print(f"{name:<8}{number:>16,}")
    for server in servers:
        heard = "never heard" if server.heard is None else f"heard {server.heard:,.1f} s ago"
        print(shown(f"remote {server.namespace}: {server.state}, {heard}"))
        for name, number in server.counts.items():
            print(f"  {name:<16}{number:>16,}")
    return 0


def _uses(cache: Cache) -> tuple[int, int]:
    return cache.stats(enable=bool(cache.reset("statistics")))  # leave counting on or off, as it is


def watch(options: argparse.Namespace) -> int:
    """Print in each interval how much was done."""
    with existing(options.directory, WithoutRecovery) as cache:
        if not cache.reset("statistics"):
            print("statistics are off: hits and misses are not counted", file=sys.stderr)
        before = (*_uses(cache), *work_of(cache))
        for line in range(options.count) if options.count is not None else itertools.count():
            time.sleep(options.interval)
            now = (*_uses(cache), *work_of(cache))
            done = dict(zip(WATCHED, (max(new - old, 0) for new, old in zip(now, before, strict=True)), strict=True))
            before = now
            if options.json:
                print_json({"time": time.time(), **done})
                continue
            if line % HEADER_EVERY == 0:
                print("".join(f"{name:>12}" for name in WATCHED))
            print("".join(f"{number:>12,}" for number in done.values()), flush=True)
    return 0


def check(options: argparse.Namespace) -> int:
    """Print what is wrong with the cache, and repair it if asked to; return 1 if anything was wrong.

    If the cache needs a secret that was not given, check what can be checked without it, and repair nothing.
    """
    found = _findings(options.directory, options.fix)
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


def _findings(directory: str, fix: bool) -> list[str]:
    """Return what is wrong with the cache; an unreadable database is quarantined only if `fix`."""
    if fix:
        return _checked(directory, fix=True)
    with readable(directory) as path:
        try:
            found = _checked(path, fix=False)
        except SecretError:
            found = [str(warning.message) for warning in check_without_secret(path)]
        except CorruptDatabase as damage:
            found = [str(damage)]
    return found if path == directory else [text.replace(path, os.path.abspath(directory)) for text in found]


def _checked(directory: str, fix: bool) -> list[str]:
    with warnings.catch_warnings(record=True) as met:
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", CorruptDatabaseWarning)
        with existing(directory, Cache if fix else WithoutRecovery) as cache:
            found = [*met, *cache.check(fix=fix)]  # check also returns what it warns of
    return [str(warning.message) for warning in found]


def clear(options: argparse.Namespace) -> int:
    """Remove every entry and print how many there were; return 1 if the user does not want that."""
    with existing(options.directory) as whole:
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
