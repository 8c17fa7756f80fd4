"""Sleep until another thread or process has changed a word in shared memory, and wake those who do.

Sleeping is a hint only: it may end early, and it always ends after its slice, so whoever wakes looks again at what it
waits for. The C helper puts sleepers into the kernel's queue for the word; without it a slice is a pause.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Iterator
from typing import Final

from diskcache_like.coherence import native, words
from diskcache_like.coherence.words import Words

# Seconds without the helper: doubled each time, from the first to the longest.
FIRST_PAUSE: Final = 0.0005
LONGEST_PAUSE: Final = 0.05

# The same with the helper, where `wake` ends them. They bound what is lost with a wake-up that is never sent: by a
# process without the helper, or for a change made by something that does not know of sleepers.
FIRST_SLICE: Final = 0.01
LONGEST_SLICE: Final = 0.25

_EVERYONE: Final = 2**31 - 1


def pauses() -> Iterator[float]:
    """Yield the seconds of one pause after another where nobody can be woken."""
    return _doubled(FIRST_PAUSE, LONGEST_PAUSE)


def slices() -> Iterator[float]:
    """Yield the seconds to sleep at most, time after time."""
    return pauses() if native.load() is None else _doubled(FIRST_SLICE, LONGEST_SLICE)


def _doubled(first: float, longest: float) -> Iterator[float]:
    while True:
        yield first
        first = min(2 * first, longest)


def sleep(slots: Words, index: int, seen: int, seconds: float) -> None:
    """Sleep while the word is `seen`, until `wake`, and `seconds` at most.

    No wake-up of the helper's is missed: the kernel compares the word and queues the sleeper in one step, and `wake` is
    called after the word was changed, so either the comparison fails or the sleeper is in the queue. Only the word's
    low half is compared: 2**31 writes between looking and sleeping would pass for none, and cost one slice.
    """
    helper, view = native.load(), _memory(slots, index)
    if helper is not None and view is not None:
        # The pointer keeps the memory mapped while we sleep, whatever another thread closes.
        if helper.futex_wait(helper.pointer(view), index, seen & 0xFFFFFFFF, int(seconds * 1e6)) != errno.ENOSYS:
            return
        seconds = min(seconds, LONGEST_PAUSE)
    time.sleep(seconds)


def wake(slots: Words, index: int) -> None:
    """Wake everyone who sleeps on the word, which has just been changed.

    All of them, because a slot is shared by many keys, and one that was woken may be killed before it does anything.
    """
    helper, view = native.load(), _memory(slots, index)
    if helper is not None and view is not None:
        helper.futex_wake(helper.pointer(view), index, _EVERYONE)


def _memory(slots: Words, index: int) -> memoryview[int] | None:
    """Return the memory behind `slots`, or None if the store was closed meanwhile; what is used next opens it again."""
    view: object = words.raw(slots)
    return view if isinstance(view, memoryview) and index < len(view) else None
