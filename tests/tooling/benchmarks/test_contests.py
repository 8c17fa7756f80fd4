"""The sections beside a peer: which numbers of which subjects each budget is about."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from benchmarks.budgets import BUDGETS
from benchmarks.measure import Calls, Costs
from benchmarks.peers.catalogue import Candidate
from benchmarks.peers.spec import DISKCACHE, OURS
from benchmarks.report.record import Record, ScenarioFacts, Trial
from benchmarks.workloads import contests
from benchmarks.workloads.scenarios import Scenario
from benchmarks.workloads.section import Findings, Options, Run
from benchmarks.workspace import Workspace

# How long each subject takes, and each kind of call.
TAKES: dict[str, float] = {
    "ours": 1,
    "peer": 4,
    "cold": 2,
    "lmdb": 0.5,
    "memcached": 6,
    "redis": 8,
    "lru": 1.5,
    "lfu": 1.25,
}
TAKES |= {"off": 2, "ours small": 1, "ours large": 3, "ours limited": 3, "ours unlimited": 2}
KINDS = {"get_each": 10, "get_many": 2, "set_each": 20, "set_many": 4}
EXPECTED: dict[str, dict[str, float]] = {
    "operations": {"hot_get": 4, "cold_get": 2, "set": 4, "delete": 4},
    "policies": {"lru": 50, "lfu": 25, "metrics": -50},
    "bulk": {"get_many": 5, "set_many": 20},
    "peers": {"hot_get_memcached": 6, "set_memcached": 6, "hot_get_redis": 8, "set_redis": 8},
    "buffered": {"incr": 4, "set_lmdb": 0.5, "classic_lmdb": 4},
    "classic": {"classic_one": 4, "classic_many": 4, "set_tail_many": 4},
    "fanout": {"fanout_many": 4},
    "large": {"large_100k": 0.25, "large_1m": 0.25, "large_10m": 0.25},
    "growth": {"growth_get": 3, "growth_set": 3, "growth_delete": 3},
    "limit": {"limit_cost": 1.5},
}


def invented(
    run: Run, findings: Findings, scenario: Scenario, candidates: Mapping[str, Candidate], *_: Any, **more: Any
) -> Record:
    """Return what a contest in which all take what `TAKES` says would find; the second repetition is slower for all."""
    record = Record({}, {}, {name: one.facts for name, one in candidates.items()}, {"one": scenario.facts})
    for step in scenario.steps:
        for name in candidates:
            for repetition, slow in enumerate((1, 7)):
                time = 100.0 * slow * TAKES.get(name, 1)
                kinds = scenario.workload_of(name, step).kinds
                calls = {kind: Calls.of([time * KINDS.get(kind, 1)]) for kind in kinds}
                record.trials.append(Trial("one", name, repetition, 1, step, time, 1, calls))
    return record


@pytest.mark.parametrize("section", EXPECTED)
def test_each_budget_is_about_the_subjects_that_its_label_names(
    section: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(contests, "contest", invented)
    run = Run(OURS, DISKCACHE, Options(writes=200, repeats=2), Costs(0, 0), Workspace(tmp_path), alone=True)
    found = getattr(contests, section)(run).measured
    assert {key: found[key] for key in EXPECTED[section]} == {
        key: pytest.approx([ratio] * 2) for key, ratio in EXPECTED[section].items()
    }
    assert {one.key for one in BUDGETS if one.section == section} - {"open", "len", "limit_overshoot"} <= found.keys()


def test_a_repetition_that_one_of_two_lacks_gives_no_ratios() -> None:
    trials = [Trial("one", name, 0, 1, 0, 1, 1, {"get": Calls.of([5])}) for name in ("ours", "ours", "peer")]
    record = Record({}, {}, {name: Candidate(OURS, name).facts for name in ("ours", "peer")}, {}, trials)
    record.scenarios["one"] = ScenarioFacts("one", "?")
    assert contests.quotients(record, contests.p50("get")) == []
