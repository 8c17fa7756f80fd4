"""Writes that are stored on their machine at once, and sent to the server later."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from diskcache_like import ENOVAL, Cache, DiskFull, FanoutCache, RemoteWarning, Timeout
from diskcache_like.coherence.generations import NEVER
from diskcache_like.encoding.made_keys import PINNED
from diskcache_like.encoding.tags import index_name
from diskcache_like.storage.sqlite.statements import PAGE_ROWS
from diskcache_like.tier.behind import SLICE, Behind, Sender, is_unsent

from ..support.cache_kinds import NEEDS_CIPHER, QUICK, SECRET
from ..support.flaky_proxy import FlakyProxy
from ..support.tampering import database
from .machines import Machines, counted, until


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no thread send: what waits is sent by `flush` alone."""
    monkeypatch.setattr(Sender, "start", lambda self: None)


def waiting(cache: Cache) -> int:
    """Return how many entries wait to be sent."""
    return sum(len(page) for shard in cache.remote._shards for page in shard.waiting())


def test_a_write_is_here_at_once_and_there_later(machines: Machines, held: None) -> None:
    here, there = machines.open("a", write="behind"), machines.open("b")
    assert here.set("k", {"v": 1}, expire=60, tag="t")
    assert here.get("k", tag=True) == ({"v": 1}, "t")
    assert there.get("k") is None
    here.remote.flush()
    assert there.get("k", tag=True) == ({"v": 1}, "t") or until(lambda: there.get("k") == {"v": 1}, "it arrives")
    assert here.get("k") == {"v": 1}
    assert counted(here, "sent_later") == 1


def test_sending_asks_the_server_for_nothing_else(machines: Machines, held: None) -> None:
    here = machines.open("a", write="behind")
    here["k"] = 1
    before = counted(here, "requests")
    here.remote.flush()
    assert counted(here, "requests") == before + 1
    assert here.delete("k")
    before = counted(here, "requests")
    here.remote.flush()
    assert counted(here, "requests") == before + 1


def test_a_thread_sends_what_waits(machines: Machines) -> None:
    here, there = machines.open("a", write="behind"), machines.open("b")
    here["k"] = 1
    until(lambda: there.get("k") == 1, "it arrives")


def test_the_last_write_of_a_key_is_sent(machines: Machines, held: None) -> None:
    here, there = machines.open("a", write="behind"), machines.open("b")
    for number in range(10):
        here["k"] = number
        here.incr("n")
    here.remote.flush()
    assert (there["k"], there["n"]) == (9, 10)
    assert counted(here, "sent_later") == 2


def test_every_operation_sees_what_has_not_been_sent(machines: Machines, held: None) -> None:
    here = machines.open("a", write="behind")
    here["k"] = 1
    assert not here.add("k", 2)
    assert here.add("new", 3)
    assert here.incr("k") == 2
    assert here.touch("k", 100)
    assert here.retag("k", add=["t"])
    assert here.get("k", expire_time=True)[1] is not None
    assert here.get_many(["k", "new"]) == {"k": 2, "new": 3}
    assert here.pop("k") == 2
    assert "k" not in here
    assert here.pop("k", ENOVAL) is ENOVAL
    assert here.delete("new")
    assert not here.delete("new")
    assert here.add("new", 4)
    entry = here.get_entry("new")
    assert entry.value == 4


def test_a_removal_is_sent(machines: Machines, held: None) -> None:
    here, there = machines.open("a", write="behind"), machines.open("b")
    there["k"], there["other"] = 1, 2
    assert here.delete("k")
    assert here.get("k") is None
    assert there.get("k") == 1
    here.remote.flush()
    until(lambda: there.get("k") is None, "the removal arrives")
    assert len(here) == 0 or list(here) == []
    assert there["other"] == 2


def test_what_expires_before_it_is_sent_is_not_sent(machines: Machines, held: None) -> None:
    clock = [1_000_000.0]
    here, there = machines.open("a", write="behind", clock=lambda: clock[0]), machines.open("b")
    here.set("k", 1, expire=10)
    clock[0] += 11
    here.remote.flush()
    assert counted(here, "dropped") == 1
    assert there.get("k") is None


