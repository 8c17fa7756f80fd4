"""The commands for whoever runs a cache: `top`, `watch`, `bigkeys`, `hotkeys`, `tags` and `health`."""

from __future__ import annotations

import argparse
import io
import itertools
import os
import sys
import time
from collections.abc import Iterable
from contextlib import redirect_stdout
from functools import partial
from heapq import nlargest
from operator import itemgetter
from shutil import get_terminal_size
from typing import Any

from ..entries.metrics import PERCENTILES, Metrics, rate
from ..errors import SettingError, Timeout
from ..operations.inspection import PATIENCE, activity, looks_at, records_of, uses_of
from ..settings.policies import FREQUENCY, NO_MARKS, policy_named
from .arguments import interval, positive
from .entries import sizes
from .opening import WithoutRecovery, add_namespace, existing, namespace_of, to_look_at
from .terminal import as_json, as_text, print_json, print_table, shown

READ = 100  # entries that `health` reads
WATCHED = ("hits", "misses", "writes", "evictions")
HEADER_EVERY = 20  # lines of `watch`
CLEAR = "\x1b[H\x1b[J"  # the screen of a terminal
LONGEST_NAME = 40  # of a space, on that screen
OTHER_LINES = 9  # of that screen, beside the spaces and the times; the last one is where the cursor stays
TIMES_LINES = 3  # beside those times


def add(commands: Any, common: argparse.ArgumentParser) -> None:
    """Add the commands of this module."""
    for name, command, about in (
        ("bigkeys", bigkeys, "show the keys with the largest values"),
        ("hotkeys", hotkeys, "show the keys that were used last, or most often if the eviction policy counts uses"),
    ):
        look = commands.add_parser(name, parents=[common], help=about)
        add_namespace(look)
        look.add_argument("--count", type=positive, default=10, metavar="N", help="how many (default: 10)")
        look.set_defaults(command=command)

    for name, is_screen, about in (
        ("top", True, "show what all processes do with a cache, by prefix and namespace, every second"),
        ("watch", False, "the same in a line each second: hits, misses, writes and evictions"),
    ):
        look = commands.add_parser(name, parents=[common], help=about)
        look.add_argument("--interval", type=interval, default=1.0, metavar="SECONDS", help="how often (default: 1)")
        look.add_argument("--count", type=positive, metavar="N", help="how many times (default: until interrupted)")
        look.set_defaults(command=watch, is_screen=is_screen)

    tags = commands.add_parser("tags", parents=[common], help="show how many entries and bytes each tag has")
    add_namespace(tags)
    tags.set_defaults(command=sizes, by="tag", separator="")

    test = commands.add_parser(
        "health",
        parents=[common],
        help="tell in a moment whether all is well; 1 if something needs attention",
        description="Tell whether the cache can be opened, read and written now. Unlike `check`, this reads a few"
        " entries only, so it may run every minute.",
        epilog="exit status: 0 all is well, 1 something needs attention, 2 the cache cannot be used",
    )
    test.add_argument("--count", type=positive, default=READ, metavar="N", help="entries to read (default: 100)")
    test.set_defaults(command=health)


def bigkeys(options: argparse.Namespace) -> int:
    """Print the keys with the largest values, the largest first."""
    with to_look_at(options, values=False) as whole:
        cache = namespace_of(whole, options)
        found = ((record.value_size, key) for key, record in records_of(cache, cache))
        _print(options, "bytes", nlargest(options.count, found, key=itemgetter(0)))
    return 0


def hotkeys(options: argparse.Namespace) -> int:
    """Print the keys that were used last, or most often, those first."""
    with existing(options, WithoutRecovery) as whole:
        cache = namespace_of(whole, options)
        policy = policy_named(whole.reset("eviction_policy"))
        if policy.marks == NO_MARKS:
            raise SettingError(f"uses leave no marks under eviction_policy {policy.name!r}: nobody knows what is hot")
        what = "uses" if policy.marks == FREQUENCY else "writes_ago"
        most = nlargest(options.count, uses_of(cache, cache), key=itemgetter(1))
        _print(options, what, [(abs(use), key) for key, use in most])
    return 0


