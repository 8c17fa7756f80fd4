"""Metrics: every count of every process is in the sums, whatever ends a process, and nothing else depends on them."""

from __future__ import annotations

import ctypes
import gc
import os
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from diskcache_like import Cache, DiskFull, FanoutCache, Index, Timeout, UnsafeDirectory
from diskcache_like.coherence import counts
from diskcache_like.coherence._native import WAITERS, Counters
from diskcache_like.coherence.byte_locks import ByteLocks
from diskcache_like.coherence.counts import BUCKETS, NAME, bounds_of
from diskcache_like.entries.metrics import Metrics, SpaceMetrics, Times
from diskcache_like.entries.timing import SAMPLE
from prove.children import played
from prove.signals.stepping import interrupted, places_in

from ..support.cache_kinds import Clock
from ..support.contention import finish_renewals, held
from ..support.leaks import open_descriptors
from ..support.small_disks import MEBIBYTE, NotPermitted, mounted
from ..support.workers import Crew, Link, forked
from ..tier.machines import until

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux has the locks that rows need")


@pytest.fixture
def crew() -> Iterator[Crew]:
    with Crew() as made:
        yield made


@pytest.fixture(params=["cache", "fanout"])
def cache(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Cache]:
    kind = Cache if request.param == "cache" else lambda path: FanoutCache(path, shards=3)
    with kind(tmp_path) as made:
        yield made


def test_what_is_done_is_counted_by_space(cache: Cache) -> None:
    cache.set_many({f"user:{number}": number for number in range(4)})
    cache["plain"] = cache[1] = 0
    assert [cache.get(f"user:{number}") for number in range(6)] == [0, 1, 2, 3, None, None]
    assert cache.get("page:1") is cache.get("page:1") is None  # the second one from memory
    cache.incr("user:0")
    assert (cache.delete("user:1"), cache.delete("user:9"), cache.pop("user:2")) == (True, False, 2)
    found = cache.metrics()
    assert found.spaces == {
        "": SpaceMetrics(sets=2),
        "user": SpaceMetrics(hot=0, disk=4, misses=2, sets=5, deletes=2),
        "page": SpaceMetrics(misses=2),
    }
    assert (found.hits, found.misses, found.hit_rate, found.entries) == (4, 4, 0.5, len(cache))
    assert found.total == SpaceMetrics(disk=4, misses=4, sets=7, deletes=2)


def test_entries_with_files_are_counted_as_others_are(cache: Cache) -> None:
    cache["a:1"] = cache["a:2"] = b"x" * 40_000
    with cache.get("a:1", read=True) as file:
        assert file.read(1) == b"x"
    assert cache.touch("a:1", expire=60)
    assert (cache.delete("a:1"), cache.delete("a:1"), cache.pop("a:2")) == (True, False, b"x" * 40_000)
    assert cache.metrics().total == SpaceMetrics(disk=1, sets=3, deletes=2)


def test_each_way_to_read_counts_once(cache: Cache) -> None:
    cache.set_many({f"a:{number}": number for number in range(3)})
    cache.set("a:old", 1, expire=0)
    assert cache.get_many(["a:0", "a:1", "a:none", "a:old"]) == {"a:0": 0, "a:1": 1}
    assert cache.get_many(["a:0", "a:1"]) == {"a:0": 0, "a:1": 1}
    assert cache.get("a:2", expire_time=True) == (2, None)
    assert cache.get("a:old", expire_time=True) == (None, None)
    assert cache.get_or_set("a:2", int) == 2
    assert cache.get_or_set("a:new", int) == 0
    assert "a:0" in cache
    assert list(cache.metrics().spaces.values()) == [SpaceMetrics(hot=3, disk=3, misses=4, expired=2, sets=5)]


def test_a_namespace_has_counts_of_its_own(cache: Cache) -> None:
    outer, user = cache.namespace("outer"), cache.namespace("user")
    inner = outer.namespace("inner")
    cache["user:1"] = outer["key"] = inner["key"] = user["key"] = 1
    assert inner["key"] == 1
    assert inner.metrics().spaces == {"outer/inner/": SpaceMetrics(hot=1, sets=1)}
    assert outer.metrics().spaces == {"outer/": SpaceMetrics(sets=1), **inner.metrics().spaces}
    assert cache.metrics().spaces.keys() == {"user", "user/", "outer/", "outer/inner/"}


