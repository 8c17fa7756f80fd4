"""Exactness: what must happen once happens once, however many processes and threads are at it."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from diskcache_like import Averager, Cache, Lock
from diskcache_like.storage.shard.invalidation import Invalidation

from ..support.contention import PROCESSES, THREADED, everywhere, opened
from ..support.workers import Crew, Link, ready


@pytest.fixture
def crew() -> Iterator[Crew]:
    with Crew() as made:
        yield made


@pytest.fixture(params=["one", "fanout"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


CHANGES: dict[str, tuple[Callable[[Cache], object], int]] = {
    "set": (lambda cache: cache.set("new", 1), 4),
    "set_many": (lambda cache: cache.set_many({"new": 1, "newer": 1, "a": 1}), 5),
    "add": (lambda cache: cache.add("new", 1), 4),
    "incr": (lambda cache: cache.incr("new"), 4),
    "pop": (lambda cache: cache.pop("a"), 2),
    "delete": (lambda cache: cache.delete("a"), 2),
    "evict": (lambda cache: cache.evict("tag"), 1),
    "push": (lambda cache: cache.push(1), 4),
    "transact": (lambda cache: _in_transaction(cache), 3),
}


def _in_transaction(cache: Cache) -> None:
    with cache.transact():
        cache["new"] = 1
        cache["newer"] = 2
        del cache["a"], cache["b"]


BRIEFLY = 0.2  # seconds: enough for a look that need not wait for the write lock


@pytest.mark.parametrize("settings", [{"write_buffer": 0}, {}], ids=["direct", "buffered"])
@pytest.mark.parametrize("change", CHANGES)
def test_nobody_counts_what_was_there_before_who_reads_what_is_there_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str, settings: dict[str, Any]
) -> None:
    """A write is committed a moment before the shared count has it; who finds it being flushed waits for that."""
    make, wanted = CHANGES[change]
    counts: list[tuple[int, int]] = []
    looks: list[threading.Thread] = []
    count_committed = Invalidation.count_committed

    def looked_at(self: Invalidation, added: int, removed: int) -> None:
        looks.append(threading.Thread(target=lambda: counts.append((len(other), len([*other])))))
        looks[-1].start()
        looks[-1].join(BRIEFLY)
        count_committed(self, added, removed)

    with Cache(tmp_path, **settings) as cache, Cache(tmp_path, **settings) as other:
        for key in "abc":
            cache.set(key, 0, tag="tag" if key in "ab" else None)
        assert len(cache) == len(other) == 3  # from now on it is known
        with monkeypatch.context() as patch:
            patch.setattr(Invalidation, "count_committed", looked_at)
            make(cache)
            assert len(other) == wanted
            other.expire()  # which flushes what waits
        for look in looks:
            look.join()
        assert len(looks) == len(counts) > 0
        assert {*counts} == {(wanted, wanted)}
        assert len(other) == len(cache) == wanted


@pytest.fixture(params=[(PROCESSES, 1), THREADED], ids=["8-processes", "2-processes-of-8-threads"])
def layout(request: pytest.FixtureRequest) -> tuple[int, int]:
    found: tuple[int, int] = request.param
    return found


# -- one key ----------------------------------------------------------------------------------------------------------

INCREMENTS = 60


def increment(cache: Cache, number: int) -> list[int]:
    return [cache.incr("counter", 1 + number % 2, retry=True) for _ in range(INCREMENTS)]


def test_incr_counts_every_increment(crew: Crew, tmp_path: Path, kind: str, layout: tuple[int, int]) -> None:
    with opened(tmp_path / "cache", kind) as cache:
        sums = sum(everywhere(crew, tmp_path / "cache", kind, layout, increment), [])
        total = sum(INCREMENTS * (1 + number % 2) for number in range(layout[0] * layout[1]))
        assert cache.get("counter") == total == max(sums)
        assert len(set(sums)) == len(sums), "two increments returned the same sum"


def increment_in_transaction(cache: Cache, number: int) -> None:
    for _ in range(INCREMENTS):
        with cache.transact(retry=True):
            cache["counter"] = cache.get("counter", 0) + 1


def test_transact_loses_no_update(crew: Crew, tmp_path: Path, kind: str, layout: tuple[int, int]) -> None:
    with opened(tmp_path / "cache", kind) as cache:
        everywhere(crew, tmp_path / "cache", kind, layout, increment_in_transaction)
        assert cache["counter"] == INCREMENTS * layout[0] * layout[1]


def average(cache: Cache, number: int) -> None:
    averager = Averager(cache, "average")
    for value in range(30):
        averager.add(value)


def test_averager_counts_every_value(crew: Crew, tmp_path: Path, kind: str) -> None:
    with opened(tmp_path / "cache", kind) as cache:
        everywhere(crew, tmp_path / "cache", kind, THREADED, average)
        assert cache.get("average") == (sum(range(30)) * 16, 30 * 16)


ROUNDS = 40


def add_each(cache: Cache, number: int) -> list[int]:
    return [each for each in range(ROUNDS) if cache.add(each, number, retry=True)]


def test_add_has_one_winner(crew: Crew, tmp_path: Path, kind: str, layout: tuple[int, int]) -> None:
    with opened(tmp_path / "cache", kind) as cache:
        wins = everywhere(crew, tmp_path / "cache", kind, layout, add_each)
        assert Counter(sum(wins, [])) == Counter(range(ROUNDS)), "each key has one winner"
        for number, won in enumerate(wins):
            assert all(cache.get(each) == number for each in won), "the winner's value is the one that stays"


def pop_each(cache: Cache, number: int) -> list[str]:
    return [value for each in range(ROUNDS) if (value := cache.pop(each, retry=True)) is not None]


def test_pop_has_one_receiver(crew: Crew, tmp_path: Path, kind: str, layout: tuple[int, int]) -> None:
    with opened(tmp_path / "cache", kind) as cache:
        cache.set_many({each: f"value {each}" for each in range(ROUNDS)}, retry=True)
        received = everywhere(crew, tmp_path / "cache", kind, layout, pop_each)
        assert Counter(sum(received, [])) == Counter(f"value {each}" for each in range(ROUNDS))
        assert len(cache) == 0


def delete_each(cache: Cache, number: int) -> list[int]:
    return [each for each in range(ROUNDS) if cache.delete(each, retry=True)]


def test_delete_tells_one_that_it_removed(crew: Crew, tmp_path: Path, kind: str, layout: tuple[int, int]) -> None:
    with opened(tmp_path / "cache", kind) as cache:
        cache.set_many(dict.fromkeys(range(ROUNDS), b"x" * 40_000), retry=True)
        removed = everywhere(crew, tmp_path / "cache", kind, layout, delete_each)
        assert Counter(sum(removed, [])) == Counter(range(ROUNDS))


def lock_and_count(cache: Cache, number: int) -> None:
    lock = Lock(cache, "lock")
    for _ in range(5):
        with lock:
            cache["locked count"] = cache.get("locked count", 0) + 1  # not atomic by itself


def test_lock_excludes(crew: Crew, tmp_path: Path, kind: str) -> None:
    with opened(tmp_path / "cache", kind) as cache:
        everywhere(crew, tmp_path / "cache", kind, (4, 2), lock_and_count)
        assert cache["locked count"] == 5 * 4 * 2


# -- a key that always exists -----------------------------------------------------------------------------------------


def overwrite_or_read(cache: Cache, number: int) -> list[Any]:
    """Overwrite the one key with values in the row and in a file, or read it; return every read that is not one."""
    wrong = []
    for count in range(60):
        if number % 2:
            size = (10, 40_000)[count % 2]
            cache.set("always", b"%d" % (number % 10) * size, retry=True)
        else:
            value = cache.get("always")
            if value is None or len(value) not in (10, 40_000) or len(set(value)) != 1:
                wrong.append(value)
    return wrong


def test_a_key_that_always_exists_never_reads_as_missing_or_torn(
    crew: Crew, tmp_path: Path, kind: str, layout: tuple[int, int]
) -> None:
    with opened(tmp_path / "cache", kind) as cache:
        cache.set("always", b"0" * 10, retry=True)
        assert sum(everywhere(crew, tmp_path / "cache", kind, layout, overwrite_or_read), []) == []
        assert cache.check() == []


# -- queues -----------------------------------------------------------------------------------------------------------

ITEMS = 40


def push_and_pull(cache: Cache, number: int) -> list[tuple[int, int]]:
    """Push numbered items; pull as many in between. Large ones go through a value file."""
    pulled = []
    for item in range(ITEMS):
        padding = b"x" * 40_000 if item % 10 == 0 else b""
        assert cache.push((number, item, padding), "queue", retry=True) is not None
        if item % 2:
            _, value = cache.pull("queue", retry=True)
            if value is not None:
                pulled.append(value[:2])
    return pulled


def test_each_pushed_item_is_pulled_once_and_in_order(
    crew: Crew, tmp_path: Path, kind: str, layout: tuple[int, int]
) -> None:
    with opened(tmp_path / "cache", kind) as cache:
        pulled = everywhere(crew, tmp_path / "cache", kind, layout, push_and_pull)
        rest = []
        while (value := cache.pull("queue", retry=True)[1]) is not None:
            rest.append(value[:2])
        everyone = [*pulled, rest]
        producers = range(layout[0] * layout[1])
        assert Counter(sum(everyone, [])) == Counter((one, item) for one in producers for item in range(ITEMS))
        for received in everyone:
            for producer in producers:
                items = [item for one, item in received if one == producer]
                assert items == sorted(items), f"the items of producer {producer} changed places"
        assert len(cache) == 0
        assert cache.check() == []


def push_both_sides(cache: Cache, number: int) -> list[Any]:
    return [cache.push(number, side="front" if number % 2 else "back", retry=True) for _ in range(20)]


def test_pushes_at_both_sides_get_keys_of_their_own(crew: Crew, tmp_path: Path, kind: str) -> None:
    with opened(tmp_path / "cache", kind) as cache:
        given = sum(everywhere(crew, tmp_path / "cache", kind, (PROCESSES, 1), push_both_sides), [])
        assert len(set(given)) == len(given) == 20 * PROCESSES == len(cache)
        owners = [cache.pull()[1] for _ in range(20 * PROCESSES)]
        assert [owner % 2 for owner in owners] == [1] * 80 + [0] * 80


# -- several keys -----------------------------------------------------------------------------------------------------

ACCOUNTS, MONEY = 5, 100


def transfer(cache: Cache, number: int) -> list[int]:
    """Move money between accounts, sometimes changing the mind; return every total that was not right."""
    wrong = []
    for step in range(30):
        source, target, amount = (number + step) % ACCOUNTS, (number * step) % ACCOUNTS, 1 + step % 7
        try:
            with cache.transact(retry=True):
                cache[source] = cache[source] - amount
                if step % 6 == 5:
                    raise ZeroDivisionError
                cache.incr(target, amount, retry=True)
        except ZeroDivisionError:
            pass
        with cache.transact(retry=True):
            total = sum(cache[account] for account in range(ACCOUNTS))
        if total != ACCOUNTS * MONEY:
            wrong.append(total)
    return wrong


def test_transfers_keep_the_total(crew: Crew, tmp_path: Path, kind: str, layout: tuple[int, int]) -> None:
    with opened(tmp_path / "cache", kind) as cache:
        cache.set_many(dict.fromkeys(range(ACCOUNTS), MONEY), retry=True)
        assert sum(everywhere(crew, tmp_path / "cache", kind, layout, transfer), []) == []
        assert sum(cache[account] for account in range(ACCOUNTS)) == ACCOUNTS * MONEY


def write_own_keys(cache: Cache, number: int) -> int:
    """Add and remove keys of this thread's own in every way; return how many should be left."""
    mine = [(number, each) for each in range(30)]
    for key in mine:
        cache.set(key, key, retry=True)
    cache.set_many({key: 1 for key in mine[::2]}, retry=True)
    removed = sum(cache.delete(key, retry=True) for key in mine[:5])
    removed += cache.delete_many(mine[3:8], retry=True)
    removed += cache.pop(mine[9], retry=True) is not None
    cache.add(mine[9], "again", retry=True)
    with pytest.raises(ZeroDivisionError), cache.transact(retry=True):
        cache.set((number, "undone"), 1)
        cache.delete(mine[20])
        raise ZeroDivisionError
    return len(mine) - removed + 1


def test_the_number_of_entries_is_exact(crew: Crew, tmp_path: Path, kind: str, layout: tuple[int, int]) -> None:
    with opened(tmp_path / "cache", kind) as cache:
        left = sum(everywhere(crew, tmp_path / "cache", kind, layout, write_own_keys))
        assert len(cache) == left == len(list(cache))
        assert cache.check() == []


def open_and_count(link: Link, number: int, directory: Path, kind: str) -> None:
    ready(link)
    with opened(directory, kind) as cache:
        cache.incr("opened", retry=True)


def test_many_processes_make_one_cache(crew: Crew, tmp_path: Path, kind: str) -> None:
    """All of them find that there is none and make it at the same time."""
    for attempt in range(4):
        directory = tmp_path / f"cache{attempt}"
        workers = crew.start_many(PROCESSES, open_and_count, directory, kind)
        crew.together(workers)
        crew.results(workers)
        with opened(directory, kind) as cache:
            assert cache["opened"] == PROCESSES
            assert cache.check() == []
