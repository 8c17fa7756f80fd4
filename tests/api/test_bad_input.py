"""Bad arguments: each has its own error that says what was expected, and costs nothing that was stored before."""

from __future__ import annotations

import io
import math
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import date, datetime, timedelta
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from diskcache_like import Cache, Disk, FanoutCache, JSONDisk, errors, throttle
from diskcache_like.errors import (
    DirectoryError,
    ExpiryError,
    KeyEncodeError,
    KeyTooLarge,
    SecretError,
    SettingError,
    UnsafeDirectory,
    ValueEncodeError,
    ValueTooLarge,
)

from ..support.cache_kinds import Clock, Kind, Opener, few

BEFORE = {"small": "value", "large": b"\x00\xff" * 30_000, 3: [1, {"two": 3.0}]}


class Unpicklable:
    """Something that refuses to be pickled."""

    def __reduce__(self) -> str:
        raise RuntimeError("not to be copied")


class Colour(Enum):
    RED = 1


class Breaking:
    """A file that gives some bytes and then fails."""

    def __init__(self, error: BaseException) -> None:
        self.error = error
        self.pieces = 2

    def read(self, size: int) -> bytes:
        if not self.pieces:
            raise self.error
        self.pieces -= 1
        return bytes(size)


class NotBlocking:
    """A file that has nothing to give yet."""

    def read(self, _: int) -> None:
        return


@pytest.fixture(autouse=True)
def own_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("DISKCACHE_LIKE_PICKLE", raising=False)
    monkeypatch.delenv("DISKCACHE_LIKE_SECRET", raising=False)


@pytest.fixture
def kept(open_cache: Opener) -> Iterator[Cache]:
    """Return a cache with entries that must all be there at the end, and no file that is nobody's."""
    cache = open_cache()
    for key, value in BEFORE.items():
        cache[key] = value
    yield cache
    for handle in (cache, open_cache()):  # as this process knows them, and as they are stored
        assert handle.get_many(BEFORE) == BEFORE
    assert [str(problem.message) for problem in cache.check()] == []


def unserialisable() -> dict[str, Callable[[], Any]]:
    """Return makers of values that nothing can encode."""
    return {
        "lambda": lambda: lambda: None,
        "generator": lambda: (number for number in range(0)),
        "lock": threading.Lock,
        "failing": Unpicklable,
        "nested": lambda: {"in": [(1, threading.Lock())]},
        "deep": lambda: deep(10_000),
    }


def deep(levels: int) -> list[Any]:
    """Return lists within lists."""
    found: list[Any] = []
    for _ in range(levels):
        found = [found]
    return found


WRITES: dict[str, Callable[[Cache, Any], object]] = {
    "set": lambda cache, value: cache.set("small", value),
    "[]=": lambda cache, value: cache.__setitem__("small", value),
    "add": lambda cache, value: cache.add("new", value),
    "push": lambda cache, value: cache.push(value),
    "set_many": lambda cache, value: cache.set_many({"small": "other", "large": bytes(50_000), "new": value}),
}


@few
@pytest.mark.parametrize("policy", ["signed", "never", "trusted"])
def test_a_value_that_cannot_be_encoded(kept: Cache, open_cache: Opener, policy: str) -> None:
    cache = open_cache(pickle=policy)
    for make in unserialisable().values():
        for write in WRITES.values():
            with pytest.raises(ValueEncodeError, match=r"pickle='never'|can it be pickled"):
                write(cache, make())
    assert len(cache) == len(BEFORE)


@few
def test_the_error_of_pickle_never_names_type_and_choices(kept: Cache, open_cache: Opener) -> None:
    with pytest.raises(ValueEncodeError, match=r"Colour.*pickle='never'.*pickle='signed'.*Disk"):
        open_cache(pickle="never").set("small", Colour.RED)


@few
def test_a_key_that_cannot_be_encoded(kept: Cache) -> None:
    for make in unserialisable().values():
        for operation in (*KEYED, *TAGGED):
            with pytest.raises((KeyEncodeError, KeyTooLarge), match=r"use |limit|nested"):
                operation(kept, make())
    assert len(kept) == len(BEFORE)


