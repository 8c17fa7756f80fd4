"""Coherence: what one process has written, every other reads at once, and nobody reads less than was acknowledged.

Two kinds of test. The ones in steps stop a writer in another process before and after each of its statements, and of its
stores to the ring of the write buffer and to the slots, and look through handles here. The ones at full speed let writers and readers run, and compare what was read with what had been
acknowledged by then, in memory that they share. Each kind is also run on writers whose generations are sabotaged, and
must notice.
"""

from __future__ import annotations

import contextlib
import itertools
import mmap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from diskcache_like import Cache, FanoutCache
from diskcache_like.coherence import _native
from diskcache_like.coherence.generations import Words
from diskcache_like.encoding import keys
from diskcache_like.entries.row_codec import RowCodec
from diskcache_like.storage.shard import invalidation
from diskcache_like.storage.upkeep import bulk_removal

from ..support.broken_writers import sabotage
from ..support.sample_writes import FAR, MISSING, WRITES, Write
from ..support.statement_hooks import is_change, watch
from ..support.workers import Crew, Link, Worker, ready

SLOTS = 16  # so few that every key shares its slot with others

Options = dict[str, Any]


KINDS = ["one", "direct", "fanout"]  # those that are not direct have a write buffer


def options(kind: str, hot: bool = True) -> Options:
    """Return what `opened` needs to open one handle; of plain values, so that a worker can be given it."""
    found: Options = {"kind": kind, "generation_slots": SLOTS, "durability": "process"}
    if kind == "direct":
        found["write_buffer"] = 0
    return found if hot else {**found, "hot_size_limit": 0}


def opened(directory: Path, given: Options) -> Cache:
    """Open a handle."""
    settings = {name: value for name, value in given.items() if name != "kind"}
    if given["kind"] == "fanout":
        return FanoutCache(directory, shards=2, timeout=60, **settings)
    return Cache(directory, **settings)


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def crew() -> Iterator[Crew]:
    with Crew() as made:
        yield made


# -- in steps ---------------------------------------------------------------------------------------------------------


class WatchedWords:
    """Shared words that call `step` round every store."""

    def __init__(self, words: Words, name: str, step: Callable[[str], object]) -> None:
        self._words = words
        self._name = name
        self._step = step

    def __getitem__(self, index: int, /) -> int:
        return self._words[index]

    def __setitem__(self, index: int, value: int, /) -> None:
        self._step(f"{self._name}[{index}] to come")
        self._words[index] = value
        self._step(f"{self._name}[{index}] stored")

    def __len__(self) -> int:
        return len(self._words)

    def fill(self, value: int, /) -> None:
        self._words.fill(value)


def watch_appends(cache: Cache, step: Callable[[str], object]) -> None:
    """Have `step` called after every change of a ring, and round every store of Python's to the slots."""
    _native.watch_steps(lambda changed: step(f"{changed} in the ring"))
    for store in cache._shards.stores:
        shard = store.shard
        shard.slots = WatchedWords(shard.slots, "slots", step)


def write_in_steps(link: Link, directory: Path, given: Options, name: str, how: str, all_slots: bool) -> None:
    """Do one operation, waiting for the test before and after each step that changes something."""
    if all_slots:
        invalidation.ALL_SLOTS = -1  # every change marks all slots, as one of thousands of keys does
        bulk_removal.MANY = 0  # and `clear` empties the table in one step
    with opened(directory, given) as cache:
        sabotage(cache, how)

        over = False

        def pause(step: str) -> None:
            if not over:
                link.tell(step)
                link.hear()

        def pause_at_changes(statement: str) -> None:
            if is_change(statement) or statement == "COMMIT":
                pause(statement.split(maxsplit=1)[0])

        link.hear()
        watch(cache, pause_at_changes, pause_at_changes)
        watch_appends(cache, pause)
        with contextlib.suppress(ZeroDivisionError):
            WRITES[name].do(cache)
        over = True
        link.tell(None)
        link.hear()  # until then this handle is open: no closing changes anything under the test's eyes


