"""Every operation of a cache with `remote=`: it goes through the tier, tells of this machine, or is refused."""

from __future__ import annotations

import asyncio
import datetime
import decimal
import io
import math
import re
import threading
import time
import uuid
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from diskcache_like import (
    KEEP,
    AsyncCache,
    Averager,
    BoundedSemaphore,
    Breaker,
    Cache,
    CacheError,
    FanoutCache,
    Lock,
    RLock,
    barrier,
    memoize_stampede,
    throttle,
)

from ..support.cache_kinds import NEEDS_CIPHER, QUICK, Clock
from ..support.project import ROOT
from ..support.workers import in_thread
from .machines import SECRET, Machines, counted, remote_of, until

THROUGH, HERE, REFUSED = "through the server", "of this machine", "refused"
ROW = re.compile(rf"^\| (`[^|]+`) \| ({THROUGH}|{HERE}|{REFUSED}) \|", re.MULTILINE)


def told() -> dict[str, str]:
    """Return what docs/machines.md tells of each public operation of `Cache`."""
    page = (ROOT / "docs" / "machines.md").read_text()
    named = [(name, what) for names, what in ROW.findall(page) for name in re.findall(r"`(\w+)`", names)]
    table = dict(named)
    assert len(table) == len(named), "the table of docs/machines.md has an operation twice"
    return table


TABLE = told()
PYTHONS = {"__enter__", "__exit__", "__setstate__", "__annotations__", "__dict__", "__module__", "__weakref__"}
PYTHONS |= {
    "__firstlineno__",
    "__static_attributes__",
    "__annotate_func__",
    "__annotations_cache__",
    "__class_getitem__",
    "__orig_bases__",
    "__parameters__",
}
NO_OPERATIONS = {"directory", "disk", "timeout"}


def _reads_twice(cache: Any, key: Any, value: Any) -> bool:
    return all(cache.get(key) == value for _ in range(2))


def _append_computed(found: list[str], cache: Any, compute: Any) -> None:
    found.append(cache.get_or_set("k", compute, 60))


def test_the_table_has_every_operation() -> None:
    from diskcache_like.settings.definitions import SettingsInForce

    public = {name for name in dir(Cache) if not name.startswith("_")} - set(vars(SettingsInForce)) - NO_OPERATIONS
    special = {name for name in dir(Cache) if name.startswith("__")} - set(dir(object)) - PYTHONS
    assert public | special == set(TABLE)


# -- through the server -----------------------------------------------------------------------------------------------


class Step(NamedTuple):
    """An operation on one machine, and what the other machine reads before and after."""

    begin: Callable[[Cache], object]
    act: Callable[[Cache], object]
    answer: Any
    reads: dict[Any, Any]  # what the other machine has then; None for nothing


def _begin(cache: Cache) -> None:
    cache.set("k", 1, tag="t")


def _read_stream(cache: Cache) -> bytes:
    with cache.read("k") as file:
        return bytes(file.read())


def _open_stream(cache: Cache) -> bytes:
    with cache.open("k", "wb") as file:
        file.write(b"piece " * 10_000)
    with cache.open("k") as file:
        return bytes(file.read(6))


def _bytes(cache: Cache) -> None:
    cache.set("k", b"content")


def _if_version(cache: Cache) -> bool:
    return cache.set("k", 2, if_version=cache.get_entry("k").version)


def _wrong_version(cache: Cache) -> bool:
    return cache.set("k", 2, if_version=cache.get_entry("k").version + 1)


def _keep(cache: Cache) -> Any:
    cache.touch("k", 500)
    before = cache.get_entry("k").expire_time
    done = cache.set("k", 2, KEEP), cache.set_many({"k": 2, "m": 3}, KEEP)
    return *done, abs(cache.get_entry("k").expire_time - before) < 1  # the server counts milliseconds


def _touched(cache: Cache) -> Any:
    cache.touch("k", 500)
    found = cache.get_and_touch("k", 1000)
    return found, 990 < cache.get_entry("k").expire_time - time.time() < 1001, cache.get_and_touch("no", 5)


