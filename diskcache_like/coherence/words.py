"""64-bit words in mapped memory: how they are read and written, and who may rely on it.

On x86-64 a word is read by indexing the raw `memoryview`, 11 ns, with nothing wrapped round it. Three facts make that
enough:

* CPython reads and writes one item of format 'Q' with a single 8-byte move, and aligned 8-byte moves are atomic: nobody
  sees half a generation.
* x86-64 neither reorders loads with loads nor stores with stores, and every index operation is a call that the compiler
  does not move others across: odd becomes visible before the commit, even after it, and a reader's second look at a
  generation comes after its SELECT.
* The one reordering that x86-64 has, a store that waits in the store buffer while later loads go ahead, ends at the
  first system call that takes a lock in the kernel. COMMIT makes several after odd was stored, so odd is visible
  everywhere before the write returns to its caller.

A weakly ordered CPU grants only the first. There the C helper supplies the ordering (`NativeWords`); without it the hot
layer is off, never wrong. Writers need no helper even there: their stores are separated from the database's by the file
locks that SQLite takes *and* drops inside COMMIT, and a lock dropped before another is taken orders everything.
"""

from __future__ import annotations

import os
import platform
import sys
from array import array
from typing import Literal, Protocol, cast

from diskcache_like.coherence import native
from diskcache_like.errors import SettingError

VARIABLE = "DISKCACHE_LIKE_COHERENCE"

Implementation = Literal["python", "native", "off"]

# Words per copy in `fill`, see there.
_RUN = 128


class Words(Protocol):
    """Index 64-bit unsigned words; a `memoryview` of format 'Q' is one."""

    def __getitem__(self, index: int, /) -> int: ...

    def __setitem__(self, index: int, value: int, /) -> None: ...

    def __len__(self) -> int: ...


class NativeWords:
    """Read with acquire and write with release, through the C helper."""

    __slots__ = ("_length", "_load", "_native", "_pointer", "_store", "view")

    def __init__(self, view: memoryview[int], helper: native.NativeModule) -> None:
        self.view = view
        self._native = helper
        self._pointer = helper.pointer(view)
        self._length = len(view)
        self._load = helper.load
        self._store = helper.store

    def __getitem__(self, index: int, /) -> int:
        # The helper does not check, and a bad index would read or write somebody else's memory.
        if not 0 <= index < self._length:
            raise IndexError(index)
        return self._load(self._pointer, index)

    def __setitem__(self, index: int, value: int, /) -> None:
        if not 0 <= index < self._length:
            raise IndexError(index)
        self._store(self._pointer, index, value)

    def __len__(self) -> int:
        return self._length

    def fill(self, value: int) -> None:
        """Set every word to `value`."""
        self._native.fill(self._pointer, self._length, value)


def over(view: memoryview[int], implementation: Implementation) -> Words:
    """Return the words in `view` as `implementation` reads and writes them."""
    if implementation != "native":
        return view
    helper = native.load()
    if helper is None:
        raise _no_helper()
    return NativeWords(view, helper)


def raw(words: Words) -> memoryview[int]:
    """Return the memory behind `words`."""
    return words.view if isinstance(words, NativeWords) else cast("memoryview[int]", words)


def fill(words: Words, value: int) -> None:
    """Set every word to `value`, each of them atomically; 65,536 words take about 40 µs."""
    if isinstance(words, NativeWords):
        words.fill(value)
        return
    view = raw(words)
    # A slice assignment is one memcpy between buffers whose ends are multiples of 8. C libraries copy such buffers with
    # moves of 8 bytes or more that begin at multiples of 8, and a move of several words is split between words if at
    # all, so no word is ever seen half old and half new. Long copies may switch to `rep movsb`, whose steps no manual
    # promises: runs of 1 KiB stay below every such threshold.
    run = array("Q", [value]) * _RUN
    whole = len(view) // _RUN * _RUN
    for start in range(0, whole, _RUN):
        view[start : start + _RUN] = run
    for index in range(whole, len(view)):
        view[index] = value


def choose_implementation(wanted: str | None = None) -> Implementation:
    """Decide how generations are read: the argument, else DISKCACHE_LIKE_COHERENCE, else what the CPU allows.

    'off' means that this process must not keep a hot layer; it still writes generations for the others. That is also
    the answer to 'python' on a weakly ordered CPU: it can be asked for, but not granted.
    """
    source = "coherence" if wanted is not None else VARIABLE
    choice = wanted if wanted is not None else os.environ.get(VARIABLE) or "auto"
    if choice not in ("auto", "python", "native"):
        raise SettingError(f"{source} must be 'auto', 'python' or 'native', not {choice!r}")
    if choice == "native":
        if native.load() is None:
            raise _no_helper()
        return "native"
    if _strongly_ordered():
        return "python"
    return "native" if choice == "auto" and native.load() is not None else "off"


def _strongly_ordered() -> bool:
    # A 32-bit interpreter on a 64-bit CPU moves a word in two halves; of other interpreters we know nothing.
    return (
        platform.machine().lower() in ("x86_64", "amd64")
        and sys.maxsize > 2**32
        and sys.implementation.name == "cpython"
    )


def _no_helper() -> SettingError:
    return SettingError(
        "coherence 'native' needs the compiled helper, which is not there: build it with `python -m "
        "diskcache_like.coherence.native_build`, which needs cffi and a C compiler, or reinstall the package where "
        f"both are present; {native.VARIABLE}=0 must not be set"
    )