def test_the_last_to_arrive_wins(machines: Machines, held: None) -> None:
    here, there = machines.open("a", write="behind"), machines.open("b")
    here["k"] = "here"
    there["k"] = "there"
    assert here["k"] == "here"
    here.remote.flush()
    until(lambda: there["k"] == "here", "it arrives")


def test_without_a_server_writes_go_on_and_arrive_when_it_is_back(machines: Machines, proxy: FlakyProxy) -> None:
    here = machines.open("a", server=proxy.url, write="behind", timeout=0.2, stale_if_error=1e6)
    there = machines.open("b")
    here["before"] = 0
    until(lambda: there.get("before") == 0, "it arrives")
    proxy.refuse()
    proxy.cut()
    here["k"] = 1
    assert here.delete("before")
    assert (here.get("k"), here.get("before"), here.incr("n")) == (1, None, 1)
    assert here.pop("k") == 1
    here["k"] = 2
    proxy.accept()
    until(lambda: there.get("k") == 2 and there.get("n") == 1 and there.get("before") is None, "all arrives")


def test_large_and_tagged_values_are_sent(machines: Machines, held: None) -> None:
    here, there = machines.open("a", write="behind"), machines.open("b")
    here.set("large", b"x" * 100_000, tags=["a", "b"])
    here.namespace("users")["ada"] = {"born": 1815}
    here.remote.flush()
    assert there.get_entry("large").tags == ("a", "b")
    assert there["large"] == b"x" * 100_000
    assert there.namespace("users")["ada"] == {"born": 1815}
    assert here.get_entry("large").tags == ("a", "b")
    there.evict("a")
    until(lambda: here.get("large") is None, "the eviction arrives")


WRITER = """
import sys
from diskcache_like import Cache, Remote
from diskcache_like.tier.behind import Sender
Sender.start = lambda self: None
cache = Cache(sys.argv[1], remote=Remote(sys.argv[2], namespace="shop", secret="a secret of all machines", write="behind"))
number = 0
while True:
    cache["n"] = number
    cache[number] = number
    print(number, flush=True)
    number += 1
"""


def test_what_a_killed_process_was_told_of_is_sent_by_the_next(machines: Machines) -> None:
    arguments = [sys.executable, "-c", WRITER, str(machines.place("a")), machines.server]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        told = -1
        for line in writer.stdout:
            told = int(line)
            if told == 50:
                writer.send_signal(signal.SIGKILL)
        writer.wait()
    here, there = machines.open("a", write="behind"), machines.open("b")
    until(lambda: waiting(here) == 0, "all is sent")
    assert there["n"] >= told
    assert there.get_many(range(told + 1)) == {number: number for number in range(told + 1)}


def test_two_processes_of_a_machine_count_exactly(machines: Machines, held: None) -> None:
    first, second = machines.open("a", write="behind"), machines.open("a", write="behind")
    for _ in range(20):
        first.incr("n")
        second.incr("n")
    assert first["n"] == second["n"] == 40


def test_an_unsent_entry_survives_a_plain_handle(machines: Machines, held: None) -> None:
    here = machines.open("a", write="behind")
    here["k"] = 1
    here.close()
    with Cache(machines.place("a")) as plain:
        assert plain["k"] == 1
        assert plain.get_entry("k").tags == ()
        assert not plain.check()