def _delete_version(cache: Cache) -> tuple[bool, bool]:
    version = cache.get_entry("k").version
    return cache.delete("k", if_version=version + 1), cache.delete("k", if_version=version)


def _namespace(cache: Cache) -> Any:
    cache.namespace("n")["k"] = 2
    return cache["k"], cache.namespace("n")["k"]


def _memoized(cache: Cache) -> Any:
    return cache.memoize(name="double")(lambda number: 2 * number)(4)


STEPS = {
    "set": Step(_begin, lambda cache: cache.set("k", 2), True, {"k": 2}),
    "set if_version": Step(_begin, _if_version, True, {"k": 2}),
    "set keep": Step(_begin, _keep, (True, 2, True), {"k": 2, "m": 3}),
    "set wrong version": Step(_begin, _wrong_version, False, {"k": 1}),
    "set if absent": Step(_begin, lambda cache: cache.set("new", 2, if_version=None), True, {"new": 2, "k": 1}),
    "set if absent, there": Step(_begin, lambda cache: cache.set("k", 2, if_version=None), False, {"k": 1}),
    "__setitem__": Step(_begin, lambda cache: cache.__setitem__("k", 2), None, {"k": 2}),
    "__getitem__": Step(_begin, lambda cache: cache["k"], 1, {"k": 1}),
    "__contains__": Step(_begin, lambda cache: ("k" in cache, "no" in cache), (True, False), {"k": 1}),
    "__delitem__": Step(_begin, lambda cache: cache.__delitem__("k"), None, {"k": None}),
    "get": Step(_begin, lambda cache: cache.get("k", tag=True), (1, "t"), {"k": 1}),
    "get_entry": Step(_begin, lambda cache: cache.get_entry("k").tags, ("t",), {"k": 1}),
    "why": Step(_begin, lambda cache: [cache.why(key).reason for key in ("k", "no")], ["present", "absent"], {"k": 1}),
    "get_many": Step(_begin, lambda cache: cache.get_many(["k", "no"]), {"k": 1}, {"k": 1}),
    "set_many": Step(_begin, lambda cache: cache.set_many({"k": 2, "m": 3}), 2, {"k": 2, "m": 3}),
    "delete_many": Step(_begin, lambda cache: cache.delete_many(["k", "no"]), 1, {"k": None}),
    "add": Step(_begin, lambda cache: (cache.add("k", 2), cache.add("m", 3)), (False, True), {"k": 1, "m": 3}),
    "delete": Step(_begin, lambda cache: (cache.delete("k"), cache.delete("k")), (True, False), {"k": None}),
    "pop": Step(_begin, lambda cache: (cache.pop("k", tag=True), cache.pop("k")), ((1, "t"), None), {"k": None}),
    "incr": Step(_begin, lambda cache: (cache.incr("k", 5), cache.incr("new")), (6, 1), {"k": 6, "new": 1}),
    "decr": Step(_begin, lambda cache: cache.decr("k", 5), -4, {"k": -4}),
    "touch": Step(_begin, lambda cache: (cache.touch("k", 60), cache.touch("no")), (True, False), {"k": 1}),
    "get_and_touch": Step(_begin, _touched, (1, True, None), {"k": 1}),
    "touch_many": Step(_begin, lambda cache: cache.touch_many(["k", "no"], 60), 1, {"k": 1}),
    "incr_many": Step(
        _begin, lambda cache: cache.incr_many({"k": 5, "new": 1}), {"k": 6, "new": 1}, {"k": 6, "new": 1}
    ),
    "delete if_version": Step(_begin, _delete_version, (False, True), {"k": None}),
    "get_or_set_many": Step(
        _begin,
        lambda cache: cache.get_or_set_many(["k", "m"], lambda keys: dict.fromkeys(keys, 7)),
        {"k": 1, "m": 7},
        {"k": 1, "m": 7},
    ),
    "retag": Step(_begin, lambda cache: (cache.retag("k", ["u"], ["t"]), cache.evict("t")), (True, 0), {"k": 1}),
    "evict": Step(_begin, lambda cache: cache.evict("t"), 1, {"k": None}),
    "evict retagged": Step(_begin, lambda cache: (cache.retag("k", ["u"]), cache.evict("u"))[0], True, {"k": None}),
    "clear": Step(_begin, lambda cache: cache.clear(), 1, {"k": None}),
    "read": Step(_bytes, _read_stream, b"content", {"k": b"content"}),
    "open": Step(_begin, _open_stream, b"piece ", {"k": b"piece " * 10_000}),
    "namespace": Step(_begin, _namespace, (1, 2), {"k": 1}),
    "get_or_set": Step(_begin, lambda cache: cache.get_or_set("new", lambda: 7, 60), 7, {"new": 7, "k": 1}),
    "memoize": Step(_begin, _memoized, 8, {"k": 1}),
}