class Eyes:
    """Handles in this process that look at the key of a write: one with a hot layer and one without."""

    def __init__(self, directory: Path, given: Options, write: Write) -> None:
        self.hot = opened(directory, given)
        self.cold = opened(directory, {**given, "hot_size_limit": 0})
        write.prepare(self.hot)
        self.key = write.key
        self.states = [write.old, write.new]
        self.seen = 0  # the newest state that anyone has seen
        self.violations: list[str] = []

    def look(self, moment: str) -> None:
        """Read through every way there is; nobody may see an older state than somebody has seen before."""
        self._see(moment, "cold", self.cold.get(self.key, MISSING))
        for way in ("hot", "hot again"):
            self._see(moment, way, self.hot.get(self.key, MISSING))
        self._see(moment, "get_many", self.hot.get_many([self.key]).get(self.key, MISSING))
        if self.states[-1] == MISSING and self.seen and self.key in self.hot:
            self.violations.append(f"{moment}: the key is in the hot handle after it was seen to be gone")

    def _see(self, moment: str, way: str, value: object) -> None:
        now = len(self.states) - 1 - self.states[::-1].index(value)
        if now < self.seen:
            self.violations.append(f"{moment}, {way}: read {value!r} after {self.states[self.seen]!r} was seen")
        self.seen = max(now, self.seen)

    def acknowledge(self) -> None:
        """Note that the write has returned: from now on only the new state may be seen."""
        self.seen = len(self.states) - 1

    def close(self) -> None:
        self.hot.close()
        self.cold.close()


def violations_in_steps(
    crew: Crew, directory: Path, given: Options, name: str, how: str = "", all_slots: bool = False
) -> list[str]:
    """Watch an operation of another process step by step, and return where coherence was broken."""
    eyes = Eyes(directory, given, WRITES[name])
    try:
        writer = crew.start(write_in_steps, directory, given, name, how, all_slots)
        eyes.look("before the write")
        writer.tell()
        for number in itertools.count():
            step = writer.hear()
            if step is None:
                break
            eyes.look(f"step {number}, {step}")
            writer.tell()
        assert number >= 2, "the writer was never stopped"
        eyes.acknowledge()
        eyes.look("after the write")
        writer.tell()
        writer.result()
        return eyes.violations
    finally:
        eyes.close()


@pytest.mark.parametrize("name", WRITES)
def test_every_step_of_every_write_is_coherent(crew: Crew, tmp_path: Path, kind: str, name: str) -> None:
    assert violations_in_steps(crew, tmp_path / "cache", options(kind), name) == []


ONE = pytest.mark.parametrize("kind", ["one", "direct"])


@ONE
@pytest.mark.parametrize("name", ["clear", "delete", "set_many", "transact"])
def test_changes_that_mark_every_slot_are_coherent_in_each_step(
    crew: Crew, tmp_path: Path, kind: str, name: str
) -> None:
    given = options(kind)
    assert violations_in_steps(crew, tmp_path / "cache", given, name, all_slots=True) == []


@ONE
@pytest.mark.parametrize("how", ["silent", "early", "late"])
@pytest.mark.parametrize("name", ["set", "incr", "add", "delete", "pop", "evict", "clear", "transact", "set_many"])
def test_steps_notice_generations_that_break_the_rules(
    crew: Crew, tmp_path: Path, kind: str, name: str, how: str
) -> None:
    if how == "early" and name in ("transact", "set_many"):
        pytest.skip("a transaction marks its slots even after the commit in a step of its own")
    assert violations_in_steps(crew, tmp_path / "cache", options(kind), name, how) != []


@ONE
def test_keys_that_share_a_hash_are_coherent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """A key that lives beside its home place is looked for, and so has to be marked, at its home slot."""
    monkeypatch.setattr(RowCodec, "locate", lambda rows, key: (keys.encode_key(key), 40, rows._one))
    given = options(kind)
    with opened(tmp_path / "cache", given) as reader, opened(tmp_path / "cache", given) as writer:
        for name, write in WRITES.items():
            if write.key != "k" or name in ("clear", "cull", "rollback", "soft evict"):  # which looks at the true hash
                continue
            writer.clear()
            for key in ("first", "second"):
                writer.set(key, key)  # these two have the first places, so that 'k' goes to the third
            write.prepare(writer)
            for _ in range(2):
                assert reader.get("k", MISSING) == write.old, name
                assert reader.get("second") == "second", name
            write.do(writer)
            assert reader.get("k", MISSING) == write.new, name
            assert reader.get("second") == "second", name