def test_what_is_written_all_the_time_holds_up_neither_a_flush_nor_the_rest(
    machines: Machines, held: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = machines.open("a", write="behind"), machines.open("b")
    numbers = dict.fromkeys(range(2 * SLICE), 0)
    here.set_many(numbers)
    settle = Behind._settle

    def written_meanwhile(self: Behind, place: Any, record: Any) -> None:
        here.incr(place.key)
        settle(self, place, record)

    monkeypatch.setattr(Behind, "_settle", written_meanwhile)
    here.remote.flush()
    assert there.get_many(numbers) == numbers
    assert waiting(here) == len(numbers)


@pytest.mark.parametrize("write", ["through", "invalidate"])
def test_what_waited_when_the_mode_was_changed_is_sent(
    machines: Machines, monkeypatch: pytest.MonkeyPatch, write: str
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Sender, "start", lambda self: None)
        before = machines.open("a", write="behind")
        before["k"] = before["n"] = 1
        before.close()
    here, there = machines.open("a", write=write), machines.open("b")
    until(lambda: there.get("k") == 1, "it arrives")
    until(lambda: not any(is_unsent(record) for record in records(here)), "nothing waits")
    assert here["k"] == 1
    assert here.incr("n") == 2
    assert here.remote.threads[1:], "a sender"
    here.close()
    assert not machines.open("a", write=write).remote._shards, "nothing is left to be sent"


def records(cache: Cache) -> list[Any]:
    """Return the records on this machine."""
    found = [(store, rows) for store in cache._shards.stores for rows in store.reader.pages(PAGE_ROWS, 100)]
    return [cache._rows.unpacked(store, row[1], row[11]) for store, rows in found for row in rows]


@pytest.mark.parametrize("write", ["through", "invalidate"])
def test_an_entry_that_has_not_been_sent_is_not_changed_as_if_it_had_been(
    machines: Machines, held: None, write: str
) -> None:
    before = machines.open("a", write="behind")
    before["k"] = 1
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Behind, "_settle", lambda *_: None)  # as if it were killed before it notes that it has sent
        before.remote.flush()
    before.close()
    here, there = machines.open("a", write=write), machines.open("b")
    assert here.touch("k", 1000)
    assert not any(is_unsent(record) for record in records(here))
    if write == "through":
        assert there["k"] == 1
        assert not any(is_unsent(record) for record in records(there))


def test_a_write_that_this_machine_cannot_store_says_so(machines: Machines, held: None) -> None:
    here: Any = machines.open("a", write="behind", timeout=0.1)
    other = Cache(machines.place("a"))
    with other.transact(), pytest.raises(Timeout):
        here._session.timeout = 0.01
        here.remote.timeout = 0.01
        here.set("k", 1)
    other.close()


def test_without_a_server_from_the_start(machines: Machines, proxy: FlakyProxy) -> None:
    proxy.refuse()
    with pytest.warns(RemoteWarning):
        here = machines.open("a", server=proxy.url, write="behind", timeout=0.2)
    here["k"] = os.getpid()
    proxy.accept()
    there = machines.open("b")
    until(lambda: there.get("k") == os.getpid(), "it arrives")


# -- beside a full cache ----------------------------------------------------------------------------------------------

BIG = "x" * 20_000
LIMIT = 1_000_000
POLICIES = ["least-recently-stored", "least-recently-used", "least-frequently-used"]
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "sealed": {"encrypt": True},
    "shards": {"kind": partial(FanoutCache, shards=2)},
}


@pytest.fixture(autouse=True)
def own_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISKCACHE_LIKE_SECRET", SECRET)


every_policy = pytest.mark.parametrize("policy", POLICIES)
every_kind = pytest.mark.parametrize(
    "kind", [pytest.param(name, marks=NEEDS_CIPHER if name == "sealed" else ()) for name in KINDS]
)


def full(machines: Machines, kind: str, policy: str, **options: Any) -> Any:
    """Return a machine that sends later, with a small cache, which it shares with one that has more room."""
    options = {"write": "behind", "eviction_policy": policy, "size_limit": LIMIT, **KINDS[kind], **options}
    return machines.open("a", **options)


def crowd(there: Cache, here: Cache, name: str) -> None:
    """Let copies of what another machine has written fill a cache several times over."""
    for number in range(150):
        there[f"{name} {number}"] = BIG
        assert here[f"{name} {number}"] == BIG


def kept(cache: Cache, name: str) -> int:
    """Return how many entries of that name lie on this machine."""
    return sum(key.startswith(name) for key in cache)