def test_every_operation_that_goes_through_is_tried() -> None:
    assert {name.split(" ")[0] for name in STEPS} == {name for name, what in TABLE.items() if what == THROUGH}


@pytest.mark.parametrize("kind", [Cache, FanoutCache])
@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
def test_what_one_machine_does_the_other_sees(machines: Machines, kind: Any, step: Step) -> None:
    """The entry was written on the one, read on the other, where it is hot, and the operation is the other one's."""
    options: dict[str, Any] = {"timeout": 60} if kind is FanoutCache else {}
    options |= {"max_staleness": 0} if step.answer is True and "evict" in str(step) else {}
    here, there = (
        machines.open(name, kind, **{**options, **({"shards": 2} if kind is FanoutCache else {})}) for name in "ab"
    )
    step.begin(there)
    before = there.get("k")
    assert here.get("k") == before
    assert step.act(here) == step.answer
    for key, value in step.reads.items():
        until(partial(_reads_twice, there, key, value), f"{key} on the other machine")
        assert here.get(key) == value


@pytest.mark.parametrize("operation", ["push", "pull", "peek", "iterqueue", "transact"])
def test_what_would_hold_here_alone_is_refused_with_the_reason(machines: Machines, operation: str) -> None:
    here, _ = machines.pair()
    here["k"] = 1
    calls: dict[str, Callable[[], object]] = {
        "push": lambda: here.push(1),
        "pull": here.pull,
        "peek": here.peek,
        "iterqueue": lambda: list(here.iterqueue()),
        "transact": lambda: here.transact().__enter__(),
    }
    assert calls.keys() == {name for name, what in TABLE.items() if what == REFUSED}
    with pytest.raises(CacheError, match=r"not offered with remote=.* this machine alone"):
        calls[operation]()


@pytest.mark.parametrize(
    "options",
    [{"tags": ["t"], "soft": True}, {"tags": ["t"], "match": "all"}, {"prefix": "k"}, {"tags": ["t"], "glob": "k"}],
)
def test_evictions_that_hold_here_alone_are_refused(machines: Machines, options: Any) -> None:
    here, there = machines.pair()
    here.set("k", 1, tag="t")
    with pytest.raises(CacheError, match="this machine alone"):
        here.evict(**options)
    assert there["k"] == 1


def test_what_tells_of_this_machine(machines: Machines) -> None:
    here, there = machines.pair(encrypt=False)
    here.set_many({"a": 1, "b": b"x" * 50_000})
    there.set("c", 3, tag="t")
    assert here.get("c") == 3
    assert there.get("a") == 1
    assert sorted(here) == sorted(here.keys()) == ["a", "b", "c"]
    assert sorted(there) == ["a", "c"]
    assert (len(here), len(there), here.count(), there.count(["t"])) == (3, 2, 3, 1)
    assert sorted(here.iterkeys()) == ["a", "b", "c"]
    assert sorted(reversed(here)) == ["a", "b", "c"]
    assert dict(there.items()) == {"a": 1, "c": 3}
    assert sorted(there.values()) == [1, 3]
    assert [usage.name for usage in here.tags()] == ["t"]
    assert here.check() == []
    assert there.check() == []
    assert here.volume() > 50_000
    assert (here.expire(), here.cull()) == (0, 0)
    assert here.stats() == (0, 0)
    assert here.peekitem()[0] in ("a", "b", "c")
    assert here.remote.stats().state == "up"
    with Cache(machines.place("plain"), **QUICK) as plain:
        assert here.copy_to(plain) == 3
        assert dict(plain.items()) == {"a": 1, "b": b"x" * 50_000, "c": 3}


