"""Signals whose handlers raise, delivered at every place where CPython runs handlers: one after the other, exactly.

CPython notes a signal in a flag and runs its handler at the next place where the interpreter looks at the flag: after
a call of something written in C, at the beginning of a function (and where a generator goes on), at a jump back in a
loop, and within calls in C that wait. A tracer is told of each such instruction before it is carried out. It raises
the flag and returns without passing such a place itself, so that the handler runs where it would have, had the signal
come just then, and nowhere else.
"""

from __future__ import annotations

import _thread
import dis
import gc
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any
from unittest.mock import patch

_LOOKS = frozenset(number for name, number in dis.opmap.items() if name.startswith("CALL") or "JUMP_BACKWARD" in name)


class _Flag:
    """`flag[number]` notes a signal: an operator, since after a call in the tracer the handler would run there."""

    __getitem__ = _thread.interrupt_main


class _Trace:
    """`trace[None]` ends the tracing, likewise: the tracer would be called once more before the handler."""

    __getitem__ = sys.settrace


class Interrupted(KeyboardInterrupt):
    """What a handler raises, as Ctrl-C does."""


class Alarm(Exception):
    """The same as an error like any other."""


class Late(TimeoutError):
    """The same as an error of the system's, as alarms that limit the time raise."""


RAISED: tuple[type[BaseException], ...] = (Interrupted, Alarm, Late)


class Stepper:
    """Note a signal before the `number`-th place where its handler may run; with 0, count the places."""

    def __init__(self, number: int = 0, kind: type[BaseException] = Interrupted) -> None:
        self._number = number
        self._kind = kind
        self._flag: Any = _Flag()
        self._trace: Any = _Trace()
        self._codes: dict[CodeType, bytes] = {}
        self.places = 0
        self.where = ""
        self.instead: Callable[[str], object] | None = None  # what the handler does, if it does not raise

    def __call__(self, frame: FrameType, event: str, argument: Any) -> Any:
        """Be told of a call: the beginning of a function is such a place."""
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        self.places += 1
        if self.places == self._number:
            self._trace[None]
            self._flag[signal.SIGINT]
        return self._step

    def _step(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "opcode":
            code = frame.f_code
            instructions = self._codes.get(code)
            if instructions is None:
                instructions = self._codes[code] = code.co_code
            if instructions[frame.f_lasti] not in _LOOKS:
                return self._step
        elif event != "return":  # to a call in C perhaps, which is such a place when that returns
            return self._step
        self.places += 1
        if self.places == self._number:
            self._trace[None]
            self._flag[signal.SIGINT]
        return self._step

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Raise, as a signal handler."""
        assert frame is not None
        self.where = f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_qualname}"
        assert frame.f_code.co_filename != __file__ or frame.f_code in (carry_out.__code__, interrupted.__code__)
        if self.instead is None:
            raise self._kind(self.where)
        self.instead(self.where)

    @contextmanager
    def traced(self) -> Iterator[None]:
        """Have the handler and the tracer in place."""
        before, collects = signal.signal(signal.SIGINT, self.handle), gc.isenabled()
        gc.disable()  # a collection begins anywhere, also in the tracer, and calls functions of others
        try:
            yield
        finally:
            sys.settrace(None)
            signal.signal(signal.SIGINT, before)
            if collects:
                gc.enable()


def carry_out(stepper: Stepper, call: Callable[[], object]) -> None:
    """Do a call while the stepper is told of its instructions."""
    sys.settrace(stepper)
    call()
    sys.settrace(None)


def places_in(call: Callable[[], object]) -> int:
    """Return at how many places of a call a handler may run."""
    stepper = Stepper()
    with stepper.traced():
        carry_out(stepper, call)
    return stepper.places


def interrupted(
    call: Callable[[], object],
    number: int,
    kind: type[BaseException] = Interrupted,
    stepping: Callable[[int, type[BaseException]], Stepper] | None = None,
    instead: Callable[[str], object] | None = None,
) -> BaseException | None:
    """Interrupt a call at the `number`-th place; return what was raised, None if the call came to its end before.

    `stepping`: makes a stepper that counts other places. `instead`: what the handler does, where it does not raise.

    Nothing else may come of a call that was interrupted, neither another error nor a result; but CPython itself ignores
    what is raised in a finalizer.
    """
    stepper, ignored = (stepping or Stepper)(number, kind), list[str]()
    stepper.instead = instead
    with stepper.traced(), patch.object(sys, "unraisablehook", lambda lost: ignored.append(str(lost.exc_value))):
        try:
            carry_out(stepper, call)
            for _ in range(2):
                pass
        except kind as error:
            return error
        assert instead or stepper.where in ("", *ignored), f"a call went on in which a handler raised, {stepper.where}"
    return None
