"""Writes that are tried again, after a disk that was full for a moment: the second try sees what others did meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from diskcache_like import Cache
from diskcache_like.errors import DiskFull
from diskcache_like.storage.computing import Computer

from .conftest import Opener
from .kinds import few


@contextmanager
def full_once(cache: Cache, meanwhile: Callable[[], object]) -> Iterator[None]:
    """Refuse the next change for want of room; `meanwhile` is called when the lock is free for the second try."""
    change, make_good = Computer._change, Computer._make_good
    refusals = iter([DiskFull("no room", cache.directory)])

    def refused(store: Computer, *arguments: Any) -> int:
        for error in refusals:
            raise error
        return change(store, *arguments)

    def made_good(store: Computer, *arguments: Any) -> None:
        make_good(store, *arguments)
        meanwhile()

    with mock.patch.object(Computer, "_change", refused), mock.patch.object(Computer, "_make_good", made_good):
        yield


@few
def test_pop_returns_nothing_that_another_has_popped(open_cache: Opener) -> None:
    cache, other = open_cache(), open_cache()
    cache["key"] = "value"
    popped: list[Any] = []
    with full_once(cache, lambda: popped.append(other.pop("key"))):
        assert cache.pop("key", "none", tag=True) == ("none", None)
    assert popped == ["value"]


@few
def test_touch_does_not_answer_for_an_entry_that_was_removed(open_cache: Opener) -> None:
    cache, other = open_cache(), open_cache()
    cache["key"] = "value"
    with full_once(cache, lambda: other.delete("key")):
        assert cache.touch("key", 5) is False
    assert "key" not in other
