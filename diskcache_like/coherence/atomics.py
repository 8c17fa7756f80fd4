"""Read and write 64-bit words in mapped memory, with the ordering that coherence relies on.

On x86-64 a word is read by indexing the raw `memoryview`, which takes 11 ns. Three facts make that safe:

* CPython reads and writes one item of format 'Q' with a single 8-byte move, and aligned 8-byte moves are atomic, so
  nobody sees half a generation.
* x86-64 reorders neither loads with loads nor stores with stores, and every index operation is a call that the compiler
  moves nothing across. So odd becomes visible before the commit and even after it, and a reader's second look at a
  generation comes after its SELECT.
* The one reordering on x86-64, a store that waits in the store buffer while later loads go ahead, ends at the first
  system call that takes a lock in the kernel. COMMIT makes several of them after odd was stored, so odd is visible
  everywhere before the write returns to its caller.

A weakly ordered CPU guarantees only the first. There the C helper supplies the ordering (`NativeWords`); without it the
hot layer is off, never wrong. Writers need no helper even there: SQLite takes *and* drops file locks inside COMMIT,
which separate a writer's stores from the database's, and dropping one lock before taking another orders everything.
"""

from __future__ import annotations

import os
import platform
import sys
from array import array
from typing import Literal, Protocol, cast

from ..errors import SettingError
from . import native

VARIABLE = "DISKCACHE_LIKE_COHERENCE"

Implementation = Literal["python", "native", "off"]

_RUN = 128  # words per copy in `fill`


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
        # The helper does not check indices, and a bad one would read or write other memory.
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
    """Set every word to `value`, each atomically; 65,536 words take about 40 µs."""
    if isinstance(words, NativeWords):
        words.fill(value)
        return
    view = raw(words)
    # A slice assignment is one memcpy between buffers that begin and end at multiples of 8. C libraries copy such
    # buffers with aligned moves of 8 bytes or more, and a move of several words is only ever split between words, so
    # nobody sees a word half old and half new. Long copies may use `rep movsb`, for which no manual promises that;
    # runs of 1 KiB stay below every library's threshold.
    run = array("Q", [value]) * _RUN
    whole = len(view) // _RUN * _RUN
    for start in range(0, whole, _RUN):
        view[start : start + _RUN] = run
    for index in range(whole, len(view)):
        view[index] = value


def choose_implementation(wanted: str | None = None) -> Implementation:
    """Decide how generations are read: the argument, else DISKCACHE_LIKE_COHERENCE, else what the CPU allows.

    'off' means that this process must not keep a hot layer; it still writes generations for the others. On a weakly
    ordered CPU that is also the answer to 'python', which can be asked for there but not granted.
    """
    source = "coherence" if wanted is not None else VARIABLE
    choice = wanted if wanted is not None else os.environ.get(VARIABLE) or "auto"
    if choice not in ("auto", "python", "native"):
        raise SettingError(f"{source} must be 'auto', 'python' or 'native', not {choice!r}")
    if choice == "native":
        if native.load() is None:
            raise _no_helper()
        return "native"
    if strongly_ordered():
        return "python"
    return "native" if choice == "auto" and native.load() is not None else "off"


def strongly_ordered() -> bool:
    """Tell whether this CPU and interpreter read and write words in order, without the helper."""
    # A 32-bit interpreter on a 64-bit CPU moves a word in two halves; we know nothing about other interpreters.
    return (
        platform.machine().lower() in ("x86_64", "amd64")
        and sys.maxsize > 2**32
        and sys.implementation.name == "cpython"
    )


def _no_helper() -> SettingError:
    return SettingError(
        "coherence 'native' needs the compiled helper, which was not found: build it with `python -m "
        "diskcache_like.coherence.native_build`, which needs cffi and a C compiler, or reinstall the package where "
        f"both are present; {native.VARIABLE}=0 must not be set"
    )
