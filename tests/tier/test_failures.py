"""What a cache does while the server that it shares is slow or gone, and what it refuses."""

from __future__ import annotations

import re
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis

from diskcache_like import (
    Cache,
    FanoutCache,
    MissingDependency,
    Remote,
    RemoteError,
    RemoteWarning,
    SettingError,
)
from diskcache_like.tier import state
from diskcache_like.tier.server import address_of
from diskcache_like.tier.state import Word, boottime

from ..support.flaky_proxy import FlakyProxy
from ..support.redis_servers import RedisServer, redis_sentinel, redis_server
from .machines import NAMESPACE, PATIENT, SECRET, Machines, counted, is_up, until

QUICK: dict[str, Any] = {"timeout": 0.2, "connect_timeout": 0.2}


def gone(proxy: FlakyProxy) -> None:
    """Let the server be gone for who comes by the proxy."""
    proxy.refuse()
    proxy.cut()


# -- opening ----------------------------------------------------------------------------------------------------------


def test_without_a_server_a_cache_opens_with_a_warning_and_joins_it_later(
    machines: Machines, proxy: FlakyProxy
) -> None:
    proxy.refuse()
    with pytest.warns(RemoteWarning, match="no answer from the server") as said:
        here = machines.open("a", server=proxy.url, **QUICK)
    assert len(said) == 1
    assert here.get("k", "missing") == "missing"
    with pytest.raises(RemoteError, match="no answer"):
        here.set("k", 1)
    proxy.accept()
    until(lambda: is_up(here), "it is heard of")
    until(lambda: _stores(here), "it writes")
    assert machines.open("b")["k"] == 1


def _stores(cache: Cache) -> bool:
    try:
        return cache.set("k", 1)
    except RemoteError:
        return False


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("namespace", ""),
        ("namespace", None),
        ("namespace", "x" * 201),
        ("on_error", "ignore"),
        ("timeout", 0),
        ("timeout", -1),
        ("timeout", float("nan")),
        ("connect_timeout", "1"),
        ("max_staleness", -0.1),
        ("max_staleness", float("inf")),
        ("max_staleness", True),
        ("stale_if_error", None),
        ("lease", 0),
        ("max_value", -1),
        ("max_value", 1.5),
        ("max_requests", 0),
    ],
)
def test_bad_arguments_are_named(name: str, value: Any) -> None:
    with pytest.raises(SettingError, match=name):
        Remote("redis://127.0.0.1:1", **{"namespace": NAMESPACE, name: value})


@pytest.mark.parametrize("name", ["write", "breaker_errors", "breaker_open"])
def test_arguments_that_there_are_not_are_refused(name: str) -> None:
    arguments: dict[str, Any] = {"namespace": NAMESPACE, name: 5}
    with pytest.raises(TypeError, match=name):
        Remote("redis://127.0.0.1:1", **arguments)


@pytest.mark.parametrize(
    "address", ["http://localhost", "redis+cluster://localhost", "redis+sentinel://localhost", 5, None]
)
def test_addresses_that_are_none_are_refused(tmp_path: Path, address: Any) -> None:
    with pytest.raises(SettingError, match=r"server|cluster"):
        Cache(tmp_path, remote=Remote(address, namespace=NAMESPACE, secret=SECRET))


def test_what_is_no_remote_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="expected a Remote"):
        Cache(tmp_path, remote="redis://localhost")  # type: ignore[arg-type]


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "redis", None)
    with pytest.raises(MissingDependency, match=r"pip install 'diskcache-like\[redis\]'"):
        Cache(tmp_path, remote=Remote("redis://localhost", namespace=NAMESPACE, secret=SECRET))


def test_nothing_of_a_server_is_imported_without_it() -> None:
    import subprocess

    code = "import sys, diskcache_like; diskcache_like.Cache().close(); print([n for n in sys.modules if 'tier' in n])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_a_pickled_handle_has_no_secret(machines: Machines, monkeypatch: pytest.MonkeyPatch) -> None:
    import pickle

    monkeypatch.setenv("DISKCACHE_LIKE_SECRET", SECRET)
    here = machines.open("a")
    here["k"] = 1
    carried = pickle.dumps(here)
    assert SECRET.encode() not in carried
    with pickle.loads(carried) as again:
        assert again["k"] == 1


