"""One trial, as its worker processes see it: a warm-up, a pass without a clock inside, a pass with each call timed.

The first pass gives throughput, processor time and memory; the second gives percentiles, and checks between the timed
parts what every call returned. Each pass ends with its script of `operations` calls or after `seconds`, whichever
comes first, and all workers begin each pass together.

In an *open* trial calls are due at fixed times, and a call that is late because an earlier one took long is timed from
when it was due, so that one long pause counts for every call that it held up. (Tene, "How NOT to Measure Latency",
2013, names the error that this avoids coordinated omission.)
"""

from __future__ import annotations

import resource
import time
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from itertools import count, islice
from pathlib import Path
from typing import Any

from benchmarks.crew import Gate
from benchmarks.measure import clock
from benchmarks.peers.spec import Spec, load_items
from benchmarks.report.record import Counts
from benchmarks.usage import Usage, peak_memory, reset_peak_memory, usage_of
from benchmarks.workloads.calls import Steps, Workload, bound
from benchmarks.workloads.values import SEED

CHUNK = 50  # calls between two looks at the clock in the pass that is not timed, at most
SHORT = 1_000_000  # nanoseconds; while a chunk takes less, the next one is twice as long
WARM_UP = 0.3  # of the seconds of a pass
Functions = list[Callable[..., Any]]


@dataclass(frozen=True)
class Pace:
    """How fast a worker calls: as fast as it goes, with `think` seconds between calls, or `rate` calls a second."""

    think: float = 0.0
    rate: float = 0.0


@dataclass(frozen=True)
class Plan:
    """What one worker does."""

    spec: Spec
    directory: Path
    workload: Workload
    operations: int
    seconds: float
    number: int = 0
    processes: int = 1
    pace: Pace = field(default_factory=Pace)
    may_miss: bool = False  # whether what was stored may be gone, such as by eviction
    server: int | None = None  # its process id
    private: bool = False  # what is stored lives in the memory of one process, which has to load it itself

    @property
    def timed_only(self) -> bool:
        """Tell whether the pace leaves nothing to a pass without a clock."""
        return bool(self.pace.think or self.pace.rate)


@dataclass
class Report(Counts):
    """What one worker saw; `began` and `ended` are on the clock that all processes of the machine share.

    `counted` are counters with the value that each increment returned: no two of them may be the same.
    """

    began: int = 0
    ended: int = 0
    operations: int = 0
    calls: dict[str, array[int]] = field(default_factory=dict)
    counted: list[tuple[Any, ...]] = field(default_factory=list)


@cache
def script(workload: Workload, number: int, operations: int) -> Steps:
    """Make the script of one worker; kept, so that processes forked from this one find it made."""
    return workload.steps(SEED + number, operations)


def load(_: Gate, plan: Plan) -> None:
    """Store what the subject holds before the trials; raise MissingFeature if it lacks one of the calls."""
    with plan.spec.opened(plan.directory) as subject:
        for kind in plan.workload.kinds:
            bound(subject, kind)
        load_items(subject, plan.workload.items())


def work(gate: Gate, plan: Plan) -> Report:
    """Run one trial in this process."""
    steps = script(plan.workload, plan.number, plan.operations)
    report = Report(calls={kind: array("q") for kind in plan.workload.kinds})
    plan.spec.load()
    reset_peak_memory()
    before = peak_memory()
    with plan.spec.opened(plan.directory) as subject:
        if plan.private:
            load_items(subject, plan.workload.items())
        functions = [bound(subject, kind) for kind in plan.workload.kinds]
        if plan.workload.blocks:  # whose calls are not judged one by one
            report.unexpected = sum(subject.get(key) != value for key, value in plan.workload.items())
        run_plain(functions, steps, plan.seconds * WARM_UP)
        gate.wait()
        with _measured(plan, report, before):
            if not plan.timed_only:
                report.began = clock()
                report.operations = run_plain(functions, steps, plan.seconds)
                report.ended = clock()
        gate.wait()
        with timeouts_counted(plan.spec) as timeouts:
            _run_timed(functions, steps, plan, report, timeouts)
        gate.wait()
    return report


@contextmanager
def _measured(plan: Plan, report: Report, before: int) -> Iterator[None]:
    """Add up processor time and memory of the pass without a clock, the server's once for all workers."""

    def used() -> tuple[float, Usage]:
        mine = resource.getrusage(resource.RUSAGE_SELF)
        server = usage_of(plan.server) if plan.server and plan.number == 0 else Usage(0.0, 0)
        return mine.ru_utime + mine.ru_stime, server

    began, server_began = used()
    yield
    ended, server = used()
    report.cpu_seconds = ended - began
    report.server_cpu_seconds = server.cpu_seconds - server_began.cpu_seconds
    report.peak_memory = max(peak_memory() - before, 0) + server.resident


