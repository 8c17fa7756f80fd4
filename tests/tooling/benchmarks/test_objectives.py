"""The check of the latency objectives: verdicts at the boundaries, the report, and when it fails."""

from __future__ import annotations

import json
import math
import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from benchmarks import command, objectives, peers, quick
from benchmarks.budgets import AIM, BUDGETS, MISSED, MUST, UNCLEAR, UNMEASURED, Outcome, assess, cost, speed
from benchmarks.objectives import EFFORTS, Effort, markdown, remarks_on, status, tally
from benchmarks.quick import Record, Section
from benchmarks.report import Table, objectives_table
from benchmarks.section import Findings, Options, Run
from benchmarks.subjects import BenchmarkError, MissingSubject

from ...support.project import ROOT

SPEED = speed("set", "operations", "set, p50", 2.5, 4)
COST = cost("open", "growth", "open | get", 5, None, " ms")


def assessed(values: list[float], budget: Any = SPEED) -> Outcome:
    return assess({budget.key: values}, [budget])[0]


class TestVerdict:
    @pytest.mark.parametrize(
        ("values", "verdict"),
        [
            ([4.0] * 6, AIM),
            ([3.9] + [9.0] * 5, MUST),  # of six values, all belong to the interval
            ([2.5] * 6, MUST),
            ([2.4] + [9.0] * 5, UNCLEAR),
            ([2.4] * 5 + [2.5], UNCLEAR),
            ([2.4] * 6, MISSED),
            ([2.4] * 8 + [9.0], MISSED),  # of nine, the lowest and the highest do not
            ([1.0] + [2.5] * 8, MUST),
        ],
    )
    def test_a_speed_is_missed_only_if_the_whole_interval_is_too_low(self, values: list[float], verdict: str) -> None:
        assert assessed(values).verdict == verdict
        assert assessed(values[::-1]).verdict == verdict

    @pytest.mark.parametrize(
        ("values", "verdict"), [([5.0] * 6, MUST), ([5.1] + [1.0] * 5, UNCLEAR), ([5.1] * 6, MISSED), ([5.1], MISSED)]
    )
    def test_a_cost_is_missed_only_if_the_whole_interval_is_too_high(self, values: list[float], verdict: str) -> None:
        assert assessed(values, COST).verdict == verdict

    def test_an_outcome_holds_the_interval(self) -> None:
        outcome = assessed([float(number) for number in range(9, 0, -1)])
        assert (outcome.low, outcome.value, outcome.high) == (2, 5, 8)
        assert outcome.coverage == pytest.approx(0.9609, abs=1e-4)

    def test_not_a_number_is_missed_and_nothing_is_not_measured(self) -> None:
        assert assessed([9.0, math.nan, 9.0]).verdict == MISSED
        assert assess({}, [SPEED])[0].verdict == UNMEASURED

    def test_infinitely_fast_meets_the_aim(self) -> None:
        assert assessed([math.inf] * 6).verdict == AIM


def test_every_section_has_repetitions_enough_for_an_interval() -> None:
    assert set(EFFORTS) == set(quick.SECTIONS)
    assert all(effort.options.repeats >= 5 for name, effort in EFFORTS.items() if name != "peers")
    assert EFFORTS["peers"].options.repeats * peers.ROUNDS_PER_REPEAT >= 5
    assert EFFORTS["growth"].options.entries == 1_000_000
    assert EFFORTS["limit"].options.writes == 100_000


