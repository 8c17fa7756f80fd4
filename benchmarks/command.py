"""What the commands of the benchmarks share: numbers, a progress bar, and an end by signal that tidies up."""

from __future__ import annotations

import argparse
import importlib
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NoReturn

GOOD, UNUSABLE, FAILED, INTERRUPTED = 0, 2, 3, 130


def positive(text: str) -> int:
    """Read a positive whole number from the command line."""
    number = int(text.replace("_", "").replace(",", ""))
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1: {text}")
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


def _stop(*_: object) -> None:
    raise KeyboardInterrupt


def run_as_command(command: Callable[[], int]) -> NoReturn:
    """Run a command of the benchmark, for which being told to end is the same as Ctrl-C, and exit with its status."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup
            signal.signal(number, _stop)
    sys.exit(command())
