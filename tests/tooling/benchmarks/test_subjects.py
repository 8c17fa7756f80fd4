"""The contract that every subject of the benchmark keeps, against the real servers, and what is known of each."""

from __future__ import annotations

import multiprocessing
import os
import select
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.peers import adapters
from benchmarks.peers import spec as specs
from benchmarks.peers.catalogue import SUBJECTS, Available, Candidate, available
from benchmarks.peers.servers import SERVERS, running, version
from benchmarks.peers.spec import (
    OURS,
    BenchmarkError,
    MissingFeature,
    MissingSubject,
    Spec,
    bulk,
    feature,
    feature_or_none,
    load_items,
)
from benchmarks.workloads.scenarios import SCENARIOS
from benchmarks.workspace import Workspace

MEGABYTE = bytes(range(256)) * 4096
OBJECTS = {
    "dictionary": {f"field {number}": "x" * 100 for number in range(100)},
    "records": [
        {"id": number, "name": f"name {number}", "score": number / 7, "tags": ["a", "b"]} for number in range(50)
    ],
    "number": 7,
    "nothing inside": {},
}


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Available]:
    """Return the subjects that can be measured here, their servers running."""
    with available(SUBJECTS, Workspace(tmp_path_factory.mktemp("subjects"))) as found:
        if "cachekit" in found.specs:  # starts the thread that it keeps for the life of the process
            with found.specs["cachekit"].opened(tmp_path_factory.mktemp("cachekit")) as subject:
                feature(subject, "memoize")()(len)(())
        yield found


@pytest.fixture
def spec(here: Available, name: str) -> Spec:
    """Return a subject with its server, or skip it for the reason that a run would print."""
    for absence in here.absences:
        if absence.subject == name:
            (pytest.fail if absence.failed else pytest.skip)(absence.reason)
    return here.specs[name]


@pytest.fixture
def opened(spec: Spec, tmp_path: Path) -> Iterator[Any]:
    """Return the subject, open and empty."""
    with spec.opened(tmp_path / "subject") as subject:
        if clear := feature_or_none(subject, "clear"):
            clear()  # a server's memory
        yield subject


# They differ from one that takes every test in a setting only, and opening shards takes long.
TWINS = {name for name in SUBJECTS if name.startswith("fanout-")} - {"fanout-8-10ms"}


# What a subject cannot do at all; `push` stands for the queue, `evict` for tags.
LACKS = {
    "diskcache-fanout-8": {"push"},
    "diskcache-fanout-4-1s": {"push"},
    "pysciqlop": {"push"},
    "cachekit": {"incr", "push", "get_many", "set_many", "clear", "evict"},
    "memcached": {"push", "evict", "memoize"},
    "redis": {"evict", "memoize"},
    "lmdb": {"push", "evict", "memoize"},
    "sqlitedict": {"incr", "push", "get_many", "evict", "memoize"},
    "django-file": {"push", "evict", "memoize"},
    "django-memory": {"push", "evict", "memoize"},
    "lru-cache": {"set", "delete", "incr", "push", "get_many", "evict"},
    "cachebox": {"incr", "push", "get_many", "evict"},
}
FEATURES = {"incr", "push", "clear", "evict", "memoize"}


def everyone(*features: str) -> pytest.MarkDecorator:
    """Run a test for each subject that offers all the features; twins take only the test of what all have to do."""
    found = [name for name in SUBJECTS if not {*features} & LACKS.get(name, set())]
    whole = features == ("set", "delete")
    return pytest.mark.parametrize("name", [name for name in found if whole or name not in TWINS])


def test_every_subject_is_in_a_scenario_under_a_label_of_its_own() -> None:
    measured = {name for one in SCENARIOS.values() for step in (*one.steps, 0) for name in one.subjects_at(step)}
    assert set(SUBJECTS) == measured
    assert len({one.label for one in SUBJECTS.values()}) == len(SUBJECTS)


def test_a_missing_module_class_or_method_is_named(tmp_path: Path) -> None:
    with pytest.raises(MissingSubject, match=r"cannot import no_such_module_.*install it with: pip install it"):
        Spec("it", "no_such_module_", "pip install it").load()
    with pytest.raises(MissingFeature, match="it has no Cache"):
        Spec("it", "json", "").open(tmp_path)
    with pytest.raises(MissingSubject, match="pip install one-that-is-missing"):
        adapters.client("one_that_is_missing", "one-that-is-missing")
    changed = OURS.having(a=1, b=2).having("FanoutCache", b=3)
    assert (changed.kind, dict(changed.settings), OURS.settings) == ("FanoutCache", {"a": 1, "b": 3}, ())


@everyone("set", "delete")
def test_it_keeps_what_is_set_until_it_is_deleted(opened: Any) -> None:
    assert opened.get("missing") is None
    opened.delete("missing")
    for key in ("text", b"bytes"):
        for value in (b"first", b"second", b"", b"\x00\xff\n"):
            opened.set(key, value)
            assert opened.get(key) == value
            assert type(opened.get(key)) is bytes
        opened.delete(key)
        assert opened.get(key) is None
    opened.set("large", MEGABYTE)
    assert opened.get("large") == MEGABYTE
    for number in range(20):
        opened.set(f"t{number}", b"%d" % number)
        opened.set(b"b%d" % number, b"%d" % -number)
    assert [opened.get(f"t{number}") for number in range(20)] == [b"%d" % number for number in range(20)]
    assert [opened.get(b"b%d" % number) for number in range(20)] == [b"%d" % -number for number in range(20)]


