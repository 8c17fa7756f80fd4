"""The benchmark harness: scenarios, trials, what answers are counted as, and what one failing subject does to a run."""

from __future__ import annotations

import dataclasses
import itertools
import os
import shutil
import signal
import time
from array import array
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import diskcache_like
from benchmarks import workspace
from benchmarks.crew import Crew, Gate, WorkerError
from benchmarks.measure import Costs
from benchmarks.peers.catalogue import SUBJECTS, Candidate
from benchmarks.peers.spec import OURS, MissingFeature, Spec
from benchmarks.report.record import Absence, Record, ScenarioFacts, SubjectFacts
from benchmarks.workloads import calls, harness, trial
from benchmarks.workloads.calls import DELETE, GET, SET, Bulk, BulkOrEach, Counters, Hits, Mix, Singles, Tags
from benchmarks.workloads.harness import Amounts, Harness, steps_of
from benchmarks.workloads.scenarios import SCENARIOS, Scenario
from benchmarks.workloads.trial import Judge, Pace, Plan, Report, pacer
from benchmarks.workloads.values import Bytes, dict_of, names, records_of, value_of
from benchmarks.workspace import Workspace

FEW = Amounts(repeats=2, operations=60, seconds=5.0, processes=2, largest=10_000)


class Dictionary:
    """A subject in memory, which does what it is told."""

    def __init__(self, directory: str, **faults: Any) -> None:
        Path(directory).mkdir(exist_ok=True)
        self.faults = faults
        self.data: dict[Any, Any] = {}

    def get(self, key: Any, /) -> Any:
        if self.faults.get("dies") and self.data.get("calls", 0) > 20:
            os._exit(7)
        self.data["calls"] = self.data.get("calls", 0) + 1
        if self.faults.get("lies"):
            return b"another value"
        return self.data.get(key) or (None if self.faults.get("loses") else f"{key}/".encode())

    def set(self, key: Any, value: Any, /) -> Any:
        if self.faults.get("fails"):
            raise OSError(28, "no space left")
        self.data[key] = value

    def delete(self, key: Any, /) -> Any:
        self.data.pop(key, None)

    def incr(self, key: Any, /) -> int:
        self.data[key] = self.data.get(key, 0) + (0 if self.faults.get("forgets") else 1)
        return int(self.data[key])

    def close(self) -> None:
        self.data.clear()


def dictionary(**faults: Any) -> Spec:
    return Spec("dictionary", __name__, "nothing", "Dictionary", tuple(faults.items()))


def plan(workload: calls.Workload, **changes: Any) -> Plan:
    return dataclasses.replace(Plan(OURS, Path("nowhere"), workload, 100, 1.0), **changes)


class TestWorkloads:
    @pytest.mark.parametrize("name", SCENARIOS)
    def test_every_scenario_makes_the_same_script_again_for_known_subjects(self, name: str) -> None:
        one = SCENARIOS[name]
        for step in steps_of(one, FEW):
            workload = one.workload(step)
            steps = workload.steps(7, 300)
            assert steps == workload.steps(7, 300) != workload.steps(8, 300)
            assert {kind for kind, _ in steps} <= set(range(len(workload.kinds)))
        assert one.facts.question.endswith("?")
        assert {subject for step in one.steps for subject in one.subjects_at(step)} <= set(SUBJECTS)

    def test_the_classic_mix_is_90_9_1(self) -> None:
        kinds = [kind for kind, _ in Mix().steps(1, 20_000)]
        assert [round(100 * kinds.count(kind) / len(kinds)) for kind in (GET, SET, DELETE)] == [90, 9, 1]

    def test_zipf_prefers_few_keys_and_shuffles_them(self) -> None:
        counts = Counter(key for _, (key,) in Mix(10_000, {GET: 1}, skew=0.99).steps(1, 20_000))
        ordered = [key for key, _ in counts.most_common(5)]
        assert counts[ordered[0]] > 20_000 * 0.05
        assert ordered != sorted(ordered), "neighbours are not equally popular"

    def test_a_key_that_is_deleted_is_never_read_and_put_back_at_once(self) -> None:
        workload = Singles(1_000, ("get", "set", "incr", "delete", "insert"))
        steps = [(workload.kinds[kind], args) for kind, args in workload.steps(3, 2_000)]
        assert not {args[0] for kind, args in steps if kind == "get"} & {
            args[0] for kind, args in steps if kind == "delete"
        }
        for (kind, args), (following, put) in itertools.pairwise(steps):
            assert (kind == "delete") is (following == "insert")
            assert kind != "delete" or put[0] == args[0]

    @pytest.mark.parametrize("make", [dict_of, records_of, Bytes(50)])
    def test_values_name_their_keys(self, make: Any) -> None:
        assert names("a key", make("a key", 1))
        assert not names("another", make("a key", 1))

    def test_answers_to_calls_of_many_are_proved(self) -> None:
        (_, (keys,)), (_, (mapping,)) = Bulk().steps(1, 1)
        right = {key: value_of(key) for key in keys}
        assert len(mapping) == Bulk.per_call
        assert Bulk().proves("get_many", (keys,), right)
        assert not Bulk().proves("get_many", (keys,), {**right, keys[5]: b"another"})
        assert Hits().proves("hits", (keys,), right[keys[-1]])
        assert not Hits().proves("hits", (keys,), right[keys[0]])
        right.pop(keys[0])
        assert not Bulk().proves("get_many", (keys,), right)
        assert [Tags().proves("evict", ("tag",), count) for count in (100, 99)] == [True, False]

    def test_a_subject_without_a_call_says_so(self) -> None:
        for kind in ("push", "get_many", "set_tagged", "hit"):
            with pytest.raises(MissingFeature):
                calls.bound(Dictionary("/tmp"), kind)


