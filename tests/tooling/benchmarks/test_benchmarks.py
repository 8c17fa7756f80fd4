"""The benchmark itself: its arithmetic, its workers, its tidiness, and a run small enough to test with."""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import command, measure, quick, workloads, workspace
from benchmarks.budgets import AIM, BUDGETS, MISSED, MUST, UNMEASURED, Budget, cost, judge, speed
from benchmarks.crew import Crew, Gate, WorkerError
from benchmarks.limit import limit_for
from benchmarks.measure import Costs, Summary
from benchmarks.report import Table, budget_table, duration, file_system, percentile_cells, size
from benchmarks.subjects import OURS, MissingFeature, MissingSubject, Spec, feature, load_items

from ...support.project import ROOT

TINY = ["--operations", "200", "--repeats", "1", "--processes", "2", "--entries", "400", "--writes", "300"]


class Dictionary:
    """A subject that stores nothing but in a dictionary."""

    def __init__(self, directory: str = "", **settings: object) -> None:
        self.data: dict[object, object] = {}
        self.transactions = 0

    def get(self, key: object, /) -> object:
        return self.data.get(key)

    def set(self, key: object, value: object, /) -> bool:
        self.data[key] = value
        return True

    def delete(self, key: object, /) -> bool:
        return self.data.pop(key, None) is not None

    def close(self) -> None:
        self.data.clear()


class TestMeasure:
    @pytest.mark.parametrize(
        ("per_mille", "expected"),
        [(0, 1), (1, 1), (500, 50), (900, 90), (990, 99), (991, 100), (999, 100), (1000, 100)],
    )
    def test_percentile_of_one_to_hundred(self, per_mille: int, expected: int) -> None:
        assert measure.percentile(range(1, 101), per_mille) == expected

    @given(st.lists(st.integers(0, 1000), min_size=1), st.integers(1, 1000))
    def test_percentile_is_the_smallest_sample_not_exceeded_by_enough(self, samples: list[int], per_mille: int) -> None:
        enough = [one for one in samples if sum(other <= one for other in samples) * 1000 >= per_mille * len(samples)]
        assert measure.percentile(sorted(samples), per_mille) == min(enough)

    def test_percentile_of_nothing_and_out_of_range(self) -> None:
        with pytest.raises(ValueError, match="no samples"):
            measure.percentile([], 500)
        with pytest.raises(ValueError, match="out of range"):
            measure.percentile([1], 1001)

    def test_summary_subtracts_the_cost_and_never_goes_below_zero(self) -> None:
        assert measure.summarise([30, 5, 20], cost=10) == Summary(3, 10, 20, 20, 20, 20, tail=20)

    def test_summary_of_nothing(self) -> None:
        assert percentile_cells(measure.summarise([])) == ["0", "-", "-", "-", "-", "-"]

    def test_repetitions_combine_to_medians_and_the_largest_maximum(self) -> None:
        parts = [Summary(10, p50, p50 * 2, p50 * 3, p50 * 4, top) for p50, top in ((1, 90), (5, 70), (2, 80))]
        assert measure.combine(parts) == Summary(30, 2, 4, 6, 8, 90)

    def test_ratios_pair_repetitions(self) -> None:
        assert measure.ratios([10, 9], [5, 3]) == [2, 3]
        assert measure.ratios([1], [0]) == [float("inf")]

    def test_every_name_starts_a_round_in_turn(self) -> None:
        assert list(measure.alternate(2, ["a", "b"])) == [(0, "a"), (0, "b"), (1, "b"), (1, "a")]

    def test_blocks_are_divided_after_subtracting_clock_and_loop(self, monkeypatch: pytest.MonkeyPatch) -> None:
        ticks = itertools.count(0, 1_000)
        monkeypatch.setattr(measure, "clock", lambda: next(ticks))
        seen: list[str] = []
        samples = measure.time_blocks(seen.append, [list("abcd"), list("efgh")], Costs(clock=200, loop=50))
        assert samples == [150, 150]
        assert "".join(seen) == "abcdefgh"

    def test_single_calls_keep_every_sample(self, monkeypatch: pytest.MonkeyPatch) -> None:
        ticks = itertools.count(0, 7)
        monkeypatch.setattr(measure, "clock", lambda: next(ticks))
        subject = Dictionary()
        assert list(measure.time_calls(subject.set, [("a", 1), ("b", 2)])) == [7, 7]
        assert list(measure.time_keys(subject.delete, ["a"])) == [7]
        assert subject.data == {"b": 2}

    def test_costs_are_measured(self) -> None:
        costs = measure.measure_costs(200)
        assert costs.clock > 0
        assert costs.loop >= 0