def test_a_function_is_a_space(cache: Cache) -> None:
    @cache.memoize(name="square")
    def square(number: int) -> int:
        return number * number

    assert [square(2), square(2)] == [4, 4]
    (space,) = cache.metrics().spaces.values()
    assert (space.hits, space.misses, space.sets) == (1, 1, 1)


def test_tiers_and_reasons(tmp_path: Path) -> None:
    now = [1000.0]
    with Cache(tmp_path, clock=lambda: now[0], cull_limit=0) as cache:
        cache.set("a", 1, expire=10)
        cache.set("b", 1, expire=10, tag="t")
        cache.set("c", 1, tag="t")
        with Cache(tmp_path, clock=lambda: now[0]) as other:
            assert (other["a"], other["a"]) == (1, 1)
        now[0] += 20
        assert (cache.get("a"), cache.get("d")) == (None, None)
        assert cache.evict("t") == 1  # the other one has expired
        cache.expire()
        cache["e"] = 1
        cache.clear()
        found = cache.metrics()
        assert found.total == SpaceMetrics(hot=1, disk=1, misses=2, expired=1, sets=4)
        assert found.evicted == {"room": 0, "expiry": 1, "tag": 1, "clear": 1}


def test_evictions_are_counted(tmp_path: Path) -> None:
    with Cache(tmp_path, size_limit=MEBIBYTE) as cache:
        for number in range(3000):
            cache[number] = os.urandom(1000)
        cache.flush()
        assert cache.metrics().evicted["room"] == 3000 - len(cache) > 0


@pytest.mark.parametrize("value", [1, b"x" * 40_000], ids=["small", "file"])
def test_what_is_taken_from_a_queue_or_an_end_is_removed(cache: Cache, value: Any) -> None:
    cache.push(value)
    assert cache.pull()[1] == value
    assert cache.metrics(reset=True).total == SpaceMetrics(sets=1, deletes=1)
    for _ in range(3):
        cache.push(value)
    cache.push(value, expire=0, side="front")
    assert cache.pull()[1] == value
    with cache.transact():
        assert cache.pull()[1] == value
    assert Index.fromcache(cache).popitem()[1] == value
    assert cache.metrics().total == SpaceMetrics(sets=4, deletes=3)
    assert cache.metrics().evicted["expiry"] == 1


@pytest.mark.parametrize("how", ["room", "cull"])
def test_expired_entries_that_are_removed_otherwise_are_counted(tmp_path: Path, how: str) -> None:
    clock = Clock()
    with Cache(tmp_path, size_limit=MEBIBYTE, cull_limit=1, clock=clock) as cache:
        for number in range(500):
            cache.set(number, os.urandom(1000), expire=10)
        clock.advance(20)
        if how == "cull":
            cache.cull()
        else:
            cache["large"] = os.urandom(700_000)
        found = cache.metrics()
        assert found.evicted["expiry"] > 1, "more than one write removes by itself"
        assert found.total.sets == len(cache) + sum(found.evicted.values())


# -- computed values ----------------------------------------------------------------------------------------------------


def test_each_computed_value_counts_one_read(tmp_path: Path) -> None:
    options: Any = {"expire": 10**9, "beta": 1e-9}
    with Cache(tmp_path) as one, Cache(tmp_path) as two:
        assert one.get_or_set("a:1", int, **options) == one.get_or_set("a:1", int, **options) == 0
        assert two.get_or_set("a:1", int, **options) == two.get_or_set("a:1", int, **options) == 0
        assert one.metrics().total == SpaceMetrics(hot=2, disk=1, misses=1, sets=1)


def test_old_values_and_renewals_are_counted(tmp_path: Path) -> None:
    clock = Clock()
    with Cache(tmp_path, clock=clock) as cache:

        def fail() -> int:
            raise ZeroDivisionError

        options: Any = {"expire": 10, "stale_while_revalidate": 10, "stale_if_error": 1000}
        assert cache.get_or_set("a:1", int, **options) == 0
        clock.advance(11)
        assert cache.get_or_set("a:1", int, **options) == 0
        finish_renewals()
        found = cache.metrics()
        assert (found.stale_served, found.renewals, found.failed_renewals) == (1, 1, 0)
        clock.advance(21)
        for served in (2, 3):  # the second time there is a pause
            assert cache.get_or_set("a:1", fail, **options) == 0
            assert cache.metrics().stale_served == served
        found = cache.metrics()
        assert (found.total.misses, found.total.expired, found.total.sets) == (4, 3, 2)