@every_policy
@every_kind
def test_what_waits_is_not_evicted_before_it_is_sent(machines: Machines, held: None, kind: str, policy: str) -> None:
    here = full(machines, kind, policy)
    there = machines.open("b", **{**KINDS[kind], "kind": Cache})
    there["removed"] = here["overwritten"] = 1
    here.remote.flush()
    here["overwritten"] = 2
    assert here.delete("removed")
    waits = {f"waits {number}": number for number in range(10)} | {f"large {number}": BIG for number in range(5)}
    here.set_many(waits)
    assert here.touch("waits 0", 1000)
    assert here.retag("waits 1", add=["t"])
    crowd(there, here, "first")
    crowd(there, here, "second")
    assert 0 < kept(here, "first") + kept(here, "second") < 100, "the rest is evicted"
    assert here.get_many(waits) == waits
    assert waiting(here) == 17
    here.remote.flush()
    assert there.get_many(waits) == waits
    assert there["overwritten"] == 2
    until(lambda: there.get("removed") is None, "the removal arrives")
    assert not here.check()
    ranks = [rank for store in here._shards.stores for (rank,) in store.select("SELECT rank FROM entry")]
    assert None in ranks
    assert NEVER not in ranks, "what was sent is ranked as what is new"
    crowd(there, here, "third")
    assert here.volume() <= LIMIT * 1.05
    here.size_limit = 10
    assert here.cull() > 20
    assert len(here) == 0, "what was sent may go"
    assert not here.check()


@every_policy
@every_kind
def test_a_cache_in_which_all_waits_grows_until_it_is_sent(
    machines: Machines, held: None, kind: str, policy: str
) -> None:
    here = full(machines, kind, policy)
    for number in range(100):
        here[number] = BIG
        assert here[number // 2] == BIG
    assert len(here) == waiting(here) == 100
    assert here.volume() > LIMIT * 1.5
    assert here.cull() == 0
    here.remote.flush()
    assert machines.open("b", **{**KINDS[kind], "kind": Cache}).get_many(range(100)) == dict.fromkeys(range(100), BIG)
    assert here.cull() > 40
    assert here.volume() <= LIMIT
    assert not here.check()


@every_policy
def test_on_a_full_disk_what_waits_stays_too(
    machines: Machines, held: None, policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = full(machines, "plain", policy)
    there = machines.open("b")
    for number in range(4):
        here[f"waits {number}"] = number
    for number in range(4):
        there[f"sent {number}"] = number
        assert here[f"sent {number}"] == number
    here.flush()  # a flush would meet the full disk before any rank does
    (store,) = here._shards.stores
    monkeypatch.setattr(type(store.connection), "execute_many", full_disk)
    with store.locked(None):
        places = store.evictor.victims(10 * LIMIT)
    gone = {here._rows.locate(f"sent {number}")[1].home for number in range(4)}
    assert places
    assert set(places) <= gone
    monkeypatch.undo()
    with store.locked(None):
        for _ in range(2):
            assert set(store.evictor.victims(10 * LIMIT)) <= gone
            monkeypatch.setattr(type(store.connection), "execute_many", None)  # no rank is written a second time


def full_disk(*_: object) -> None:
    raise DiskFull("no room on the disk", "")


@pytest.mark.parametrize("rank", ["NULL", "0", "-1e300", "9223372036854775807", "'text'", "x'ff'", "1e300"])
@pytest.mark.parametrize("tags", [index_name(PINNED), f"a {index_name(PINNED)} b", index_name(PINNED).encode()])
@every_policy
def test_a_column_that_was_planted_keeps_nobody_waiting(
    tmp_path: Path, policy: str, tags: str | bytes, rank: str
) -> None:
    with Cache(tmp_path, **QUICK, eviction_policy=policy, size_limit=LIMIT) as cache:
        for number in range(30):
            cache[number] = BIG
    with database(tmp_path) as connection:
        connection.execute(f"UPDATE entry SET tags = ?, rank = {rank}", (tags,))
    with Cache(tmp_path) as cache:
        for number in range(100):
            cache[f"new {number}"] = BIG
        assert cache["new 99"] == BIG
        assert cache.volume() <= LIMIT * 1.01
        cache.check(fix=True)
        assert not cache.check()