KEYED: list[Callable[[Cache, Any], object]] = [
    lambda cache, key: cache.set(key, 1),
    lambda cache, key: cache.set(key, bytes(50_000)),
    lambda cache, key: cache.set_many([("small", bytes(50_000)), (key, 1)]),
    lambda cache, key: cache.add(key, 1),
    lambda cache, key: cache.get(key),
    lambda cache, key: cache[key],
    lambda cache, key: key in cache,
    lambda cache, key: cache.get_many(["small", key]),
    lambda cache, key: cache.get_entry(key),
    lambda cache, key: cache.incr(key),
    lambda cache, key: cache.touch(key),
    lambda cache, key: cache.pop(key),
    lambda cache, key: cache.delete(key),
    lambda cache, key: cache.delete_many([key]),
]
TAGGED: list[Callable[[Cache, Any], object]] = [
    lambda cache, tag: cache.set("small", bytes(50_000), tag=tag),
    lambda cache, tag: cache.add("new", bytes(50_000), tag=tag),
    lambda cache, tag: cache.push(bytes(50_000), tag=tag),
    lambda cache, tag: cache.set_many({"small": bytes(50_000)}, tag=tag),
    lambda cache, tag: cache.evict(tag),
]


@few
def test_a_key_of_a_megabyte(kept: Cache) -> None:
    for key in ("k" * (1 << 20), b"k" * (1 << 20), 10**400_000, ("k" * (1 << 20),)):
        for operation in KEYED if isinstance(key, tuple) else (*KEYED, *TAGGED):
            with pytest.raises(KeyTooLarge, match=r"takes \d+ bytes; the limit is 65536 bytes"):
                operation(kept, key)
    assert len(kept) == len(BEFORE)


@few
def test_a_prefix_that_is_no_text(kept: Cache) -> None:
    prefixes: list[Any] = [5, b"p", ("p",), threading.Lock()]
    for prefix in prefixes:
        for operation in (kept.pull, kept.peek, kept.iterqueue, partial(kept.push, bytes(50_000))):
            with pytest.raises(KeyEncodeError, match=r"prefix is .*, expected text or None"):
                operation(prefix)


@few
def test_a_side_that_does_not_exist(kept: Cache) -> None:
    sides: list[Any] = ["middle", "", None, 1]
    for side in sides:
        for operation in (kept.pull, kept.peek, kept.iterqueue, partial(kept.push, bytes(50_000))):
            with pytest.raises(ValueError, match="expected 'back' or 'front'"):
                operation(side=side)


@few
def test_a_tag_that_could_not_be_given_back(kept: Cache) -> None:
    for tag in (Colour.RED, int, len):
        for write in (partial(kept.set, "small"), partial(kept.add, "new"), kept.push):
            with pytest.raises(KeyEncodeError, match="tag"):
                write(bytes(50_000), tag=tag)


@few
@pytest.mark.parametrize("tags", [["a", "b"], ("a", "b"), {"a", "b"}, frozenset("ab"), {"a": 1}, ()], ids=type)
def test_several_tags_at_once(kept: Cache, tags: Any) -> None:
    """They would be one tag, which none of them alone would find."""
    limited = throttle(kept, 1, 1, name="limited", tag=tags)(Path.cwd)
    writes: dict[str, Callable[[], object]] = {
        "tag of key 'small'": lambda: kept.set("small", bytes(50_000), tag=tags),
        "tag of key 'new'": lambda: kept.add("new", bytes(50_000), tag=tags),
        "tag of key 'stream'": lambda: kept.open("stream", "wb", tag=tags),
        "^tag": lambda: kept.push(bytes(50_000), tag=tags),
        "tag": limited,
        "tag is": lambda: kept.set_many({"small": bytes(50_000)}, tag=tags),
        "^tag is": lambda: kept.evict(tags),
    }
    for message, write in writes.items():
        with pytest.raises(
            TypeError, match=rf"{message}.* a {type(tags).__name__}; use text, bytes or a number, or tags="
        ):
            write()


# -- values too large -------------------------------------------------------------------------------------------------