def test_what_is_culled_here_is_read_from_the_server(machines: Machines) -> None:
    here, _ = machines.pair(hot_size_limit=0)
    for number in range(40):
        here.set(number, bytes(40_000))
    here.reset("size_limit", 1 << 18)
    here.reset("cull_limit", 0)
    assert here.cull() > 0
    assert len(here) < 40
    assert all(here.get(number) == bytes(40_000) for number in range(40))


def test_a_cache_without_a_server_says_so(tmp_path: Path) -> None:
    with Cache(tmp_path, **QUICK) as cache, pytest.raises(CacheError, match="opened without remote="):
        cache.remote.stats()


# -- values and keys --------------------------------------------------------------------------------------------------

VALUES: dict[str, Any] = {
    "none": None,
    "true": True,
    "float": 0.1,
    "infinity": -math.inf,
    "zero": -0.0,
    "huge": 1 << 400,
    "negative": -(1 << 63),
    "empty text": "",
    "text": "naïve 猫 \0 \U0001f408",
    "surrogate": "\ud800",
    "empty bytes": b"",
    "bytes": bytes(range(256)),
    "file": b"x" * 100_000,
    "text in a file": "猫" * 50_000,
    "tuple": (1, (2.5, None), b"", "x"),
    "list": [1, [2], {"a": [3]}],
    "dict": {"a": 1, 2: None, (1, 2): b"z"},
    "set": {1, 2, 3},
    "frozenset": frozenset({"a"}),
    "complex": 1 - 2j,
    "date": datetime.datetime(2024, 2, 29, 12, 30, tzinfo=datetime.UTC),
    "decimal": decimal.Decimal("1.10"),
    "uuid": uuid.UUID(int=7),
    "large list": list(range(30_000)),
}


CODECS: dict[str, Any] = {
    "plain": {},
    "zstd": {"compressor": "zstd"},
    "zlib": {"compressor": "zlib"},
    "files": {"disk_min_file_size": 0},
}


@pytest.mark.parametrize("codec", CODECS)
def test_values_of_every_kind_arrive_as_they_were(machines: Machines, codec: str) -> None:
    if codec == "zstd":
        pytest.importorskip("zstandard")
    here, there = machines.pair(**CODECS[codec])
    for name, value in VALUES.items():
        here.set(name, value)
    for name, value in VALUES.items():
        for _ in range(3):  # from the server, from the disk, from memory
            found = there[name]
            assert (type(found), found) == (type(value), value)
            assert repr(found)[:100] == repr(value)[:100] or isinstance(value, set | frozenset)
    here["nan"] = math.nan
    assert math.isnan(there["nan"])


@NEEDS_CIPHER
def test_what_is_sealed_arrives_and_is_not_to_be_read_on_the_server(server: Any, tmp_path: Path) -> None:
    machines = [
        Cache(tmp_path / name, secret=SECRET, encrypt=True, remote=remote_of(server.url), **QUICK) for name in "ab"
    ]
    here, there = machines
    try:
        for name, value in VALUES.items():
            here.set(name, value, tag="a tag to hide")
        for name, value in VALUES.items():
            assert there[name] == value
        here["secret"] = "a text to hide" * 10
        assert there["secret"] == "a text to hide" * 10
        stored = b"".join(server.ask("GET", key) or b"" for key in server.ask("KEYS", "*"))
        assert b"a text to hide" not in stored
        assert b"a tag to hide" not in stored
        assert there.evict("a tag to hide") == len(VALUES)
        assert "none" not in there
    finally:
        for cache in machines:
            cache.close()


def test_arrays_arrive_as_they_were(machines: Machines) -> None:
    pair = machines.pair()
    numpy = pytest.importorskip("numpy")
    here, there = pair
    for name, array in {
        "small": numpy.arange(5),
        "large": numpy.random.rand(200, 100),
        "empty": numpy.empty((0, 3)),
    }.items():
        here[name] = array
        for _ in range(2):
            assert (there[name] == array).all()
            assert (there[name].shape, there[name].dtype) == (array.shape, array.dtype)