class TestWorkloads:
    def test_classic_script_is_seeded(self) -> None:
        assert workloads.classic_script(1, 500) == workloads.classic_script(1, 500)
        assert workloads.classic_script(1, 500) != workloads.classic_script(2, 500)

    def test_classic_script_has_its_shares_keys_and_values(self) -> None:
        script = workloads.classic_script(3, 20_000)
        kinds = Counter(step.kind for step in script)
        assert [round(kinds[kind] / 200) for kind in (workloads.GET, workloads.SET, workloads.DELETE)] == [90, 9, 1]
        assert {step.key for step in script} == set(workloads.classic_keys())
        assert all(step.value.startswith(step.key + b":") for step in script if step.kind == workloads.SET)

    def test_absent_keys_are_those_deleted_last(self) -> None:
        script = workloads.classic_script(4, 2_000)
        subject = Dictionary()
        for key in workloads.classic_keys():
            subject.set(key, b"")
        for step in script:
            if step.kind == workloads.SET:
                subject.set(step.key, step.value)
            elif step.kind == workloads.DELETE:
                subject.delete(step.key)
        assert workloads.absent_after(script) == set(workloads.classic_keys()) - set(subject.data)

    def test_blocks_hold_every_key(self) -> None:
        keys = workloads.keys_of(10)
        assert all(sorted(block) == keys for block in workloads.blocks_of(keys, 5, random.Random(0)))

    def test_values_have_their_size(self) -> None:
        assert {len(value) for _, value in workloads.items_of(workloads.keys_of(20))} == {workloads.VALUE_SIZE}


class TestBudgets:
    @pytest.mark.parametrize(("value", "verdict"), [(4, AIM), (3.9, MUST), (2.5, MUST), (2.4, MISSED)])
    def test_a_speed_must_not_be_lower(self, value: float, verdict: str) -> None:
        row = speed("set", "operations", "set", 2.5, 4)
        assert judge({"set": [0, value, 100]}, [row])[0].verdict == verdict

    @pytest.mark.parametrize(("value", "verdict"), [(-5, AIM), (10, AIM), (30, MUST), (30.1, MISSED)])
    def test_a_cost_must_not_be_higher(self, value: float, verdict: str) -> None:
        assert judge({"lru": [value]}, [cost("lru", "policies", "lru", 30, 10, " %")])[0].verdict == verdict

    def test_not_a_number_keeps_nothing(self) -> None:
        assert judge({"set": [float("nan")]}, [speed("set", "operations", "set", 2.5, None)])[0].verdict == MISSED

    def test_what_is_not_measured_says_so(self) -> None:
        outcomes = judge({})
        assert {outcome.verdict for outcome in outcomes} == {UNMEASURED}
        assert "not measured" in budget_table(outcomes).text()

    def test_every_row_belongs_to_a_section(self) -> None:
        assert {budget.section for budget in BUDGETS} == set(quick.SECTIONS)
        assert len({budget.key for budget in BUDGETS}) == len(BUDGETS)

    @pytest.mark.parametrize(
        ("unit", "value", "text"),
        [("x", 25, "25x"), ("x", 25.14, "25.1x"), ("x", 1.234, "1.23x"), (" %", 7.5, "+7.50 %"), (" ms", None, "-"),
         ("x", float("inf"), "infx")],
    )  # fmt: skip
    def test_values_show_in_their_unit(self, unit: str, value: float | None, text: str) -> None:
        assert Budget("k", "s", "l", 1, None, unit, True).show(value) == text