LIMIT = 400_000


@few
def test_a_value_above_the_size_limit(kept: Cache, kind: Kind, open_cache: Opener) -> None:
    kept.reset("size_limit", LIMIT * kind.shards)
    for number in range(20):
        kept["other", number] = number
    too_large = b"x" * (2 * LIMIT)
    assert kept.set("small", too_large) is False
    assert kept.set("small", io.BytesIO(too_large), read=True) is False
    assert kept.set("small", list(range(LIMIT))) is False
    assert kept.add("new", too_large) is False
    assert kept.set_many({"new": too_large, "fits": 1}) == 1
    with pytest.raises(ValueTooLarge, match=r"'small'.*size_limit"):
        kept["small"] = too_large
    with pytest.raises(ValueTooLarge, match="size_limit"):
        kept.push(too_large)
    assert kept.incr("count") == 1
    assert kept.pull() == (None, None)
    assert "new" not in kept
    assert len(kept) == len(BEFORE) + 20 + 2  # nothing was evicted for what could not be stored
    assert open_cache()["small"] == BEFORE["small"]


@few
def test_a_limit_of_nothing_stores_nothing_and_evicts_nothing(kept: Cache) -> None:
    kept.reset("cull_limit", 0)
    kept.reset("size_limit", 0)
    assert kept.set("more", "without culling there is no limit") is True
    kept.reset("cull_limit", 10)
    assert kept.set("most", "x") is False
    kept.reset("size_limit", 1 << 30)


# -- expiries ---------------------------------------------------------------------------------------------------------

BAD_EXPIRIES: list[Any] = [
    -1,
    -1e-9,
    math.nan,
    -math.inf,
    timedelta(seconds=-1),
    "5",
    b"5",
    "soon",
    [5],
    5j,
    10**400,
    datetime(2030, 1, 1),
    date(2030, 1, 1),
    object(),
]


@few
def test_an_expiry_that_is_none(kept: Cache) -> None:
    for expire in BAD_EXPIRIES:
        for operation in (
            partial(kept.set, "small", bytes(50_000)),
            partial(kept.set_many, {"small": bytes(50_000)}),
            partial(kept.add, "new", bytes(50_000)),
            partial(kept.push, bytes(50_000)),
            partial(kept.touch, "small"),
        ):
            with pytest.raises(ExpiryError, match=r"expire is .*, expected seconds from now"):
                operation(expire=expire)
    assert kept.get("small", expire_time=True) == (BEFORE["small"], None)


@few
def test_an_expiry_that_never_comes(kept: Cache, clock: Clock) -> None:
    for expire in (math.inf, 1e308, 2**63, timedelta.max):
        clock.now = 1_700_000_000.0
        kept.set("e", 1, expire=expire)
        clock.advance(1e9)
        kept["another"] = "write, which culls what is due"
        assert kept["e"] == 1
        assert kept.touch("e", expire)


@few
def test_a_moment_that_is_none(kept: Cache) -> None:
    kept.set("e", 1, expire=1e6)
    moments: list[Any] = ["later", math.nan, math.inf, 10**400, b"", True, object()]
    for now in moments:
        with pytest.raises(ExpiryError, match=r"now is .*, expected seconds since 1970"):
            kept.expire(now)
    assert kept["e"] == 1


# -- file objects -----------------------------------------------------------------------------------------------------

READS: dict[str, Callable[[Cache, Any], object]] = {
    "set": lambda cache, file: cache.set("small", file, read=True),
    "add": lambda cache, file: cache.add("new", file, read=True),
    "push": lambda cache, file: cache.push(file, read=True),
}


@few
def test_what_is_no_binary_file_object(kept: Cache) -> None:
    for value in (io.StringIO("text"), io.StringIO(), NotBlocking(), b"bytes", None, 5):
        for write in READS.values():
            with pytest.raises(ValueEncodeError, match=rf"binary file object.*{type(value).__qualname__}"):
                write(kept, value)
    assert len(kept) == len(BEFORE)