def _print(options: argparse.Namespace, what: str, found: Iterable[tuple[int, Any]]) -> None:
    if options.json:
        for number, key in found:
            print_json({"key": as_json(key), what: number})
    else:
        print_table(("key", what.replace("_", " ")), [(as_text(key), f"{number:,}") for number, key in found])


def watch(options: argparse.Namespace) -> int:
    """Print in each interval what was done; on a terminal `top` fills the screen."""
    with existing(options, WithoutRecovery) as cache:
        before = cache.metrics()
        for line in range(options.count) if options.count is not None else itertools.count():
            time.sleep(options.interval)
            now = cache.metrics()
            done, before = now.since(before), now
            if options.json:
                print_json({"time": time.time(), **activity(done)})
            elif options.is_screen and sys.stdout.isatty() and os.environ.get("TERM") != "dumb":
                _print_screen(cache.directory, done, options.interval)
            else:
                if line % HEADER_EVERY == 0:
                    print("".join(f"{name:>12}" for name in WATCHED))
                told = activity(done)
                print("".join(f"{told[name]:>12,}" for name in WATCHED), flush=True)
    return 0


def _print_screen(directory: str, done: Metrics, seconds: float) -> None:
    """Print what was done in an interval, in numbers for a second; what the terminal has no room for is cut off."""
    width, height = get_terminal_size()
    with redirect_stdout(io.StringIO()) as found:
        _print_all(directory, done, seconds, height)
    lines = found.getvalue().splitlines()[: height - 1]
    print(CLEAR, *(f"{line[:width]}\n" for line in lines), sep="", end="", flush=True)


def _print_all(directory: str, done: Metrics, seconds: float, height: int) -> None:
    times = {name: one for name, one in done.times.items() if one.count}
    most = height - OTHER_LINES - (len(times) + TIMES_LINES if times else 0)

    def each(number: int) -> str:
        return f"{number / seconds:,.0f}"

    print(shown(f"{directory}  {time.strftime('%H:%M:%S')}  numbers for each second"))
    full = done.bytes / max(done.size_limit, 1)
    print(f"{done.entries:,} entries, {done.bytes:,} bytes, {full:.0%} of size_limit")
    evicted = ", ".join(f"{each(number)} for {reason}" for reason, number in done.evicted.items() if number)
    print(f"evicted: {evicted or 'none'}")
    noted = {name: getattr(done, name) for name in ("stale_served", "lock_waits", "timeouts", "damaged")}
    print(", ".join(f"{name.replace('_', ' ')} {each(number)}" for name, number in noted.items()))
    rows = [
        (
            name,
            *(each(one.hits), rate(one), f"{one.hot / one.hits:.1%}" if one.hits else ""),
            *map(each, (one.misses, one.sets, one.deletes)),
        )
        for name, one in [("all", done.total), *done.busiest()[: max(1, most)]]
    ]
    print_table(
        ("space", "hits", "hit rate", "in memory", "misses", "sets", "deletes"),
        [(shown(name or "(no prefix)")[:LONGEST_NAME], *cells) for name, *cells in rows],
    )
    if times:
        told = (f"p{percent} µs" for percent in PERCENTILES)
        print_table(
            ("call", "number", *told),
            [
                (name, each(one.count), *(f"{one.percentile(percent) * 1e6:,.1f}" for percent in PERCENTILES))
                for name, one in times.items()
            ],
        )


def health(options: argparse.Namespace) -> int:
    """Print what was looked at, a line each; return 1 if something needs attention."""
    looks = list[dict[str, Any]]()
    try:
        with existing(options, partial(WithoutRecovery, timeout=PATIENCE)) as cache:
            looks += [{"look": look, "ok": ok, "found": found} for look, ok, found in looks_at(cache, options.count)]
    except Timeout:  # to close it, the lock is needed as well
        if not looks:
            raise
    for one in looks:
        if options.json:
            print_json(one)
        else:
            print(shown(f"{'ok' if one['ok'] else 'LOOK':<6}{one['look']:<12}{one['found']}"))
    return 0 if all(one["ok"] for one in looks) else 1