def run_plain(functions: Functions, steps: Steps, seconds: float) -> int:
    """Run the script as fast as it goes for at most `seconds`; return the number of calls."""
    last = clock()
    deadline = last + int(seconds * 1e9)
    iterator, done, size = iter(steps), 0, 1
    while chunk := list(islice(iterator, size)):
        for kind, args in chunk:
            functions[kind](*args)
        done += len(chunk)
        now = clock()
        if now >= deadline:
            break
        if now - last < SHORT:
            size = min(2 * size, CHUNK)
        last = now
    return done


def _run_timed(functions: Functions, steps: Steps, plan: Plan, report: Report, timeouts: array[int]) -> None:
    """Time each call, and judge between the calls what came back."""
    kinds, judge = plan.workload.kinds, Judge(plan, report, timeouts)
    keep = [report.calls[kind].append for kind in kinds]
    due = pacer(plan)
    began = stop = clock()
    deadline, done = began + int(plan.seconds * 1e9), 0
    for kind, args in steps:
        function = functions[kind]
        start = due(stop)
        result = function(*args)
        stop = clock()
        keep[kind](stop - start)
        done += 1
        judge(kinds[kind], args, result)
        if stop >= deadline:
            break
    if plan.timed_only:
        report.began, report.ended, report.operations = began, stop, done


def pacer(plan: Plan) -> Callable[[int], int]:
    """Return what waits for a call's turn and gives the time that the call is measured from.

    That the kernel wakes a sleeper late is not the subject's fault.
    """
    think, rate = plan.pace.think, plan.pace.rate
    if not (think or rate):
        return lambda stopped: clock()
    if think:

        def rested(stopped: int) -> int:
            time.sleep(think)
            return clock()

        return rested
    interval = 1e9 * plan.processes / rate
    first = clock() + interval * (1 + plan.number / plan.processes)
    turns = (int(first + interval * turn) for turn in count())

    def due(stopped: int) -> int:
        turn = next(turns)
        ahead = turn - clock()
        if ahead <= 0:
            return turn
        time.sleep(ahead / 1e9)
        return clock()

    return due


class Judge:
    """Sort what calls returned: right, a miss by design, a lock not got in time, an unexpected miss, or wrong."""

    def __init__(self, plan: Plan, report: Report, timeouts: array[int]) -> None:
        self._plan, self._report, self._timeouts = plan, report, timeouts
        self._seen = 0
        self._absent: set[Any] = set()
        self._present: set[Any] = set()

    def __call__(self, kind: str, args: tuple[Any, ...], result: Any) -> None:
        """Judge one answer."""
        timed_out, self._seen = self._timeouts[0] > self._seen, self._timeouts[0]
        if timed_out:
            self._report.timeouts += 1
            return
        if result is None and kind in ("get", "hits", "open", "pull"):
            by_design = self._plan.may_miss or self._may_be_deleted(args)
            self._report.misses += by_design
            self._report.unexpected += not by_design
        elif result is False and kind in ("set", "insert", "set_tagged"):
            self._report.unexpected += 1
        elif result is not None and not self._plan.workload.proves(kind, args, result):
            self._report.wrong += 1
        if kind == "set":
            self._absent.discard(args[0])
            self._present.add(args[0])
        elif kind == "delete":
            self._absent.add(args[0])
        elif kind == "incr" and result is not None:
            self._report.counted.append((*args, result))

    def _may_be_deleted(self, args: tuple[Any, ...]) -> bool:
        """Tell whether a missing key may have been deleted: by another process, by this one, or by an earlier pass."""
        if not self._plan.workload.deletes:
            return False
        return self._plan.processes > 1 or args[0] in self._absent or args[0] not in self._present


@contextmanager
def timeouts_counted(spec: Spec) -> Iterator[array[int]]:
    """Count in this process how often the subject's library raises its Timeout, also where it catches it itself.

    A `FanoutCache` returns None for a lock that it did not get in time, which looks like a miss from outside.
    """
    raised, kind = array("q", [0]), getattr(spec.load(), "Timeout", None)
    if not (isinstance(kind, type) and issubclass(kind, BaseException)):
        yield raised
        return
    plain = kind.__init__

    def counting(self: Any, *args: object, **named: object) -> None:
        raised[0] += 1
        plain(self, *args, **named)

    kind.__init__ = counting  # type: ignore[method-assign]
    try:
        yield raised
    finally:
        kind.__init__ = plain  # type: ignore[method-assign]