class TestReport:
    def test_the_table_shows_interval_and_confidence(self) -> None:
        shown = objectives_table([assessed([2.0] * 3 + [3.0] * 3), assessed([7.0], COST), *assess({}, [SPEED])]).text()
        rows = [re.split(r"\s{2,}", line) for line in shown.splitlines()]
        assert ["set, p50", "2.50x", "2x..3x", "96.9%", "2.50x", "4x", "unclear"] in rows
        assert ["open | get", "7 ms", "one value", "-", "5 ms", "-", "MISSED"] in rows
        assert ["set, p50", "-", "-", "-", "2.50x", "4x", "not measured"] in rows

    def test_verdicts_are_counted(self) -> None:
        outcomes = [assessed([1.0] * 6), assessed([3.0] * 6), assessed([3.0] * 6)]
        assert tally(outcomes) == "3 objectives: 0 aim met, 2 must met, 0 unclear, 1 MISSED, 0 not measured"

    def test_a_table_as_markdown_has_as_many_cells_in_every_row(self) -> None:
        table = Table("Title", ("name", "count"), [("a|b", "1")], ["one", "two"])
        assert table.markdown().splitlines() == [
            "### Title",
            "",
            "| name | count |",
            "| :-- | --: |",
            r"| a\|b | 1 |",
            "",
            "one two",
        ]

    def test_the_markdown_is_well_formed(self) -> None:
        outcomes = [assessed([1.0] * 6), assessed([7.0], COST)]
        text = markdown(outcomes, {"CPU": "one"}, ["MISSED: set\n  and more"])
        rows = [line for line in text.splitlines() if line.startswith("|")]
        assert len(rows) == 2 + len(outcomes)
        assert {len(re.findall(r"(?<!\\)\|", row)) for row in rows} == {8}
        lines = text.splitlines()
        assert lines[lines.index(rows[0]) - 1] == lines[lines.index(rows[-1]) + 1] == ""
        assert "- MISSED: set and more" in lines
        assert "- CPU: one" in lines
        assert text.endswith("\n")

    def test_what_is_bad_is_named_with_its_reason(self) -> None:
        record = Record({"peers": Findings(details={"skipped": ["Redis skipped: not there"]})}, {"bulk": "it broke"})
        outcomes = [assessed([1.0] * 6), assessed([1.0, 9.0]), assessed([9.0] * 6)]
        assert remarks_on(record, outcomes) == [
            "MISSED: set, p50", "unclear: set, p50", "section bulk FAILED: it broke",
        ]  # fmt: skip
        assert remarks_on(record, assess({}, [SPEED]))[-1] == "Redis skipped: not there"

    @pytest.mark.parametrize(
        ("values", "options", "expected"),
        [
            ([9.0] * 6, ["--strict"], command.GOOD),
            ([1.0] * 6, [], objectives.MISSED_ONE),
            ([1.0, 9.0], [], command.GOOD),
            ([1.0, 9.0], ["--complete"], command.GOOD),
            ([1.0, 9.0], ["--strict"], objectives.MISSED_ONE),
            ([], [], command.GOOD),
            ([], ["--complete"], objectives.MISSED_ONE),
            ([], ["--strict"], objectives.MISSED_ONE),
        ],
    )
    def test_status(self, values: list[float], options: list[str], expected: int) -> None:
        fatal = objectives.fatal(objectives.parser().parse_args(options))
        assert status(Record(), [assessed(values)], fatal) == expected
        assert status(Record(failures={"bulk": "it broke"}), [assessed(values)], fatal) == command.FAILED


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> dict[str, Findings | Exception]:
    """Let every section find what the test puts here, by default what is best, without measuring."""
    monkeypatch.delenv(objectives.SUMMARY, raising=False)
    given: dict[str, Findings | Exception] = {}

    def find(name: str, run: Run) -> Findings:
        assert (run.options, run.alone) == (EFFORTS[name].options, EFFORTS[name].alone)
        best = {row.key: [1000.0 if row.at_least else 0.1] * 6 for row in BUDGETS if row.section == name}
        found = given.get(name, Findings(measured=best))
        if isinstance(found, Exception):
            raise found
        return found

    for name in EFFORTS:
        monkeypatch.setitem(quick.SECTIONS, name, Section(partial(find, name), 1))
    return given


