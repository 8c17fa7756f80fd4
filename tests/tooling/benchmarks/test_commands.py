"""The commands, with tiny amounts: what they measure, write and print, and how they end."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from benchmarks import __main__ as bench
from benchmarks import command, objectives, overview, page, quick
from benchmarks.budgets import AIM, BUDGETS, MUST, UNMEASURED, of_sections
from benchmarks.intervals import Spread
from benchmarks.measure import Calls, Costs
from benchmarks.peers.catalogue import SUBJECTS
from benchmarks.peers.clients import FOR_ASYNCIO, OF_REDIS
from benchmarks.peers.spec import DISKCACHE, OURS, BenchmarkError, MissingSubject
from benchmarks.report.record import Absence, Record, ScenarioFacts, SubjectFacts, Trial, load
from benchmarks.report.text import Table, objectives_table
from benchmarks.workloads import awaited, contests, machines
from benchmarks.workloads.awaited import BLOCKING, FACE, HOPPING, IDLE, SYNC
from benchmarks.workloads.scenarios import SCENARIOS
from benchmarks.workloads.section import Findings, Options, Run
from benchmarks.workloads.sections import SECTIONS
from benchmarks.workspace import PREFIX, Workspace, workspace

from ...support.project import ROOT

pytest.importorskip("diskcache")

TINY = ["--operations", "200", "--repeats", "1", "--processes", "2", "--entries", "400", "--writes", "300"]
MARKS = (
    "objectives",
    "results",
    "overview",
    "awaited",
    "machines",
    "django",
    "recommendation",
    "matrix",
    "frames",
    "traces",
)


@pytest.mark.parametrize("mark", MARKS)
def test_the_documentation_has_a_place_for_what_each_command_fills_in(mark: str) -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    found = [one for one in pages if page.marks(mark)[0] in one.read_text(encoding="utf-8")]
    assert found
    for one in found:
        page.marked(one, mark)


@pytest.mark.parametrize("text", ["", "{0}\n{1}\n{0}\n{1}", "{0}", "{1}\n{0}"])
def test_a_page_without_one_place_is_refused_before_anything_is_measured(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "page.md"
    path.write_text(text.format(*page.marks("overview")))
    assert overview.main(["--docs", str(path)]) == command.UNUSABLE
    assert "overview:begin" in capsys.readouterr().err
    assert path.read_text() == text.format(*page.marks("overview"))


class TestQuick:
    def test_a_tiny_run_measures_every_row_it_should(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setattr(contests, "ENTRIES", 1_000)
        written = tmp_path / "found.json"
        assert quick.main([*TINY, "--directory", str(tmp_path), "--json", str(written)]) == command.GOOD
        found = json.loads(written.read_text(encoding="utf-8"))
        unasked = {name for name, section in SECTIONS.items() if section.unasked}
        assert [row["budget"]["key"] for row in found["budgets"]] == [one.key for one in of_sections(unasked)]
        assert UNMEASURED not in {row["verdict"] for row in found["budgets"]}
        (mix,) = (one for name, one in found["sections"]["classic"]["details"].items() if "2 processes" in name)
        calls = mix["trials"][0]["calls"]
        assert sum(one["count"] for one in calls.values()) == 2 * 200
        assert calls["get"]["count"] > calls["set"]["count"] > calls["delete"]["count"]
        shown = capsys.readouterr().out
        assert all(text in shown for text in ("SQLite: ", "2 processes x 200 operations", "verdict"))
        assert list(tmp_path.iterdir()) == [written]

    @pytest.mark.parametrize("name", ["fanout", "encrypted", "buffered"])
    def test_what_runs_only_if_asked_for_measures_its_rows(self, name: str, tmp_path: Path) -> None:
        written = tmp_path / "found.json"
        assert quick.main([*TINY, "--only", name, "--directory", str(tmp_path), "--json", str(written)]) == command.GOOD
        found = json.loads(written.read_text())
        skipped = found["sections"][name]["skipped"]
        assert UNMEASURED not in {row["verdict"] for row in found["budgets"]} or skipped

    def test_a_missed_must_ends_with_one_only_if_enforced(self, tmp_path: Path) -> None:
        itself = [*TINY, "--subject", "diskcache", "--only", "operations", "--directory", str(tmp_path)]
        assert quick.main(itself) == command.GOOD
        assert quick.main([*itself, "--enforce"]) == command.MISSED_ONE

    def test_a_subject_without_the_api_fails_its_section(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        itself = [*TINY, "--subject", "diskcache", "--only", "encrypted", "--directory", str(tmp_path)]
        assert quick.main(itself) == command.FAILED
        assert "section encrypted FAILED: " in capsys.readouterr().out

    def test_diskcache_missing_names_what_installs_it(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setitem(sys.modules, "diskcache", None)
        assert quick.main(TINY) == command.UNUSABLE
        assert "pip install diskcache==5.6.3" in capsys.readouterr().err

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["--only", "nonsense"], "classic"),
            (["--operations", "0"], "at least 1"),
            (["--directory", "/no/such/directory"], "no such directory"),
            (["--json", "/no/such/directory/file"], "no such directory"),
        ],
    )
    def test_a_wrong_command_line_is_explained(
        self, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        with pytest.raises(SystemExit) as raised:
            quick.main(arguments)
        assert raised.value.code == command.UNUSABLE
        assert message in capsys.readouterr().err

    def test_being_told_to_end_leaves_nothing_behind(self, tmp_path: Path) -> None:
        asked = ["--only", "classic", "--repeats", "1000", "--directory", str(tmp_path)]
        process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.quick", *asked], cwd=ROOT, stderr=subprocess.PIPE, start_new_session=True
        )
        with process:
            while not list(tmp_path.glob(f"{PREFIX}*/*ours*/*")):
                assert process.poll() is None
            process.terminate()
            _, errors = process.communicate()  # ends only when every process that inherited the pipe has ended
        assert (process.returncode, errors) == (command.INTERRUPTED, b"benchmarks.quick: interrupted\n")
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize("writes", [1, 20_000, 10**9])
    def test_the_limit_stays_within_reason(self, writes: int) -> None:
        assert 2**20 <= contests.limit_for(writes) <= 16 * 2**20


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> dict[str, Findings | Exception]:
    """Let every section find what the test puts here, by default what is best, without measuring."""
    monkeypatch.delenv(objectives.SUMMARY, raising=False)
    given: dict[str, Findings | Exception] = {}

    def find(name: str, run: Run) -> Findings:
        assert run.options in (SECTIONS[name].effort, SECTIONS[name].usual)
        best = {row.key: [1000.0 if row.at_least else 0.1] * 6 for row in BUDGETS if row.section == name}
        found = given.get(name, Findings(measured=best))
        if isinstance(found, Exception):
            raise found
        return found

    for name, section in list(SECTIONS.items()):
        monkeypatch.setitem(SECTIONS, name, replace(section, measure=partial(find, name)))
    return given


class TestObjectives:
    def test_a_good_run_reports_everywhere(
        self,
        measured: dict[str, Findings | Exception],
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        summary, report, written, filled = (
            tmp_path / name for name in ("summary.md", "report.md", "f.json", "page.md")
        )
        summary.write_text("before\n")
        filled.write_text("before\n{}\nof an earlier run\n{}\nafter\n".format(*page.marks(objectives.MARK)))
        monkeypatch.setenv(objectives.SUMMARY, str(summary))
        files = ["--report", str(report), "--json", str(written), "--docs", str(filled)]
        (tmp_path / "work").mkdir()
        assert objectives.main(["--strict", "--directory", str(tmp_path / "work"), *files]) == command.GOOD
        assert f"{len(BUDGETS)} objectives: " in capsys.readouterr().out
        assert summary.read_text() == "before\n" + report.read_text()
        rows = [line for line in report.read_text().splitlines() if line.startswith("|")]
        assert len(rows) == 2 + len(BUDGETS)
        assert {len(re.findall(r"(?<!\\)\|", row)) for row in rows} == {8}
        assert {row["verdict"] for row in json.loads(written.read_text())["budgets"]} <= {AIM, MUST}
        assert filled.read_text().startswith("before\n<!-- objectives:begin -->")
        assert filled.read_text().endswith("<!-- objectives:end -->\nafter\n")
        assert "of an earlier run" not in filled.read_text()
        assert list((tmp_path / "work").iterdir()) == []

    @pytest.mark.parametrize(
        ("values", "options", "expected"),
        [
            ([9.0] * 6, ["--strict"], command.GOOD),
            ([1.0] * 6, [], command.MISSED_ONE),
            ([1.0, 9.0], ["--complete"], command.GOOD),
            ([1.0, 9.0], ["--strict"], command.MISSED_ONE),
            ([], [], command.GOOD),
            ([], ["--complete"], command.MISSED_ONE),
            ([], ["--strict"], command.MISSED_ONE),
        ],
    )
    def test_what_fails_it(
        self,
        measured: dict[str, Findings | Exception],
        tmp_path: Path,
        capsys: pytest.CaptureFixture[str],
        values: list[float],
        options: list[str],
        expected: int,
    ) -> None:
        measured["fanout"] = Findings(measured={"fanout_many": values}, skipped=["Redis is not there"])
        asked = ["--only", "fanout", "--directory", str(tmp_path), *options]
        assert objectives.main(asked) == expected
        shown = capsys.readouterr().out
        assert ("Redis is not there" in shown) is (not values)
        assert ("MISSED: 90/9/1" in shown) is (values == [1.0] * 6)
        assert ("unclear: 90/9/1" in shown) is (values == [1.0, 9.0])

    def test_the_tables_of_sections_go_where_a_page_has_a_place(
        self, measured: dict[str, Findings | Exception], tmp_path: Path
    ) -> None:
        table = Table("Title", ("a round", "times"), [("set", "2.0")])
        measured["mixes"] = Findings(tables=[table])
        target = tmp_path / "page.md"
        target.write_text("before\n<!-- mixes:begin -->\n<!-- mixes:end -->\nafter\n")
        asked = ["--only", "mixes", "--only", "fanout", "--directory", str(tmp_path), "--tables", str(target)]
        assert objectives.main(asked) == command.GOOD
        assert "| set | 2.0 |" in target.read_text()
        assert target.read_text().endswith("<!-- mixes:end -->\nafter\n")

    def test_a_section_that_fails_does_not_stop_the_others(
        self, measured: dict[str, Findings | Exception], tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        measured["bulk"], measured["limit"] = BenchmarkError("it broke"), Findings(problems=["it lies"])
        assert objectives.main(["--directory", str(tmp_path)]) == command.FAILED
        shown = capsys.readouterr().out
        assert "section bulk FAILED: it broke" in shown
        assert "section limit FAILED: it lies" in shown
        assert "4 not measured" in shown
        measured["bulk"] = MissingSubject("install it with: pip")
        assert objectives.main(["--directory", str(tmp_path)]) == command.UNUSABLE
        assert "install it with: pip" in capsys.readouterr().err

    def test_a_summary_that_cannot_be_written_does_not_hide_the_outcome(
        self,
        measured: dict[str, Findings | Exception],
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        monkeypatch.setenv(objectives.SUMMARY, str(tmp_path / "none" / "summary.md"))
        assert objectives.main(["--directory", str(tmp_path)]) == command.GOOD
        assert "GITHUB_STEP_SUMMARY could not be written" in capsys.readouterr().err


class TestParts:
    @pytest.mark.parametrize(("alone", "peers"), [(True, 0), (False, len(FOR_ASYNCIO))])
    def test_a_small_run_of_awaited_calls_measures_every_demand(
        self, alone: bool, peers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(awaited, "WARMING", 0.1)
        options = Options(repeats=1, operations=20)
        found = awaited.awaited(Run(OURS, DISKCACHE, options, Costs(0, 0), Workspace(tmp_path), alone=alone))
        assert set(found.measured) == {budget.key for budget in BUDGETS if budget.section == "awaited"}
        assert len(found.tables[0].rows) + len(found.skipped) == 3 + peers
        assert [row[0] for row in found.tables[1].rows] == [IDLE, FACE, HOPPING, BLOCKING]

    @pytest.mark.parametrize(("hopping", "blocking", "problems"), [(75, 80, 0), (5, 80, 1), (5, 7, 2)])
    def test_a_run_that_finds_no_control_fails(
        self, monkeypatch: pytest.MonkeyPatch, hopping: int, blocking: float, problems: int
    ) -> None:
        async def calls(run: Run, skipped: list[str]) -> tuple[awaited.Times, dict[str, list[float]]]:
            took = {SYNC: 5, FACE: 6, HOPPING: hopping}
            times = {name: {kind: [[1000 * one] * 3] * 9 for kind in awaited.KINDS} for name, one in took.items()}
            return times, {SYNC: [130.0], FACE: [280.0], IDLE: [30.0]}

        late = {IDLE: 7.0, FACE: 8.0, HOPPING: 7.0, BLOCKING: blocking}
        monkeypatch.setattr(awaited, "calls", calls)
        monkeypatch.setattr(awaited, "ticks", lambda run: {name: [[one] * 10] * 9 for name, one in late.items()})
        found = awaited.awaited(Run(OURS, DISKCACHE, Options(), Costs(0, 0), Workspace(Path())))
        assert len(found.problems) == problems
        assert found.measured["awaited_hot_over"] == [0.25]
        assert found.measured["awaited_cold"] == [1.2] * 9
        assert found.measured["awaited_late"] == [1] * 9

    @pytest.mark.parametrize(("alone", "peers"), [(True, 0), (False, 3 + len(OF_REDIS))])
    def test_a_small_run_of_machines_measures_every_demand(self, alone: bool, peers: int) -> None:
        with workspace(Path("/tmp")) as space:  # a Unix socket's path must be short
            run = Run(OURS, DISKCACHE, Options(repeats=1, operations=20), Costs(0, 0), space, alone=alone)
            found = machines.machines(run)
        if not found.measured:
            pytest.skip(found.skipped[0])
        demands = {budget.key for budget in BUDGETS if budget.section == "machines"}
        assert set(found.measured) == demands
        assert all(value > 0 for key in demands - {"machines_seen_p50"} for value in found.measured[key])
        if not alone:
            assert len(found.tables[0].rows) + len(found.skipped) == peers

    def test_a_delay_is_from_the_return_of_the_write_to_the_read_that_saw_it_and_never_negative(self) -> None:
        found: list[dict[int, int]] = [{} for _ in range(machines.PROCESSES)]
        found[2] = {7: 1_000_000}
        found[machines.HALF :] = [{7: 900_000}, {7: 1_500_000}, {7: 3_000_000}, {7: 1_000_000}]
        assert machines.delays(found, 2) == [0, 0, 0.5, 2]

    @pytest.mark.parametrize("listens", [[False] * 8, [True] * 2 + [False] * 6, [True] + [False] * 7])
    def test_machines_without_one_listener_each_are_refused(self, listens: list[bool]) -> None:
        with pytest.raises(BenchmarkError, match="one process of each machine"):
            machines.listener_of(listens)

    def test_without_a_server_nothing_is_measured_and_that_is_said(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setenv("PATH", str(tmp_path))
        found = machines.machines(Run(OURS, DISKCACHE, Options(), Costs(0, 0), Workspace(tmp_path)))
        assert not found.measured
        assert "apt-get install redis-server" in found.skipped[0]

    def test_the_tables_of_a_section_fill_the_place_of_its_name(
        self, measured: dict[str, Findings | Exception], tmp_path: Path
    ) -> None:
        filled = tmp_path / "page.md"
        filled.write_text("a\n{}\nold\n{}\nz\n".format(*page.marks("awaited")))
        measured["awaited"] = Findings([objectives_table([])])
        asked = ["--only", "awaited", "--directory", str(tmp_path), "--docs", str(filled)]
        assert quick.main(asked) == command.GOOD
        assert "verdict" in filled.read_text()
        assert "old" not in filled.read_text()
        assert quick.main([*asked, "--only", "machines"]) == command.UNUSABLE, "a page without its place"
        measured["awaited"] = Findings(problems=["tells nothing"])
        assert quick.main(asked[:4]) == command.FAILED


class TestBench:
    def test_unknown_names_list_the_known(self, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
        assert bench.main(["--scenario", "clasic", "--out", str(tmp_path)]) == 2
        told = capsys.readouterr().err
        assert "there is no scenario 'clasic'; did you mean 'classic'?" in told
        assert "open-loop" in told
        assert bench.main(["--subject", "oracle", "--out", str(tmp_path)]) == 2
        assert "memcached" in capsys.readouterr().err
        assert bench.main(["--scenario", "queue", "--subject", "lmdb", "--out", str(tmp_path)]) == 2
        assert "none of the chosen subjects is measured in 'queue'" in capsys.readouterr().err
        assert bench.main(["--list"]) == 0
        told = capsys.readouterr().out
        assert all(name in told for name in (*SCENARIOS, *SUBJECTS))

    def test_a_small_run_prints_saves_and_plots(self, tmp_path: Path) -> None:
        asked = ["--scenario", "counters", "--scenario", "tags", "--subject", "cache", "--subject", "diskcache"]
        amounts = ["--repeats", "1", "--operations", "150", "--processes", "2"]
        paths = ["--directory", str(tmp_path), "--out", str(tmp_path / "out")]
        started = [sys.executable, "-m", "benchmarks", *asked, *amounts, *paths]
        done = subprocess.run(started, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        assert {one.scenario for one in load(tmp_path / "out" / "record.json").trials} == {"counters", "tags"}
        assert "DiskCache" in done.stdout
        assert list((tmp_path / "out").glob("*.svg"))
        assert not list(tmp_path.glob(f"{PREFIX}*"))

    @pytest.mark.parametrize(("chosen", "expected"), [([], command.FAILED), (["--subject", "lru-cache"], command.GOOD)])
    def test_it_has_both_parts_unless_something_is_chosen(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, chosen: list[str], expected: int
    ) -> None:
        told = Findings(problems=["tells nothing"])
        for name in bench.PARTS:
            monkeypatch.setitem(SECTIONS, name, replace(SECTIONS[name], measure=lambda run: told))
        monkeypatch.setattr(bench, "SCENARIOS", {})
        assert bench.main([*chosen, "--directory", str(tmp_path), "--out", str(tmp_path)]) == expected

    def test_our_own_wrong_values_fail_the_run(self, capsys: pytest.CaptureFixture[str]) -> None:
        facts, calls = {"cache": SubjectFacts("Cache"), "redis": SubjectFacts("Redis")}, {"get": Calls.of([1.0])}
        record = Record({}, {}, facts, {}, [Trial("s", "redis", 0, 1, 0, 1.0, 1, calls, wrong=1)])
        assert bench.judged(record) == 0
        record.trials.append(Trial("s", "cache", 4, 1, 0, 1.0, 1, calls, wrong=2))
        assert bench.judged(record) == 3
        assert "s, cache, repetition 5: 2 wrong values" in capsys.readouterr().out
        record.trials.clear()
        record.absences.append(Absence("cache", "broke", "s", failed=True))
        assert bench.judged(record) == 3


class TestOverview:
    @pytest.fixture
    def record(self) -> Record:
        """Make a run in which DiskCache takes four times as long to get and half as long to delete."""
        facts = {f"overview-{count}": ScenarioFacts("calls", "?", "bytes") for count in (1, 8)}
        subjects = {"cache": SubjectFacts("diskcache_like"), "diskcache": SubjectFacts("DiskCache 5.6.3")}
        made = Record({"CPU": "Imagined"}, {"repeats": 3, "processes": 8}, subjects, facts)
        for count in (1, 8):
            for repetition in range(3):
                slower = 1 + repetition  # of both alike, as a machine that is busy for a while makes it
                for name, times in (("cache", (100.0, 100.0)), ("diskcache", (400.0, 50.0))):
                    calls = {kind: Calls.of([one * slower]) for kind, one in zip(("get", "delete"), times, strict=True)}
                    made.trials.append(Trial(f"overview-{count}", name, repetition, count, 1_000_000, 1, 2, calls))
        return made

    def test_a_page_gets_the_picture_losses_included(self, record: Record, tmp_path: Path) -> None:
        record.save(tmp_path / "run.json")
        target = tmp_path / "README.md"
        target.write_text("before\n{}\nold\n{}\nafter\n".format(*page.marks("overview")))
        asked = ["--record", str(tmp_path / "run.json"), "--out", str(tmp_path), "--docs", str(target)]
        assert overview.main(asked) == 0
        text = target.read_text()
        assert "(docs/images/benchmarks/overview.svg)" in text
        assert "below 1x (orange)" in text
        assert "old" not in text
        drawn = (tmp_path / "docs" / "images" / "benchmarks" / "overview.svg").read_text()
        assert "4.0x" in drawn
        assert "0.50x" in drawn
        assert (tmp_path / "overview.png").read_bytes().startswith(b"\x89PNG")

    def test_faster_is_blue_slower_is_orange_and_what_may_be_alike_is_neither(self) -> None:
        faster, slower, much = (overview.shade(Spread.of([ratio] * 3)) for ratio in (10, 0.1, 1000))
        assert faster[2] > faster[0] > much[0], "more is deeper"
        assert slower[0] > slower[2]
        assert overview.shade(Spread.of([0.9, 1.5, 1.6])) == (1.0, 1.0, 1.0)
        ratios = {0.031: "0.03x", 0.5: "0.50x", 1: "1.0x", 9.96: "10x", 1234.4: "1,234x"}
        assert [overview.ratio_text(ratio) for ratio in ratios] == list(ratios.values())

    def test_a_short_run_measures_ours_and_every_peer_that_is_there(self, tmp_path: Path) -> None:
        amounts: Any = ["--repeats", "1", "--operations", "20", "--seconds", "0.05", "--processes", "2"]
        assert overview.main([*amounts, "--directory", str(tmp_path), "--out", str(tmp_path)]) == command.GOOD
        record = load(tmp_path / "overview.json")
        measured = {trial.subject for trial in record.trials}
        assert {"cache", "diskcache"} <= measured
        assert measured | {one.subject for one in record.absences} == set(overview.CHOSEN)
        assert {trial.processes for trial in record.trials} == {1, 2}