def test_calls_that_wait_for_a_computation_are_counted(cache: Cache) -> None:
    others = list[threading.Thread]()

    def compute() -> int:
        if not others:
            for _ in range(2):
                others.append(threading.Thread(target=cache.get_or_set, args=("key", compute)))
                others[-1].start()
            until(lambda: cache.metrics().flights_waited == 2, "calls that wait")
        return 1

    assert cache.get_or_set("key", compute) == 1
    for thread in others:
        thread.join()
    assert cache.metrics().flights_waited == 2


# -- several processes --------------------------------------------------------------------------------------------------


def work(link: Link, number: int, directory: Path, kind: str) -> None:
    cache = Cache(directory) if kind == "cache" else FanoutCache(directory, shards=2)
    link.tell()
    link.hear()
    for turn in range(100_000):
        cache[f"worker:{number}"] = turn
        assert cache.get(f"worker:{number}") == turn
        link.tell(turn + 1)


@linux
@pytest.mark.parametrize("kind", ["cache", "fanout"])
def test_what_killed_processes_have_counted_is_in_the_sums(crew: Crew, tmp_path: Path, kind: str) -> None:
    chance = random.Random(kind)
    acknowledged = killed = 0
    with Cache(tmp_path) if kind == "cache" else FanoutCache(tmp_path, shards=2) as cache:
        for _ in range(3):
            workers = crew.start_many(8, work, tmp_path, kind)
            crew.together(workers)
            for worker in chance.sample(workers, len(workers)):
                turns = [worker.hear() for _ in range(chance.randrange(1, 40))]
                worker.kill()
                killed += 1
                acknowledged += max([*turns, *said(worker.link)])
        found = cache.metrics().spaces["worker"]
        assert acknowledged <= found.hits <= acknowledged + killed
        assert acknowledged <= found.sets <= acknowledged + killed
        assert Path(tmp_path, NAME).stat().st_blocks * 512 <= (2 + 9) * 8192 + 65536, "rows are used again"


def said(link: Link) -> Iterator[int]:
    """Yield what a dead worker has said and nobody has heard."""
    with suppress(EOFError):
        while link.connection.poll(0):
            yield link.connection.recv()[1]


@linux
def test_a_forked_child_counts_in_a_row_of_its_own(cache: Cache) -> None:
    cache["shared:1"] = 1

    def child(_: Link) -> None:
        before = counts_of_row(cache, 0)
        for _turn in range(10):
            assert cache["shared:1"] == 1  # from the memory that it inherited
        assert counts_of_row(cache, 0) == before, "that row is the parent's"
        cache["shared:2"] = 2

    assert cache["shared:1"] == 1
    with forked(child) as worker:
        worker.result()
    assert cache["shared:1"] == 1
    found = cache.metrics()
    assert found.spaces["shared"] == SpaceMetrics(hot=12, sets=2)
    assert found.handles == 2


def counts_of_row(cache: Cache, row: int) -> bytes:
    file = Path(cache.directory, NAME).read_bytes()
    return file[counts._offset_of(row) :][: 8 * counts._TIMES_AT]


@linux
def test_a_child_that_was_forked_from_c_leaves_the_row_to_its_parent(tmp_path: Path) -> None:
    with Cache(tmp_path) as cache:
        cache["key"] = 1
        child = ctypes.PyDLL(None).fork()
        if not child:
            with suppress(BaseException):
                cache["key"] = 2
            os._exit(0)
        os.waitpid(child, 0)
        assert cache.metrics().total.sets == 2
        other = ByteLocks(tmp_path / NAME)
        assert not other.hold(0, other), "the row is still the parent's"
        other.close()


