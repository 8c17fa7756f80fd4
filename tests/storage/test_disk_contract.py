"""A Disk of one's own: whatever method of the contract it overrides, every way in asks it."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from diskcache_like import UNKNOWN, Cache, Disk, FanoutCache

from ..support.tampering import value_files

SECRET = "banned"


class Refused(Exception):
    """What a strict disk raises."""


class Fetches(Disk):
    """Marks what it fetches."""

    def fetch(self, mode: int, filename: str | None, value: Any, read: bool) -> Any:
        found = super().fetch(mode, filename, value, read)
        return found if read else ("fetched", found)


class Stores(Disk):
    """Marks what it stores."""

    def store(self, value: Any, read: bool, key: Any = None) -> Any:
        return super().store(value if read else ("fetched", value), read, key=key)


class Gets(Disk):
    """Marks the keys that it reads."""

    def get(self, key: Any, raw: bool) -> Any:
        return f"got {super().get(key, raw)}"


class Puts(Disk):
    """Turns keys into upper case."""

    def put(self, key: Any) -> tuple[Any, bool]:
        return super().put(str(key).upper())


@pytest.fixture(params=[Cache, FanoutCache], ids=["one", "fanout"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[type[Disk]], Cache]]:
    """Return what opens a cache with a disk; all are closed in the end."""
    opened: list[Cache] = []

    def open_cache(disk: type[Disk]) -> Cache:
        opened.append(request.param(tmp_path / disk.__name__, disk=disk))
        return opened[-1]

    yield open_cache
    for cache in opened:
        cache.close()


READS: dict[str, Callable[[Cache], Any]] = {
    "get": lambda cache: cache.get("key"),
    "again": lambda cache: (cache.get("key"), cache.get("key"))[1],
    "[]": lambda cache: cache["key"],
    "get_many": lambda cache: cache.get_many(["key"])["key"],
    "get_entry": lambda cache: cache.get_entry("key").value,
    "expire_time": lambda cache: cache.get("key", expire_time=True)[0],
    "items": lambda cache: dict(cache.items())["key"],
    "get_or_set": lambda cache: cache.get_or_set("key", lambda: "not called"),
    "memoize": lambda cache: cache.memoize(key=lambda: "key", name="key")(lambda: "value")() and cache["key"],
    "peekitem": lambda cache: cache.peekitem()[1],
    "pop": lambda cache: cache.pop("key"),
}


@pytest.mark.parametrize("way", READS)
@pytest.mark.parametrize("disk", [Fetches, Stores])
@pytest.mark.parametrize("value", ["text", 7, b"bytes", None, [1, 2], ("tuple", 1)], ids=repr)
def test_a_value_is_what_the_disk_makes_of_it(make: Any, disk: type[Disk], way: str, value: Any) -> None:
    cache = make(disk)
    cache["key"] = value
    if way == "peekitem":
        assert len(cache) == 1
    assert READS[way](cache) == ("fetched", value)


@pytest.mark.parametrize("disk", [Fetches, Stores])
def test_other_ways_to_write_ask_it_as_well(make: Any, disk: type[Disk]) -> None:
    cache = make(disk)
    cache.set_many({"many": "value"})
    assert cache.add("added", "value")
    cache.get_or_set("computed", lambda: "value")
    key = cache.push("value")
    assert [cache[each] for each in ("many", "added", "computed", key)] == [("fetched", "value")] * 4
    assert cache.pull() == (key, ("fetched", "value"))
    with pytest.raises(TypeError):  # a mark is no number
        cache.incr("number", default=cache.incr("number"))
        cache.incr("number")


def test_a_disk_that_refuses_refuses_what_is_hot(make: Any) -> None:
    class Strict(Disk):
        """Refuses some values."""

        def fetch(self, *args: Any) -> Any:
            found = super().fetch(*args)
            if found == SECRET:
                raise Refused
            return found

    cache = make(Strict)
    cache["key"] = SECRET
    for _ in range(2):
        with pytest.raises(Refused):
            cache.get("key")


class Turns(Disk):
    """Says how often it was asked for a value."""

    asked = 0

    def fetch(self, mode: int, filename: str | None, value: Any, read: bool) -> Any:
        self.asked += 1
        return super().fetch(mode, filename, value, read), self.asked


@pytest.mark.parametrize("size", [3, 50_000])
@pytest.mark.parametrize("value", [str.encode, str, list], ids=["bytes", "text", "list"])
def test_a_disk_that_changes_its_mind_is_asked_each_time(make: Any, value: Any, size: int) -> None:
    cache = make(Turns)
    cache["key"] = stored = value("x" * size)
    assert [cache["key"], cache.get("key"), cache.get_many(["key"])["key"]] == [(stored, turn) for turn in (1, 2, 3)]
    assert cache.get_or_set("key", lambda: "not called") == (stored, 4)


class Names(Disk):
    """Names value files by itself."""

    def filename(self, key: Any = UNKNOWN, value: Any = UNKNOWN) -> tuple[str, str]:
        name = f"named-{key}.val"
        return name, f"{self._directory}/{name}"


def test_a_disk_names_every_value_file(make: Any) -> None:
    cache = make(Names)
    cache["set"] = b"x" * 50_000
    with cache.open("open", "wb") as stream:
        stream.write(b"x" * 50_000)
    cache.set("read", io.BytesIO(b"x" * 50_000), read=True)
    assert {path.name for path in value_files(Path(cache.directory))} == {f"named-{key}.val" for key in cache}
    assert [len(cache[key]) for key in cache] == [50_000] * 3


def test_keys_are_what_the_disk_makes_of_them(make: Any) -> None:
    gets, puts = make(Gets), make(Puts)
    gets["key"] = puts["key"] = 1
    assert list(gets) == ["got key"]
    assert [puts.get("KEY"), puts.get("Key"), "kEY" in puts, puts.get_many(["keY"])] == [1, 1, True, {"keY": 1}]
    assert list(puts) == ["KEY"]
    assert puts.delete("kEy")
    assert puts.get("key") is None