# -- at full speed ----------------------------------------------------------------------------------------------------

RING = 1 << 12  # states remembered per key
KEYS = 6


class Board:
    """What writers have acknowledged, in a mapped file: words that one process each writes and all read."""

    def __init__(self, path: Path) -> None:
        self.words_per_key = RING + 1
        size = 8 * (1 + KEYS * self.words_per_key)
        with path.open("a+b") as file:
            file.truncate(size)
            self._mapping = mmap.mmap(file.fileno(), size)
        self._words = memoryview(self._mapping).cast("Q")

    def close(self) -> None:
        self._words.release()
        self._mapping.close()

    def end(self) -> None:
        """Say that the writers are done."""
        self._words[0] = 1

    def ended(self) -> bool:
        return self._words[0] != 0

    def __getitem__(self, index: int) -> int:
        return self._words[1 + index]

    def __setitem__(self, index: int, value: int) -> None:
        self._words[1 + index] = value

    def announce(self, key: int, step: int, value: int) -> None:
        """Write down what a key will hold (0: nothing) after its writer's next step, before that is taken."""
        self._words[1 + key * self.words_per_key + 1 + step % RING] = (step << 32) | value

    def acknowledge(self, key: int, step: int) -> None:
        """Write down that a step has returned."""
        self._words[1 + key * self.words_per_key] = step

    def acknowledged(self, key: int) -> int:
        return self._words[1 + key * self.words_per_key]

    def held(self, key: int, step: int) -> int | None:
        """Return what a key held after a step; None if that was not announced yet, or is forgotten."""
        word = self._words[1 + key * self.words_per_key + 1 + step % RING]
        return word & 0xFFFFFFFF if word >> 32 == step else None


@pytest.fixture
def board(tmp_path: Path) -> Iterator[Board]:
    made = Board(tmp_path / "board")
    yield made
    made.close()


