"""Damage: a cache that meets it says so once, goes on without what is lost, and never gives a wrong value."""

from __future__ import annotations

import os
import shutil
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from diskcache_like import Cache, FanoutCache
from diskcache_like.errors import CorruptDatabase, CorruptDatabaseWarning, DecodeError

from .forging import DAMAGE, ENTRIES, STEPS, Step, damage, fill, snapshot, value_files
from .processes import Crew, Link

QUICK: dict[str, Any] = {"durability": "process", "generation_slots": 1 << 10}
MAKERS = pytest.mark.parametrize("make", [Cache, FanoutCache])


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Return the directory of a closed cache with something of every sort in it."""
    with closing(Cache(tmp_path / "cache", **QUICK)) as cache:
        fill(cache)
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the same, to be copied."""
    path = tmp_path_factory.mktemp("original") / "cache"
    with closing(Cache(path, **QUICK)) as cache:
        fill(cache)
        cache.create_tag_index()
    return path


@contextmanager
def said_once(directory: Path, epoch: int = 1) -> Iterator[None]:
    """Assert that the body warns once, naming the damaged database and the one that the cache goes on in."""
    old = directory / (f"cache.{epoch - 1}.db" if epoch > 1 else "cache.db")
    new = directory / f"cache.{epoch}.db"
    with pytest.warns(CorruptDatabaseWarning) as caught:
        yield
    (warning,) = caught
    assert str(old) in str(warning.message)
    assert str(new) in str(warning.message)


def state(path: Path) -> tuple[object, ...]:
    """Return what must stay of a file that is set aside: itself, its content, and its time of change."""
    return path.stat().st_ino, snapshot(path)[str(path)]


# -- at opening -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", DAMAGE)
def test_a_damaged_database_is_set_aside_at_opening(directory: Path, how: str) -> None:
    for epoch in (1, 2, 3):
        damaged = directory / ("cache.db" if epoch == 1 else f"cache.{epoch - 1}.db")
        damage(damaged, how)
        before = state(damaged)
        with said_once(directory, epoch):
            cache = Cache(directory)
            opened = cache.get("a")
        with closing(cache):
            assert opened is None
            assert len(cache) == 0
            cache["a"] = epoch
            with closing(Cache(directory)) as other:
                assert other["a"] == epoch
        assert state(damaged) == before
    with closing(Cache(directory)) as cache:
        assert dict(cache.get_many(["a", "b"])) == {"a": 3}
        cache.check(fix=True)  # the value files of what was lost
        assert cache.check() == []
    assert value_files(directory) == []


def test_only_the_damaged_shard_is_emptied(tmp_path: Path) -> None:
    directory = tmp_path / "cache"
    with closing(FanoutCache(directory, shards=4, **QUICK)) as cache:
        for number in range(200):
            cache[number] = number
    damage(directory / "002" / "cache.db", "header")
    with said_once(directory / "002"):
        cache = FanoutCache(directory)
    with closing(cache):
        left = [number for number in range(200) if cache.get(number) == number]
        assert 100 < len(left) < 200
        for number in range(200):
            cache[number] = -number
        assert [cache[number] for number in range(200)] == [-number for number in range(200)]
        assert cache.check() == []


def test_every_shard_may_be_damaged(tmp_path: Path) -> None:
    with closing(FanoutCache(tmp_path / "cache", shards=3, **QUICK)) as cache:
        cache["a"] = 1
    for number in range(3):
        damage(tmp_path / "cache" / f"{number:03d}" / "cache.db", "everything")
    with pytest.warns(CorruptDatabaseWarning) as caught:
        cache = FanoutCache(tmp_path / "cache", shards=8)
    with closing(cache):
        assert len(caught) == 3
        assert not (tmp_path / "cache" / "003").exists()
        cache["a"] = 2
    with closing(FanoutCache(tmp_path / "cache")) as cache:
        assert cache["a"] == 2


def test_a_secret_is_kept_by_the_next_database(tmp_path: Path) -> None:
    secret = "a secret for tests"
    with closing(Cache(tmp_path / "cache", secret=secret, **QUICK)) as cache:
        cache["a"] = 1
    damage(tmp_path / "cache" / "cache.db", "header")
    with said_once(tmp_path / "cache"):
        cache = Cache(tmp_path / "cache", secret=secret)
    with closing(cache):
        cache["a"] = 2
    with closing(Cache(tmp_path / "cache", secret=secret)) as cache:
        assert cache["a"] == 2