class TestJudge:
    def judged(self, answers: list[tuple[str, Any, Any]], **changes: Any) -> Report:
        report, timeouts = Report(), array("q", [0])
        judge = Judge(plan(changes.pop("workload", Mix()), **changes), report, timeouts)
        for kind, args, result in answers:
            if result == "timeout":
                timeouts[0] += 1
                result = None
            judge(kind, args, result)
        return report

    SET_THEN_MISS = (("set", ("k", b""), True), ("get", ("k",), None))

    @pytest.mark.parametrize(
        ("answers", "changes", "expected"),  # misses, unexpected, timeouts, wrong
        [
            ([("get", ("k",), b"k/1/..."), ("set", ("k", b"k/"), True), ("delete", ("k",), True)], {}, (0, 0, 0, 0)),
            ([("set", ("k", b""), True), ("delete", ("k",), True), ("get", ("k",), None)], {}, (1, 0, 0, 0)),
            ([("delete", ("k",), True), *SET_THEN_MISS], {}, (0, 1, 0, 0)),
            ([*SET_THEN_MISS], {"processes": 2}, (1, 0, 0, 0)),  # another process may have deleted it
            ([("get", ("k",), None)], {"workload": Mix(shares={GET: 1, SET: 1}), "processes": 2}, (0, 1, 0, 0)),
            ([("get", ("k",), "timeout"), ("set", ("k", b""), "timeout"), ("get", ("k",), None)], {}, (1, 0, 2, 0)),
            ([("get", ("k",), b"j/1/"), ("set", ("k", b""), False)], {}, (0, 1, 0, 1)),
            ([*SET_THEN_MISS], {"may_miss": True}, (1, 0, 0, 0)),  # evicted
        ],
    )
    def test_answers_are_sorted(self, answers: Any, changes: dict[str, Any], expected: tuple[int, ...]) -> None:
        report = self.judged(answers, **changes)
        assert (report.misses, report.unexpected, report.timeouts, report.wrong) == expected


def test_timeouts_that_the_library_hides_are_counted(tmp_path: Path) -> None:
    with (
        diskcache_like.FanoutCache(str(tmp_path), shards=1, timeout=0) as cache,
        diskcache_like.Cache(str(tmp_path), timeout=5) as other,
        trial.timeouts_counted(OURS) as timeouts,
    ):
        with other.transact():
            other["key"] = 1
            assert cache.set("key", 2) is False
        assert timeouts[0] == 1
        assert cache.set("key", 2) is True
        assert timeouts[0] == 1
    with pytest.raises(diskcache_like.Timeout, match="as it was"):
        raise diskcache_like.Timeout("as it was")
    assert timeouts[0] == 1, "counted in the block only"


