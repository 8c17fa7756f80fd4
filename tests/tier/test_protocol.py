"""What may be believed without asking, and what a write that is repeated does."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest

from diskcache_like import Cache, RemoteError, Timeout
from diskcache_like.tier import state
from diskcache_like.tier.scripts import DELETE, WRITE
from diskcache_like.tier.server import Unreachable
from diskcache_like.tier.state import Word, boottime

from .machines import Machines, counted, is_up, until

MINUTE = 60.0


@pytest.fixture
def refuse_requests(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], None]:
    """Return what keeps a machine from asking for a while; its listener goes on."""
    pause = int(MINUTE * 1e9)
    monkeypatch.setattr(state, "PAUSE", pause)

    def refuse(cache: Any) -> None:
        cache.remote.state.header[Word.ASK_AGAIN] = boottime() + pause

    return refuse


def test_nothing_with_a_tag_counts_after_every_word_was_renewed(machines: Machines) -> None:
    """All words get one number then, and those of an entry and its tag must not cancel each other out."""
    machines.open("a").set("k", "old", tag="t")
    here = machines.open("b", max_staleness=MINUTE)
    until(lambda: is_up(here), "up")
    assert here.get("k") == "old"
    requests = counted(here, "requests")
    assert here.get("k") == "old"
    assert counted(here, "requests") == requests
    here.remote.state.change_all()
    assert here.get("k") == "old"
    assert counted(here, "requests") == requests + 1


@pytest.mark.parametrize("stale_if_error", [0.0, MINUTE])
def test_what_was_heard_to_be_overwritten_is_not_served_without_an_answer(
    machines: Machines, refuse_requests: Callable[[Any], None], stale_if_error: float
) -> None:
    other, here = machines.pair(max_staleness=MINUTE, stale_if_error=stale_if_error)
    until(lambda: is_up(here), "up")
    other.set("k", "old")
    until(lambda: counted(here, "invalidations"), "heard of the first write")
    assert here.get("k") == "old"
    heard = counted(here, "invalidations")
    other.set("k", "new")
    until(lambda: counted(here, "invalidations") > heard, "heard of the write")
    refuse_requests(here)
    assert here.get("k") is None


def test_what_nobody_has_overwritten_is_served_stale_more_than_once(
    machines: Machines, refuse_requests: Callable[[Any], None]
) -> None:
    here = machines.open("a", max_staleness=0, stale_if_error=MINUTE)
    until(lambda: counted(here, "probes"), "probe")
    here.set("k", "value")
    assert here.get("k") == "value"
    until(lambda: counted(here, "invalidations"), "heard of its own write")
    assert here.get("k") == "value"
    refuse_requests(here)
    assert [here.get("k") for _ in range(3)] == ["value"] * 3


def test_clear_leaves_a_namespace_whose_name_begins_alike(machines: Machines) -> None:
    inner, outer = machines.open("a", namespace="n:m"), machines.open("b", namespace="n")
    inner.set("k", 1)
    outer.set("k", 2)
    outer.clear()
    assert machines.open("c", namespace="n:m").get("k") == 1
    assert machines.open("c", namespace="n").get("k") is None


def test_a_sum_is_not_added_twice_if_its_answer_is_lost(machines: Machines, monkeypatch: pytest.MonkeyPatch) -> None:
    other, here = machines.pair()
    here.set("k", 0)
    assert here.get("k") == 0
    server = here.remote.link.server
    run = server.run
    lost: list[int] = []

    def losing(script: Any, *arguments: Any) -> Any:
        answers = run(script, *arguments)
        if script is WRITE and not lost:
            lost.append(1)
            other.incr("k", 10)
            raise Unreachable("the answer is lost")
        return answers

    monkeypatch.setattr(server, "run", losing)
    with contextlib.suppress(RemoteError):
        here.incr("k", 1)
    assert other.get("k") == 11


def _count_to_fifty(cache: Any) -> None:
    for _ in range(50):
        cache.incr("k")


def test_increments_of_one_machine_are_atomic(machines: Machines) -> None:
    caches = [machines.open("a") for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(_count_to_fifty, c) for c in caches]:
            done.result()
    assert caches[0].get("k") == 200


@pytest.mark.parametrize("change", ["delete", "pop", "touch"])
def test_a_value_that_stays_here_outlives_a_change_of_the_one_before(
    machines: Machines, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    """Both have one version on the server, so only their rows tell them apart."""
    here, same = (machines.open("a", max_value=0) for _ in range(2))
    here["k"] = "old"
    assert here["k"] == "old"
    server = here.remote.link.server
    run = server.run

    def overtaken(script: Any, *arguments: Any) -> Any:
        answers = run(script, *arguments)
        if script in (WRITE, DELETE):
            same["k"] = "new"
        return answers

    monkeypatch.setattr(server, "run", overtaken)
    assert getattr(here, change)("k")
    monkeypatch.undo()
    assert same["k"] == here["k"] == "new"


def test_a_change_that_is_refused_is_never_read(machines: Machines, monkeypatch: pytest.MonkeyPatch) -> None:
    here, same = (machines.open("a", max_value=0, hot_size_limit=0) for _ in range(2))
    there = machines.open("b")
    here["k"] = "old"
    version = here.get_entry("k").version
    assert same["k"] == "old"
    server = here.remote.link.server
    run = server.run
    read: list[Any] = []

    def overtaken(script: Any, *arguments: Any) -> Any:
        if script is WRITE:
            read.append(same.get("k"))
            there["k"] = "theirs"
        return run(script, *arguments)

    monkeypatch.setattr(server, "run", overtaken)
    assert here.set("k", "refused", if_version=version) is False
    assert read == ["old"]
    assert same["k"] == "theirs"


def test_a_value_that_stays_here_is_not_lost_in_silence(machines: Machines) -> None:
    here = machines.open("a", max_value=0, timeout=10)
    here.remote.timeout = 0.01
    with Cache(machines.place("a")) as plain, plain.transact():
        try:
            stored = here.set("k", 1)
        except Timeout:
            stored = False
    assert here.get("k") == (1 if stored else None)


def test_a_write_that_gets_no_lock_tells_the_server_nothing(machines: Machines) -> None:
    """Else the value that is here counts again, and is older than that of another machine."""
    here = machines.open("a", partial(Cache, timeout=0), max_value=0, write_buffer=1 << 20)
    other = machines.open("b", max_value=0, write_buffer=1 << 20)
    here["k"] = "old"
    other["k"] = "new"
    until(lambda: here.get("k") is None, "the value here does not count any more")
    with Cache(machines.place("a")) as plain, plain.transact(), contextlib.suppress(Timeout):
        assert not here.set("k", "newest")
    assert here.get("k") is None
    assert other["k"] == "new"


@pytest.mark.parametrize("size", [1, 100_000])
def test_a_read_is_answered_while_the_database_here_is_being_written(machines: Machines, size: int) -> None:
    other, here = machines.pair()
    other.set("k", "x" * size)
    here.remote.timeout = 0.01
    with Cache(machines.place("b")) as plain, plain.transact():
        assert here.get("k") == "x" * size


def test_connections_that_were_lost_do_not_count_towards_the_most(machines: Machines) -> None:
    here = machines.open("a", server=f"{machines.server}?max_connections=2", on_error="raise")
    for number in range(5):
        here.get(number)
        here.remote.link.server.close()
