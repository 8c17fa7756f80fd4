"""Measure Python's standard library in several processes that share one cache, three times."""

from __future__ import annotations

import ast
import multiprocessing
import os
import random
import shutil
import signal
import sys
import sysconfig
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from types import FrameType
from typing import Any, TypeAlias

from diskcache_like import Cache
from diskcache_like.cli.terminal import Progress
from tools.demo.report import Pass, Tally, Usage, print_coherence, print_modules, print_passes

# What is cached about a module: lines, functions, imports, branches, name and length of its longest function; or, if
# the file does not parse, why not.
Summary: TypeAlias = tuple[int, int, int, int, str, int] | str
# Where each name is used, as text. For a large module it is large enough for a value file.
Index: TypeAlias = str
# A file as a key: path, modification time and size, so that a changed file has another key.
Module: TypeAlias = tuple[str, int, int]

BRANCHES = (ast.If, ast.IfExp, ast.For, ast.AsyncFor, ast.While, ast.ExceptHandler, ast.comprehension, ast.match_case)
PARTS = ("summary", "index")  # what `measure` returns of a module
ROUNDS = 3_000
SIGNAL_KEY = ("demo", "signal")
PROGRESS_STEP = 10


def measure(path: str) -> tuple[Summary, Index]:
    """Parse the module at `path` and return its summary and index."""
    try:
        source = Path(path).read_bytes()
        tree = ast.parse(source, path)
    except (OSError, SyntaxError, ValueError, RecursionError) as error:
        return f"{type(error).__name__}: {error}", ""
    functions = imports = branches = 0
    longest, length = "", 0
    uses: dict[str, list[str]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            functions += 1
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > length:
                longest, length = node.name, lines
        elif isinstance(node, ast.Import | ast.ImportFrom):
            imports += len(node.names)
        elif isinstance(node, BRANCHES):
            branches += 1
        elif isinstance(node, (ast.Name, ast.Attribute)):
            name = node.id if isinstance(node, ast.Name) else node.attr
            uses.setdefault(name, []).append(f"{node.lineno}:{node.col_offset}")
    index = "".join(f"{name} {' '.join(places)}\n" for name, places in sorted(uses.items()))
    return (source.count(b"\n"), functions, imports, branches, longest, length), index


def find_modules(limit: int | None = None) -> list[Module]:
    """Return all modules of the running interpreter's standard library, or the first `limit`."""
    root = Path(sysconfig.get_path("stdlib"))
    paths = sorted(
        path
        for path in root.rglob("*.py")
        if path.is_file() and not {"site-packages", "dist-packages"} & set(path.relative_to(root).parts)
    )
    statuses = [(str(path), path.stat()) for path in paths[:limit]]
    return [(path, status.st_mtime_ns, status.st_size) for path, status in statuses]


def look_up(cache: Cache, module: Module, tally: Tally, place: str) -> Summary:
    """Return the summary of `module`; measure the module if the cache does not have it.

    This does by hand what `Cache.memoize` does, so that each `get` and each `set` can be timed.
    """
    found: list[Any] = []
    for part in PARTS:
        start = time.perf_counter_ns()
        found.append(cache.get((part, *module)))
        tally.record("get miss" if found[-1] is None else f"get {part}, {place}", start)
    tally.gets += 2
    tally.hits += 2 - found.count(None)
    if None in found:
        tally.computed += 1
        found[:] = measure(module[0])
        for part, value in zip(PARTS, found, strict=True):
            start = time.perf_counter_ns()
            cache.set((part, *module), value)
            tally.record(f"set {part}", start)
    summary: Summary = found[0]
    return summary


def work(pipe: Connection, directory: str, modules: list[Module], seed: int, places: tuple[str, ...]) -> None:
    """Look up every module once per place, in a random order; each pass waits for a message to start.

    A `place` says where hits should come from: the disk in a new process, memory the second time.
    """
    warnings.simplefilter("ignore")  # the measured code warns, because some of it is wrong on purpose
    ordered = random.Random(seed).sample(modules, len(modules))
    pipe.recv()
    with Cache(directory) as cache:
        for place in places:
            tally = Tally()
            for number, module in enumerate(ordered, 1):
                look_up(cache, module, tally, place)
                if number % PROGRESS_STEP == 0:
                    pipe.send(PROGRESS_STEP)
            pipe.send(tally)
            pipe.recv()


def write(pipe: Connection, directory: str) -> None:
    """Write each number that comes through the pipe into the cache, and send it back."""
    with Cache(directory) as cache:
        while True:
            number = pipe.recv()
            cache.set(SIGNAL_KEY, number)
            pipe.send(number)


def run_child(target: Callable[..., None], pipe: Connection, *args: Any) -> None:
    """Run `target` in a child process until the parent closes the pipe or is gone."""
    with suppress(EOFError, ConnectionError):
        pipe.send("ready")
        target(pipe, *args)


class Crew:
    """Child processes that are ready, with a pipe to each."""

    def __init__(self, members: dict[Connection, SpawnProcess]) -> None:
        self._members = members
        for pipe in members:
            self._receive(pipe)

    def ask(self, message: object) -> Any:
        """Send `message` to the first process and return its answer."""
        pipe = next(iter(self._members))
        self._send(pipe, message)
        return self._receive(pipe)

    def run(self, name: str, total: int) -> Pass:
        """Have every process make one pass, and return the combined result."""
        tally, busy = Tally(), list(self._members)
        with Progress(name, total, "look-ups") as progress:
            start = time.perf_counter()
            for pipe in busy:
                self._send(pipe, "go")
            while busy:
                ready = wait(busy)
                for pipe in [pipe for pipe in busy if pipe in ready]:
                    message = self._receive(pipe)
                    if isinstance(message, Tally):
                        tally.add(message)
                        busy.remove(pipe)
                    else:
                        progress.advance(message)
            return Pass(name, time.perf_counter() - start, tally)

    def _send(self, pipe: Connection, message: object) -> None:
        with self._blaming(pipe):
            pipe.send(message)

    def _receive(self, pipe: Connection) -> Any:
        with self._blaming(pipe):
            return pipe.recv()

    @contextmanager
    def _blaming(self, pipe: Connection) -> Iterator[None]:
        try:
            yield
        except (EOFError, ConnectionError):
            process = self._members[pipe]
            process.join()
            raise ChildProcessError(f"process {process.pid} ended early with exit code {process.exitcode}") from None


@contextmanager
def crew(target: Callable[..., None], *arguments: tuple[Any, ...]) -> Iterator[Crew]:
    """Start a new process for each tuple of arguments; none of them outlives the `with` block."""
    context = multiprocessing.get_context("spawn")
    members: dict[Connection, SpawnProcess] = {}
    done = False
    try:
        # Children inherit that Ctrl-C is ignored: this process ends them. Other signals wait until all have started.
        with handling(signal.SIG_IGN, signal.SIGINT), deferred(signal.SIGTERM, signal.SIGHUP):
            for args in arguments:
                ours, theirs = context.Pipe()
                process = context.Process(target=run_child, args=(target, theirs, *args), daemon=True)
                process.start()
                theirs.close()
                members[ours] = process
        yield Crew(members)
        done = True
    finally:
        with handling(signal.SIG_IGN, signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            for pipe, process in members.items():
                pipe.close()
                if not done:
                    process.terminate()
                process.join()
                process.close()


@contextmanager
def deferred(*signals: signal.Signals) -> Iterator[None]:
    """Delay `signals` until the end of the block."""
    arrived: list[int] = []
    with handling(lambda number, _frame: arrived.append(number), *signals):
        yield
    for number in arrived:
        signal.raise_signal(number)


@contextmanager
def handling(
    handler: Callable[[int, FrameType | None], Any] | signal.Handlers, *signals: signal.Signals
) -> Iterator[None]:
    """Handle `signals` with `handler` during the block; do nothing in other threads than the main one."""
    mine = signals if threading.current_thread() is threading.main_thread() else ()
    former = {number: signal.signal(number, handler) for number in mine}
    try:
        yield
    finally:
        for number, previous in former.items():
            signal.signal(number, previous)


def stop(number: int, _: FrameType | None) -> None:
    """End the program as the signal asks, but by an exception, so that every `finally` runs."""
    sys.exit(128 + number)


@contextmanager
def demo_cache(directory: str | None) -> Iterator[Cache]:
    """Yield a cache in `directory`, or in a temporary directory that is removed afterwards."""
    temporary = tempfile.mkdtemp(prefix="diskcache-like-demo-") if directory is None else None
    cache = None
    try:
        cache = Cache(directory or temporary)
        yield cache
    finally:
        with handling(signal.SIG_IGN, signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if cache is not None:
                cache.close()
            if temporary is not None:
                shutil.rmtree(temporary)


def processors() -> int:
    """Return how many processors this process may use; all there are where the system does not say."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run(directory: str | None = None, processes: int | None = None, limit: int | None = None) -> int:
    """Run the demonstration, print its results, and return an exit code: 1 if any read was stale."""
    count = processes or max(2, min(4, processors()))  # one for each processor, but from 2 to 4
    modules = find_modules(limit)
    with handling(stop, signal.SIGTERM, signal.SIGHUP), demo_cache(directory) as cache:
        print(f"Python {sys.version.split()[0]}, {len(modules):,} modules of its standard library, {count} processes")
        print("each process asks for what was measured of every module; the cache is all they share:")
        print(f"{cache.directory}\n", flush=True)
        print_passes(measure_modules(cache.directory, modules, count), Usage.of(cache.directory))
        print_modules({module[0]: cache[("summary", *module)] for module in modules})
        return print_coherence(*watch_writes(cache))


def measure_modules(directory: str, modules: list[Module], count: int) -> list[Pass]:
    """Have `count` processes look up every module; then have new processes do it twice."""
    total = count * len(modules)
    seeds = range(count)
    with crew(work, *((directory, modules, seed, ("disk",)) for seed in seeds)) as workers:
        passes = [workers.run("first run", total)]
    with crew(work, *((directory, modules, seed, ("disk", "memory")) for seed in seeds)) as workers:
        passes.append(workers.run("fresh processes", total))
        passes.append(workers.run("the same processes again", total))
    return passes


def watch_writes(cache: Cache) -> tuple[int, Tally]:
    """Read a key from memory, have another process write it, and read it again; return stale reads and timings."""
    stale, tally = 0, Tally()
    cache.set(SIGNAL_KEY, 0)
    with crew(write, (cache.directory,)) as writer:
        for number in range(1, ROUNDS + 1):
            cache.get(SIGNAL_KEY)
            start = time.perf_counter_ns()
            before = cache.get(SIGNAL_KEY)
            tally.record("before", start)
            writer.ask(number)
            start = time.perf_counter_ns()
            after = cache.get(SIGNAL_KEY)
            tally.record("after", start)
            stale += (before, after) != (number - 1, number)
    cache.delete(SIGNAL_KEY)
    return stale, tally
