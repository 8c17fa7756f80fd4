"""Machines that share a server: what is judged good and bad, and that every fault is one."""

from __future__ import annotations

import fcntl
import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from prove.proof import CannotRun, Proof, Trial
from prove.remote import stand_in, tier
from prove.remote.clients import Product, Settings, recorded
from prove.remote.faults import ALL, calm_after, drawn, lanes, let_happen
from prove.remote.grounds import Case, Grounds
from prove.remote.history import NEVER
from prove.remote.judges import BACK, INEXACT, STALE, UNSEEN, UNWRITTEN, violations
from prove.remote.machines import SharedServer
from prove.remote.stand_in import AT_SERVER, STAND_IN, StandIn
from prove.runner import Runner
from tests.support.redis_servers import awaited

LONG = 30.0
SETTINGS = Settings(0.0, 0.25, "raise")


@contextmanager
def played(product: Product, **more: Any) -> Iterator[Trial]:
    with Trial(7, 0.1) as trial:
        SharedServer(product, **{"seconds": 0.5, "bounds": (0.15,), "on_error": ("raise",), **more})(trial)
        yield trial


@pytest.mark.parametrize("machines", [1, 3])
def test_the_server_by_itself_is_exact_without_faults(machines: int) -> None:
    quiet: dict[str, Any] = {"faults": frozenset(), "bounds": (0.0,), "timeouts": (10.0,)}
    with played(AT_SERVER, machines=machines, processes=2, **quiet) as trial:
        assert trial.findings.violations == []
        counts = trial.findings.counts
    assert counts["operations"] > counts["histories"] == counts["of them with exact orders"] > 0
    assert counts["of unknown outcome"] == 0


def _read_where_a_demoted_node_answers() -> None:
    stand_in.READ = "return redis.call('GET', KEYS[1])"


def _send_again() -> None:
    stand_in.ATTEMPTS = 3


def _believe_it_longer_than_the_bound() -> None:
    stand_in.LIFE = 0.5


@pytest.mark.parametrize(
    ("product", "spoil", "faults", "kinds"),
    [
        (AT_SERVER, _read_where_a_demoted_node_answers, "failovers", f"{STALE}|{UNSEEN}"),
        (AT_SERVER, _send_again, "freezes", f"{STALE}|{UNSEEN}|{BACK}|{UNWRITTEN}|{INEXACT}"),
        (STAND_IN, _believe_it_longer_than_the_bound, "cuts", STALE),
    ],
)
def test_what_only_faults_show_is_found(product: Product, spoil: Any, faults: str, kinds: str) -> None:
    proof = Proof(1, "", lambda _: None, finds=kinds)
    with Trial(7, 0.0) as trial:
        trial.sought, trial.patience = proof.sought, 60.0
        SharedServer(
            product._replace(spoil=spoil),
            faults=frozenset({faults}),
            seconds=1.0,
            longest=0.5,
            gap=0.2,
            bounds=(0.15,),
            on_error=("raise",),
        )(trial)
        texts = [text for _, text in trial.findings.violations]
    assert any(map(proof.sought, texts)), texts


@pytest.mark.parametrize("name", sorted(ALL))
def test_each_fault_begins_and_ends_and_leaves_everything_working(name: str, grounds: Grounds) -> None:
    source = random.Random(name)
    case = Case("case", ("a", "b", "n"), SETTINGS, source)
    grounds.begin(case)
    with calm_after(grounds):
        (lane, faults), *_ = lanes(grounds, frozenset({name})).items()
        fate = drawn(source, faults, lane, 0.05)
        running = fate.run(grounds, source, fate.seconds)
        assert [None, *running] != [None], "it has a beginning and an end"
    history = grounds.end()
    assert [str(each) for each in violations(history, 0.0)] == []
    assert len(grounds.clients) == 2
    losses = {each.how for each in history.losses}
    assert losses == {"FLUSHALL": {"FLUSHALL"}, "restarts": {"a restart"}}.get(name, set())


@pytest.fixture
def grounds(tmp_path: Any) -> Iterator[Grounds]:
    """Return two machines with a process each."""
    with Grounds(tmp_path, AT_SERVER, 2, 1) as made:
        yield made


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


@pytest.mark.parametrize("name", ["remote-server", "remote-dictionary"])
def test_a_proof_over_machines_runs_as_any_other(name: str) -> None:
    with Runner(7, catalogue="prove.remote.stand_in") as runner:
        outcome = runner.run(name, stand_in.PROOFS[name], 1.0)
    assert outcome.held, outcome.findings
    assert outcome.findings.counts["histories"] >= 12


def test_the_process_that_listens_is_known_by_its_lock(tmp_path: Path) -> None:
    assert tier.listener(tmp_path / "nothing") is None
    path = tmp_path / "cache.remote-0123456789ab"
    with path.open("w") as file:
        assert tier.listener(tmp_path) is None
        fcntl.flock(file, fcntl.LOCK_EX)
        assert tier.listener(tmp_path) == os.getpid()


def test_a_missing_server_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CannotRun, match="no redis-server server here"), Grounds(tmp_path, AT_SERVER, 1, 1):
        pass


def test_a_process_that_fails_is_a_violation_and_the_next_case_goes_on() -> None:
    product = AT_SERVER._replace(outcome=_expect_nothing)
    with Trial(7, 0.0) as trial:
        SharedServer(product, faults=frozenset({"restarts"}), seconds=0.5, least=2)(trial)
        texts = [text for _, text in trial.findings.violations]
    assert texts
    assert all("redis.exceptions" in text for text in texts)


def _expect_nothing(_: Exception) -> None:
    """Take no error for one that may be."""


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


def test_stand_in_counts_from_what_is_said(grounds: Grounds) -> None:
    made = StandIn(grounds.server.url, 1.0, 0.0)
    assert [made.incr("n", 1, 100_000_000_000), made.incr("n", 1, 5)] == [100_000_000_001, 100_000_000_002]
    assert made.get("n") == 100_000_000_002
    made.close()
