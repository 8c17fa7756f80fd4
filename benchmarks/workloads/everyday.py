"""What programs do beside plain calls: Django's cache, structured values, first reads, threads, arrays, starting.

Both subjects are open at once and take turns every few milliseconds, so that whatever slows the machine down slows both
of them. A repetition's ratio is that of the medians over its turns.
"""

from __future__ import annotations

import gc
import random
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from statistics import median
from types import MappingProxyType
from typing import Any

from benchmarks.budgets import BUDGETS
from benchmarks.crew import Crew, Gate
from benchmarks.measure import clock, percentile, ratios
from benchmarks.peers.spec import BenchmarkError, MissingFeature, Spec, Subject, load_items
from benchmarks.report.text import Table, duration
from benchmarks.workloads.calls import CLASSIC, DELETE, EXPIRE, SET
from benchmarks.workloads.section import Findings, Run
from benchmarks.workloads.values import SEED, keys_of, value_of

TURNS = 12  # of each subject in a repetition
CALLS = 100  # in a turn
PATIENCE = 600.0  # seconds
STARTS = 4  # of the interpreter in a repetition
MIX_CALLS = 4_000  # of each process
# How many values of a size there are to read, and how many a turn reads.
COLD = {"cold_100": (100, 5_000, 100), "cold_1k": (1_000, 2_000, 100), "cold_10k": (10_000, 500, 100)}
ARRAYS = {"array_1m": (1_000_000, 20, 20), "array_10m": (10_000_000, 4, 4)}
PROGRAM = """
import sys, time
began = time.perf_counter_ns()
import {module} as module
loaded = time.perf_counter_ns()
if module.Cache({directory!r}).get("key") != "value":
    sys.exit("the value is not there")
print(loaded - began, time.perf_counter_ns() - loaded)
"""

Turn = Callable[[int], Sequence[float]]  # the number of the turn -> nanoseconds of a call, one for each row
Prepare = Callable[[Spec, Path], AbstractContextManager[Turn]]


def each(call: Callable[..., Any], arguments: Iterable[tuple[Any, ...]]) -> float:
    """Make a call with each of some arguments; return the nanoseconds that one took."""
    ready = list(arguments)
    began = clock()
    for some in ready:
        call(*some)
    return (clock() - began) / len(ready)


def read_each(subject: Subject, keys: Sequence[str]) -> float:
    """Read keys that are there; return the nanoseconds that one took."""
    took = each(subject.get, ((key,) for key in keys))
    if missing := [key for key in keys if subject.get(key) is None]:
        raise BenchmarkError(f"get({missing[0]!r}) found nothing")
    return took


# -- Django's cache ----------------------------------------------------------------------------------------------------


@contextmanager
def _django(call: str, spec: Spec, directory: Path) -> Iterator[Turn]:
    """Call DjangoCache on a thousand keys; each call stores another value than the one before it."""
    with spec.having("DjangoCache", params={}).opened(directory) as cache:
        keys, numbers = keys_of(1_000), count()
        for key in keys:
            cache.set(key, 0)
        made: dict[str, Callable[[int], tuple[Any, ...]]] = {
            "touch": lambda number: (keys[number % 1_000], 600 + number),
            "incr": lambda number: (keys[number % 1_000],),
            "set_many": lambda number: (dict.fromkeys(keys[number % 90 * 10 :][:10], number),),
            "get_or_set": lambda number: (f"new:{number}", str(number)),
        }
        method = getattr(cache, call)
        yield lambda _: [each(method, map(made[call], (next(numbers) for _ in range(CALLS))))]


# -- structured values -------------------------------------------------------------------------------------------------


def _texts(dice: random.Random, amount: int) -> list[str]:
    return [f"{dice.getrandbits(40):x}" for _ in range(amount)]


def answer_of(dice: random.Random) -> dict[str, Any]:
    """Return an answer of a language model, as its API gives it."""
    message = {"role": "assistant", "content": " ".join(_texts(dice, 120)), "tool_calls": None}
    usage = {"prompt_tokens": dice.randrange(4_000), "completion_tokens": 160, "total_tokens": 1_160}
    choice = {"index": 0, "message": message, "finish_reason": "stop", "logprobs": None}
    return {"id": _texts(dice, 1)[0], "object": "chat.completion", "model": "m", "choices": [choice], "usage": usage}


def rows_of(dice: random.Random) -> list[dict[str, Any]]:
    """Return 200 rows of a table."""
    return [
        {"id": number, "name": name, "price": dice.random(), "active": number % 3 > 0}
        for number, name in enumerate(_texts(dice, 200))
    ]


def dict_of_texts(dice: random.Random) -> dict[str, str]:
    return {f"field {number}": text for number, text in enumerate(_texts(dice, 200))}


