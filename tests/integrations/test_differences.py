"""Where this package deliberately differs from DiskCache 5.6.3: values, memoize, keys, room, locks and queues.

Each test shows both sides if DiskCache is installed; `test_differences_at_work` has the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from diskcache_like import Cache, Disk, FanoutCache, Lock, NotOwner, ValueTooLarge

from ..support.cache_kinds import QUICK, Clock

BIG = "x" * 50_000


# -- values -------------------------------------------------------------------------------------------------------


def test_long_text_keeps_its_carriage_returns(cache: Cache) -> None:
    text = "line\r\nline\rline\n" * 7_000
    cache["text"] = text
    cache.close()
    assert cache["text"] == text


def test_long_text_loses_its_carriage_returns_in_diskcache(theirs: Any) -> None:
    theirs["text"] = "\r\n" * 50_000
    assert theirs["text"] == "\n" * 50_000


def test_a_value_file_replaced_under_a_reader_is_no_miss(tmp_path: Path) -> None:
    class Racing(Disk):
        codec = Disk.codec
        before_load: Callable[[], object] | None = None

        def load(self, record: Any, read: bool, maps: bool = False) -> Any:
            race, Racing.before_load = Racing.before_load, None
            if race is not None:
                race()
            return super().load(record, read, maps)

    def replace() -> None:
        other["key"] = "b" * 50_000
        assert other.check(fix=True) == []  # unlinks the file whose row the reader has

    with Cache(tmp_path, disk=Racing, hot_size_limit=0) as cache, Cache(tmp_path, disk=Racing) as other:
        cache["key"] = "a" * 50_000
        Racing.before_load = replace
        assert cache.get("key") == "b" * 50_000
        assert Racing.before_load is None


def test_a_value_file_replaced_under_a_reader_is_a_miss_in_diskcache(diskcache: ModuleType, tmp_path: Path) -> None:
    class Racing(diskcache.Disk):  # type: ignore[misc,name-defined]
        before_fetch: Callable[[], object] | None = None

        def fetch(self, *arguments: Any) -> Any:
            race, Racing.before_fetch = Racing.before_fetch, None
            if race is not None:
                race()
            return super().fetch(*arguments)

    with diskcache.Cache(tmp_path, disk=Racing) as cache:
        cache["key"] = "a" * 50_000
        Racing.before_fetch = lambda: cache.set("key", "b" * 50_000)
        assert cache.get("key") is None


# -- memoize ------------------------------------------------------------------------------------------------------


def two_lambdas(cache: Any) -> list[int]:
    plus, minus = cache.memoize()(lambda number: number + 1), cache.memoize()(lambda number: number - 1)
    return [plus(5), minus(5)]


def nested_functions(cache: Any) -> list[int]:
    def make(factor: int) -> Callable[[int], int]:
        @cache.memoize()  # type: ignore[untyped-decorator]
        def scaled(number: int) -> int:
            return factor * number

        return scaled  # type: ignore[no-any-return]

    return [make(2)(5), make(3)(5)]


def test_functions_of_one_name_do_not_share_results(cache: Cache) -> None:
    assert two_lambdas(cache) == [6, 4]
    assert nested_functions(cache) == [10, 15]


def test_functions_of_one_name_share_results_in_diskcache(theirs: Any) -> None:
    assert two_lambdas(theirs) == [6, 6]
    assert nested_functions(theirs) == [10, 10]


def positional_and_named(cache: Any) -> list[str]:
    @cache.memoize()  # type: ignore[untyped-decorator]
    def show(*args: Any, **kwargs: Any) -> str:
        return repr((args, kwargs))

    return [show(1, None, "x"), show(1, x=None)]


def test_positional_and_named_arguments_do_not_collide(cache: Cache) -> None:
    assert positional_and_named(cache) == ["((1, None, 'x'), {})", "((1,), {'x': None})"]


def test_positional_and_named_arguments_collide_in_diskcache(theirs: Any) -> None:
    assert positional_and_named(theirs) == ["((1, None, 'x'), {})"] * 2


def calls_that_bind_alike(cache: Any) -> int:
    calls = []

    @cache.memoize()  # type: ignore[untyped-decorator]
    def add(x: int, y: int = 2) -> int:
        calls.append((x, y))
        return x + y

    assert [add(1), add(1, 2), add(x=1), add(y=2, x=1)] == [3, 3, 3, 3]
    return len(calls)


def test_calls_that_bind_alike_are_one_entry(cache: Cache) -> None:
    assert calls_that_bind_alike(cache) == 1


def test_calls_that_bind_alike_are_several_entries_in_diskcache(theirs: Any) -> None:
    assert calls_that_bind_alike(theirs) == 4


def test_ignore_takes_positions_and_names_however_the_argument_is_given(cache: Cache) -> None:
    calls = []

    @cache.memoize(ignore={"log", 2})
    def work(number: int, log: object = None, debug: bool = False) -> int:
        calls.append(number)
        return number

    assert work(1) == work(1, "log") == work(1, log="log") == work(1, None, True) == work(1, debug=True) == 1
    assert len(calls) == 1


def test_a_key_function_makes_the_key(cache: Cache) -> None:
    first = cache.memoize(key=lambda row: row["id"])(lambda row: row["value"])
    assert first({"id": 1, "value": "a"}) == first({"id": 1, "value": "b"}) == "a"


# -- keys ---------------------------------------------------------------------------------------------------------


def equal_keys() -> list[tuple[Any, Any]]:
    text, same = "text" * 5, "".join(["text"] * 5)
    return [
        ((text, text), (text, same)),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        (frozenset([0, 8]), frozenset([8, 0])),
        ((1, 2.0), (1.0, 2)),
    ]


def test_equal_keys_are_one_entry(cache: Cache) -> None:
    for stored, asked in equal_keys():
        assert stored == asked
        cache[stored] = "value"
        assert cache.get(asked) == "value"
    assert len(cache) == 4


def test_equal_keys_miss_in_diskcache(theirs: Any) -> None:
    for stored, asked in equal_keys():
        theirs[stored] = "value"
        assert theirs.get(asked) is None


def test_the_pickle_protocol_plays_no_part_in_keys(tmp_path: Path) -> None:
    with Cache(tmp_path, disk_pickle_protocol=2) as cache:
        cache[1, "a"] = "value"
    with Cache(tmp_path, disk_pickle_protocol=5) as cache:
        assert cache[1, "a"] == "value"


def test_the_stored_number_of_shards_wins(tmp_path: Path) -> None:
    with FanoutCache(tmp_path, shards=4) as cache:
        cache.set_many({number: number for number in range(20)})
    with FanoutCache(tmp_path, shards=2) as cache:
        assert len(cache.get_many(range(20))) == 20


def test_another_number_of_shards_hides_keys_in_diskcache(diskcache: ModuleType, tmp_path: Path) -> None:
    with diskcache.FanoutCache(tmp_path, shards=4) as cache:
        for number in range(20):
            cache[number] = number
    with diskcache.FanoutCache(tmp_path, shards=2) as cache:
        assert sum(number in cache for number in range(20)) < 20


def finds_its_equal(cache: Any) -> list[bool]:
    cache[7] = cache[(2, "a")] = True
    return [cache.get(7.0, False), cache.get((2.0, "a"), False)]


def test_one_rule_of_equality_for_every_cache(cache: Cache, tmp_path: Path) -> None:
    with FanoutCache(tmp_path / "fanout", timeout=60, **QUICK) as fanout:
        assert finds_its_equal(cache) == finds_its_equal(fanout) == [True, True]


def test_cache_and_fanout_cache_disagree_in_diskcache(diskcache: ModuleType, theirs: Any, tmp_path: Path) -> None:
    with diskcache.FanoutCache(tmp_path / "fanout") as fanout:
        assert finds_its_equal(theirs) == [True, False]
        assert finds_its_equal(fanout) == [False, False]


# -- room ---------------------------------------------------------------------------------------------------------


def test_a_value_that_can_never_fit_is_refused_and_touches_nothing(tmp_path: Path) -> None:
    with Cache(tmp_path, size_limit=1_000_000) as cache:
        small = {f"key {number}": number for number in range(9)}
        cache.set_many(small)
        assert cache.set("giant", "x" * 1_100_000) is False
        with pytest.raises(ValueTooLarge, match="giant"):
            cache["giant"] = "x" * 1_100_000
        assert cache.get_many([*small, "giant"]) == small


def test_a_value_that_can_never_fit_empties_diskcache(diskcache: ModuleType, tmp_path: Path) -> None:
    with diskcache.Cache(tmp_path, size_limit=1_000_000) as cache:
        for number in range(9):
            cache[f"key {number}"] = number
        assert cache.set("giant", "x" * 1_100_000) is True
        assert len(cache) == 0


def test_cull_counts_the_expired_under_every_policy(tmp_path: Path, clock: Clock) -> None:
    with Cache(tmp_path, eviction_policy="none", clock=clock) as cache:
        cache.set("key", 1, expire=1)
        clock.advance(1)
        assert cache.cull() == 1
        assert len(cache) == 0


def test_cull_does_not_count_the_expired_under_none_in_diskcache(diskcache: ModuleType, tmp_path: Path) -> None:
    with diskcache.Cache(tmp_path, eviction_policy="none") as cache:
        cache.set("key", 1, expire=-1)
        assert cache.cull() == 0
        assert len(cache) == 0


# -- locks and queues ---------------------------------------------------------------------------------------------


def test_a_late_release_does_not_free_the_next_owner(cache: Cache, clock: Clock) -> None:
    late, next_owner = Lock(cache, "lock", expire=1), Lock(cache, "lock", expire=100)
    late.acquire()
    clock.advance(1)
    next_owner.acquire()
    with pytest.raises(NotOwner, match="lock"):
        late.release()
    assert next_owner.locked()
    next_owner.release()
    assert not next_owner.locked()


def test_a_late_release_frees_the_next_owner_in_diskcache(diskcache: ModuleType, theirs: Any) -> None:
    late, next_owner = diskcache.Lock(theirs, "lock", expire=0), diskcache.Lock(theirs, "lock")
    late.acquire()
    next_owner.acquire()
    late.release()
    assert not next_owner.locked()


def test_pull_leaves_the_users_integer_keys_alone(cache: Cache) -> None:
    cache[5] = "mine"
    assert cache.pull() == (None, None)
    cache.push("item")
    assert cache.pull()[1] == "item"
    assert cache[5] == "mine"


def test_pull_takes_the_users_integer_keys_in_diskcache(theirs: Any) -> None:
    theirs[5] = "mine"
    assert theirs.pull() == (5, "mine")