@everyone()
def test_it_is_filled_in_batches(opened: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for size in ("LOAD_MANY", "LOAD_BATCH"):
        monkeypatch.setattr(specs, size, 10)
    load_items(opened, ((f"key:{number}", b"%d" % number) for number in range(25)))
    assert [opened.get(f"key:{number}") for number in range(26)] == [*(b"%d" % number for number in range(25)), None]
    if clear := feature_or_none(opened, "clear"):
        clear()
        assert [opened.get("key:0"), opened.get("key:24")] == [None, None]


@pytest.mark.parametrize("name", ["diskcache-rs", "django-memory", "lru-cache", "cachebox"])
def test_no_default_limit_on_entries_is_left(opened: Any) -> None:
    load_items(opened, ((f"key:{number}", b"x") for number in range(1000)))
    assert [number for number in range(1000) if opened.get(f"key:{number}") is None] == []


@everyone()
def test_what_it_cannot_do_is_said(name: str, opened: Any) -> None:
    lacks = LACKS.get(name, set())
    for one in FEATURES:
        assert bool(feature_or_none(opened, one)) is (one not in lacks), one
    assert bool(feature_or_none(opened, "pull")) is ("push" not in lacks)
    for one in {"get_many", "set_many"} & lacks:
        with pytest.raises(MissingFeature):
            bulk(opened, one)


@everyone("incr")
def test_it_counts(opened: Any) -> None:
    assert [opened.incr("counter") for _ in range(12)] == list(range(1, 13))
    assert opened.incr("another") == 1


@everyone("push")
def test_it_queues(opened: Any) -> None:
    for value in (b"first", b"second"):
        opened.push(value)
    assert [opened.pull()[1] for _ in range(3)] == [b"first", b"second", None]


@everyone("get_many", "set_many")
def test_it_reads_and_writes_many_at_once(opened: Any) -> None:
    items = {f"key:{number}": b"%d" % number for number in range(100)}
    get_many, set_many = (bulk(opened, one) for one in ("get_many", "set_many"))
    set_many(items)
    assert get_many([*items, "missing"]) == items
    set_many({"key:0": b"new"})
    assert get_many(["key:0", "missing"]) == {"key:0": b"new"}
    assert opened.get("key:0") == b"new"


@everyone("evict")
def test_it_evicts_by_tag(opened: Any) -> None:
    for number in range(10):
        opened.set(f"key:{number}", b"x", tag="even" if number % 2 == 0 else "odd")
    opened.evict("even")
    assert [opened.get(f"key:{number}") for number in range(10)] == [None, b"x"] * 5


@everyone("memoize")
def test_it_memoizes(opened: Any) -> None:
    calls = []

    def double(number: int) -> int:
        calls.append(number)
        return number * 2

    cached = opened.memoize()(double)
    assert [cached(2), cached(2), cached(3), cached(2)] == [4, 4, 6, 4]
    assert calls == [2, 3]


@everyone("set")
def test_it_keeps_objects(name: str, spec: Spec, tmp_path: Path) -> None:
    with spec.having(objects=True).opened(tmp_path / "objects") as subject:
        for key, value in OBJECTS.items():
            key = key.replace(" ", "-")
            subject.set(key, value)
            assert subject.get(key) == value
            assert type(subject.get(key)) is type(value)
        assert subject.get("missing") is None
        if not {"get_many", "set_many"} & LACKS.get(name, set()):
            bulk(subject, "set_many")({"many": OBJECTS["records"]})
            assert bulk(subject, "get_many")(["many", "missing"]) == {"many": OBJECTS["records"]}


def look(spec: Spec, directory: Path, found: Any) -> None:
    with spec.opened(directory) as subject:
        found.put(subject.get("key"))


@pytest.mark.parametrize("name", ["cache", "cachebox"])
def test_only_a_shared_one_is_seen_by_other_processes(name: str, spec: Spec, tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    with spec.opened(tmp_path / "subject") as subject:
        subject.set("key", b"value")
        answers = context.SimpleQueue()
        process = context.Process(target=look, args=(spec, tmp_path / "subject", answers))
        process.start()
        process.join()
        assert answers.get() == (b"value" if SUBJECTS[name].shared else None)
        answers.close()
        process.close()


@pytest.mark.parametrize("name", ["cache", "fanout-8-10ms", "diskcache", "memcached", "redis", "cachebox", "pysciqlop"])
def test_calls_are_the_librarys_own(opened: Any, spec: Spec) -> None:
    for call in (opened.get, opened.set):
        assert not (call.__module__ or "").startswith("benchmarks"), "a wrapper would be measured along"


def test_lru_cache_says_that_nothing_in_it_can_be_changed(tmp_path: Path) -> None:
    with SUBJECTS["lru-cache"].spec.opened(tmp_path) as subject:
        assert subject.get("a") is None
        load_items(subject, [("a", b"1"), ("b", b"2")])
        load_items(subject, [("b", b"3")])
        assert [subject.get("a"), subject.get("b")] == [b"1", b"3"]
        with pytest.raises(MissingFeature, match="set_many"):
            subject.set("a", b"2")
        with pytest.raises(MissingFeature, match="delete"):
            subject.delete("a")


class Absent:
    """Stand for a subject whose client is not installed."""

    def __init__(self, directory: str) -> None:
        adapters.client("one_that_is_missing", "one-that-is-missing")


class Broken:
    """Stand for a subject that is installed and does not work."""

    def __init__(self, directory: str) -> None:
        raise OSError("out of order")


def test_what_cannot_be_measured_is_left_out_with_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in (Absent, Broken):
        candidate = Candidate(Spec(kind.__name__, __name__, "", kind.__name__), kind.__name__)
        monkeypatch.setitem(SUBJECTS, kind.__name__.lower(), candidate)
    with available(["cachebox", "lru-cache", "absent", "broken"], Workspace(tmp_path)) as found:
        assert "lru-cache" in found.specs
        absent, broken = (one for one in found.absences if one.subject in ("absent", "broken"))
    assert "pip install one-that-is-missing" in absent.reason
    assert (absent.failed, broken.failed) == (False, True)
    assert broken.reason == "OSError: out of order"
    assert list(tmp_path.iterdir()) == []


def test_a_server_that_cannot_run_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert version("redis") == ""
    with pytest.raises(MissingSubject, match="apt-get install memcached"), running("memcached", tmp_path / "server"):
        pass
    (tmp_path / "redis-server").write_text(f"#!{sys.executable}\nimport sys; print('v=7.0.15'); sys.exit(7)")
    (tmp_path / "redis-server").chmod(0o700)
    assert version("redis") == "7.0.15"
    with pytest.raises(BenchmarkError, match="status 7"), running("redis", tmp_path / "server"):
        pass
    with pytest.raises(BenchmarkError, match="shorter path"), running("redis", tmp_path / ("long" * 30)):
        pass
    assert SERVERS["memcached"].arguments("socket", 64)[2:4] == ["-m", "64"]
    assert "--maxmemory" not in SERVERS["redis"].arguments("socket", None)


@pytest.mark.parametrize("name", ["memcached", "redis"])
class TestServers:
    @pytest.fixture
    def limited(self, name: str, tmp_path: Path) -> Iterator[Any]:
        try:
            with running(name, tmp_path / "server", megabytes=64) as server:
                yield server
        except MissingSubject as missing:
            pytest.skip(str(missing))

    @pytest.fixture
    def client(self, name: str, limited: Any, tmp_path: Path) -> Iterator[Any]:
        try:
            with SUBJECTS[name].spec.having(socket=str(limited.socket)).opened(tmp_path) as subject:
                yield subject
        except MissingSubject as missing:
            pytest.skip(str(missing))

    def test_a_limit_on_memory_evicts_the_oldest_and_what_it_uses_is_told(self, limited: Any, client: Any) -> None:
        for number in range(100):
            client.set(f"key:{number}", MEGABYTE[:-100])
        before = limited.usage()
        kept = [client.get(f"key:{number}") is not None for number in range(100)]
        assert kept[-1]
        assert 30 < sum(kept) < 70
        # The system counts in steps of 10 ms: read until it has counted one more.
        reads = (client.get("key:99") for _ in range(10_000))
        assert any(limited.usage().cpu_seconds > before.cpu_seconds for _ in reads)
        after = limited.usage()
        assert 30 << 20 < after.resident < 200 << 20

    def test_one_that_dies_is_told_and_does_not_disturb(self, limited: Any, capsys: pytest.CaptureFixture[str]) -> None:
        with running(limited.program.removesuffix("-server"), limited.socket.parent / "other") as server:
            os.kill(server.process.pid, signal.SIGKILL)
            server.process.wait()
            with pytest.raises(BenchmarkError, match="SIGKILL"):
                server.usage()
        assert f"{limited.program} ended with status -9 (SIGKILL)" in capsys.readouterr().err

    def test_it_dies_with_a_run_that_is_killed(self, name: str, limited: Any, tmp_path: Path) -> None:
        context = multiprocessing.get_context("spawn")
        pids = context.SimpleQueue()
        process = context.Process(target=start_and_die, args=(name, tmp_path / "killed", pids))
        process.start()
        process.join()
        assert process.exitcode == -signal.SIGKILL
        assert ended(pids.get())
        pids.close()
        process.close()


def start_and_die(name: str, directory: Path, pids: Any) -> None:
    with running(name, directory) as server:
        pids.put(server.process.pid)
        os.kill(os.getpid(), signal.SIGKILL)


def ended(pid: int) -> bool:
    """Wait until a process that is not our child has ended."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([descriptor], [], [], 10)[0])
    finally:
        os.close(descriptor)