STRUCTURED: Mapping[str, Callable[[random.Random], Any]] = MappingProxyType(
    {
        "answer": answer_of,
        "rows": rows_of,
        "floats": lambda dice: [dice.random() for _ in range(1_000)],
        "words": lambda dice: _texts(dice, 100),
    }
)


@contextmanager
def _hits(make: Callable[[random.Random], Any], spec: Spec, directory: Path) -> Iterator[Turn]:
    """Read ten values again and again."""
    with spec.opened(directory) as cache:
        keys, dice = keys_of(10), random.Random(SEED)
        load_items(cache, ((key, make(dice)) for key in keys))
        read_each(cache, keys)
        yield lambda _: [read_each(cache, keys * (CALLS // 10))]


# -- what another handle has written -----------------------------------------------------------------------------------


@contextmanager
def _first(
    spec: Spec, directory: Path, make: Callable[[random.Random], Any] = dict_of_texts, **named: Any
) -> Iterator[Turn]:
    """Store values and read each for the first time, by another handle."""
    with spec.opened(directory) as writer, spec.opened(directory) as reader:
        keys, dice, put = keys_of(CALLS), random.Random(SEED), partial(writer.set, **named)

        def turn(number: int) -> tuple[float, float]:
            values = [make(dice) for _ in keys]
            times = each(put, zip(keys, values, strict=True)), each(reader.get, ((key,) for key in keys))
            # In the first turn only: a second read would have the reader keep the decoded value, and free it later.
            if number == 0 and values != [reader.get(key) for key in keys]:
                raise BenchmarkError(f"{spec.name}: another value was read than was stored")
            return times

        yield turn


def small(dice: random.Random) -> bytes:
    return dice.randbytes(100)


@contextmanager
def _first_read(spec: Spec, directory: Path, **named: Any) -> Iterator[Turn]:
    with _first(spec, directory, small, **named) as turn:
        yield lambda number: turn(number)[1:]


@contextmanager
def _cold(
    length: int, entries: int, calls: int, make: Callable[[bytes], Any], spec: Spec, directory: Path
) -> Iterator[Turn]:
    """Read values that memory does not hold, in a random order."""
    dice, keys = random.Random(SEED), keys_of(entries)
    with spec.opened(directory) as cache:
        load_items(cache, ((key, make(dice.randbytes(length))) for key in keys))
    with spec.opened(directory) as cache:
        yield lambda _: [read_each(cache, dice.choices(keys, k=calls))]


def _array(content: bytes) -> Any:
    import numpy as np

    return np.frombuffer(content, np.float64)


# -- threads, processes, starting --------------------------------------------------------------------------------------


@contextmanager
def _threads(number: int, spec: Spec, directory: Path) -> Iterator[Turn]:
    """Have some threads store values at once; yield the median call and its 99th percentile."""
    with spec.opened(directory) as cache:
        put = cache.set

        def work(thread: int, turn: int, times: list[float]) -> None:
            for key in range(CALLS):
                began = clock()
                put(f"{thread} {key}", b"%d %d %d" % (thread, turn, key))
                times.append(clock() - began)

        def turn(number_of_turn: int) -> tuple[float, float]:
            times: list[float] = []
            threads = [threading.Thread(target=work, args=(worker, number_of_turn, times)) for worker in range(number)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            times.sort()
            return percentile(times, 500), percentile(times, 990)

        yield turn


def _mixed_calls(gate: Gate, asked: tuple[Spec, Path, int, int, bool]) -> tuple[int, int]:
    """Open a cache, make calls of DiskCache's own mix, close it; return when that began and ended."""
    spec, directory, keys, number, expires = asked
    dice = random.Random(number)
    names, kinds = keys_of(keys), list(CLASSIC)
    steps = [
        (kind, dice.choice(names), b"%d %d" % (number, turn))
        for turn, kind in enumerate(dice.choices(kinds, list(CLASSIC.values()), k=MIX_CALLS))
    ]
    spec.load()
    gate.wait()
    began = clock()
    with spec.opened(directory) as cache:
        put: Callable[..., Any] = cache.set
        if expires:
            put = partial(put, expire=EXPIRE)
        for kind, key, value in steps:
            if kind == SET:
                put(key, value)
            elif kind == DELETE:
                cache.delete(key)
            else:
                cache.get(key)
    return began, clock()


@contextmanager
def _processes(run: Run, kind: str, keys: int, expires: bool, spec: Spec, directory: Path) -> Iterator[Turn]:
    """Have processes open a cache, use it and close it, all at once; opening and closing count."""
    asked = spec.having(kind, params={}) if kind == "DjangoCache" else spec.having(kind)
    with asked.opened(directory) as cache:
        for key in keys_of(keys):
            cache.set(key, value_of(key))
    numbers = range(run.options.processes)

    def turn(number: int) -> list[float]:
        with Crew(len(numbers), "fork") as crew:
            jobs = [(asked, directory, keys, number * len(numbers) + worker, expires) for worker in numbers]
            times = crew.run(_mixed_calls, jobs, PATIENCE)
        return [max(ended for _, ended in times) - min(began for began, _ in times)]

    yield turn


@contextmanager
def _starts(spec: Spec, directory: Path) -> Iterator[Turn]:
    """Start an interpreter that imports the package, opens a small cache and gets a value."""
    with spec.opened(directory) as cache:
        cache.set("key", "value")
    program = PROGRAM.format(module=spec.module, directory=str(directory))

    def turn(_: int) -> list[float]:
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
        if done.returncode:
            raise BenchmarkError(f"{spec.name} did not start: {done.stderr.strip()}")
        return list(map(float, done.stdout.split()))

    yield turn


# -- all of them -------------------------------------------------------------------------------------------------------


def _rows(run: Run) -> dict[tuple[str, ...], tuple[int, Prepare]]:
    """Return what is measured: the keys of its budgets, how many turns a repetition has, and what prepares it."""
    rows: dict[tuple[str, ...], tuple[int, Prepare]] = {}
    for call in ("touch", "incr", "set_many", "get_or_set"):
        rows[(f"django_{call}",)] = TURNS, partial(_django, call)
    for kind, make in STRUCTURED.items():
        rows[(f"hot_{kind}",)] = TURNS, partial(_hits, make)
    rows["stored_dict", "first_dict"] = TURNS, _first
    rows[("first_plain",)] = TURNS, _first_read
    rows[("first_expiring",)] = TURNS, partial(_first_read, expire=EXPIRE)
    rows[("first_tagged",)] = TURNS, partial(_first_read, tag="tag")
    rows[("first_fanout",)] = TURNS, lambda spec, at: _first_read(spec.having("FanoutCache"), at, expire=EXPIRE)
    for amounts, make_value in ((COLD, bytes), (ARRAYS, _array)):
        for key, sizes in amounts.items():
            rows[(key,)] = TURNS, partial(_cold, *sizes, make_value)
    for number in (2, 4, 8):
        rows[f"threads_{number}_p50", f"threads_{number}_p99"] = TURNS, partial(_threads, number)
    rows["import", "open_small"] = STARTS, _starts
    for key, kind, keys, expires in (
        ("many_cache", "Cache", 100, False),
        ("many_cache_expiring", "Cache", 100, True),
        ("many_fanout_expiring", "FanoutCache", 100, True),
        ("many_django", "DjangoCache", 100, False),
        ("many_django_1100", "DjangoCache", 1_100, False),
    ):
        rows[(key,)] = 1, partial(_processes, run, kind, keys, expires)
    return rows


def everyday(run: Run) -> Findings:
    """Compare what programs do with DiskCache; what memory answers is off where a row is about reading the store."""
    findings, told = Findings(), {budget.key: budget.label for budget in BUDGETS}
    table = Table("Everyday use", ("", run.peer.label, run.ours.label, "times as fast"))
    rows = _rows(run)
    for done, (keys, (turns, prepare)) in enumerate(rows.items()):
        run.note(keys[0], done / len(rows))
        cold = keys[0] in {*COLD, *ARRAYS}
        try:
            found = _measure(run, run.cold if cold else run.pair, turns, prepare)
        except MissingFeature as error:
            findings.skipped.append(f"{keys[0]} skipped: {error}")
            continue
        for place, key in enumerate(keys):
            times = {role: [one[place] for one in some] for role, some in found.items()}
            findings.measured[key] = ratios(times["peer"], times["ours"])
            findings.details[key] = times
            cells = (duration(median(times[role])) for role in ("peer", "ours"))
            table.rows.append((told[key], *cells, f"{median(findings.measured[key]):.2f}"))
    table.notes.append("A call, at the median of interleaved repetitions; for processes, the whole run.")
    findings.tables.append(table)
    return findings


def _measure(run: Run, specs: Mapping[str, Spec], turns: int, prepare: Prepare) -> dict[str, list[list[float]]]:
    """Return for each subject and repetition the median of each number over the turns."""
    found: dict[str, list[list[float]]] = {role: [] for role in specs}
    with ExitStack() as stack:
        places = {role: run.workspace.fresh(f"everyday-{role}") for role in specs}
        ready = {role: stack.enter_context(prepare(spec, places[role])) for role, spec in specs.items()}
        for role in ready:
            ready[role](0)
        numbers = count(1)
        for _ in range(run.options.repeats):
            gc.collect()  # not between turns, since it empties the processor's caches
            times: dict[str, list[Sequence[float]]] = {role: [] for role in ready}
            for _, number in zip(range(turns), numbers, strict=False):
                for role in sorted(ready, reverse=number % 2 > 0):
                    times[role].append(ready[role](number))
            for role, some in times.items():
                found[role].append([median(column) for column in zip(*some, strict=True)])
    for place in places.values():
        run.workspace.discard(place)
    return found