# -- while it is gone -------------------------------------------------------------------------------------------------


def test_a_request_takes_its_timeout_at_most(machines: Machines, proxy: FlakyProxy) -> None:
    here = machines.open("a", server=proxy.url, timeout=0.3, connect_timeout=0.3, max_staleness=0)
    here["k"] = 1
    assert here["k"] == 1
    proxy.freeze()
    began = time.monotonic()
    with pytest.raises(RemoteError):
        here.set("k", 2)
    assert here.get("k") is None
    assert time.monotonic() - began < 0.3 * 2 * 3 + 5  # some attempts each; the rest is a busy machine
    proxy.thaw()


@pytest.mark.parametrize(
    ("on_error", "age", "served"),
    [("local", 20, True), ("local", 50.2, False), ("miss", 20, False), ("raise", 20, False)],
)
def test_a_read_without_an_answer_does_what_it_is_told_to(
    machines: Machines, proxy: FlakyProxy, on_error: str, age: float, served: bool
) -> None:
    here = machines.open("a", server=proxy.url, on_error=on_error, stale_if_error=50.0, max_staleness=0.1, **QUICK)
    until(lambda: is_up(here), "it is heard of")
    here["k"] = 1
    until(lambda: counted(here, "invalidations"), "it hears of its own write")
    until(lambda: here.get("k") == 1 and here._hot.entries, "it is kept")
    gone(proxy)
    until(lambda: here.remote.stats().state != "up", "the lease ends")
    here.remote.state.header[Word.LEASE] = max(boottime() - int(age * 1e9), 1)
    if on_error == "raise":
        with pytest.raises(RemoteError, match="'k'"):
            here.get("k")
    else:
        assert here.get("k") == (1 if served else None)
    if served:
        assert here.get_entry("k").version == 0  # nobody has confirmed it
        assert counted(here, "stale_served") >= 2


@pytest.mark.parametrize("call", ["delete", "pop", "delete_many", "add", "set_if_absent", "get", "clear"])
def test_a_node_that_was_demoted_decides_nothing(machines: Machines, server: RedisServer, call: str) -> None:
    here, there = machines.pair(on_error="raise", timeout=0.5)
    there["present"] = 1
    calls: dict[str, Callable[[], object]] = {
        "delete": lambda: here.delete("missing"),
        "pop": lambda: here.pop("missing"),
        "delete_many": lambda: here.delete_many(["missing", "missing, too"]),
        "add": lambda: here.add("present", 2),
        "set_if_absent": lambda: here.set("present", 2, if_version=None),
        "get": lambda: here.get("missing"),
        "clear": here.clear,
    }
    if call == "clear":
        server.ask("FLUSHALL")
    server.follow_nobody_there()  # others may have written to the primary that took over
    with pytest.raises(RemoteError):
        calls[call]()


def test_nobody_asks_a_server_that_is_gone_until_one_has_found_it_again(
    machines: Machines, proxy: FlakyProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state, "PAUSE", 500_000_000)
    first, second = (machines.open("a", server=proxy.url, **QUICK) for _ in range(2))
    first["k"] = 1
    gone(proxy)
    until(lambda: first.remote.stats().state != "up", "it is noticed")
    while second.remote.stats().state != "down":
        first.get("other")
    failed = counted(first, "errors")
    refused = counted(second, "refused")
    until(lambda: second.get("another") or counted(second, "refused") > refused, "a request is not made")
    assert counted(first, "errors") <= failed + 1
    proxy.accept()
    until(lambda: _stores(second), "it is asked again")
    until(lambda: is_up(first), "it is up")


def test_a_sum_is_added_once_or_it_is_said_that_nobody_knows(machines: Machines, proxy: FlakyProxy) -> None:
    here, there = machines.open("a", server=proxy.url, **QUICK), machines.open("b")
    there["n"] = 0
    known = unknown = 0
    for number in range(60):
        if number % 10 == 5:
            proxy.cut()
        try:
            here.incr("n")
            known += 1
        except RemoteError:
            unknown += 1
    assert known <= there.get("n") <= known + unknown
    assert known