class TestReport:
    def test_columns_are_aligned(self) -> None:
        table = Table("Title", ("name", "count"), [("a", "1"), ("long name", "1,000")], ["note"])
        assert table.text().splitlines() == [
            "Title",
            "",
            "name       count",
            "---------  -----",
            "a              1",
            "long name  1,000",
            "  note",
        ]

    @pytest.mark.parametrize(
        ("nanoseconds", "text"),
        [
            (0, "0.00 ns"),
            (160, "160 ns"),
            (999.7, "1.00 µs"),
            (9_998, "10.0 µs"),
            (99_960, "100 µs"),
            (5_760, "5.76 µs"),
            (29_500, "29.5 µs"),
            (1.4e6, "1.40 ms"),
            (12.9e9, "12.9 s"),
        ],
    )
    def test_durations(self, nanoseconds: float, text: str) -> None:
        assert duration(nanoseconds) == text

    @pytest.mark.parametrize(
        ("count", "text"), [(5, "5 B"), (2048, "2.0 KiB"), (3 * 2**20, "3.0 MiB"), (2**31, "2.00 GiB")]
    )
    def test_sizes(self, count: int, text: str) -> None:
        assert size(count) == text

    def test_file_system_of_a_directory(self, tmp_path: Path) -> None:
        kind, mount = file_system(tmp_path)
        assert kind != "unknown"
        assert tmp_path.resolve().is_relative_to(mount)


class TestSubjects:
    def test_a_missing_module_names_the_command_that_installs_it(self) -> None:
        with pytest.raises(MissingSubject, match=r"cannot import no_such_module_.*install it with: pip install it"):
            Spec("it", "no_such_module_", "pip install it").load()

    def test_a_missing_class_or_method_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(MissingFeature, match="it has no Cache"):
            Spec("it", "json", "").open(tmp_path)
        with pytest.raises(MissingFeature, match=r"Dictionary has no get_many\(\)"):
            feature(Dictionary(), "get_many")

    def test_settings_add_up(self) -> None:
        spec = OURS.having(a=1, b=2).having("FanoutCache", b=3)
        assert (spec.kind, dict(spec.settings)) == ("FanoutCache", {"a": 1, "b": 3})
        assert not OURS.settings

    def test_items_are_loaded(self) -> None:
        subject = Dictionary()
        load_items(subject, ((number, None) for number in range(5)))
        assert list(subject.data) == list(range(5))


def add_one(gate: Gate, number: int) -> tuple[int, int]:
    gate.wait()
    return number + 1, os.getpid()


def fail_on_zero(gate: Gate, number: int) -> None:
    if number == 0:
        raise ValueError("it was zero")
    gate.wait()


def die_on_zero(gate: Gate, number: int) -> None:
    if number == 0:
        os._exit(7)
    gate.wait()


class TestCrew:
    def test_results_come_in_order_from_processes_that_stay(self) -> None:
        with Crew(2) as crew:
            first, second = (crew.run(add_one, [10, 20]) for _ in range(2))
        assert [number for number, _ in first] == [11, 21]
        assert first == second
        assert len({pid for _, pid in first} - {os.getpid()}) == 2

    def test_a_failure_is_told_and_holds_nobody_up(self) -> None:
        with Crew(2) as crew:
            for order in ([0, 1], [1, 0]):
                with pytest.raises(WorkerError, match="it was zero"):
                    crew.run(fail_on_zero, order)
            assert [number for number, _ in crew.run(add_one, [1, 2])] == [2, 3]

    def test_a_death_is_told_and_holds_nobody_up(self) -> None:
        with Crew(2) as crew, pytest.raises(WorkerError, match="worker 1 died with exit code 7"):
            crew.run(die_on_zero, [1, 0])