class Strict(Cache):
    """A cache whose entries are not to be replaced by nothing, as Deque and Index are."""

    _RECOVER = False


@pytest.mark.parametrize("how", DAMAGE)
def test_who_does_not_want_an_empty_cache_gets_the_error(directory: Path, how: str) -> None:
    damage(directory / "cache.db", how)
    before = state(directory / "cache.db")
    with pytest.raises(CorruptDatabase, match=rf"{directory}/cache\.db"):
        Strict(directory)
    assert state(directory / "cache.db") == before
    assert not (directory / "cache.1.db").exists()


def test_a_database_that_was_removed_is_not_made_anew_under_its_name(directory: Path) -> None:
    with closing(Cache(directory)) as holder:
        assert holder["b"] == {"some": ["nested", "data"]}
        for path in directory.glob("cache.db*"):
            path.unlink()
        with said_once(directory), closing(Cache(directory)) as cache:
            cache["a"] = "new"
        assert holder["a"] == "new"  # who had the removed one open has followed
        assert "b" not in holder


# -- in use -----------------------------------------------------------------------------------------------------------

IDLE = {"stats", "no eviction", "reset"}  # may not have to look at what is damaged


def use_damaged(original: Path, directory: Path, step: Step, how: str) -> None:
    """Damage a database that a handle has open, run an operation, and see that all is well afterwards."""
    shutil.copytree(original, directory)
    with closing(Cache(directory, hot_size_limit=0)) as cache:
        assert cache["a"] == "text"
        damage(directory / "cache.db", how)
        before = state(directory / "cache.db")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                step.run(cache)
            except KeyError:  # "cache is empty"
                assert step.name == "peekitem"
            kept = cache.get_many([number + 10 for number in range(100)])
            cache["after"] = 1
            assert cache["after"] == 1
        assert kept.items() <= {number + 10: f"{number} " * 20 for number in range(100)}.items()
        assert {warning.category for warning in caught} <= {CorruptDatabaseWarning}
        assert len(caught) == 1
        assert state(directory / "cache.db") == before
        assert cache.check(fix=True) is not None
        assert cache.check() == []
    with closing(Cache(directory)) as cache:
        assert cache["after"] == 1


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.name)
def test_every_operation_goes_on_in_an_empty_cache(original: Path, tmp_path: Path, step: Step) -> None:
    kinds = list(DAMAGE)
    use_damaged(original, tmp_path / "cache", step, kinds[STEPS.index(step) % len(kinds)])


@pytest.mark.parametrize("how", DAMAGE)
def test_every_damage_is_noticed_by_readers_and_writers(original: Path, tmp_path: Path, how: str) -> None:
    for name in ("get", "set", "pull", "iteration", "check"):
        (step,) = (step for step in STEPS if step.name == name)
        use_damaged(original, tmp_path / name, step, how)


def write_and_read(cache: Cache) -> None:
    with cache.transact():
        cache["a"] = "new"
        list(cache)


def test_a_transaction_ends_with_the_error_and_the_next_one_works(directory: Path) -> None:
    with closing(Cache(directory)) as cache:
        damage(directory / "cache.db", "zeroed pages")
        with said_once(directory), pytest.raises(CorruptDatabase, match=r"cache\.db"):
            write_and_read(cache)
        with cache.transact():
            assert "a" not in cache
            cache["a"] = "newer"
        assert cache["a"] == "newer"


def test_threads_that_meet_the_same_damage_set_it_aside_once(directory: Path) -> None:
    with closing(Cache(directory, hot_size_limit=0)) as cache:
        cache["warm"] = 1
        start, errors = threading.Barrier(8), []

        def work(number: int) -> None:
            start.wait()
            try:
                for round_ in range(20):
                    cache.get(("other", round_))
                    cache[number, round_] = round_
                    assert cache[number, round_] == round_
            except BaseException as error:
                errors.append(error)

        damage(directory / "cache.db", "everything")
        with said_once(directory):
            threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert errors == []
        assert len(cache) == 160
        assert cache.check(fix=True) is not None
    assert sorted(path.name for path in directory.glob("*.db")) == ["cache.1.db", "cache.db"]


