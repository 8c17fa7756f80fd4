"""What the commands of the benchmarks share: numbers, a progress bar, and an end by signal that tidies up."""

from __future__ import annotations

import argparse
import importlib
import signal
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn

from benchmarks.subjects import BenchmarkError

GOOD, UNUSABLE, FAILED, INTERRUPTED = 0, 2, 3, 130


def positive(text: str) -> int:
    """Read a positive whole number from the command line."""
    number = int(text.replace("_", "").replace(",", ""))
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1: {text}")
    return number


def seconds(text: str) -> float:
    """Read a positive number of seconds."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < 1e6:
        raise argparse.ArgumentTypeError(f"expected a positive number of seconds, not {text!r}")
    return number


@contextmanager
def progress(weights: dict[str, int]) -> Iterator[Callable[[str], Callable[[str, float], None]]]:
    """Show a progress bar on a terminal if rich is there; it has no thread, so it cannot disturb a measurement."""
    rich: Any = None
    with suppress(ImportError):
        rich = importlib.import_module("rich.progress")
    if rich is None or not sys.stderr.isatty():
        yield lambda name: lambda text, fraction: None
        return
    console = importlib.import_module("rich.console").Console(stderr=True)
    with rich.Progress(console=console, auto_refresh=False, transient=True) as bar:
        task = bar.add_task("starting", total=sum(weights.values()))
        done = {name: sum(list(weights.values())[:place]) for place, name in enumerate(weights)}

        def show(name: str) -> Callable[[str, float], None]:
            def note(text: str, fraction: float) -> None:
                bar.update(task, description=f"{name}: {text}", completed=done[name] + weights[name] * fraction)
                bar.refresh()

            return note

        yield show


def explained(parser: argparse.ArgumentParser, work: Callable[[], int], unusable: type[BenchmarkError]) -> int:
    """Run a command and return its exit status, having said in one line what prevented it or that it was interrupted.

    `unusable`: errors that are about what was asked for; others mean that a measurement failed.
    """
    program = parser.prog.removeprefix("python -m ")
    try:
        return work()
    except BenchmarkError as error:
        print(f"{program}: {error}", file=sys.stderr)
        return UNUSABLE if isinstance(error, unusable) else FAILED
    except KeyboardInterrupt:
        print(f"{program}: interrupted", file=sys.stderr)
        return INTERRUPTED


def add_only(parser: argparse.ArgumentParser, what: str, names: Collection[str]) -> None:
    """Let a command run some of its parts only."""
    parser.add_argument(
        "--only",
        metavar=what.upper(),
        choices=list(names),
        action="append",
        help=f"only this {what} (may be repeated): {', '.join(names)}",
    )


def refuse_lost(parser: argparse.ArgumentParser, directory: Path, *files: Path | None) -> None:
    """End with an error now, rather than after minutes, if a directory that is to be written to is not there."""
    for needed in (directory, *(path.parent for path in files if path)):
        if not needed.is_dir():
            parser.error(f"no such directory: {needed}")


def _stop(*_: object) -> None:
    raise KeyboardInterrupt


def run_as_command(command: Callable[[], int]) -> NoReturn:
    """Run a command of the benchmark, for which being told to end is the same as Ctrl-C, and exit with its status."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup
            signal.signal(number, _stop)
    sys.exit(command())
