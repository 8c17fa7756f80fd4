"""The command line: `python -m diskcache_like`."""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .. import __version__
from ..cache import Cache
from ..entries.encryption import check_without_secret
from ..entries.session import Opening
from ..errors import CacheError, CorruptDatabase, CorruptDatabaseWarning, SecretError
from ..storage.opening.identity import is_database
from . import demo
from .terminal import shown

RUNS_CALLERS_CODE = True  # for `interrupts_a_call` of system/signal_safe.py


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0 if it succeeded, 1 if it found something, 2 if it failed."""
    options = parser().parse_args(arguments)
    try:
        code = int(options.command(options))
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # The reader of our output has closed it. Discard what is still buffered, or Python complains when it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except (CacheError, OSError) as error:
        print(shown(f"diskcache_like: {error_line(error, getattr(options, 'directory', None))}"), file=sys.stderr)
        return 2


def parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    top = argparse.ArgumentParser(prog="diskcache_like", description="Look at, check and try out caches on disk.")
    top.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands = top.add_subparsers(metavar="command", required=True)

    show = commands.add_parser("demo", help="see the cache at work on Python's standard library")
    show.add_argument("directory", nargs="?", help="keep the cache here (default: a temporary directory)")
    show.add_argument("--processes", type=positive, metavar="N", help="how many processes share the cache")
    show.add_argument("--limit", type=positive, metavar="N", help="measure only the first N modules")
    show.set_defaults(command=lambda options: demo.run(options.directory, options.processes, options.limit))

    add_migrate(commands)
    for name, command, text in (
        ("stats", stats, "show what a cache holds"),
        ("check", check, "look for damage in a cache"),
        ("clear", clear, "remove every entry of a cache"),
    ):
        sub = commands.add_parser(name, help=text)
        sub.add_argument("directory", help="the directory of the cache")
        sub.set_defaults(command=command)
        if command is check:
            sub.add_argument("--fix", action="store_true", help="repair what can be repaired")
    return top


def add_migrate(commands: Any) -> None:
    """Add the command `migrate`."""
    move = commands.add_parser(
        "migrate",
        help="copy a directory of DiskCache 5 into a new one",
        description="Copy a directory of DiskCache 5 (Cache, FanoutCache, Deque or Index) into a new one: keys, values,"
        " expiry, tags, order and settings. OLD is only read, and no stored code is run. Stop what uses OLD first. An"
        " interrupted copy goes on when the command is run again.",
        epilog="exit status: 0 everything was copied, 1 something was skipped and is listed, 2 the copy failed",
    )
    move.add_argument("old", metavar="OLD", help="the directory of DiskCache")
    move.add_argument("new", metavar="NEW", help="the new directory: missing, empty, or an interrupted copy")
    move.add_argument("--dry-run", action="store_true", help="say what would be copied, and write nothing")
    move.add_argument(
        "--trust-pickles",
        action="store_true",
        help="also unpickle what is not plain data; whoever can write to OLD can run any code that way",
    )
    move.add_argument("--disk", choices=("auto", "pickle", "json"), default="auto", help="the Disk that wrote OLD")
    move.add_argument(
        "--kind",
        choices=("auto", "cache", "fanout", "deque", "index"),
        default="auto",
        help="what OLD is (default: find out by its layout and keys)",
    )
    move.add_argument(
        "--queue",
        action="append",
        default=[],
        metavar="PREFIX",
        help="turn the keys with this prefix into items of a queue ('' for push without a prefix); may be repeated",
    )
    move.set_defaults(command=migrate)


def positive(text: str) -> int:
    """Return the positive integer that `text` spells."""
    number = int(text)
    if number < 1:
        raise ValueError(text)
    return number


def stats(options: argparse.Namespace) -> int:
    """Print the number of entries, the volume, and the hits and misses so far."""
    with open_existing(options.directory, _WithoutRecovery) as cache:
        hits, misses = cache.stats(enable=bool(cache.reset("statistics")))  # leave counting on or off, as it is
        for name, number in (("entries", len(cache)), ("bytes", cache.volume()), ("hits", hits), ("misses", misses)):
            print(f"{name:<8}{number:>16,}")
    return 0


def check(options: argparse.Namespace) -> int:
    """Print what is wrong with the cache, and repair it if asked to; return 1 if anything was wrong.

    If the cache needs a secret that was not given, check what can be checked without it, and repair nothing.
    """
    found = _findings(options.directory, options.fix)
    for text in found:
        print(shown(text))
    if not found:
        print("nothing found")
    elif options.fix:
        print("repaired what could be repaired")
    return 1 if found else 0


def _findings(directory: str, fix: bool) -> list[str]:
    """Return what is wrong with the cache; an unreadable database is quarantined only if `fix`."""
    try:
        with warnings.catch_warnings(record=True) as met:
            warnings.simplefilter("ignore")
            warnings.simplefilter("always", CorruptDatabaseWarning)
            with open_existing(directory, Cache if fix else _WithoutRecovery) as cache:
                found = [*met, *cache.check(fix=fix)]  # check also returns what it warns of
    except SecretError:
        if fix:
            raise
        found = check_without_secret(directory)
    except CorruptDatabase as damage:
        if fix:
            raise
        return [str(damage)]
    return [str(warning.message) for warning in found]


def clear(options: argparse.Namespace) -> int:
    """Remove every entry and print how many there were."""
    with open_existing(options.directory) as cache:
        print(f"{cache.clear():,} entries removed")
    return 0


def migrate(options: argparse.Namespace) -> int:
    """Copy a directory of DiskCache 5 and return 1 if anything was skipped."""
    from .migrate import run  # late: no other command reads pickles, or DiskCache's files

    return run(options)


class _WithoutRecovery(Cache):
    """A cache that keeps using a damaged database: quarantining it would leave a `Deque` or `Index` empty."""

    _OPENING = Opening(recover=False)


def open_existing(directory: str, kind: type[Cache] = Cache) -> Cache:
    """Open the cache in `directory`; raise FileNotFoundError rather than create one."""
    path = Path(directory)
    if not path.exists():
        raise FileNotFoundError(2, "no such directory", directory)
    # Not just any database: beside another program's database, or above a cache, opening would create a new cache.
    databases = (name for each in (path, *path.glob("[0-9][0-9][0-9]")) for name in each.glob("cache*.db"))
    if path.is_dir() and not any(is_database(name.name) for name in databases):
        raise FileNotFoundError(2, "no cache in this directory", directory)
    return kind(directory)


def error_line(error: Exception, directory: str | None) -> str:
    """Return one line that says what went wrong, with the path concerned."""
    if isinstance(error, OSError) and error.strerror:
        text, where = error.strerror, error.filename
    else:
        text, where = " ".join(str(error).split()), None
    where = where or directory
    return text if where is None or str(where) in text else f"{where}: {text}"