def test_a_server_that_was_restarted_is_found_again_and_empty(machines: Machines, server: RedisServer) -> None:
    here, there = machines.pair()
    here["k"] = 1
    assert there["k"] == 1
    server.restart()
    until(lambda: _stores(here), "it writes again")
    until(lambda: is_up(here) and is_up(there), "it is heard of")
    until(lambda: there.get("k") == 1, "the other machine reads")
    assert here.get("k") == 1


def test_a_server_that_stands_still_holds_nobody_for_long(machines: Machines, server: RedisServer) -> None:
    here = machines.open("a", max_staleness=0.2, **QUICK)
    here["k"] = 1
    server.stop()
    until(lambda: here.remote.stats().state != "up", "the lease ends")
    assert here.get("k") is None
    with pytest.raises(RemoteError):
        here.incr("n")
    server.go_on()
    until(lambda: _stores(here), "it writes again")


def test_more_requests_than_allowed_wait_their_turn(machines: Machines) -> None:
    from concurrent.futures import ThreadPoolExecutor

    here = machines.open("a", max_requests=2, max_staleness=0)
    with ThreadPoolExecutor(16) as pool:
        assert all(pool.map(lambda number: here.set(number, number), range(200)))
    assert here.get_many(range(200)) == {number: number for number in range(200)}


# -- ways to a server -------------------------------------------------------------------------------------------------


def test_a_unix_socket(machines: Machines, server: RedisServer) -> None:
    here = machines.open("a", server=server.unix_url)
    here["k"] = 1
    assert machines.open("b")["k"] == 1


def test_a_client_object_is_taken_whatever_it_decodes(machines: Machines, server: RedisServer) -> None:
    client = redis.Redis.from_url(server.url, decode_responses=True)
    here = machines.open("a", server=client)
    here["k"] = b"\xff\x00"
    until(lambda: is_up(here), "it is heard of")
    assert machines.open("b")["k"] == b"\xff\x00"
    client.close()


def test_each_server_has_a_state_of_its_own_and_no_password_in_its_name() -> None:
    sentinel: Any = redis.Sentinel([("127.0.0.1", 1)])  # type: ignore[no-untyped-call]
    servers = [
        *("redis://:hidden@one:1/0", "redis://:hidden@one:2/0", "redis://:hidden@one:1/1", "unix:///socket"),
        *(redis.Redis(port=port, db=db, password="hidden") for port in (1, 2) for db in (0, 1)),
        *(sentinel.master_for(service, db=db, password="hidden") for service in ("a", "b") for db in (0, 1)),
    ]
    names = [address_of(server) for server in servers]
    assert len(set(names)) == len(servers)
    assert not any("hidden" in name for name in names)
    assert address_of("redis://:another@one:1/0") == names[0]


def test_tls(tmp_path: Path) -> None:
    with redis_server(tls=True) as made:
        machines = Machines(made.url, tmp_path)
        here, there = machines.pair()
        here["k"] = 1
        assert there["k"] == 1
        until(lambda: is_up(here), "it is heard of")
        machines.close()


def test_a_primary_that_is_replaced_is_found_by_its_sentinel(tmp_path: Path) -> None:
    with redis_sentinel() as made:
        machines = Machines(made.client(), tmp_path)
        here, there = machines.open("a", **PATIENT), machines.open("b", **PATIENT)
        here["k"] = 1
        assert there["k"] == 1
        made.fail_over()
        until(lambda: _stores(here), "it writes to the new primary")
        until(lambda: there.get("k") == 1 and is_up(there), "the other machine reads there")
        machines.close()


@pytest.mark.parametrize("kind", [Cache, FanoutCache])
def test_dropped_caches_leave_no_thread(machines: Machines, tmp_path: Path, server: RedisServer, kind: Any) -> None:
    import gc
    import threading

    before = set(threading.enumerate())
    cache = kind(tmp_path / "c", remote=Remote(server.url, namespace=NAMESPACE, secret=SECRET))
    cache["k"] = 1
    assert set(threading.enumerate()) - before
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        del cache
        gc.collect()
    until(lambda: not set(threading.enumerate()) - before, "its threads end")