class Point(NamedTuple):
    """A class whose objects have to be pickled."""

    x: int
    y: int


class Plain:
    """Another."""

    def __init__(self, content: object) -> None:
        self.content = content

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Plain) and self.content == other.content

    __hash__ = None  # type: ignore[assignment]


def test_pickled_objects_arrive(machines: Machines) -> None:
    here, there = machines.pair(secret=SECRET)
    values = Plain([1, 2]), {"deep": [Plain("x")]}, ValueError("text")
    for number, value in enumerate(values[:2]):
        here[number] = value
        assert there[number] == value


def test_a_value_larger_than_the_limit_stays_here(machines: Machines) -> None:
    here, there = machines.pair(max_value=1000)
    there["k"] = "small"
    assert here["k"] == "small"
    here["k"] = b"x" * 1001
    assert counted(here, "too_large") == 1
    assert here["k"] == b"x" * 1001
    until(lambda: there.get("k") is None, "the other machine to hear of it")
    there["k"] = "small again"
    until(lambda: here.get("k") == "small again", "this machine to hear of it")


KEYS: list[Any] = [
    *("", "key", "naïve 猫", "\0", "*?[]\\", "x" * 10_000, b"", b"key", bytes(range(256))),
    *(0, -1, 1 << 70, -(1 << 70), 1.5, -0.0, math.inf, None, (), (1, "two", (None, b"3")), frozenset({1, 2}), 2 + 3j),
    *(True, decimal.Decimal("1.5"), uuid.UUID(int=3), datetime.date(2024, 2, 29)),
]


def test_keys_of_every_kind_are_the_same_on_both_machines(machines: Machines) -> None:
    here, there = machines.pair()
    kept: dict[Any, Any] = {}
    for number, key in enumerate(KEYS):
        kept[key] = number
        here[key] = number
    for key, value in kept.items():
        assert there[key] == value
    assert there.get_many(kept) == kept
    assert there.delete_many(kept) == len(kept)
    until(lambda: here.get_many(kept) == {}, "the other machine to hear of it")


# -- expiry -----------------------------------------------------------------------------------------------------------


def test_a_copy_expires_by_its_own_machines_clock(machines: Machines) -> None:
    early, late = Clock(), Clock()
    late.advance(100_000)
    here, there = machines.open("a", clock=early), machines.open("b", clock=late)
    here.set("k", 1, expire=60)
    value, expire = there.get("k", expire_time=True)
    assert value == 1
    assert late.now + 50 < expire <= late.now + 60
    late.advance(61)
    assert there.get("k") in (None, 1)  # the server has it still: its time has not passed
    assert here.get("k") == 1


def test_what_expires_on_the_server_is_gone_everywhere(machines: Machines) -> None:
    here, there = machines.pair()
    here.set("k", 1, expire=0.15)
    assert there.get("k") in (1, None)
    until(lambda: "k" not in there and "k" not in here, "the end of an entry")
    assert here.add("k", 2)
    until(lambda: there.get("k") == 2, "the other machine to hear of it")  # its copy that expired is a miss till then


def test_touch_and_incr_carry_expiry_and_tags(machines: Machines, server: Any) -> None:
    here, there = machines.pair()
    here.set("k", 1, expire=1000, tags=["t", "u"])
    assert there.incr("k") == 2
    assert there.touch("k", 5000)
    until(lambda: (here.get("k", expire_time=True)[1] or 0) > here._clock() + 4000, "the new expiry")
    assert here.get_entry("k").tags == ("t", "u")
    (entry,) = server.ask("KEYS", "dl:shop:e*")
    assert 4_900_000 < server.ask("PTTL", entry) <= 5_000_000
    assert there.touch("k")
    assert server.ask("PTTL", entry) == -1
    until(lambda: here.get("k", expire_time=True) == (2, None), "no expiry")


@pytest.mark.parametrize("expire", [1e9, 1e13, 1e15])
def test_an_expiry_far_away(machines: Machines, expire: float) -> None:
    here, there = machines.pair()
    here.set("k", 1, expire=expire)
    assert there["k"] == 1


# -- tags -------------------------------------------------------------------------------------------------------------