class TestWorkspace:
    def test_it_goes_with_whatever_ends_the_run(self, tmp_path: Path) -> None:
        def interrupted() -> None:
            with workspace.workspace(tmp_path) as space:
                space.fresh("cache").mkdir()
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            interrupted()
        assert list(tmp_path.iterdir()) == []

    def test_names_never_repeat(self, tmp_path: Path) -> None:
        with workspace.workspace(tmp_path) as space:
            assert space.fresh("cache") != space.fresh("cache")

    def test_only_what_nobody_owns_is_swept(self, tmp_path: Path) -> None:
        abandoned, stranger = tmp_path / f"{workspace.PREFIX}abandoned", tmp_path / "other"
        stranger.mkdir()
        abandoned.mkdir()
        (abandoned / workspace.LOCK).touch()
        with workspace.workspace(tmp_path) as space:
            for path in (abandoned, space.root):
                os.utime(path, (0, 0))
            workspace.sweep(tmp_path)
            assert sorted(tmp_path.iterdir()) == sorted([space.root, stranger])

    def test_a_young_one_without_its_lock_is_left_alone(self, tmp_path: Path) -> None:
        young = tmp_path / f"{workspace.PREFIX}young"
        young.mkdir()
        workspace.sweep(tmp_path)
        assert young.is_dir()


@pytest.mark.parametrize("writes", [1, 20_000, 10**9])
def test_the_limit_stays_within_reason(writes: int) -> None:
    assert 2**20 <= limit_for(writes) <= 16 * 2**20


class TestRun:
    def test_a_tiny_run_measures_every_row_it_should(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        pytest.importorskip("diskcache")
        written = tmp_path / "found.json"
        places = ["--directory", str(tmp_path), "--json", str(written)]
        assert quick.main([*TINY, *places]) == command.GOOD
        found = json.loads(written.read_text(encoding="utf-8"))
        unmeasured = [row["budget"]["key"] for row in found["budgets"] if row["verdict"] == UNMEASURED]
        unasked = {name for name, section in quick.SECTIONS.items() if not section.unasked}
        assert unmeasured == [budget.key for budget in BUDGETS if budget.section in unasked]
        calls = found["sections"]["classic"]["details"]["2_processes"]["ours"][0]["calls"]
        assert sum(summary["count"] for summary in calls.values()) == 2 * 200
        assert calls["get"]["count"] > calls["set"]["count"] > calls["delete"]["count"]
        shown = capsys.readouterr().out
        assert all(text in shown for text in ("SQLite: ", "2 processes x 200 operations", "Budgets", "verdict"))
        assert list(tmp_path.iterdir()) == [written]

    def test_a_missed_must_ends_with_one_only_if_enforced(self, tmp_path: Path) -> None:
        pytest.importorskip("diskcache")
        itself = [*TINY, "--subject", "diskcache", "--only", "operations", "--directory", str(tmp_path)]
        assert quick.main(itself) == command.GOOD
        assert quick.main([*itself, "--enforce"]) == quick.ENFORCED

    def test_a_subject_without_the_api_fails_its_section(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        pytest.importorskip("diskcache")
        itself = [*TINY, "--subject", "diskcache", "--only", "bulk", "--directory", str(tmp_path)]
        assert quick.main(itself) == command.FAILED
        assert "section bulk FAILED: diskcache.core.Cache has no get_many()" in capsys.readouterr().out

    def test_diskcache_missing_names_the_command(
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

    @pytest.mark.parametrize(
        "interrupt", [lambda group: os.killpg(group, signal.SIGINT), lambda group: os.kill(group, signal.SIGTERM)]
    )
    def test_an_interruption_leaves_nothing_behind(self, interrupt: Callable[[int], None], tmp_path: Path) -> None:
        pytest.importorskip("diskcache")
        started = [sys.executable, "-m", "benchmarks.quick", "--subject", "diskcache", "--only", "classic"]
        with subprocess.Popen(
            [*started, "--directory", str(tmp_path)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        ) as process:
            assert process.stdout is not None
            while not process.stdout.readline().startswith(b"clock: "):
                assert process.poll() is None
            interrupt(process.pid)
            # Ends only when every process that inherited the pipes has ended.
            _, errors = process.communicate()
        assert process.returncode == command.INTERRUPTED
        assert errors == b"benchmarks.quick: interrupted\n"
        assert list(tmp_path.iterdir()) == []
