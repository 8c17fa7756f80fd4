"""Machines that share a server: what is judged good, and that every fault begins, ends and leaves everything working."""

from __future__ import annotations

import fcntl
import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from diskcache_like import Cache
from prove.proof import CannotRun, Trial
from prove.remote.faults import ALL, lanes, let_happen
from prove.remote.judges import NEVER, violations
from prove.remote.machines import Case, Grounds, Machine, Settings, recorded
from prove.remote.proofs import SharedServer
from tests.support.redis_servers import awaited

LONG = 30.0
SETTINGS = Settings(0.0, 0.25, "raise")


@contextmanager
def played(**more: Any) -> Iterator[Trial]:
    with Trial(7, 0.1) as trial:
        SharedServer(**{"seconds": 0.5, "bounds": (0.15,), "on_error": ("raise",), **more})(trial)
        yield trial


@pytest.mark.parametrize("machines", [1, 3])
def test_the_tier_is_exact_without_faults(machines: int) -> None:
    with played(machines=machines, processes=2, faults=frozenset(), bounds=(0.0,), timeouts=(10.0,)) as trial:
        assert trial.findings.violations == []
        counts = trial.findings.counts
    assert counts["operations"] > counts["histories"] == counts["of them with exact orders"] > 0
    assert counts["of unknown outcome"] == 0


@pytest.fixture
def grounds(tmp_path: Path) -> Iterator[Grounds]:
    """Return two machines with a process each."""
    with Grounds(tmp_path, 2, 1) as made:
        yield made


@pytest.mark.parametrize("name", sorted(ALL))
def test_each_fault_begins_and_ends_and_leaves_everything_working(name: str, grounds: Grounds) -> None:
    source = random.Random(name)
    grounds.begin(Case("case", ("a", "b", "n"), SETTINGS, source))
    (faults, *_) = lanes(grounds, frozenset({name})).values()
    assert [None, *faults[name][1](grounds, source, 0.05)] != [None], "it has a beginning and an end"
    grounds.calm()
    history = grounds.end()
    assert [str(each) for each in violations(history, 0.0)] == []
    assert len(grounds.clients) == 2
    losses = {each.how for each in history.losses}
    assert losses == {"FLUSHALL": {"FLUSHALL"}, "restarts": {"a restart"}}.get(name, set())


def test_who_is_killed_is_replaced_and_its_last_call_has_an_unknown_outcome(grounds: Grounds) -> None:
    patient = SETTINGS._replace(timeout=LONG)
    grounds.begin(Case("case", ("a", "b", "n"), patient, random.Random(1)))
    ((victim,), _) = (machine.clients for machine in grounds.machines)
    grounds.server.stop()

    def is_waiting() -> bool:
        assert victim.diary is not None
        return [each.end for each in recorded(victim.diary, victim.number, 0)][-1:] == [NEVER]

    awaited(is_waiting, "a call that is not answered")
    grounds.kill(victim)
    grounds.server.go_on()
    grounds.join_in(grounds.start(grounds.machines[0]))
    history = grounds.end()
    last = max((each for each in history.operations if each.process == victim.number), key=lambda each: each.begin)
    assert (last.outcome, last.end) == ("unknown", NEVER)
    assert len({each.process for each in history.operations if each.machine == 0}) == 2


def test_the_process_that_listens_is_known_by_its_lock(tmp_path: Path) -> None:
    me: Any = SimpleNamespace(worker=SimpleNamespace(pid=os.getpid()))
    machine = Machine(0, tmp_path, me, [me])
    assert machine.listener() is None
    with (tmp_path / "cache.remote-0123456789ab").open("w") as file:
        assert machine.listener() is None
        fcntl.flock(file, fcntl.LOCK_EX)
        assert machine.listener() is me


def test_a_missing_server_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CannotRun, match="no redis-server server here"), Grounds(tmp_path, 1, 1):
        pass


def test_a_process_that_fails_is_a_violation_and_the_next_case_goes_on() -> None:
    with played(spoil=_fail_to_get, faults=frozenset({"restarts"}), least=2) as trial:
        texts = [text for _, text in trial.findings.violations]
    assert len(texts) > 1
    assert all("ZeroDivisionError" in text for text in texts)


def _fail_to_get() -> None:
    Cache.get = lambda *_: 1 // 0  # type: ignore[method-assign, assignment]


def test_faults_of_one_lane_do_not_overlap(monkeypatch: pytest.MonkeyPatch, grounds: Grounds) -> None:
    running: list[str] = []

    def fault(name: str) -> Any:
        def run(*_: object) -> Iterator[None]:
            assert name not in running
            running.append(name)
            yield
            running.remove(name)

        return run

    known = {lane: {lane: (1, fault(lane))} for lane in ("one", "two")}
    monkeypatch.setattr("prove.remote.faults.lanes", lambda *_: known)
    names = [*let_happen(grounds, random.Random(3), 0.2, ALL, 0.01, 0.001)]
    assert {*names} == {"one", "two"}
    assert running == []