def test_any_of_several_tags_evicts(machines: Machines) -> None:
    here, there = machines.pair()
    for key, tags in {"a": ["x"], "b": ["x", "y"], "c": ["z"], "d": ["é", 5, b"y"]}.items():
        here.set(key, key, tags=tags)
        assert there[key] == key
    there.evict(tags=["x", 5])
    until(lambda: here.get_many([*"abcd"]) == {"c": "c"}, "the eviction to be heard of")
    here.set("a", "again", tags=["x"])
    assert there["a"] == "again"


def test_a_tag_that_was_evicted_from_a_machine_without_copies(machines: Machines) -> None:
    here, there = machines.pair()
    here.set("k", 1, tag="t")
    there.evict("t")
    until(lambda: "k" not in here, "the eviction to be heard of")
    assert "k" not in there


def test_tags_in_namespaces(machines: Machines) -> None:
    here, there = machines.pair()
    outer, inner = here.namespace("n"), here.namespace("n").namespace("m")
    here.set("k", 0, tag="t")
    outer.set("k", 1, tag="t")
    inner.set("k", 2, tag="t")
    theirs = there, there.namespace("n"), there.namespace("n").namespace("m")
    assert [cache["k"] for cache in theirs] == [0, 1, 2]
    theirs[1].evict("t")
    until(lambda: [cache.get("k") for cache in (here, outer, inner)] in ([0, None, 2], [0, None, None]), "the eviction")
    theirs[1].clear()
    until(lambda: [cache.get("k") for cache in (here, outer, inner)] == [0, None, None], "the removal")
    theirs[0].evict("t")
    until(lambda: here.get("k") is None, "the eviction of the rest")


def test_clear_leaves_what_is_not_ours(machines: Machines, server: Any) -> None:
    here, there = machines.pair()
    server.ask("SET", "dl:shopkeeper:e", "theirs")
    server.ask("SET", "foreign", "theirs")
    here.set_many({number: number for number in range(2500)})
    there.clear()
    until(lambda: here.get_many(range(2500)) == {}, "the other machine to hear of it")
    assert sorted(server.ask("KEYS", "*")) == [b"dl:shopkeeper:e", b"foreign"]


@pytest.mark.parametrize("namespace", ["*", "[a]", "a?", "back\\slash", "^x", "é 猫", "{slot}", "a:b", "x" * 200])
def test_any_namespace_is_a_name(machines: Machines, server: Any, namespace: str) -> None:
    here, there = machines.pair(namespace=namespace)
    server.ask("SET", "dl:a:e0123456789abcdef", "another one's")
    here["k"] = 1
    assert there["k"] == 1
    here["k"] = 2
    until(lambda: there.get("k") == 2, "an invalidation")
    there.clear()
    until(lambda: "k" not in here, "the removal")
    assert server.ask("KEYS", "*") == [b"dl:a:e0123456789abcdef"]


def test_namespaces_of_the_server_see_nothing_of_each_other(machines: Machines) -> None:
    here, other = machines.open("a", namespace="one"), machines.open("b", namespace="two")
    here["k"] = 1
    assert "k" not in other
    other.clear()
    assert here["k"] == 1


# -- computed values --------------------------------------------------------------------------------------------------