def in_threads(number: int, work: Callable[[], list[str]]) -> list[str]:
    """Run `work` in threads and return what all of them found."""
    found: list[str] = []

    def run() -> None:
        try:
            found.extend(work())
        except BaseException as error:
            found.append(repr(error))
            raise

    threads = [threading.Thread(target=run) for _ in range(number)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def count_up(link: Link, number: int, directory: Path, board_path: Path, given: Options, how: str, steps: int) -> None:
    """Count all counters up, by turns with `incr` and within a transaction, acknowledging each value."""
    board = Board(board_path)
    with opened(directory, given) as cache:
        sabotage(cache, how)
        ready(link)
        for step in range(steps):
            key = step % KEYS
            if step % 3 == 2:
                with cache.transact(retry=True):
                    value = cache.get(key) + 1
                    cache.set(key, value)
            else:
                value = cache.incr(key, retry=True)
            board[number * KEYS + key] = value
            if cache.get(key) < value:
                raise AssertionError(f"key {key} reads {cache.get(key)} in the writer after it counted up to {value}")
    board.close()


def watch_counters(
    link: Link, number: int, directory: Path, board_path: Path, given: Options, writers: int
) -> list[str]:
    """Read the counters until the writers are done; return what was less than acknowledged or than read before."""
    board = Board(board_path)

    def read() -> list[str]:
        seen = [0] * KEYS
        found: list[str] = []
        while not board.ended() and not found:
            for key in range(KEYS):
                least = max(board[writer * KEYS + key] for writer in range(writers))
                value = cache.get(key, -1)
                if value < max(least, seen[key]):
                    found.append(f"key {key}: read {value}, acknowledged {least}, read before {seen[key]}")
                seen[key] = max(value, seen[key])
        return found

    with opened(directory, given) as cache:
        ready(link)
        found = in_threads(1 + number, read)
    board.close()
    return found


def run_counters(
    crew: Crew, tmp_path: Path, board: Board, given: Options, how: str = "", steps: int = 240
) -> list[str]:
    """Let three processes count and two watch; return what the watchers found."""
    directory, board_path, writers = tmp_path / "cache", tmp_path / "board", 3
    with opened(directory, given) as cache:
        cache.set_many(dict.fromkeys(range(KEYS), 0), retry=True)
        watchers = crew.start_many(2, watch_counters, directory, board_path, given, writers)
        counters = crew.start_many(writers, count_up, directory, board_path, given, how, steps)
        crew.together([*watchers, *counters])
        try:
            crew.results(counters)
        finally:
            board.end()
        found = sum(crew.results(watchers), [])
        if not how:
            assert sum(cache.get(key) for key in range(KEYS)) == writers * steps, "an increment was lost"
            assert cache.check() == []
    return found


@pytest.mark.parametrize("hot", [True, False], ids=["hot", "cold"])
def test_nobody_reads_less_than_was_acknowledged(
    crew: Crew, tmp_path: Path, board: Board, kind: str, hot: bool
) -> None:
    assert run_counters(crew, tmp_path, board, options(kind, hot)) == []


def test_watching_counters_notices_writers_that_mark_nothing(crew: Crew, tmp_path: Path, board: Board) -> None:
    """The negative control: the watchers keep what they read, and nothing ever tells them that it is old."""
    try:
        found = run_counters(crew, tmp_path, board, options("one"), "silent", steps=600)
    except AssertionError as error:  # a writer noticed first, at the counters of the others
        found = [str(error)]
    assert any("key" in each for each in found)


def change_everything(link: Link, directory: Path, board_path: Path, given: Options, rounds: int) -> None:
    """Take every key through all that can happen to an entry, announcing each state and acknowledging each step."""
    board = Board(board_path)
    step = 0

    def take(operation: Callable[[], object], value: int, changed: range = range(KEYS)) -> None:
        nonlocal step
        for key in range(KEYS):
            now = board.held(key, step) or 0
            board.announce(key, step + 1, value if key in changed else now)
        operation()
        step += 1
        for key in range(KEYS):
            board.acknowledge(key, step)

    def transacted(value: int, fail: bool) -> None:
        try:
            with cache.transact(retry=True):
                for key in range(KEYS):
                    cache.set(key, value)
                if fail:
                    raise ZeroDivisionError
        except ZeroDivisionError:
            return

    with opened(directory, given) as cache:
        ready(link)
        for value in range(1, 8 * rounds, 8):
            for key in range(KEYS):
                one = range(key, key + 1)
                take(lambda key=key, value=value: cache.set(key, value, expire=FAR, retry=True), value, one)
                take(lambda key=key: cache.incr(key, retry=True), value + 1, one)
            take(lambda: cache.expire(time.time() + 2 * FAR, retry=True), 0)
            for key in range(KEYS):
                take(
                    lambda key=key, value=value: cache.add(key, value + 2, tag="t", retry=True),
                    value + 2,
                    range(key, key + 1),
                )
            take(lambda: cache.evict("t", retry=True), 0)
            take(lambda value=value: transacted(value + 3, fail=False), value + 3)
            take(lambda value=value: transacted(value + 4, fail=True), value + 3)
            for key in range(KEYS):
                take(lambda key=key: cache.pop(key, retry=True), 0, range(key, key + 1))
            take(lambda value=value: cache.set_many(dict.fromkeys(range(KEYS), value + 5), retry=True), value + 5)
            for key in range(KEYS):
                take(lambda key=key: cache.touch(key, 0, retry=True), 0, range(key, key + 1))
            take(lambda value=value: cache.set_many(dict.fromkeys(range(KEYS), value + 6), retry=True), value + 6)
            take(lambda: cache.clear(retry=True), 0)
            for key in range(KEYS):
                take(lambda key=key, value=value: cache.set(key, value + 7, retry=True), value + 7, range(key, key + 1))
                take(lambda key=key: cache.delete(key, retry=True), 0, range(key, key + 1))
    board.close()


def watch_changes(link: Link, number: int, directory: Path, board_path: Path, given: Options) -> list[str]:
    """Read the keys until the writer is done; return what they did not hold between the looks before and after."""
    board = Board(board_path)

    def read() -> list[str]:
        found: list[str] = []
        while not board.ended() and not found:
            for key in range(KEYS):
                before = board.acknowledged(key)
                value = cache.get(key, 0)
                after = board.acknowledged(key)
                # The step after the last acknowledged one may have been taken, but not yet been acknowledged.
                allowed = {board.held(key, step) for step in range(before, after + 2)} | ({0} if before == 0 else set())
                if value not in allowed and after - before < RING - 2:
                    found.append(f"key {key}: read {value} in steps {before} to {after + 1}, which held {allowed}")
        return found

    with opened(directory, given) as cache:
        ready(link)
        found = in_threads(1 + number, read)
    board.close()
    return found


def make_noise(link: Link, directory: Path, board_path: Path, given: Options) -> None:
    """Write other keys, which share their slots with those that are watched, until the end."""
    board = Board(board_path)
    with opened(directory, given) as cache:
        ready(link)
        for number in itertools.count():
            if board.ended():
                break
            cache.set(("noise", number % 50), number, retry=True)
    board.close()


@pytest.mark.parametrize("hot", [True, False], ids=["hot", "cold"])
def test_no_removal_or_rollback_is_missed(crew: Crew, tmp_path: Path, board: Board, kind: str, hot: bool) -> None:
    directory, given = tmp_path / "cache", options(kind, hot)
    with opened(directory, given):
        others = [(directory, tmp_path / "board", given)]
        watchers = crew.start_many(2, watch_changes, *others[0])
        writer = crew.start(change_everything, *others[0], 12)
        noise = crew.start(make_noise, *others[0])
        crew.together([*watchers, writer, noise])
        try:
            writer.result()
        finally:
            board.end()
        assert sum(crew.results(watchers), []) == []
        noise.result()


def write_pairs(link: Link, directory: Path, given: Options, rounds: int) -> None:
    """Write two keys within one transaction, again and again; every third time undo it."""
    with opened(directory, given) as cache:
        ready(link)
        for number in range(1, rounds):
            try:
                with cache.transact(retry=True):
                    cache.set("left", number)
                    if number % 5 == 0:
                        cache.delete("left")
                        cache.set("left", number)
                    cache.set("right", number)
                    if number % 3 == 0:
                        raise ZeroDivisionError
            except ZeroDivisionError:
                continue


def watch_pairs(link: Link, number: int, directory: Path, board_path: Path, given: Options) -> list[str]:
    """Read both keys, within a transaction and without one; return what was torn or went back."""
    board = Board(board_path)
    found: list[str] = []
    last = 0
    with opened(directory, given) as cache:
        ready(link)
        while not board.ended() and not found:
            with cache.transact(retry=True):
                left, right = cache.get("left"), cache.get("right")
            if left != right:
                found.append(f"a transaction read {left} and {right}")
            if left % 3 == 0 and left:
                found.append(f"{left} was rolled back and read")
            for _ in range(20):
                one = cache.get("left")
                other = cache.get("right")  # read later, so it cannot be of an older transaction
                if not last <= one <= other:
                    found.append(f"read {last}, then {one} and {other}")
                last = other if number % 2 else one
    board.close()
    return found


@pytest.mark.parametrize("hot", [True, False], ids=["hot", "cold"])
def test_transactions_are_seen_whole_or_not_at_all(
    crew: Crew, tmp_path: Path, board: Board, kind: str, hot: bool
) -> None:
    directory, given = tmp_path / "cache", options(kind, hot)
    with opened(directory, given) as cache:
        cache.set_many({"left": 0, "right": 0}, retry=True)
        watchers = crew.start_many(2, watch_pairs, directory, tmp_path / "board", given)
        writer: Worker = crew.start(write_pairs, directory, given, 200)
        crew.together([*watchers, writer])
        try:
            writer.result()
        finally:
            board.end()
        assert sum(crew.results(watchers), []) == []
        assert cache.get("left") == cache.get("right") == 199
