"""The one connection of a machine that hears what others have changed."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
from typing import Any

import pytest

from diskcache_like import Cache
from diskcache_like.tier.state import Word

from ..support.redis_servers import RedisServer
from .machines import SECRET, Machines, counted, is_up, until

HANDLE = """
import sys
from diskcache_like import Cache, Remote
cache = Cache(sys.argv[1], remote=Remote(sys.argv[2], namespace="shop", secret=sys.argv[3], max_staleness=0.3))
print("open", flush=True)
sys.stdin.read()
"""


def listening(server: RedisServer) -> int:
    """Return how many connections are told of changes."""
    found = server.ask("CLIENT", "LIST")
    clients = found.decode().splitlines() if isinstance(found, bytes) else found
    flags = [line if isinstance(line, str) else str(line) for line in clients]
    return sum("flags=" in line and "t" in line.split("flags=")[1].split(" ")[0] for line in flags)


def in_a_process(machines: Machines) -> subprocess.Popen[str]:
    """Open a handle on machine "a" in a process of its own."""
    arguments = [sys.executable, "-c", HANDLE, str(machines.place("a")), machines.server, SECRET]
    process = subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "open\n"
    return process


def test_a_machine_has_one_however_many_handles(machines: Machines, server: RedisServer) -> None:
    handles = [machines.open("a", max_staleness=0.3) for _ in range(3)]
    until(lambda: all(map(is_up, handles)), "they are heard of")
    with in_a_process(machines) as process:
        assert listening(server) == 1
        process.communicate()
    other = machines.open("b", max_staleness=0.3)
    until(lambda: is_up(other), "the other machine listens")
    assert listening(server) == 2


@pytest.mark.parametrize("end", ["closed", "killed"])
def test_another_handle_takes_over(machines: Machines, server: RedisServer, end: str) -> None:
    with in_a_process(machines) as process:
        here, there = machines.open("a", max_staleness=0.3), machines.open("b", max_staleness=0.3)
        until(lambda: is_up(here) and is_up(there), "they are heard of")
        connections = counted(here, "connections")
        if end == "killed":
            process.send_signal(signal.SIGKILL)
        process.communicate()
    until(lambda: counted(here, "connections") > connections and is_up(here), "it takes over")
    until(lambda: listening(server) == 2, "the old connection is gone")
    there["k"] = 1
    assert here["k"] == 1
    there["k"] = 2
    until(lambda: here["k"] == 2, "it hears of the change")


def test_a_closed_handle_listens_again_when_it_is_used(machines: Machines, server: RedisServer) -> None:
    here = machines.open("a")
    until(lambda: is_up(here), "it is heard of")
    here["k"] = 1
    here.close()
    until(lambda: listening(server) == 0, "it has gone")
    assert here["k"] == 1
    until(lambda: listening(server) == 1 and is_up(here), "it listens again")


def test_a_change_reaches_what_another_process_keeps_in_memory(machines: Machines) -> None:
    here, same, there = machines.open("a"), machines.open("a"), machines.open("b")
    there.set("k", 1, tags=["t"])
    until(lambda: here.get("k") == 1 and here._hot.entries, "it is kept")
    until(lambda: same.get("k") == 1 and same._hot.entries, "it is kept")
    there["k"] = 2
    until(lambda: (here["k"], same["k"]) == (2, 2), "they hear of it")
    there.set("k", 3, tags=["t"])
    until(lambda: (here["k"], same["k"]) == (3, 3), "they hear of it")
    there.evict("t")
    until(lambda: here.get("k") is None and same.get("k") is None, "they hear of the eviction")


def test_what_one_handle_writes_the_others_of_its_machine_see_at_once(machines: Machines) -> None:
    here, same = machines.open("a"), machines.open("a")
    for number in range(300):
        here["k"] = number
        assert same["k"] == number
        same.set("k", -number, tags=["t"])
        assert here["k"] == -number
        here.evict("t")
        assert same.get("k") is None
        assert here.add("k", 1)
        assert same.delete("k")
        assert here.get("k") is None


def test_whatever_the_server_forgets_is_forgotten(machines: Machines, server: RedisServer) -> None:
    here, there = machines.pair()
    until(lambda: is_up(here) and is_up(there), "they are heard of")
    there.set("k", 1)
    until(lambda: here.get("k") == 1 and here._hot.entries, "it is kept")
    server.ask("FLUSHALL")
    until(lambda: here.get("k") is None, "it hears of it")
    there.set("k", 2, expire=0.05)
    until(lambda: here.get("k") is None, "it expires")
    there["k"] = 3
    assert until(lambda: here.get("k") == 3, "it is read")
    name = next(name for name in server.ask("KEYS", "dl:shop:e*"))
    server.ask("DEL", name)
    until(lambda: here.get("k") is None, "it hears of what somebody has removed")


def test_after_its_connection_was_lost_nothing_from_before_counts(machines: Machines, server: RedisServer) -> None:
    here, there = machines.pair()
    there["k"] = 1
    until(lambda: here.get("k") == 1 and here._hot.entries, "it is kept")
    connections = counted(here, "connections")
    server.drop_clients()
    until(lambda: counted(here, "connections") > connections and is_up(here), "it connects again")
    confirmed = counted(here, "confirmed")
    assert here["k"] == 1
    assert counted(here, "confirmed") == confirmed + 1  # and the value did not travel


@pytest.mark.parametrize("max_staleness", [0, None])
def test_it_can_be_asked_each_time_or_never(
    machines: Machines, server: RedisServer, max_staleness: float | None
) -> None:
    here, there = machines.open("a", max_staleness=max_staleness), machines.open("b")
    there["k"] = 1
    assert here["k"] == 1
    there["k"] = 2
    if max_staleness == 0:
        assert here["k"] == 2
        requests = counted(here, "requests")
        assert [here["k"] for _ in range(3)] == [2, 2, 2]
        assert counted(here, "requests") == requests + 3
    else:
        assert here["k"] == 1  # until it expires, or somebody here writes
        here.set("k", 3)
        assert here["k"] == 3


def test_a_forked_child_hears_for_itself(machines: Machines, server: RedisServer) -> None:
    here, there = machines.open("a", max_staleness=0.3), machines.open("b")
    here["k"] = 1
    until(lambda: is_up(here), "it is heard of")
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        try:
            ok = here["k"] == 1 and here.set("forked", 2)
            ok = ok and "diskcache_like listener" in [thread.name for thread in threading.enumerate()]
            here.close()
            os.write(writer, b"ok" if ok else b"no")
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as said:
        assert said.read() == b"ok"
    os.waitpid(child, 0)
    assert there["forked"] == 2
    until(lambda: is_up(here), "the parent goes on")


def test_a_copied_directory_is_another_machine(machines: Machines) -> None:
    import shutil

    here = machines.open("a", max_value=10)
    here["k"] = "x" * 100
    here.close()
    shutil.copytree(machines.place("a"), machines.place("copy"))
    assert machines.open("copy", max_value=10).get("k") is None
    assert machines.open("a", max_value=10)["k"] == "x" * 100


def test_nothing_of_an_earlier_boot_is_believed(machines: Machines, monkeypatch: pytest.MonkeyPatch) -> None:
    from diskcache_like.tier import state
    from diskcache_like.tier.listener import Listener

    here = machines.open("a")
    here["k"] = 1
    until(lambda: is_up(here), "it is heard of")
    here.close()
    monkeypatch.setattr(Listener, "start", lambda self: None)
    monkeypatch.setattr(state, "boot_id", lambda: 12345)
    again = machines.open("a")
    assert again.remote.state.header[Word.LEASE] == 0
    assert again["k"] == 1


def test_a_cache_without_it_on_the_same_directory_changes_nothing_for_others(machines: Machines) -> None:
    here, there = machines.pair()
    here["n"] = 1
    assert here["n"] == 1
    with Cache(machines.place("a")) as plain:
        plain.incr("n")
        assert plain["n"] == 2
        plain.touch("n", 100)
    here._hot.clear()
    assert here["n"] == 1
    assert there["n"] == 1
    with Cache(machines.place("a")) as plain:
        plain["m"] = plain["o"] = 7
    assert here.get("m") is None
    assert here.incr("o") == 1  # no decision is made on what never came by way of the server


def test_the_command_line_tells_of_servers(machines: Machines, capsys: pytest.CaptureFixture[str]) -> None:
    from diskcache_like.cli.main import main

    here: Any = machines.open("a")
    here["k"] = 1
    until(lambda: is_up(here), "it is heard of")
    assert main(["stats", str(machines.place("a"))]) == 0
    said = capsys.readouterr().out
    assert "remote shop: up, heard" in said
    assert "requests" in said


def test_a_closed_cache_has_no_file_open(machines: Machines) -> None:
    here = machines.open("a")
    here["k"] = 1
    assert here["k"] == 1
    here.close()
    gc.collect()
    names = [os.path.realpath(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd")]
    assert [name for name in names if str(machines.place("a")) in name] == []
    assert here["k"] == 1
