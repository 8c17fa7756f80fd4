"""The command line: `diskcache-like`, or `python -m diskcache_like`."""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from .. import __version__
from ..encoding.checksum import SOURCE
from ..errors import CacheError, missing_dependency
from ..storage.sqlite.connection import SQLITE_VERSION
from . import entries, monitoring, serving, transfer, whole
from .opening import add_opening
from .terminal import shown

# What messages advise a program to pass, and how the shell does it.
IN_THE_SHELL = {
    "pass shared=True": "give --shared",
    "pass the key_context= ": "give the --key-context ",
    "pass secret= or set": "set",
}
SHELLS = ("bash", "zsh", "fish", "tcsh")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0 if it succeeded, 1 if it found something, 2 if it failed."""
    _set_up_streams()
    options = parser().parse_args(arguments)
    return ended(partial(options.command, options), getattr(options, "directory", None))


def ended(command: Callable[[], int], directory: str | None) -> int:
    """Run a command, about a directory if one is given, to its end, and return its exit code; tell what went wrong."""
    try:
        code = command()
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
        print(shown(f"diskcache-like: {error_line(error, directory)}"), file=sys.stderr)
        return 2


def _set_up_streams() -> None:
    """Have the standard streams there, which the shell may have closed, and write what a terminal cannot show."""
    for name, mode in (("stdin", "r"), ("stdout", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115 - until the process ends
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    top = argparse.ArgumentParser(
        prog="diskcache-like",
        description="Look at caches on disk, and work on them from the shell.",
        epilog="exit status: 0 done, 1 nothing found, left out, or something is wrong with the cache, 2 failed",
    )
    version = f"%(prog)s {__version__}, SQLite {SQLITE_VERSION}, checksums by {SOURCE}"
    top.add_argument("--version", action="version", version=version)
    commands = top.add_subparsers(metavar="command", required=True)
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("directory", metavar="DIRECTORY", help="the directory of the cache")
    common.add_argument("--json", action="store_true", help="print JSON, an object per line")

    add_opening(common)

    whole.add(commands, common)
    entries.add(commands, common)
    monitoring.add(commands, common)
    transfer.add(commands, common)
    serving.add(commands)
    add_migrate(commands)
    script = commands.add_parser("completion", help="print a script that completes commands in a shell")
    script.add_argument("shell", choices=SHELLS)
    script.set_defaults(command=completion)
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
    move.add_argument("--json", action="store_true", help="print JSON")
    move.set_defaults(command=migrate)


def completion(options: argparse.Namespace) -> int:
    """Print a script that has the shell complete commands and options."""
    try:
        from shtab import complete
    except ImportError as error:
        raise missing_dependency("shtab", "completion", "the command 'completion'") from error
    print(complete(parser(), options.shell))
    return 0


def migrate(options: argparse.Namespace) -> int:
    """Copy a directory of DiskCache 5 and return 1 if anything was skipped."""
    from .migrate import run  # late: no other command reads pickles, or DiskCache's files

    return run(options)


def error_line(error: Exception, directory: str | None) -> str:
    """Return one line that says what went wrong, with the path concerned."""
    if isinstance(error, OSError) and error.strerror:
        text, where = error.strerror, error.filename
    else:
        text, where = " ".join(str(error).split()), None
    for argument, option in IN_THE_SHELL.items():
        text = text.replace(argument, option)
    where = where or directory
    return text if where is None or str(where) in text else f"{where}: {text}"