@few
def test_a_file_object_that_fails_on_the_way(kept: Cache) -> None:
    for error in (OSError(5, "read failed"), ValueError("closed"), KeyboardInterrupt()):
        for write in READS.values():
            with pytest.raises(type(error)) as caught:
                write(kept, Breaking(error))
            assert caught.value is error  # the caller's own error, as it was
    assert len(kept) == len(BEFORE)


# -- arguments that nothing has ---------------------------------------------------------------------------------------


def called(number: int, client: object = None) -> int:
    return number


MISTAKEN: dict[str, tuple[Callable[[Any], object], str]] = {
    "set": (lambda c: c.set("small", 1, ttl=3), r"set has no argument 'ttl': did you mean 'expire'\?"),
    "add": (lambda c: c.add("new", 1, timeout=3), r"add has no argument 'timeout': did you mean 'expire'\?"),
    "set_many": (lambda c: c.set_many({"new": 1}, expiry=3), r"set_many .*'expiry': did you mean 'expire'\?"),
    "set_many of keys": (lambda c: c.set_many([1, 2]), r"items has 1, expected \(key, value\) pairs, or a mapping"),
    "set_many of text": (lambda c: c.set_many("ab"), r"items is 'ab', expected a mapping, or an iterable of \(key"),
    "set_many of None": (lambda c: c.set_many(None), "items is None, expected a mapping"),
    "get_many of text": (lambda c: c.get_many("small"), "keys_ is 'small', expected a list of keys"),
    "delete_many of text": (lambda c: c.delete_many("small"), "keys_ is 'small', expected a list of keys"),
    "delete_many of one": (lambda c: c.delete_many(3), "keys_ is 3, expected a list of keys"),
    "keys": (lambda c: c.keys(tag="x"), r"keys has no argument 'tag': did you mean 'tags'\?"),
    "items": (lambda c: c.items(tag="x"), r"items has no argument 'tag': did you mean 'tags'\?"),
    "count": (lambda c: c.count(tag="x"), r"count has no argument 'tag': did you mean 'tags'\?"),
    "evict": (lambda c: c.evict(start="x"), "evict has no argument 'start', expected some of tag, "),
    "memoize": (lambda c: c.memoize(ttl=3), r"memoize has no argument 'ttl': did you mean 'expire'\?"),
    "memoize at once": (lambda c: c.memoize(called), "write the decorator with its arguments in parentheses"),
    "memoize seconds": (lambda c: c.memoize(60), r"name is 60 .* an expiry is given as memoize\(expire=...\)"),
    "memoize name, seconds": (lambda c: c.memoize("n", 60), "typed is 60, expected text, and True or False"),
    "get_or_set": (lambda c: c.get_or_set("new", int, ttl=3), r"get_or_set .*'ttl': did you mean 'expire'\?"),
    "ignore": (
        lambda c: c.memoize(ignore={"clinet"})(called),
        r"ignore has 'clinet', but .*called has no such argument: did you mean 'client'\?",
    ),
    "ignore a position": (lambda c: c.memoize(ignore=2)(called), "ignore has 2, .* some of number, client, or their"),
    "ignore nothing": (lambda c: c.memoize(ignore=None)(called), "ignore is None, expected positions and names"),
}


@few
@pytest.mark.parametrize("mistake", MISTAKEN)
def test_an_argument_that_is_mistaken(kept: Cache, mistake: str) -> None:
    call, message = MISTAKEN[mistake]
    for cache in (kept, kept.namespace("n")):
        with pytest.raises(TypeError, match=message):
            call(cache)


def test_arguments_of_any_name_may_be_ignored_where_any_are_taken(tmp_path: Path) -> None:
    with Cache(tmp_path / "cache") as cache:
        cache.memoize(ignore={"clinet", 0})(lambda number, **options: number)
        cache.memoize(ignore={7})(lambda *numbers: numbers)


@few
def test_the_error_of_a_value_names_its_key(kept: Cache) -> None:
    named: dict[str, Callable[[], object]] = {
        "value of key 'small': ": lambda: kept.set("small", threading.Lock()),
        "value of key 'new': ": lambda: kept.add("new", threading.Lock()),
        "value of key 3: ": lambda: kept.set_many({3: threading.Lock()}),
        "a queue's item: ": lambda: kept.push(threading.Lock()),
        "value of key NamespacedKey": lambda: kept.namespace("n").set("small", threading.Lock()),
    }
    for message, write in named.items():
        with pytest.raises(ValueEncodeError, match=message):
            write()