@linux
def test_what_is_counted_while_a_handle_is_closed_is_not_lost(cache: Cache) -> None:
    cache["key"] = 1
    cache.close()
    assert cache["key"] == 1
    assert cache.metrics().total == SpaceMetrics(disk=1, sets=1)
    cache.close()
    with Cache(cache.directory) if type(cache) is Cache else FanoutCache(cache.directory, shards=3) as other:
        assert other.metrics().total == SpaceMetrics(disk=1, sets=1)


def test_what_is_counted_just_after_another_thread_has_closed_the_cache_is_not_lost(cache: Cache) -> None:
    cache["a:1"] = 1
    location = cache._rows.locate("a:1")
    cache.close()
    cache._hot.count_read(True, location)
    assert cache.metrics().spaces == {"a": SpaceMetrics(disk=1, sets=1)}


@linux
def test_handles_without_a_row_count_for_themselves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counts, "_ROWS", 1)
    with Cache(tmp_path) as first, Cache(tmp_path) as second:
        first["a:1"] = 1
        second["b:1"] = 1
        assert first.metrics().total.sets == second.metrics().total.sets == 1
        first.close()
        second.close()
        second["c:1"] = 1
        assert second.metrics().total.sets == 3, "the row was free, and what it has not told yet is told"


def test_what_was_not_told_yet_is_kept_while_there_is_no_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counts, "_ROWS", 1)
    with Cache(tmp_path) as first, Cache(tmp_path) as second:
        for number in range(3):
            second["key"] = number
            second.close()
        assert first.metrics().total.sets == 0
        assert second.metrics().total.sets == 3


@linux
def test_a_handle_is_not_closed_while_another_thread_reads_the_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, closing = counts._read, list[threading.Thread]()
    with Cache(tmp_path) as cache:
        cache["key"] = 1
        close = cache._handle.counts.close

        def read_slowly(descriptor: int, *where: int) -> Any:
            if not closing:
                closing.append(threading.Thread(target=close))
                closing[0].start()
                in_thread(close, False)  # as the garbage collector does, which waits for nobody
            assert os.fstat(descriptor).st_size == counts._SIZE
            return read(descriptor, *where)

        monkeypatch.setattr(counts, "_read", read_slowly)
        assert cache.metrics().total.sets == 1
        closing[0].join()
        assert cache._handle.counts._descriptor == -1


@linux
def test_opening_and_closing_may_be_interrupted_anywhere(tmp_path: Path) -> None:
    played(partial(interrupt_opening, tmp_path))  # in a process of its own, since opening may leave a descriptor open


def interrupt_opening(tmp_path: Path) -> None:
    made = counts.Counts(str(tmp_path), lambda start: start.decode())

    def use() -> None:
        made.open("counts")
        made.add("handles")
        made.close()

    use()
    for number in range(1, places_in(use) + 1):
        error = interrupted(use, number)
        in_thread(use)  # which would wait if the lock was held, or be left out
        other = ByteLocks(tmp_path / NAME)
        assert other.hold(0, other), (number, error)
        other.close()
        del error


def in_thread(call: Callable[..., object], *arguments: Any) -> None:
    thread = threading.Thread(target=call, args=arguments)
    thread.start()
    thread.join(10)
    assert not thread.is_alive()


@linux
@pytest.mark.parametrize("level", ["counts", "full"])
def test_a_dropped_cache_keeps_nothing_open_until_garbage_is_collected(tmp_path: Path, level: str) -> None:
    cache = Cache(tmp_path, metrics_level=level)
    cache["key"] = 1
    assert cache["key"] == 1
    gc.collect()
    gc.disable()
    try:
        del cache
        assert str(tmp_path) not in Path("/proc/self/maps").read_text()
        assert not [name for name in open_descriptors().values() if str(tmp_path) in name]
    finally:
        gc.enable()


# -- beginning anew -----------------------------------------------------------------------------------------------------


def test_a_reset_begins_anew_for_all(tmp_path: Path) -> None:
    with Cache(tmp_path) as one, Cache(tmp_path) as two:
        one["a:1"] = two["a:2"] = 1
        assert one.metrics(reset=True).total.sets == 2
        assert two.metrics().total.sets == one.metrics().total.sets == 0
        two["a:2"] = 2
        assert one.metrics().total.sets == 1