def other_process(link: Link, directory: Path) -> list[object]:
    """Hold a cache, answer what is asked of it, and return the warnings that were given."""
    with warnings.catch_warnings(record=True) as caught, closing(Cache(directory)) as cache:
        warnings.simplefilter("always")
        while (order := link.hear()) is not None:
            name, *arguments = order
            link.tell(getattr(cache, name)(*arguments))
    return [warning.category.__name__ for warning in caught]


@pytest.mark.parametrize("first", ["here", "there"])
def test_another_process_follows(directory: Path, first: str) -> None:
    with Crew() as crew, closing(Cache(directory)) as cache:
        worker = crew.start(other_process, directory)

        def there(*order: object) -> Any:
            worker.tell(order)
            return worker.hear()

        assert there("get", "a") == cache["a"] == "text"  # hot in both
        damage(directory / "cache.db", "everything")
        if first == "here":
            with said_once(directory):
                cache["met"] = 1
        else:
            there("set", "met", 1)
        assert there("get", "met") == cache["met"] == 1
        assert there("get", "a") is None
        assert "a" not in cache
        there("set", "a", "theirs")
        assert cache["a"] == "theirs"
        cache["a"] = "ours"
        assert there("get", "a") == "ours"
        assert there("incr", "n") == 1
        assert cache.incr("n") == 2
        worker.tell(None)
        assert worker.result() == ([] if first == "here" else ["CorruptDatabaseWarning"])


# -- value files ------------------------------------------------------------------------------------------------------


def _link(path: Path, target: str) -> None:
    path.rename(path.with_name("moved"))
    path.symlink_to(target)


def _directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


FILES: dict[str, Callable[[Path], object]] = {
    "missing": Path.unlink,
    "missing with its directory": lambda path: shutil.rmtree(path.parent),
    "empty": lambda path: path.write_bytes(b""),
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-1]),
    "longer": lambda path: path.write_bytes(path.read_bytes() + b"!"),
    "flipped": lambda path: path.write_bytes(path.read_bytes()[:-1] + b"y"),
    "link": lambda path: _link(path, "moved"),
    "dangling link": lambda path: _link(path, "nowhere"),
    "second name": lambda path: path.with_name("second").hardlink_to(path),
    "directory": _directory,
    "FIFO": _fifo,
    "linked directory": lambda path: _link(path.parent, "moved"),
}


@pytest.mark.parametrize("how", FILES)
@pytest.mark.parametrize("value", [b"x" * 50_000, "x" * 50_000], ids=["bytes", "text"])
def test_a_value_file_that_is_not_as_written(tmp_path: Path, how: str, value: object) -> None:
    directory = tmp_path / "cache"
    with closing(Cache(directory, hot_size_limit=0, **QUICK)) as cache:
        cache["a"] = value
        (path,) = value_files(directory)
        cache["b"] = value
        FILES[how](path)
        assert cache.get("a", "missing") == "missing"
        assert cache.get("a", "missing", read=True) == "missing"
        assert cache.pop("a", "missing") == "missing"
        missing = how in ("missing", "missing with its directory")
        assert (cache.metrics.missing_files, cache.metrics.damaged) == ((3, 0) if missing else (0, 3))
        assert cache["b"] == value
        problems = [str(problem.message) for problem in cache.check()]
        assert any(str(directory) in problem and "entry" in problem for problem in problems)
        assert cache.get("a") is None  # looking alone has mended nothing
        cache.check(fix=True)
        cache.check(fix=True)  # what an odd thing left behind when its entry went
        assert cache.check() == []
        assert list(cache) == ["b"]
        assert cache["b"] == value
        cache["a"] = value
        assert cache["a"] == value


def test_a_damaged_value_file_can_be_replaced_and_deleted(tmp_path: Path) -> None:
    for number, (name, change) in enumerate(FILES.items()):
        with closing(Cache(tmp_path / f"{number}", **QUICK)) as cache:
            cache["a"], cache["b"] = b"x" * 50_000, b"y" * 50_000
            for path in value_files(tmp_path / f"{number}"):
                if path.is_file() and not path.is_symlink():
                    change(path)
            cache["a"] = "new"
            assert cache["a"] == "new", name
            assert cache.delete("b") is True, name
            assert list(cache) == ["a"], name