def test_one_machine_computes_for_all(machines: Machines) -> None:
    caches = machines.pair()
    calls: list[int] = []
    begun, may_end = threading.Event(), threading.Event()

    def compute() -> str:
        calls.append(1)
        begun.set()
        assert may_end.wait(30)
        return "computed"

    found: list[str] = []
    threads = [
        threading.Thread(target=partial(_append_computed, found, cache, compute)) for cache in caches for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    assert begun.wait(30)
    may_end.set()
    for thread in threads:
        thread.join(30)
    assert (found, calls) == (["computed"] * 4, [1])


def test_a_coroutine_computes_for_all(machines: Machines) -> None:
    here, there = machines.pair()
    calls: list[int] = []

    async def compute() -> str:
        calls.append(1)
        await asyncio.sleep(0)
        return "computed"

    async def run(key: str) -> list[str]:
        return list(
            await asyncio.gather(*(cache.aio.get_or_set(key, compute, 60) for cache in (here, there) for _ in range(3)))
        )

    for number, key in enumerate(("first", "second"), 1):
        assert asyncio.run(run(key)) == ["computed"] * 6
        assert calls == [1] * number


def test_an_old_value_on_the_other_machine(machines: Machines) -> None:
    clocks = Clock(), Clock()
    # What is in memory has its deadline by the machine's clock, which goes on as it does.
    here = machines.open("a", clock=clocks[0], max_staleness=0)
    there = machines.open("b", clock=clocks[1], max_staleness=0)
    assert here.get_or_set("k", lambda: "old", 10, stale_if_error=1000) == "old"
    assert there.get_or_set("k", lambda: "new", 10, stale_if_error=1000) == "old"
    for clock in clocks:
        clock.advance(20)

    def fail() -> str:
        raise ZeroDivisionError

    assert there.get("k") is None
    assert there.get_or_set("k", fail, 10, stale_if_error=1000) == "old"
    assert there.get_or_set("k", lambda: "new", 10, stale_if_error=1000) in ("old", "new")


def test_memoize_is_shared_and_cleared_everywhere(machines: Machines) -> None:
    pair = machines.pair()
    calls: list[int] = []

    def double(number: int) -> int:
        calls.append(number)
        return 2 * number

    ours, theirs = (cache.memoize(name="double")(double) for cache in pair)
    assert (ours(1), theirs(1), ours(2), theirs(2), calls) == (2, 2, 4, 4, [1, 2])
    ours.cache_clear()
    until(lambda: theirs.peek(1) is None, "the clearing to be heard of")
    assert (theirs(1), ours(1), calls) == (2, 2, [1, 2, 1])
    assert theirs.invalidate(1)
    until(lambda: ours.peek(1) is None, "the removal to be heard of")


def test_memoize_stampede_is_shared(machines: Machines) -> None:
    pair = machines.pair()
    calls: list[int] = []

    def double(number: int) -> int:
        calls.append(number)
        return 2 * number

    ours, theirs = (memoize_stampede(cache, 1000, name="double")(double) for cache in pair)
    assert (ours(1), theirs(1), calls) == (2, 2, [1])


def test_a_breaker_of_computations_is_shared(machines: Machines) -> None:
    pair = machines.pair()
    from diskcache_like import BreakerOpen

    def fail() -> None:
        raise ZeroDivisionError

    rule = Breaker(errors=2, window=60, open=60)
    for cache in pair:
        with pytest.raises(ZeroDivisionError):
            cache.get_or_set("k", fail, 10, breaker=rule)
    with pytest.raises(BreakerOpen):
        until(lambda: pair[0].get_or_set("k", fail, 10, breaker=rule), "an open breaker")


# -- recipes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [Lock, RLock, BoundedSemaphore])
def test_a_lock_is_one_on_all_machines(machines: Machines, kind: Any) -> None:
    pair = machines.pair()
    ours, theirs = (kind(cache, "lock") for cache in pair)
    with ours:
        assert in_thread(lambda: theirs.acquire(blocking=False)) is False
    assert in_thread(lambda: theirs.acquire(timeout=30) and theirs.release() is None)


def test_who_waits_for_a_lock_is_woken_by_the_other_machine(machines: Machines) -> None:
    pair = machines.pair()
    ours, theirs = (Lock(cache, "lock") for cache in pair)
    got = threading.Event()
    ours.acquire()

    def wait() -> None:
        with theirs:
            got.set()

    thread = threading.Thread(target=wait)
    thread.start()
    assert not got.is_set()
    ours.release()
    thread.join(30)
    assert got.is_set()


def test_counts_are_exact_under_contention(machines: Machines) -> None:
    pair = machines.pair()

    def add(cache: Cache) -> None:
        for _ in range(50):
            cache.incr("count", retry=True)

    threads = [threading.Thread(target=add, args=(cache,)) for cache in pair for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    until(lambda: [cache.get("count") for cache in pair] == [200, 200], "the sum")


def test_each_entry_is_popped_once(machines: Machines) -> None:
    pair = machines.pair()
    pair[0].set_many({number: number for number in range(60)})
    popped: list[Any] = []

    def take(cache: Cache) -> None:
        popped.extend(found for number in range(60) if (found := cache.pop(number, retry=True)) is not None)

    threads = [threading.Thread(target=take, args=(cache,)) for cache in pair]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(popped) == list(range(60))


def test_averages_barriers_and_throttles(machines: Machines) -> None:
    pair = machines.pair()
    ours, theirs = (Averager(cache, "mean") for cache in pair)
    ours.add(1)
    theirs.add(3)
    until(lambda: ours.get() == theirs.get() == 2, "the mean")
    assert theirs.pop() == 2
    until(lambda: ours.get() is None, "the mean to be gone")
    for cache in pair:
        assert barrier(cache, Lock, name="one")(lambda: 5)() == 5
    slept: list[float] = []
    clock = Clock()

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        clock.advance(seconds)

    for cache in pair:
        calls = throttle(cache, 1, 10, name="calls", time_func=clock, sleep_func=sleep)(lambda: 1)
        assert calls() == 1
    assert slept
    assert sum(slept) == pytest.approx(10)


# -- other faces ------------------------------------------------------------------------------------------------------


def test_the_asynchronous_face(machines: Machines) -> None:
    there = machines.open("b")

    async def run() -> None:
        async with AsyncCache(machines.place("a"), remote=remote_of(machines.server), **QUICK) as here:
            await here.set("k", 1, tag="t")
            assert there["k"] == 1
            assert await here.incr("k") == 2
            assert await here.get_many(["k", "no"]) == {"k": 2}
            assert await here.contains("k")
            await here.evict("t")
            assert await here.get("k") is None

    asyncio.run(run())
    until(lambda: "k" not in there, "the eviction")


def test_django_on_several_machines(machines: Machines) -> None:
    pytest.importorskip("django")
    from diskcache_like.djangocache import DjangoCache

    caches = [
        DjangoCache(str(machines.place(name)), {"OPTIONS": {**QUICK, "remote": remote_of(machines.server)}})
        for name in "ab"
    ]
    here, there = caches
    try:
        here.set("k", {"x": 1}, version=2)
        assert there.get("k", version=2) == {"x": 1}
        assert there.get("k") is None
        here.set_many({"a": 1, "b": 2})
        assert there.get_many(["a", "b", "c"]) == {"a": 1, "b": 2}
        assert there.get_or_set("a", lambda: 5) == 1
        assert there.touch_many(["a", "missing"], 60) == 1
        assert there.incr_many({"a": 4, "b": 1}) == {"a": 5, "b": 3}
        with pytest.raises(ValueError, match="Key 'missing' not found"):
            there.incr_many({"missing": 1})
        assert there.get_or_set_many(["a", "c"], lambda keys: dict.fromkeys(keys, 0)) == {"a": 5, "c": 0}
        there.clear()
        until(lambda: here.get("a") is None, "the removal")
    finally:
        for cache in caches:
            cache.close()


def test_django_moves_no_entry_to_another_version(machines: Machines) -> None:
    pytest.importorskip("django")
    from diskcache_like.djangocache import DjangoCache

    options = {**QUICK, "remote": remote_of(machines.server)}
    cache = DjangoCache(str(machines.place("a")), {"OPTIONS": options})
    try:
        cache.set("k", 1)
        with pytest.raises(CacheError, match="this machine alone"):
            cache.incr_version("k")
        assert cache.get("k") == 1
    finally:
        cache.close()


def test_an_index_and_a_deque_are_of_one_machine(machines: Machines) -> None:
    cache = machines.open("a", FanoutCache, shards=2, timeout=60)
    deque, index, child = cache.deque("d"), cache.index("i"), cache.cache("c")
    for made in (deque._cache, index._cache):
        with pytest.raises(CacheError, match="without remote="):
            _ = made.remote
        made.close()
    assert child.remote.remote.namespace == "shop/cache/c"
    child.close()


def test_a_file_is_read_to_its_end(machines: Machines) -> None:
    here, there = machines.pair()
    here.set("k", io.BytesIO(b"x" * 200_000), read=True)
    with there.read("k") as file:
        assert file.read() == b"x" * 200_000