def test_what_was_done_since_an_earlier_look(cache: Cache) -> None:
    cache["a:1"] = cache["b:1"] = 1
    before = cache.metrics()
    cache["b:1"] = 2
    cache["b:2"] = 2
    done = cache.metrics().since(before)
    assert (done.spaces, done.total.sets, done.entries) == ({"b": SpaceMetrics(sets=2)}, 2, 3)


def test_stats_counts_while_it_is_switched_on(cache: Cache) -> None:
    cache["key"] = 1
    assert (cache["key"], cache.stats()) == (1, (0, 0))
    assert (cache["key"], cache.get("absent")) == (1, None)
    assert cache.stats(enable=False) == (1, 1)
    assert (cache["key"], cache.stats()) == (1, (1, 1))
    assert (cache["key"], cache.stats(reset=True), cache.stats()) == (1, (2, 1), (0, 0))
    cache.reset("statistics", 0)
    assert (cache["key"], cache.stats()) == (1, (0, 0))


# -- how much is counted ------------------------------------------------------------------------------------------------


def test_off_makes_no_file_and_counts_this_handle(tmp_path: Path) -> None:
    with Cache(tmp_path, metrics_level="off") as cache:
        cache["user:1"] = 1
        assert (cache["user:1"], cache.get("user:2")) == (1, None)
        assert cache.metrics().spaces == {"": SpaceMetrics(hot=1, misses=1, sets=1)}
        assert not (tmp_path / NAME).exists()
        cache.reset("metrics_level", "counts")
        assert (cache["user:1"], cache.metrics().total.hits) == (1, 2)


def test_full_tells_how_long_calls_took(cache: Cache) -> None:
    cache["key"] = 1
    assert cache.metrics().times == {}
    cache.reset("metrics_level", "full")
    for number in range(3 * SAMPLE):
        cache[number] = number
        assert cache[number] == number
        assert cache.get(-1 - number) is None
        cache.delete(number)
    found = cache.metrics().times
    assert {name: times.count for name, times in found.items() if name != "lock"} == {
        "hot": 3, "get": 3 * SAMPLE, "set": 3 * SAMPLE, "delete": 3 * SAMPLE,
    }  # fmt: skip
    for times in (found["get"], found["set"]):
        assert 0 < times.percentile(0) <= times.percentile(50) <= times.percentile(99.9) < 100
    assert cache.metrics().total.hits == 3 * SAMPLE
    cache.reset("metrics_level", "counts")
    before = cache.metrics(reset=True)
    cache["more"] = 1
    assert cache.metrics().times == {} != before.times


def test_a_time_is_told_to_six_percent() -> None:
    counters = Counters()
    for nanoseconds in [0, 1, 63, 64, 65, 1000, 123_456, 10**9, 99 * 10**9, 10**15]:
        row = bytearray(8 * BUCKETS)
        counters.attach(row, 0, BUCKETS)
        counters.observe(0, nanoseconds)
        (bucket,) = [index for index, count in enumerate(memoryview(row).cast("Q")) if count]
        low, high = bounds_of(bucket)
        assert low <= min(nanoseconds, 2**37 - 1) < high
        assert bucket == 0 or (high - low) / low <= 1 / 16
        assert low / 1e9 <= Times(list(memoryview(row).cast("Q"))).percentile(50) <= high / 1e9


def test_a_wait_for_the_lock_is_counted(tmp_path: Path) -> None:
    with Cache(tmp_path) as one, Cache(tmp_path, timeout=60) as two:
        with held(one) as done:
            writer = threading.Thread(target=two.set, args=("key", 1))
            writer.start()
            until(lambda: one._shards.stores[0].shard.header[WAITERS], "a thread that waits")
            done.set()
            writer.join()
        found = one.metrics()
        assert (found.timeouts, found.lock_waits) == (0, 1)


def test_waits_that_end_without_the_lock_are_counted(tmp_path: Path) -> None:
    with Cache(tmp_path) as one, Cache(tmp_path, timeout=0.01) as two:
        with one.transact():
            one["key"] = 1
            with pytest.raises(Timeout):
                two.set("key", 2)
        found = one.metrics()
        assert (found.timeouts, found.lock_waits) == (1, 1)