class TestPace:
    @pytest.fixture
    def now(self, monkeypatch: pytest.MonkeyPatch) -> list[int]:
        """Replace clock and sleep; sleeping takes 70 ns longer than asked."""
        now = [1_000]

        def sleep(seconds: float) -> None:
            now[0] += round(seconds * 1e9) + 70

        monkeypatch.setattr(trial, "clock", lambda: now[0])
        monkeypatch.setattr(time, "sleep", sleep)
        return now

    def test_a_late_call_is_timed_from_when_it_was_due(self, now: list[int]) -> None:
        due = pacer(plan(Mix(), pace=Pace(rate=1e6), processes=2, number=1))  # one call in 2,000 ns, from 4,000 on
        assert due(0) == 4_070, "the kernel's lateness is not the subject's"
        now[0] += 5_000  # a call that held up two others
        assert [due(0), due(0)] == [6_000, 8_000]
        assert due(0) == 10_070

    def test_workers_take_turns(self, now: list[int]) -> None:
        firsts = []
        for number in range(4):
            now[0] = 1_000
            firsts.append(pacer(plan(Mix(), pace=Pace(rate=1e6), processes=4, number=number))(0))
        assert firsts == [5_070, 6_070, 7_070, 8_070]

    def test_thinking_is_not_timed(self, now: list[int]) -> None:
        assert pacer(plan(Mix(), pace=Pace(think=1e-6)))(0) == 2_070

    def test_otherwise_calls_follow_each_other(self, now: list[int]) -> None:
        assert pacer(plan(Mix()))(0) == 1_000


def pids_below(directory: Path) -> list[str]:
    """Return the processes that work in a directory below this one."""
    found = []
    for link in Path("/proc").glob("[0-9]*/cwd"):
        with suppress(OSError):
            if link.readlink().is_relative_to(directory):
                found.append(link.parent.name)
    return found


def needs_server(program: str) -> None:
    if shutil.which(program) is None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(f"{program} is not installed: apt-get install {program}")


@pytest.fixture
def run(tmp_path: Path) -> Any:
    def measured(scenario: Scenario, amounts: Amounts = FEW, **specs: Spec) -> Record:
        known = {name: Candidate(spec, name, fixed=True) for name, spec in specs.items()}
        record = Record({}, {}, {name: one.facts for name, one in known.items()}, {"one": scenario.facts})
        done = Harness(record, amounts, Costs(0, 0), Workspace(tmp_path), catalogue=known)
        assert list(done.run({"one": scenario}, list(specs))) == ["one"]
        return record

    return measured


def scenario(workload: calls.Workload, processes: int = 1, **more: Any) -> Scenario:
    facts = ScenarioFacts("title", "question?")
    return Scenario(facts, lambda step: workload, ("good", "bad"), processes=lambda step, most: processes, **more)