# -- arguments of the constructor -------------------------------------------------------------------------------------

BAD_ARGUMENTS: list[dict[str, Any]] = [
    {"no_such_setting": 1},
    {"size_limit": "large"},
    {"size_limit": -1},
    {"size_limit": 1.5},
    {"size_limit": math.nan},
    {"size_limit": None},
    {"size_limit": 1 << 63},
    {"cull_limit": -1},
    {"statistics": 2},
    {"tag_index": "yes"},
    {"eviction_policy": "random"},
    {"eviction_policy": 5},
    {"durability": "forever"},
    {"hot_size_limit": -1},
    {"sqlite_journal_mode": "off"},
    {"sqlite_journal_mode": "wal; DROP TABLE entry"},
    {"sqlite_synchronous": 9},
    {"sqlite_cache_size": "1; DROP TABLE entry"},
    {"disk_min_file_size": -1},
    {"disk_min_file_size": "x"},
    {"disk_pickle_protocol": 99},
    {"disk_no_such_argument": 1},
    {"disk_pickle_policy": "trusted"},
    {"disk_secret": None},
    {"disk__directory": "/etc"},
    {"disk_fetch": 1},
    {"disk": "Disk"},
    {"disk": dict},
    {"disk": Disk("/tmp")},
    {"timeout": "x"},
    {"timeout": None},
    {"timeout": -1},
    {"timeout": math.nan},
    {"pickle": "sometimes"},
    {"pickle": 5},
    {"secret": "too short"},
    {"secret": 5},
    {"coherence": "magic"},
    {"generation_slots": 3},
    {"generation_slots": 0},
    {"generation_slots": 1 << 30},
    {"generation_slots": "x"},
    {"clock": 5},
]


@pytest.mark.parametrize("make", [Cache, FanoutCache])
def test_a_bad_argument_leaves_no_cache_behind_and_one_that_exists_as_it_is(tmp_path: Path, make: type[Cache]) -> None:
    for arguments in BAD_ARGUMENTS:
        (name,) = arguments
        with pytest.raises(SettingError, match=name.removeprefix("disk_")):
            make(tmp_path / "cache", **arguments)
        assert list(tmp_path.rglob("*")) in ([], [tmp_path / "cache"])
    with closing(make(tmp_path / "cache")) as cache:  # and nothing stands in the way of a good one
        cache["a"] = 1
    for arguments in BAD_ARGUMENTS:
        with pytest.raises(SettingError):
            make(tmp_path / "cache", **arguments)
    with closing(make(tmp_path / "cache")) as cache:
        assert cache["a"] == 1
        assert cache.check() == []


class Levelled(Disk):
    """A disk with an argument of its own, which its cache remembers."""

    def __init__(self, directory: str, level: int = 1, **settings: Any) -> None:
        super().__init__(directory, **settings)


def other_secret(directory: Path, make: type[Cache], clock: Clock) -> None:
    with pytest.raises(SecretError, match="cannot be opened with this secret"):
        make(directory, clock=clock, secret=b"another secret of 32 bytes or so")


def other_codec(directory: Path, make: type[Cache], clock: Clock) -> None:
    with pytest.raises(SettingError, match="pass the same disk class"):
        make(directory, clock=clock, disk=JSONDisk)


def other_disk(directory: Path, make: type[Cache], clock: Clock) -> None:
    with pytest.raises(SettingError, match="level"):
        make(directory, clock=clock)


def unusable_shard(directory: Path, make: type[Cache], clock: Clock) -> None:
    (directory / "007").chmod(0o777)
    with pytest.raises(UnsafeDirectory, match="007"):
        make(directory, clock=clock)
    (directory / "007").chmod(0o700)


