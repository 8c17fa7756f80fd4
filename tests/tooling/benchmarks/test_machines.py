"""The benchmark of machines that share a server: that a small run measures every demand, and what a delay is."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import machines
from benchmarks.budgets import BUDGETS
from benchmarks.crew import Crew
from benchmarks.machines import CACHE, CLIENT_SIDE, FIRST, IDLE, PROCESSES, Listening, Measuring, delays, tasks
from benchmarks.measure import Costs
from benchmarks.section import Findings, Options, Run
from benchmarks.subjects import DISKCACHE, OURS
from benchmarks.workspace import Workspace, workspace

from ...support.project import ROOT

DEMANDS = {budget.key for budget in BUDGETS if budget.section == "machines"}


@pytest.mark.parametrize("alone", [True, False])
def test_a_small_run_measures_every_demand_beside_every_peer(alone: bool) -> None:
    options = Options(repeats=1, operations=20)
    with workspace(Path("/tmp")) as space:  # a Unix socket's path must be short
        found = machines.machines(Run(OURS, DISKCACHE, options, Costs(0, 0), space, alone=alone))
    assert set(found.measured) == DEMANDS
    assert all(value > 0 for key in DEMANDS - {"machines_seen_p50"} for value in found.measured[key])
    stalls = [row[0] for row in found.tables[-1].rows]
    assert stalls == ([CACHE, IDLE] if alone else [CACHE, CLIENT_SIDE, IDLE])
    if not alone:
        names = [row[0] for row in found.tables[0].rows]
        assert names[:2] == [CACHE, FIRST]
        assert len(names) + len(found.details["skipped"]) == 3 + len(machines.PEERS)


def test_a_delay_is_from_the_return_of_the_write_to_the_read_that_saw_it_and_never_negative() -> None:
    found: list[dict[int, int]] = [{} for _ in range(PROCESSES)]
    found[2] = {7: 1_000_000}
    found[PROCESSES // 2 :] = [{7: 900_000}, {7: 1_500_000}, {7: 3_000_000}, {7: 1_000_000}]
    assert delays(found, 2) == [0, 0, 0.5, 2]


def test_one_process_writes_and_all_of_the_other_machine_read() -> None:
    roles = [task.role for task in tasks(1, CACHE, 10)]
    assert roles == ["", "write", "", "", "read", "read", "read", "read"]


@pytest.mark.parametrize("listens", [[False] * 8, [True] * 2 + [False] * 6, [True] + [False] * 7])
def test_a_run_in_which_the_listeners_are_not_one_for_each_machine_fails(listens: list[bool]) -> None:
    run = Run(OURS, DISKCACHE, Options(), Costs(0, 0), Workspace(Path()))
    with pytest.raises(Listening, match="one process of each machine"):
        Measuring(run, Crew(PROCESSES), Findings(), listens)


def test_the_page_has_a_place_for_the_tables() -> None:
    assert (ROOT / "docs" / "benchmarks.md").read_text().count("<!-- machines:begin -->") == 1


def test_without_a_server_nothing_is_measured_and_that_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    found = machines.machines(Run(OURS, DISKCACHE, Options(), Costs(0, 0), Workspace(tmp_path)))
    assert not found.measured
    assert "apt-get install redis-server" in found.details["skipped"][0]
