"""The section about what programs do beside plain calls."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.budgets import BUDGETS
from benchmarks.measure import Costs
from benchmarks.peers.spec import OURS, BenchmarkError
from benchmarks.workloads import everyday
from benchmarks.workloads.section import Options, Run
from benchmarks.workspace import Workspace


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    for name, amount in {"TURNS": 1, "CALLS": 10, "STARTS": 1, "MIX_CALLS": 50}.items():
        monkeypatch.setattr(everyday, name, amount)
    monkeypatch.setattr(everyday, "COLD", {key: (length, 10, 5) for key, (length, *_) in everyday.COLD.items()})
    monkeypatch.setattr(everyday, "ARRAYS", {key: (8_000, 2, 2) for key in everyday.ARRAYS})
    return Run(OURS, OURS, Options(repeats=2, processes=2), Costs(0, 0), Workspace(tmp_path))


def test_everything_is_measured_for_its_budgets(run: Run, tmp_path: Path) -> None:
    found = everyday.everyday(run)
    wanted = {one.key: one.label for one in BUDGETS if one.section == "everyday"}
    assert found.measured.keys() == wanted.keys()
    assert all(len(values) == 2 and min(values) > 0 for values in found.measured.values())
    assert [row[0] for row in found.tables[0].rows] == [wanted[key] for key in found.measured]
    assert found.problems == found.skipped == []
    assert not list(tmp_path.iterdir())


def test_a_value_that_is_not_there_makes_no_figure(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("diskcache_like.Cache.get", lambda self, *_: None)
    with pytest.raises(BenchmarkError, match="found nothing"):
        everyday.everyday(run)