@pytest.mark.parametrize(
    ("make", "refused", "disk"),
    [
        *[(make, refused, Disk) for make in (Cache, FanoutCache) for refused in (other_secret, other_codec)],
        *[(make, other_disk, Levelled) for make in (Cache, FanoutCache)],
        (FanoutCache, unusable_shard, Disk),
    ],
)
def test_a_handle_that_is_refused_leaves_replaced_files_to_others(
    tmp_path: Path, clock: Clock, make: type[Cache], refused: Callable[..., None], disk: type[Disk]
) -> None:
    given: dict[str, Any] = {"disk": disk, "clock": clock, **({"disk_level": 2} if disk is Levelled else {})}
    with closing(make(tmp_path / "cache", **given)) as cache:
        for number in range(40):
            cache[number] = b"x" * 40_000
            del cache[number]
    files = set((tmp_path / "cache").rglob("*.val"))
    assert len(files) == 40
    clock.advance(3600)  # all are due now to be unlinked by whoever closes next
    refused(tmp_path / "cache", make, clock)
    assert set((tmp_path / "cache").rglob("*.val")) == files
    with closing(make(tmp_path / "cache", **given)) as cache:
        assert cache.check() == []


@pytest.mark.parametrize("make", [Cache, FanoutCache])
def test_a_handle_that_is_refused_waits_for_nobody(tmp_path: Path, clock: Clock, make: type[Cache]) -> None:
    with closing(make(tmp_path / "cache", clock=clock)) as cache:
        for refused in (other_secret, other_codec):
            done = threading.Thread(target=refused, args=(tmp_path / "cache", make, clock))
            with cache.transact():
                cache["key"] = 1
                done.start()
                done.join(30)
                assert not done.is_alive()
        assert cache.check() == []
    make(tmp_path / "cache", clock=clock).close()  # an opening closes what could not be closed before


def test_a_bad_argument_leaves_no_temporary_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    for arguments in BAD_ARGUMENTS:
        if not any(name.startswith("disk_") for name in arguments):  # those are tried on a Disk in the directory
            with pytest.raises(SettingError):
                Cache(None, **arguments)
    assert list(tmp_path.iterdir()) == []


@few
def test_a_setting_that_cannot_be_reset(kept: Cache, open_cache: Opener) -> None:
    known = ("size_limit", "eviction_policy", "disk_min_file_size")
    before = [kept.reset(name) for name in known]
    options = ("timeout", "clock", "disk", "pickle", "secret")
    bad: list[Any] = [item for each in BAD_ARGUMENTS for item in each.items() if item[0] not in options]
    for name, value in [*bad, (5, 1), (None, 1), ("", 1), ("disk_", 1), ("pickle", "trusted")]:
        for update in (True, False):
            with pytest.raises(SettingError):
                kept.reset(name, value, update=update)
    assert [kept.reset(name) for name in known] == before
    assert [open_cache().reset(name) for name in known] == before


def test_a_childs_name_that_leads_elsewhere(tmp_path: Path) -> None:
    with closing(FanoutCache(tmp_path / "cache", shards=1)) as cache:
        names: list[Any] = ["", ".", "..", "../b", "a/../b", "a//b", "/etc", "a\0b", "n" * 201, "a/", None, 5, [1]]
        for name in names:
            for child in (cache.cache, cache.deque, cache.index):
                with pytest.raises((SettingError, DirectoryError), match="name"):
                    child(name)
    assert [path.name for path in tmp_path.iterdir()] == ["cache"]


def test_a_directory_that_has_no_such_name(tmp_path: Path) -> None:
    for name in ("with\0nul", "n" * 300):
        with pytest.raises(DirectoryError, match="cache directory"):
            Cache(f"{tmp_path}/{name}")


def test_a_directory_may_be_given_as_bytes(tmp_path: Path) -> None:
    with closing(Cache(os.fsencode(tmp_path / "cache"))) as cache:  # type: ignore[arg-type]
        assert cache.directory == str(tmp_path / "cache")


def test_every_error_has_a_common_base() -> None:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and kind.__module__ == errors.__name__]
    others = {
        kind for kind in kinds if issubclass(kind, Exception) and not issubclass(kind, errors.CacheError | Warning)
    }
    assert others == set()