class TestHarness:
    def test_repetitions_take_turns_and_are_complete(self, run: Any) -> None:
        record = run(scenario(Mix(), 2), good=dictionary(), bad=OURS)
        assert [(one.subject, one.repetition) for one in record.trials] == [
            ("good", 0),
            ("bad", 0),
            ("bad", 1),
            ("good", 1),
        ]
        for one in record.trials:
            assert one.operations == 2 * FEW.operations == sum(calls.count for calls in one.calls.values())
            assert one.seconds > 0
            assert one.processes == 2
            assert one.peak_memory >= 0
            assert (one.wrong, one.unexpected, one.timeouts) == (0, 0, 0)
        assert {one.disk_bytes > 0 for one in record.of("one")["bad"]} == {True}
        assert record.absences == []

    def test_a_step_leaves_no_store_behind(self, run: Any, tmp_path: Path) -> None:
        run(scenario(Mix(), 2), good=OURS, bad=dictionary(dies=True))
        assert not list(tmp_path.iterdir())

    @pytest.mark.parametrize(
        ("fault", "reason"),
        [({"fails": True}, "no space left"), ({"dies": True}, "exit code 7")],
    )
    def test_one_that_fails_fails_alone(self, run: Any, fault: dict[str, Any], reason: str) -> None:
        record = run(scenario(Mix(loaded=0)), good=dictionary(), bad=dictionary(**fault))
        assert [one.repetition for one in record.of("one")["good"]] == [0, 1]
        assert "bad" not in record.of("one")
        (told,) = (one for one in record.absences if one.subject == "bad")
        assert told.failed
        assert told.scenario == "one"
        assert reason in told.reason

    def test_one_that_cannot_do_it_is_left_out(self, run: Any) -> None:
        record = run(scenario(Tags()), bad=dictionary(), good=OURS)
        assert record.absences == [
            Absence("bad", "tests.tooling.benchmarks.test_harness.Dictionary has no evict()", "one")
        ]
        assert "good" in record.of("one")

    def test_a_server_that_dies_in_mid_run_fails_that_subject_alone(self, tmp_path: Path) -> None:
        needs_server("memcached")
        facts = {name: SUBJECTS[name].facts for name in ("cache", "memcached")}
        record = Record({}, {}, facts, {"one": ScenarioFacts("title", "question?")})

        def note(text: str, fraction: float) -> None:
            if "memcached, 2 of" in text:
                (pid,) = (int(word) for word in pids_below(tmp_path))
                os.kill(pid, signal.SIGKILL)

        one = dataclasses.replace(scenario(Mix()), subjects=("cache", "memcached"))
        list(Harness(record, FEW, Costs(0, 0), Workspace(tmp_path), note).run({"one": one}, list(facts)))
        assert [trial.repetition for trial in record.of("one")["cache"]] == [0, 1]
        assert [trial.repetition for trial in record.of("one")["memcached"]] == [0]
        (told,) = record.absences
        assert (told.subject, told.scenario, told.failed) == ("memcached", "one", True)

    def test_one_that_hangs_fails_alone(self, run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(harness, "PATIENCE", -3 * FEW.seconds)
        record = run(scenario(Mix()), good=dictionary())
        assert record.trials == []
        assert "no worker has answered" in record.absences[-1].reason

    def test_what_is_wrong_is_in_the_record(self, run: Any) -> None:
        lies = run(scenario(Mix()), good=dictionary(lies=True)).trials
        assert all(one.wrong == one.calls["get"].count for one in lies)
        loses = run(scenario(Mix(shares={GET: 1, SET: 0})), good=dictionary(loses=True)).trials
        assert all(one.unexpected == one.calls["get"].count for one in loses)

    def test_blocks_are_divided_after_subtracting_clock_and_loop(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ticks = itertools.count(0, 100_000)
        monkeypatch.setattr(trial, "clock", lambda: next(ticks))
        one = scenario(Hits())
        record = Record({}, {}, {"good": SubjectFacts("Good")}, {"one": one.facts})
        known = {"good": Candidate(dictionary(), "Good", fixed=True)}
        costs = Costs(clock=20_000, loop=50)
        list(Harness(record, FEW, costs, Workspace(tmp_path), catalogue=known).run({"one": one}, ["good"]))
        assert {one.calls["hits"].p50 for one in record.trials} == {(100_000 - 20_000) / 100 - 50}

    def test_what_one_by_one_reads_and_writes_is_right(self, run: Any) -> None:
        (first, _) = run(scenario(BulkOrEach(2_000)), good=OURS).trials
        assert (first.wrong, first.unexpected) == (0, 0)
        assert set(first.calls) == set(BulkOrEach().kinds)

    def test_increments_that_get_lost_are_wrong(self, run: Any) -> None:
        record = run(scenario(Counters(keys=1), 2), good=dictionary(), bad=OURS)
        found = record.of("one")
        assert all(one.wrong > 0 for one in found["good"]), "each process has a dictionary of its own"
        assert all(one.wrong == 0 for one in found["bad"])

    def test_time_ends_a_pass_as_well(self, run: Any) -> None:
        endless = dataclasses.replace(FEW, operations=5_000, seconds=1e-6)
        for one in run(scenario(Mix()), endless, good=dictionary()).trials:
            assert one.operations == 1
            assert sum(calls.count for calls in one.calls.values()) == 1

    def test_a_paced_trial_counts_its_timed_calls(self, run: Any) -> None:
        record = run(scenario(Mix(), pace=lambda step: Pace(rate=1e7)), good=dictionary())
        assert all(one.operations == FEW.operations for one in record.trials)

    def test_steps_follow_the_amounts(self) -> None:
        assert steps_of(SCENARIOS["classic"], FEW) == [1, 2]
        assert steps_of(SCENARIOS["growth"], FEW) == [10_000]
        assert steps_of(SCENARIOS["growth"], dataclasses.replace(FEW, largest=10**7))[-2:] == [10**6, 10**7]
        assert steps_of(SCENARIOS["sizes"], FEW) == [100, 10_000, 100_000, 1_000_000]


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

    def test_a_failure_and_a_death_are_told_and_hold_nobody_up(self) -> None:
        with Crew(2) as crew:
            for order in ([0, 1], [1, 0]):
                with pytest.raises(WorkerError, match="it was zero"):
                    crew.run(fail_on_zero, order)
            assert [number for number, _ in crew.run(add_one, [1, 2])] == [2, 3]
            with pytest.raises(WorkerError, match="worker 1 died with exit code 7"):
                crew.run(die_on_zero, [1, 0])


class TestWorkspace:
    def test_it_goes_with_whatever_ends_the_run(self, tmp_path: Path) -> None:
        def interrupted() -> None:
            with workspace.workspace(tmp_path) as space:
                assert space.fresh("cache") != space.fresh("cache")
                space.fresh("cache").mkdir()
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            interrupted()
        assert list(tmp_path.iterdir()) == []
