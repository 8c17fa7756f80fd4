"""What the commands of the benchmarks share: options, a progress bar, and an end by signal that tidies up."""

from __future__ import annotations

import argparse
import importlib
import json
import signal
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from benchmarks import page
from benchmarks.peers.spec import BenchmarkError

Thing = TypeVar("Thing")
GOOD, MISSED_ONE, UNUSABLE, FAILED, INTERRUPTED = 0, 1, 2, 3, 130
PLACES = {
    "directory": ("DIRECTORY", "where stores are made (%(default)s)", Path(tempfile.gettempdir())),
    "out": ("DIRECTORY", "where records and pictures go (%(default)s)", Path("build/benchmarks")),
    "json": ("FILE", "write everything that was measured to FILE", None),
    "report": ("FILE", "write the report to FILE as Markdown", None),
    "docs": ("PAGE.md", "put what was found into the marked places of this page", None),
}
WRITTEN = ("json", "report")  # files, whose directory must be there


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


def parser(name: str, about: str | None, *places: str) -> argparse.ArgumentParser:
    """Return the parser of `python -m NAME`, described by its module's docstring, with some of `PLACES`."""
    first = (about or "").partition("\n")[0].partition(": `")[0]
    made = argparse.ArgumentParser(f"python -m {name}", description=first)
    for place in places:
        shown, meaning, default = PLACES[place]
        made.add_argument(f"--{place}", type=Path, metavar=shown, default=default, help=meaning)
    return made


def add_amounts(made: argparse.ArgumentParser, usual: Any, *names: str) -> None:
    """Add options for fields of a dataclass, all or some, which say what they mean (`amount`)."""
    for each in fields(usual):
        if not names or each.name in names:
            value = getattr(usual, each.name)
            kind = seconds if isinstance(value, float) else positive
            told = f"{each.metadata['meaning']} (%(default)s)"
            made.add_argument(f"--{each.name}", type=kind, default=value, help=told)


def amounts_of(asked: argparse.Namespace, usual: Thing) -> Thing:
    """Return a dataclass with the values of the options that `add_amounts` added."""
    given = {each.name: value for each in fields(usual) if (value := getattr(asked, each.name, None))}  # type: ignore[arg-type]
    return replace(usual, **given)  # type: ignore[type-var]


def add_only(made: argparse.ArgumentParser, what: str, names: Collection[str]) -> None:
    """Let a command run some of its parts only."""
    made.add_argument(
        "--only",
        metavar=what.upper(),
        choices=list(names),
        action="append",
        help=f"only this {what} (may be repeated): {', '.join(names)}",
    )


def follows(
    options: Callable[[], argparse.ArgumentParser],
    work: Callable[[argparse.Namespace], int],
    unusable: type[BenchmarkError],
    *marks: str,
) -> Callable[..., int]:
    """Return the main function of a command, which takes arguments in place of the command line's, for tests.

    It does the work and returns the exit status, having said in one line what prevented it. What would be lost for want
    of a directory, or of one of the `marks` in a page, is refused before anything is measured. `unusable`: errors that
    are about what was asked for; others mean that a measurement failed.
    """

    def main(arguments: Sequence[str] | None = None) -> int:
        made = options()
        asked = made.parse_args(arguments)
        program = made.prog.removeprefix("python -m ")
        files = [path.parent for name in WRITTEN if (path := getattr(asked, name, None))]
        for needed in (getattr(asked, "directory", Path()), *files):
            if not needed.is_dir():
                made.error(f"no such directory: {needed}")
        begun = False
        try:
            for mark in marks if getattr(asked, "docs", None) else ():
                page.marked(asked.docs, mark)
            begun = True
            return work(asked)
        except BenchmarkError as error:
            print(f"{program}: {error}", file=sys.stderr)
            return FAILED if begun and not isinstance(error, unusable) else UNUSABLE
        except KeyboardInterrupt:
            print(f"{program}: interrupted", file=sys.stderr)
            return INTERRUPTED

    return main


@contextmanager
def progress() -> Iterator[Callable[[str, float], None]]:
    """Show how far a run is on a terminal if rich is there; it has no thread, so it cannot disturb a measurement."""
    rich: Any = None
    with suppress(ImportError):
        rich = importlib.import_module("rich.progress")
    if rich is None or not sys.stderr.isatty():
        yield lambda text, fraction: None
        return
    console = importlib.import_module("rich.console").Console(stderr=True)
    with rich.Progress(console=console, auto_refresh=False, transient=True) as bar:
        task = bar.add_task("starting", total=1.0)
        yield lambda text, fraction: bar.update(task, description=text, completed=fraction, refresh=True)


def print_facts(facts: Mapping[str, str]) -> None:
    """Print what is known about the machine and the run."""
    print(*(f"{name}: {fact}" for name, fact in facts.items()), "", sep="\n", flush=True)


def write_json(path: Path, everything: Mapping[str, Any]) -> None:
    """Write what was measured."""
    path.write_text(json.dumps(everything, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _stop(*_: object) -> None:
    raise KeyboardInterrupt


def run_as_command(command: Callable[[], int]) -> NoReturn:
    """Run a command of the benchmark, for which being told to end is the same as Ctrl-C, and exit with its status."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup
            signal.signal(number, _stop)
    sys.exit(command())