# -- spaces -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "space"),
    [
        ("a:b:c", "a"), (":1:key", ""), (":1:a:b", "a"), (":12:a:", "a"), ("::a:", ""), (":1:", ""), (":1a:b", ""), ("a/b:1", ""),
        (":" + "1" * 60, ""), ("x" * 47 + ":1", "x" * 47), ("x" * 48 + ":1", ""), ("é:1", "é"), ("", ""),
        (("f", 1), "f"), (("f:x", 1), "f"), (("f", "a:b"), "f"), ((1, "a:b"), ""), (("f" * 60, 1), ""), (("", ":"), ""),
        (b"a:1", ""), (1.5, ""), (None, ""), (frozenset(["a:1"]), ""), ("a:" + "b" * 300, "a"),
    ],
)  # fmt: skip
def test_which_space_a_key_is_in(tmp_path: Path, key: Any, space: str) -> None:
    with Cache(tmp_path) as cache:
        cache[key] = 1
        assert list(cache.metrics().spaces) == [space]


@linux
def test_more_spaces_than_there_are_names_for_are_counted_together(tmp_path: Path) -> None:
    with Cache(tmp_path) as one, Cache(tmp_path) as two:
        for number in range(50):
            one[f"one{number}:1"] = two[f"two{number}:1"] = 1
        found = one.metrics()
        assert len(found.spaces) == counts.SPACES - counts.FIRST_NAME + 1
        assert found.total.sets == 100
        assert found.spaces["(other)"].sets == 100 - (counts.SPACES - counts.FIRST_NAME)
        assert two.metrics() == found


@linux
def test_keys_that_begin_with_many_texts_do_not_have_the_file_read_for_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Cache(tmp_path) as cache:
        for number in range(counts.SPACES):
            cache[f"{number}:key"] = 1
        monkeypatch.setattr(counts.Counts, "_read_names", None)
        for number in range(2 * counts._KNOWN):
            cache[f"{number}:key"] = 1
        assert len(cache._handle.counts._known) <= counts._KNOWN
        monkeypatch.undo()
        assert cache.metrics().spaces["0"].sets == 2


@pytest.mark.parametrize("level", ["off", "counts"])
def test_the_space_of_a_text_is_looked_for_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, level: str) -> None:
    with Cache(tmp_path, metrics_level=level) as cache:
        spaces = cache._handle.counts
        asked = mock.Mock(side_effect=spaces._name_of)
        monkeypatch.setattr(spaces, "_name_of", asked)
        for number in range(20):
            cache[f"a:{number}"] = cache[f"b/c:{number}"] = cache[number] = 1
        assert asked.call_count == 2


def test_a_namespace_with_a_long_name_has_counts_of_its_own(cache: Cache) -> None:
    outer = cache.namespace("o" * 90)
    inner, other = outer.namespace("i" * 90), outer.namespace("j" * 90)
    outer["key"] = inner["key"] = inner["more"] = other["key"] = 1
    assert (inner.metrics().total.sets, other.metrics().total.sets, outer.metrics().total.sets) == (2, 1, 4)


def test_no_key_hides_the_counts_of_another_space(tmp_path: Path) -> None:
    with Cache(tmp_path) as cache:
        for number in range(counts.SPACES):
            cache[f"{number}:key"] = 1
        cache.close()
    (tmp_path / NAME).unlink(missing_ok=True)
    with cache:
        cache["(other):key"] = 1
        for number in range(counts.SPACES):
            cache[f"{number}:key"] = 1
        assert cache.metrics().total.sets == 1 + counts.SPACES


@linux
@pytest.mark.parametrize("pauses", [1, 10**9], ids=["a moment", "for ever"])
def test_a_name_is_added_after_another_process_has_added_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pauses: int
) -> None:
    with Cache(tmp_path) as cache:
        other = ByteLocks(tmp_path / NAME)
        assert other.hold(counts._NAMES_LOCK, other)
        left = iter(range(pauses))

        def pause(_: float) -> None:
            if next(left) == pauses - 1:
                other.let_go(counts._NAMES_LOCK, other)

        monkeypatch.setattr(time, "sleep", pause)
        cache["a:1"] = 1
        other.close()
        cache["a:2"] = 1
        expected = {"a": SpaceMetrics(sets=2)} if pauses == 1 else {"": SpaceMetrics(sets=1), "a": SpaceMetrics(sets=1)}
        assert cache.metrics().spaces == expected


