"""The section about a cache at its limit."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.budgets import BUDGETS
from benchmarks.measure import Costs
from benchmarks.peers.spec import OURS
from benchmarks.workloads import full
from benchmarks.workloads.section import Options, Run
from benchmarks.workspace import Workspace


def test_the_sets_of_a_full_cache_are_measured_for_its_budgets(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(full, "LOADS", ((200, 0.9), (1_000, 1.1)))
    run = Run(OURS, OURS, Options(writes=300, repeats=2), Costs(0, 0), Workspace(tmp_path))
    found = full.full(run)
    assert {one.key for one in BUDGETS if one.section == "full"} <= found.measured.keys()
    assert all(len(values) == 2 and min(values) > 0 for values in found.measured.values())
    assert [len(table.rows) for table in found.tables] == [2, 2]
    assert not list(tmp_path.iterdir())
