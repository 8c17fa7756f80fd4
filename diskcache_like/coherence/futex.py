"""Sleep until another thread or process changes a word in shared memory, and wake those who sleep.

Waking up is only a hint: a sleep may end early, and it always ends after its slice, so a sleeper that wakes checks
again what it waits for. The kernel keeps the sleepers of each word in a queue; where it has none they just pause.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Iterator
from typing import Final

from . import _native
from .generations import Words

# Seconds of a pause where nothing wakes the waiter: the first, then twice as long each time, up to the longest.
FIRST_PAUSE: Final = 0.0005
LONGEST_PAUSE: Final = 0.05

# The same where `wake` ends a sleep. They bound the delay when no wake-up is sent, as by code that changes the word
# without calling `wake`.
FIRST_SLICE: Final = 0.01
LONGEST_SLICE: Final = 0.25

_EVERYONE: Final = 2**31 - 1


def pauses() -> Iterator[float]:
    """Yield how many seconds to pause, time after time, where nothing can wake the waiter."""
    return _doubled(FIRST_PAUSE, LONGEST_PAUSE)


def slices() -> Iterator[float]:
    """Yield how many seconds to sleep at most, time after time."""
    return _doubled(FIRST_SLICE, LONGEST_SLICE)


def _doubled(first: float, longest: float) -> Iterator[float]:
    while True:
        yield first
        first = min(2 * first, longest)


def sleep(slots: Words, index: int, seen: int, seconds: float) -> None:
    """Sleep until `wake` is called, at most `seconds`; return at once if the word is no longer `seen`.

    No wake-up is missed: the kernel compares the word and queues the sleeper in one step, and `wake` is called after
    the word was changed, so either the comparison fails or the sleeper is in the queue. The kernel compares only the
    low half of the word: exactly 2**31 writes between the look and the sleep would go unnoticed, and cost one slice.
    """
    if isinstance(slots, _native.Words) and index < len(slots):  # else the store was closed meanwhile
        if slots.wait(index, seen, int(seconds * 1e6)) != errno.ENOSYS:
            return
        seconds = min(seconds, LONGEST_PAUSE)
    time.sleep(seconds)


def wake(slots: Words, index: int) -> None:
    """Wake everyone who sleeps on the word, which the caller has just changed.

    All must wake: many keys share a slot, and a single sleeper might be killed before it acts.
    """
    if isinstance(slots, _native.Words) and index < len(slots):
        slots.wake(index, _EVERYONE)
