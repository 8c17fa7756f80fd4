"""Load the C helper; `DISKCACHE_LIKE_NATIVE=0` turns it off, and a sub-interpreter with its own lock has none."""

from __future__ import annotations

import functools
import importlib
import os
from collections.abc import Callable
from struct import Struct
from typing import Any

VARIABLE = "DISKCACHE_LIKE_NATIVE"

NEWEST = Struct("Qqi4x")  # a `dl_newest`; ticks are signed, as integers of SQLite are

_MODULE = "diskcache_like.coherence._native"
_ABI = 6  # DL_ABI of native_build.py


class NativeModule:
    """Call the helper's functions on words that are given by `pointer` and an index, which the caller has checked."""

    __slots__ = ("_ffi", "_gather", "add", "append", "fill", "futex_wait", "futex_wake", "load", "store")

    def __init__(self, ffi: Any, lib: Any) -> None:
        self._ffi = ffi
        self.load: Callable[[object, int], int] = lib.dl_load
        self.store: Callable[[object, int, int], None] = lib.dl_store
        self.add: Callable[[object, int, int], int] = lib.dl_add
        self.fill: Callable[[object, int, int], None] = lib.dl_fill
        self.futex_wait: Callable[[object, int, int, int], int] = lib.dl_futex_wait
        self.futex_wake: Callable[[object, int, int], int] = lib.dl_futex_wake
        self.append: Callable[..., int] = lib.dl_append
        self._gather: Callable[..., int] = lib.dl_gather
        lib.dl_prepare()

    def pointer(self, view: memoryview[int]) -> object:
        """Return the address of `view`; the caller keeps the view alive, and so mapped, while it uses the address.

        The view must not stay exported: the garbage collector of CPython before 3.12.7 crashes when it frees an
        exported view that is part of a cycle (gh-77894), as the views of a handle are that was never closed.
        """
        with self._ffi.from_buffer(view, require_writable=True) as exported:
            pointer: object = self._ffi.cast("void *", exported)
        return pointer

    def shard(self, words: dict[str, tuple[memoryview[int], int]], numbers: dict[str, int]) -> object:
        """Return what `append` and `gather` have to know of a shard: addresses of words (view, index), and numbers.

        As for `pointer`, the caller keeps the views alive.
        """
        made = self._ffi.new("dl_shard *")
        for name, (view, index) in words.items():
            kind = self._ffi.typeof(getattr(made, name))
            setattr(made, name, self._ffi.cast(kind, self.pointer(view)) + index)
        for name, number in numbers.items():
            setattr(made, name, number)
        shard: object = made
        return shard

    def gather(self, shard: object, room: int) -> tuple[memoryview, int, int] | None:
        """Return what `dl_gather` finds: the bytes of a `dl_newest` each, its end and checksum; None for damage."""
        found, end = self._ffi.new("dl_newest[]", room), self._ffi.new("uint64_t[2]")
        count = self._gather(shard, found, room, end, end + 1)
        return None if count < 0 else (memoryview(self._ffi.buffer(found))[: count * NEWEST.size], end[0], end[1])


def load() -> NativeModule | None:
    """Return the helper, or None if it cannot be loaded here, or is turned off."""
    if os.environ.get(VARIABLE) == "0":
        return None
    return _load()


@functools.cache
def _load() -> NativeModule | None:
    # ImportError also covers an interpreter that refuses cffi, and a library built for another machine. cffi's own
    # module comes first: if a library imports it in vain as it is loaded into a sub-interpreter, Python 3.13 and 3.14
    # crash (gh-144601).
    try:
        importlib.import_module("_cffi_backend")
        module = importlib.import_module(_MODULE)
    except ImportError:
        return None
    if getattr(module.lib, "DL_ABI", None) != _ABI:
        return None
    return NativeModule(module.ffi, module.lib)