@linux
def test_a_handle_does_not_take_the_names_of_one_file_for_those_of_another(tmp_path: Path) -> None:
    with Cache(tmp_path) as cache:
        cache["a:1"] = cache["b:1"] = 1
        cache.close()
        (tmp_path / NAME).unlink()
        cache["b:1"] = cache["a:1"] = cache["a:1"] = 1
        assert {name: space.sets for name, space in cache.metrics().spaces.items()} == {"a": 2, "b": 1}


def test_no_name_of_an_encrypted_cache_is_written(tmp_path: Path) -> None:
    pytest.importorskip("cryptography")
    with Cache(tmp_path, encrypt=True, secret=b"s" * 32) as cache:
        cache["customer-name:1"] = 1
        cache.namespace("hidden-name")["key"] = 1
        cache.set_many(dict.fromkeys(range(1000), 1))  # stored under random bytes, some of which look like a text
        assert cache.metrics().spaces == {"": SpaceMetrics(sets=1002)}
    with Cache(tmp_path, secret=b"s" * 32) as cache:
        assert cache["customer-name:1"] == 1
    assert b"-name" not in (tmp_path / NAME).read_bytes() if (tmp_path / NAME).exists() else True


# -- what may be wrong with the file ------------------------------------------------------------------------------------


def garbage(path: Path) -> None:
    path.write_bytes(random.Random(1).randbytes(counts._SIZE))


def ones(path: Path) -> None:
    path.write_bytes(b"\xff" * counts._SIZE)


def names(path: Path) -> None:
    path.write_bytes(
        counts._MAGIC.to_bytes(8, sys.byteorder) + b"\xff" * 8 + bytes(4080) + b"\x40\x1b[2J\xff<script>" * 400
    )


@pytest.mark.parametrize("harm", [garbage, ones, names, lambda path: path.write_bytes(b""), lambda path: path.unlink()])
def test_a_damaged_file_makes_counts_wrong_and_nothing_else(tmp_path: Path, harm: Any) -> None:
    with Cache(tmp_path) as cache:
        cache["a:1"] = 1
    if (tmp_path / NAME).exists():
        harm(tmp_path / NAME)
    with Cache(tmp_path, metrics_level="full") as cache:
        assert cache["a:1"] == 1
        cache["b:1"] = 2
        found = cache.metrics()
        assert isinstance(found, Metrics)
        assert "<script>" not in found._repr_html_()
        cache.metrics(reset=True)
        assert (cache["b:1"], cache.metrics().hits) == (2, 1)
        cache.stats(enable=True)
        cache.stats(enable=True, reset=True)
        assert (cache["b:1"], cache.stats()) == (2, (1, 0))
        assert cache.check() == []


@linux
@pytest.mark.parametrize("kind", ["link", "pipe", "second name"])
def test_a_file_that_others_may_control_is_refused(tmp_path: Path, kind: str) -> None:
    with Cache(tmp_path / "cache") as cache:
        cache["a:1"] = 1
    path, elsewhere = tmp_path / "cache" / NAME, tmp_path / "elsewhere"
    elsewhere.write_bytes(b"precious")
    path.unlink()
    if kind == "link":
        path.symlink_to(elsewhere)
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        os.link(elsewhere, path)
    with pytest.raises(UnsafeDirectory, match=NAME):
        Cache(tmp_path / "cache")
    assert elsewhere.read_bytes() == b"precious"


@linux
def test_on_a_full_disk_a_handle_counts_for_itself(tmp_path: Path) -> None:
    try:
        with mounted(tmp_path / "disk", 4 * MEBIBYTE) as disk, Cache(disk.path / "cache") as first:
            first["a:1"] = 1
            disk.fill()
            with Cache(disk.path / "cache", metrics_level="full") as second:
                assert second["a:1"] == 1
                assert (second.metrics().hits, first.metrics().hits) == (1, 0)
                with pytest.raises(DiskFull):
                    first.metrics(reset=True)
                disk.empty()
                second.close()
                assert second["a:1"] == 1
                assert first.metrics().hits == 2
    except NotPermitted as error:
        pytest.skip(str(error))