def test_a_user_needs_no_more_rights_than_the_guide_says(tmp_path: Path) -> None:
    page = Path(__file__).parents[2] / "docs" / "machines.md"
    (rule,) = re.findall(r"ACL SETUSER shop ([^`]+)```", page.read_text())
    rights = f"-@all {rule.replace('PASSWORD', 'secret')}".replace("\n", " ")
    with redis_server(users={"app": rights}) as made:
        machines = Machines(made.url_for("app", "secret"), tmp_path)
        here, there = machines.pair()
        until(lambda: is_up(here) and is_up(there), "they are heard of")
        here.set("k", 1, expire=60, tags=["a", "b"])
        assert there.incr("k") == 2
        assert there.touch("k", None)
        until(lambda: here["k"] == 2, "it hears of it")
        assert there.get_or_set("computed", lambda: 3, 60) == 3
        there.evict("a")
        until(lambda: here.get("k") is None, "it hears of the eviction")
        assert here.delete("computed")
        here.clear()
        machines.close()


def test_a_user_who_may_not_track_asks_each_time(tmp_path: Path) -> None:
    """Nothing vouches for a copy then, which `stats()` tells; `max_staleness=None` needs no tracking."""
    with redis_server(users={"app": "on >secret ~dl:* +@all -client"}) as made:
        machines = Machines(made.url_for("app", "secret"), tmp_path)
        here, there = machines.pair()
        for number in range(10):
            here["k"] = number
            assert there["k"] == number
        until(lambda: counted(there, "errors"), "it is counted")
        assert (there.remote.stats().state, counted(there, "connections")) == ("silent", 0)
        unbound = machines.open("c", max_staleness=None)
        assert unbound["k"] == 9
        assert (unbound["k"], unbound.remote.stats().state) == (9, "up")
        machines.close()


# -- what a server refuses --------------------------------------------------------------------------------------------


def test_a_write_that_a_full_server_refuses_is_an_error_and_nowhere(tmp_path: Path) -> None:
    with redis_server({"maxmemory": "3mb", "maxmemory-policy": "noeviction"}) as made:
        machines = Machines(made.url, tmp_path)
        here = machines.open("a", max_staleness=0.2, stale_if_error=1e6)
        there = machines.open("b")
        here["k"] = 1
        until(lambda: here["k"] == 1 and is_up(here), "it is confirmed")
        with pytest.raises(RemoteError, match="maxmemory"):
            for number in range(100):
                here[number] = bytes([number]) * 200_000
        with pytest.raises(RemoteError, match="maxmemory"):
            here["k"] = b"refused" * 50_000
        assert here["k"] == there["k"] == 1
        assert here.check() == there.check() == []
        made.kill()
        until(lambda: here.remote.stats().state != "up", "the lease ends")
        assert here.get("k") in (1, None)  # never what was refused
        machines.close()


def test_a_lost_comparison_leaves_nothing_that_is_served_without_the_server(
    machines: Machines, server: RedisServer
) -> None:
    here, there = machines.open("a", max_staleness=0.2, stale_if_error=1e6), machines.open("b")
    here["k"] = "first"
    version = here.get_entry("k").version
    there["k"] = "second"
    assert here.set("k", "lost", if_version=version) is False
    assert here.add("k", "lost") is False
    server.kill()
    until(lambda: here.remote.stats().state != "up", "the lease ends")
    assert here.get("k") in ("second", None)


def test_a_server_that_forgets_its_scripts_is_told_them_again(machines: Machines, server: RedisServer) -> None:
    here, there = machines.pair()
    here["k"] = 1
    server.ask("SCRIPT", "FLUSH")
    assert there["k"] == 1
    server.ask("SCRIPT", "FLUSH")
    assert there.incr("k") == 2
    server.ask("SCRIPT", "FLUSH")
    assert here.pop("k") == 2


def test_a_user_whose_password_is_wrong_is_an_error_that_says_so(tmp_path: Path) -> None:
    with redis_server(users={"app": "on >secret ~dl:* +@all"}) as made:
        machines = Machines(made.url_for("app", "wrong"), tmp_path)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RemoteWarning)
            here = machines.open("a")
        with pytest.raises(RemoteError, match=r"(?i)password"):
            here["k"] = 1
        machines.close()
