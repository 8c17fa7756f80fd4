"""Writes that are tried again, on a disk that was full or a database that is damaged: nothing of the first try is left."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import pytest

from diskcache_like import Cache
from diskcache_like.errors import CorruptDatabase, CorruptDatabaseWarning, DiskFull
from diskcache_like.storage import opening
from diskcache_like.storage.computing import Computer
from diskcache_like.storage.holding import Holder

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


LARGE = b"large" * 50_000


@few
@pytest.mark.parametrize("write", [lambda cache: cache.set_many({"key": LARGE}), lambda cache: cache.push(LARGE)])
def test_a_value_file_is_kept_for_the_database_that_takes_the_place_of_a_damaged_one(
    open_cache: Opener, write: Callable[[Cache], object]
) -> None:
    cache = open_cache()
    commit, damages = Holder.commit, iter([1])

    def committed(store: Holder, *arguments: Any) -> None:
        for _ in damages:
            raise CorruptDatabase("damaged")
        commit(store, *arguments)

    with (
        mock.patch.object(opening, "_is_sound", return_value=False),
        mock.patch.object(Holder, "commit", committed),
        pytest.warns(CorruptDatabaseWarning),
    ):
        write(cache)
    assert [cache[key] for key in cache] == [LARGE]