class TestRun:
    def test_a_good_run_reports_everywhere(
        self,
        measured: dict[str, Findings | Exception],
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        pytest.importorskip("diskcache")
        summary, report, written = (tmp_path / name for name in ("summary.md", "report.md", "found.json"))
        work = tmp_path / "work"
        work.mkdir()
        summary.write_text("before\n")
        monkeypatch.setenv(objectives.SUMMARY, str(summary))
        files = ["--report", str(report), "--json", str(written)]
        assert objectives.main(["--strict", "--directory", str(work), *files]) == command.GOOD
        assert f"{len(BUDGETS)} objectives: " in capsys.readouterr().out
        assert summary.read_text() == "before\n" + report.read_text()
        found = json.loads(written.read_text())
        assert {row["verdict"] for row in found["budgets"]} <= {AIM, MUST}
        assert found["options"]["growth"] == {"options": vars(EFFORTS["growth"].options), "alone": True}
        assert list(work.iterdir()) == []

    def test_a_missed_must_fails(
        self, measured: dict[str, Findings | Exception], tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        pytest.importorskip("diskcache")
        measured["operations"] = Findings(measured={"set": [2.0] * 6, "hot_get": [20.0] * 5 + [30.0]})
        asked = ["--only", "operations", "--directory", str(tmp_path)]
        assert objectives.main(asked) == objectives.MISSED_ONE
        shown = capsys.readouterr().out
        assert "MISSED: set, p50, vs DiskCache" in shown
        assert "unclear: hot get, p50, vs DiskCache" in shown
        assert "4 objectives: 0 aim met, 0 must met, 1 unclear, 1 MISSED, 2 not measured" in shown

    def test_a_section_that_fails_does_not_stop_the_others(
        self, measured: dict[str, Findings | Exception], tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        pytest.importorskip("diskcache")
        measured["bulk"] = BenchmarkError("it broke")
        assert objectives.main(["--directory", str(tmp_path)]) == command.FAILED
        shown = capsys.readouterr().out
        assert "section bulk FAILED: it broke" in shown
        assert "2 not measured" in shown

    def test_diskcache_missing_is_said(
        self, measured: dict[str, Findings | Exception], tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        measured["operations"] = MissingSubject("install it with: pip")
        assert objectives.main(["--directory", str(tmp_path)]) == command.UNUSABLE
        assert "install it with: pip" in capsys.readouterr().err

    def test_a_summary_that_cannot_be_written_does_not_hide_the_outcome(
        self,
        measured: dict[str, Findings | Exception],
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        pytest.importorskip("diskcache")
        monkeypatch.setenv(objectives.SUMMARY, str(tmp_path / "none" / "summary.md"))
        assert objectives.main(["--directory", str(tmp_path)]) == command.GOOD
        assert "GITHUB_STEP_SUMMARY could not be written" in capsys.readouterr().err

    def test_the_table_goes_into_the_marked_place_of_a_page(
        self, measured: dict[str, Findings | Exception], tmp_path: Path
    ) -> None:
        pytest.importorskip("diskcache")
        page = tmp_path / "benchmarks.md"
        page.write_text("before\n<!-- objectives:begin -->\nof an earlier run\n<!-- objectives:end -->\nafter\n")
        assert objectives.main(["--directory", str(tmp_path), "--docs", str(page)]) == command.GOOD
        text = page.read_text()
        assert text.startswith("before\n<!-- objectives:begin -->")
        assert text.endswith("<!-- objectives:end -->\nafter\n")
        assert "verdict" in text
        assert "of an earlier run" not in text

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [(["--only", "nonsense"], "classic"), (["--report", "/no/such/directory/file"], "no such directory")],
    )
    def test_a_wrong_command_line_is_explained(
        self, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        with pytest.raises(SystemExit) as raised:
            objectives.main(arguments)
        assert raised.value.code == command.UNUSABLE
        assert message in capsys.readouterr().err

    def test_real_sections_measure_their_objectives_without_the_peer(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        pytest.importorskip("diskcache")
        monkeypatch.delenv(objectives.SUMMARY, raising=False)
        tiny = Options(operations=200, repeats=1, processes=1, entries=400, writes=300)
        for name in ("growth", "limit", "encrypted"):
            monkeypatch.setitem(EFFORTS, name, Effort(tiny, alone=True))
        asked = ["--only", "growth", "--only", "limit", "--only", "encrypted", "--directory", str(tmp_path)]
        assert objectives.main(asked) in (command.GOOD, objectives.MISSED_ONE)
        shown = capsys.readouterr().out
        assert "0 not measured" in shown
        assert "DiskCache 5.6.3  " not in shown


def test_the_job_is_apart_from_the_tests() -> None:
    job = ROOT / ".ci" / "objectives"
    assert job.stat().st_mode & 0o111
    assert "make objectives" in job.read_text()
    assert "objectives" not in (ROOT / ".ci" / "run").read_text()