def test_strict_raises_for_a_damaged_file(tmp_path: Path) -> None:
    with closing(Cache(tmp_path / "cache", strict=True, hot_size_limit=0)) as cache:
        cache["a"] = b"x" * 50_000
        (path,) = value_files(tmp_path)
        FILES["flipped"](path)
        with pytest.raises(DecodeError, match=r"'a'.*does not match its checksum"):
            cache.get("a")


def test_a_reader_that_has_the_file_open_keeps_it(tmp_path: Path) -> None:
    with closing(Cache(tmp_path / "cache")) as cache:
        cache["a"] = b"x" * 50_000
        with cache.read("a") as reader:
            cache.clear()
            cache.cull()
            assert reader.read() == b"x" * 50_000


# -- generations and the board ----------------------------------------------------------------------------------------


def with_header(words: dict[int, int], slots: int | None = None) -> Callable[[bytes], bytes]:
    """Return a change of words in the header of a generation file, and of all slots if that is given."""

    def change(data: bytes) -> bytes:
        content = memoryview(bytearray(data)).cast("Q")
        for place, value in words.items():
            content[place] = value
        if slots is not None:
            for place in range(512, len(content)):
                content[place] = slots
        return content.tobytes()

    return change


GENERATIONS: dict[str, Callable[[bytes], bytes] | None] = {
    "deleted": None,
    "cut to nothing": lambda _: b"",
    "cut to an odd size": lambda data: data[:4097],
    "cut to the header": lambda data: data[:4096],
    "cut in half": lambda data: data[: len(data) // 2],
    "longer": lambda data: data + bytes(4096),
    "zeros": lambda data: bytes(len(data)),
    "all ones": lambda data: b"\xff" * len(data),
    "noise": lambda data: bytes(number * 7 % 251 for number in range(len(data))),
    "all odd": with_header({}, 12345),
    "all odd and huge": with_header({}, 2**64 - 1),
    "all even and huge": with_header({}, 2**64 - 2),
    "impossible epoch": with_header({4: 2**63}),
    "huge tick": with_header({16: 2**64 - 1, 26: 2**64 - 1}),
    "other boot": with_header({3: 1}),
    "false count": with_header({25: 7}),
    "died in between": with_header({16: 10, 17: 10, 26: 9}),
    "no room left": with_header({20: 0, 21: 2**63, 24: 2**63}),
    "false modulus": with_header(dict.fromkeys(range(34, 64), 2**60 + 1)),
}


@MAKERS
@pytest.mark.parametrize("how", GENERATIONS)
def test_generations_that_are_not_as_written_lose_nothing(tmp_path: Path, make: type[Cache], how: str) -> None:
    stored = {number: f"value {number}" for number in range(50)}
    with closing(make(tmp_path / "cache", **QUICK)) as cache:
        cache.set_many(stored)
    change = GENERATIONS[how]
    for path in (tmp_path / "cache").rglob("cache.gen"):
        if change is None:
            path.unlink()
        else:
            path.write_bytes(change(path.read_bytes()))
    with closing(make(tmp_path / "cache")) as cache, closing(make(tmp_path / "cache")) as other:
        assert cache.get_many(stored) == other.get_many(stored) == stored
        for number in range(50):
            cache[number] = number
            assert other[number] == number
        assert cache.check(fix=True) is not None  # a count that was false is reported
        assert len(cache) == len(other) == 50
        assert cache.check() == []


@pytest.mark.parametrize("how", ["deleted", "cut to nothing", "cut to an odd size", "longer", "all ones", "noise"])
def test_a_board_that_is_not_as_written_changes_no_answer(directory: Path, how: str) -> None:
    change, path = GENERATIONS[how], directory / "cache.board"
    if not path.exists():
        pytest.skip("this machine has no board")
    if change is None:
        path.unlink()
    else:
        path.write_bytes(change(path.read_bytes()))
    with closing(Cache(directory)) as cache, closing(Cache(directory)) as other:
        assert cache["a"] == "text"
        cache["a"] = "new"
        assert other["a"] == "new"
        assert len(cache) == ENTRIES
