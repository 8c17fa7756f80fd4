"""The servers that the tests of the tier start: nothing of them is left, and what goes wrong with one is told."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from ..support.redis_servers import Unready, awaited, redis_pair, redis_server
from ..support.workers import Crew, Link


@pytest.mark.parametrize("end", ["stop", "kill", "restart"])
def test_nothing_is_left_of_a_server(end: str) -> None:
    with redis_server() as server:
        getattr(server, end)()
        pid = server.process.pid if server.process else 0
    assert not server.directory.exists()
    assert not (pid and Path(f"/proc/{pid}").exists())


def test_a_server_that_followed_another_one_is_empty_when_it_is_restarted() -> None:
    with redis_server() as primary, redis_server() as replica:
        primary.ask("SET", "key", "value")  # before the first copy
        replica.follow(primary)
        replica.promote()
        replica.restart()
        assert replica.ask("DBSIZE") == 0


def test_an_option_that_the_server_refuses_is_told_at_once() -> None:
    with pytest.raises(Unready, match="ended at once"), redis_server({"maxmemory": "plenty"}):
        pass


def test_a_replica_has_caught_up_only_with_its_primary_as_it_is_now() -> None:
    with redis_pair() as (primary, replica), redis_server() as other:
        primary.ask("SET", "key", "value")
        awaited(lambda: replica.has_caught_up(primary), "a replica that has caught up")
        assert not replica.has_caught_up(other), "although that has done less"
        primary.restart()
        replica.follow(primary)
        assert replica.ask("DBSIZE") == 0


def test_what_is_waited_for_and_never_comes_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.support.redis_servers.PATIENCE", 0.01)
    with pytest.raises(Unready, match="a miracle"):
        awaited(lambda: None, "a miracle")


def test_a_server_does_not_outlive_a_process_that_is_killed() -> None:
    with Crew() as crew:
        worker = crew.start(_with_a_server)
        pid, directory = worker.hear()
        worker.kill()
        awaited(lambda: not _is_alive(pid), "the server's end")
    shutil.rmtree(directory)  # which nobody was there to remove


def _is_alive(pid: int) -> bool:
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False


def _with_a_server(link: Link) -> None:
    with redis_server() as server:
        assert server.pid != os.getpid()
        link.tell((server.pid, server.directory))
        link.hear()
