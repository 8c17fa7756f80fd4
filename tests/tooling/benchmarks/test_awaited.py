"""The benchmark of awaited calls: what it demands, and that the ways which must not do are found."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from benchmarks import __main__ as command
from benchmarks import awaited, machines
from benchmarks.awaited import BLOCKING, FACE, HOPPING, IDLE, SYNC, demanded, is_found
from benchmarks.budgets import BUDGETS
from benchmarks.command import FAILED, GOOD
from benchmarks.measure import Costs
from benchmarks.section import Findings, Options, Run
from benchmarks.subjects import DISKCACHE, OURS
from benchmarks.workspace import Workspace

from ...support.project import ROOT

REPEATS = 9


def times(**microseconds: float) -> awaited.Times:
    """Return the times of calls that all take as long as each other."""
    return {
        name: {kind: [[round(1000 * one)] * 3] * REPEATS for kind in awaited.KINDS}
        for name, one in by_name(microseconds)
    }


def by_name(given: dict[str, float]) -> list[tuple[str, float]]:
    names = {"sync": SYNC, "face": FACE, "hopping": HOPPING, "blocking": BLOCKING, "idle": IDLE}
    return [(names[name], value) for name, value in given.items()]


def late(**milliseconds: float) -> dict[str, list[list[float]]]:
    """Return ticks that were all as late as each other."""
    return {name: [[one] * 10] * REPEATS for name, one in by_name(milliseconds)}


def test_what_is_as_fast_and_as_punctual_as_it_must_be_is_not_found() -> None:
    found = demanded(times(sync=5, face=6), late(idle=7, face=8), FACE)
    assert found == {f"awaited_{kind}": [1.2] * REPEATS for kind in awaited.KINDS} | {"awaited_late": [1] * REPEATS}
    assert not is_found(found)


def test_a_thread_hop_for_every_call_and_a_wait_on_the_loop_are_found() -> None:
    assert is_found(demanded(times(sync=5, hopping=75), late(idle=7, hopping=7), HOPPING))
    assert is_found(demanded(times(sync=5), late(idle=7, blocking=80), BLOCKING))


@pytest.mark.parametrize(("hopping", "blocking", "problems"), [(75, 80, 0), (5, 80, 1), (5, 7, 2)])
def test_a_run_that_finds_no_control_fails(
    monkeypatch: pytest.MonkeyPatch, hopping: float, blocking: float, problems: int
) -> None:
    async def calls(run: Run, skipped: list[str]) -> tuple[awaited.Times, dict[str, list[float]]]:
        return times(sync=5, face=6, hopping=hopping), {SYNC: [130.0], FACE: [280.0], IDLE: [30.0]}

    monkeypatch.setattr(awaited, "calls", calls)
    monkeypatch.setattr(awaited, "ticks", lambda run: late(idle=7, face=7, hopping=7, blocking=blocking))
    found = awaited.awaited(Run(OURS, DISKCACHE, Options(), Costs(0, 0), Workspace(Path())))
    assert len(found.problems) == problems
    assert found.measured["awaited_hot_over"] == [0.25]


def test_a_small_run_measures_every_demand_beside_every_peer(tmp_path: Path) -> None:
    options = Options(repeats=1, operations=20)
    found = awaited.awaited(Run(OURS, DISKCACHE, options, Costs(0, 0), Workspace(tmp_path)))
    assert set(found.measured) == {budget.key for budget in BUDGETS if budget.section == "awaited"}
    assert len(found.tables[0].rows) + len(found.details["skipped"]) == 3 + len(awaited.PEERS)
    assert [row[0] for row in found.tables[1].rows] == [IDLE, FACE, HOPPING, BLOCKING]


@pytest.mark.parametrize("part", [awaited, machines])
@pytest.mark.parametrize(("chosen", "expected"), [([], FAILED), (["--subject", "lru-cache"], GOOD)])
def test_the_benchmark_of_everything_has_both_parts_unless_something_is_chosen(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, part: ModuleType, chosen: list[str], expected: int
) -> None:
    for each in (awaited, machines):
        found = Findings(details={"skipped": []}, problems=["tells nothing"] if each is part else [])
        monkeypatch.setattr(each, "PART", replace(each.PART, find=lambda _, found=found: found))
    monkeypatch.setattr(command, "SCENARIOS", {})
    assert command.main([*chosen, "--directory", str(tmp_path), "--out", str(tmp_path)]) == expected


def test_the_page_has_a_place_for_the_tables() -> None:
    assert (ROOT / "docs" / "benchmarks.md").read_text().count("<!-- awaited:begin -->") == 1
