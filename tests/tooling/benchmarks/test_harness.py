"""The benchmark harness: scenarios, trials, what answers are counted as, and what one failing subject does to a run."""

from __future__ import annotations

import dataclasses
import os
import shutil
import signal
import subprocess
import sys
from array import array
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

import diskcache_like
from benchmarks import __main__ as command
from benchmarks import harness, scripts, trial
from benchmarks.catalogue import SUBJECTS, Available
from benchmarks.harness import Amounts, Harness, steps_of
from benchmarks.measure import Costs
from benchmarks.record import Absence, Calls, Record, ScenarioFacts, SubjectFacts, Trial, load
from benchmarks.scenarios import SCENARIOS, Scenario
from benchmarks.scripts import Bulk, Counters, Growth, Mix, Tags
from benchmarks.subjects import OURS, BenchmarkError, MissingFeature, Spec
from benchmarks.trial import Judge, Pace, Plan, Report, pacer
from benchmarks.workloads import DELETE, GET, SET, value_of
from benchmarks.workspace import PREFIX, Workspace

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


def plan(workload: scripts.Workload, **changes: Any) -> Plan:
    return dataclasses.replace(Plan(OURS, Path("nowhere"), workload, 100, 1.0), **changes)


class TestScripts:
    @pytest.mark.parametrize("name", SCENARIOS)
    def test_every_scenario_makes_the_same_script_again(self, name: str) -> None:
        one = SCENARIOS[name]
        for step in steps_of(one, FEW):
            workload = one.workload(step)
            steps = workload.steps(7, 300)
            assert steps == workload.steps(7, 300) != workload.steps(8, 300)
            assert {kind for kind, _ in steps} <= set(range(len(workload.kinds)))
            assert len(steps) >= 1

    @pytest.mark.parametrize("name", SCENARIOS)
    def test_every_scenario_asks_a_question_of_known_subjects(self, name: str) -> None:
        one = SCENARIOS[name]
        assert one.facts.title
        assert one.facts.question.endswith("?")
        assert {subject for step in one.steps for subject in one.subjects_at(step)} <= set(SUBJECTS)

    def test_the_classic_mix_is_90_9_1(self) -> None:
        kinds = [kind for kind, _ in Mix().steps(1, 20_000)]
        assert [round(100 * kinds.count(kind) / len(kinds)) for kind in (GET, SET, DELETE)] == [90, 9, 1]

    def test_zipf_prefers_few_keys_and_shuffles_them(self) -> None:
        steps = Mix(10_000, {GET: 1}, skew=0.99).steps(1, 20_000)
        counts: dict[str, int] = {}
        for _, (key,) in steps:
            counts[key] = counts.get(key, 0) + 1
        ordered = sorted(counts, key=counts.__getitem__, reverse=True)
        assert counts[ordered[0]] > 20_000 * 0.05
        assert ordered[:5] != sorted(ordered[:5]), "neighbours are not equally popular"

    def test_growth_never_reads_a_key_that_it_deletes(self) -> None:
        steps = Growth(1_000).steps(3, 2_000)
        read = {args[0] for kind, args in steps if kind == 0}
        assert not read & {args[0] for kind, args in steps if kind == 2}
        places = [place for place, (kind, _) in enumerate(steps) if kind == 2]
        assert all(steps[place + 1] == (3, (steps[place][1][0], steps[place + 1][1][1])) for place in places)

    @pytest.mark.parametrize("make", [scripts.dict_of, scripts.records_of, scripts.Bytes(50)])
    def test_values_name_their_keys(self, make: Any) -> None:
        assert scripts.names("a key", make("a key", 1))
        assert not scripts.names("another", make("a key", 1))

    def test_the_dictionary_has_about_10_kilobytes(self) -> None:
        assert 8_000 < len(repr(scripts.dict_of("key", 0))) < 14_000

    def test_bulk_proves_every_key(self) -> None:
        (_, (keys,)), (_, (mapping,)) = Bulk().steps(1, 1)
        right = {key: value_of(key) for key in keys}
        assert len(mapping) == Bulk().per_call
        assert Bulk().proves("get_many", (keys,), right)
        assert not Bulk().proves("get_many", (keys,), {**right, keys[5]: b"another"})
        right.pop(keys[0])
        assert not Bulk().proves("get_many", (keys,), right)

    def test_evicting_fewer_than_were_tagged_is_wrong(self) -> None:
        assert Tags().proves("evict", ("tag",), 100)
        assert not Tags().proves("evict", ("tag",), 99)

    def test_a_subject_without_a_call_says_so(self) -> None:
        for kind in ("push", "get_many", "set_tagged", "hit"):
            with pytest.raises(MissingFeature):
                scripts.bound(Dictionary("/tmp"), kind)


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

    def test_a_right_value_is_nothing_to_note(self) -> None:
        report = self.judged([("get", ("k",), b"k/1/..."), ("set", ("k", b"k/"), True), ("delete", ("k",), True)])
        assert (report.misses, report.unexpected, report.timeouts, report.wrong) == (0, 0, 0, 0)

    def test_a_miss_of_a_deleted_key_is_by_design(self) -> None:
        report = self.judged([("set", ("k", b""), True), ("delete", ("k",), True), ("get", ("k",), None)])
        assert (report.misses, report.unexpected) == (1, 0)

    def test_a_miss_of_a_key_that_was_set_last_is_not(self) -> None:
        report = self.judged([("delete", ("k",), True), ("set", ("k", b""), True), ("get", ("k",), None)])
        assert (report.misses, report.unexpected) == (0, 1)

    def test_in_company_a_miss_may_be_another_process_s_deletion(self) -> None:
        report = self.judged([("set", ("k", b""), True), ("get", ("k",), None)], processes=2)
        assert (report.misses, report.unexpected) == (1, 0)

    def test_where_nothing_is_deleted_no_miss_is_by_design(self) -> None:
        report = self.judged([("get", ("k",), None)], workload=Mix(shares={GET: 1, SET: 1}), processes=2)
        assert (report.misses, report.unexpected) == (0, 1)

    def test_a_lock_not_got_in_time_is_no_miss(self) -> None:
        report = self.judged([("get", ("k",), "timeout"), ("set", ("k", b""), "timeout"), ("get", ("k",), None)])
        assert (report.timeouts, report.misses, report.unexpected) == (2, 1, 0)

    def test_a_wrong_value_and_a_refused_set_are_noticed(self) -> None:
        report = self.judged([("get", ("k",), b"j/1/"), ("set", ("k", b""), False)])
        assert (report.wrong, report.unexpected) == (1, 1)

    def test_evicted_entries_may_be_missing(self) -> None:
        report = self.judged([("set", ("k", b""), True), ("get", ("k",), None)], may_miss=True)
        assert (report.misses, report.unexpected) == (1, 0)


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
    def time(self, monkeypatch: pytest.MonkeyPatch) -> list[int]:
        """Replace clock and sleep; sleeping takes 70 ns longer than asked."""
        now = [1_000]

        def sleep(seconds: float) -> None:
            now[0] += round(seconds * 1e9) + 70

        monkeypatch.setattr(trial, "clock", lambda: now[0])
        monkeypatch.setattr("benchmarks.trial.time.sleep", sleep)
        monkeypatch.setattr(trial, "_wake_on_time", lambda: None)
        return now

    def test_a_late_call_is_timed_from_when_it_was_due(self, time: list[int]) -> None:
        due = pacer(plan(Mix(), pace=Pace(rate=1e6), processes=2, number=1))  # one call in 2,000 ns, from 4,000 on
        assert due(0) == 4_070, "the kernel's lateness is not the subject's"
        time[0] += 5_000  # a call that held up two others
        assert [due(0), due(0)] == [6_000, 8_000]
        assert due(0) == 10_070

    def test_workers_take_turns(self, time: list[int]) -> None:
        firsts = []
        for number in range(4):
            time[0] = 1_000
            firsts.append(pacer(plan(Mix(), pace=Pace(rate=1e6), processes=4, number=number))(0))
        assert firsts == [5_070, 6_070, 7_070, 8_070]

    def test_thinking_is_not_timed(self, time: list[int]) -> None:
        assert pacer(plan(Mix(), pace=Pace(think=1e-6)))(0) == 2_070

    def test_otherwise_calls_follow_each_other(self, time: list[int]) -> None:
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


def record_of(specs: dict[str, Spec], scenario: Scenario) -> Record:
    facts = {name: SubjectFacts(spec.name) for name, spec in specs.items()}
    return Record({}, dataclasses.asdict(FEW), facts, {"one": scenario.facts})


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    def measured(scenario: Scenario, amounts: Amounts = FEW, **specs: Spec) -> Record:
        @contextmanager
        def found(names: list[str], *_: object) -> Iterator[Available]:
            yield Available({name: specs[name] for name in names}, {}, [Absence("lacking", "install it")])

        monkeypatch.setattr(harness, "available", found)
        monkeypatch.setattr(harness, "SUBJECTS", dict.fromkeys(specs, SUBJECTS["cache"]))
        record = record_of(specs, scenario)
        done = Harness(record, amounts, Costs(0, 0), Workspace(tmp_path)).run({"one": scenario}, list(specs))
        assert list(done) == ["one"]
        return record

    return measured


def scenario(workload: scripts.Workload, processes: int = 1, **more: Any) -> Scenario:
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
        assert record.absences == [Absence("lacking", "install it")]

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
        assert record.absences[1:] == [
            Absence("bad", "tests.tooling.benchmarks.test_harness.Dictionary has no evict()", "one")
        ]
        assert "good" in record.of("one")

    def test_one_that_is_not_installed_is_left_out_with_what_installs_it(self, run: Any) -> None:
        record = run(scenario(Mix()), good=dictionary(), bad=Spec("bad", "no_such_module", "pip install it"))
        assert [one.subject for one in record.trials] == ["good", "good"]
        (told,) = record.absences[1:]
        assert (told.subject, told.failed) == ("bad", False)
        assert told.reason.endswith("install it with: pip install it")

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


class TestCommand:
    def test_unknown_names_list_the_known(self, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
        assert command.main(["--scenario", "clasic", "--out", str(tmp_path)]) == 2
        told = capsys.readouterr().err
        assert "there is no scenario 'clasic'; did you mean 'classic'?" in told
        assert "open-loop" in told
        assert command.main(["--subject", "oracle", "--out", str(tmp_path)]) == 2
        assert "memcached" in capsys.readouterr().err

    def test_the_list_names_everything(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert command.main(["--list"]) == 0
        told = capsys.readouterr().out
        assert all(name in told for name in (*SCENARIOS, *SUBJECTS))

    def test_a_small_run_prints_saves_and_plots(self, tmp_path: Path) -> None:
        asked = ["--scenario", "counters", "--scenario", "tags", "--subject", "cache", "--subject", "diskcache"]
        amounts = ["--repeats", "1", "--operations", "150", "--processes", "2"]
        paths = ["--directory", str(tmp_path), "--out", str(tmp_path / "out")]
        started = [sys.executable, "-m", "benchmarks", *asked, *amounts, *paths]
        done = subprocess.run(started, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        record = load(tmp_path / "out" / "record.json")
        assert {one.scenario for one in record.trials} == {"counters", "tags"}
        assert "DiskCache" in done.stdout
        assert list((tmp_path / "out").glob("*.svg"))
        assert not list(tmp_path.glob(f"{PREFIX}*"))

    def test_our_own_wrong_values_fail_the_run(self, capsys: pytest.CaptureFixture[str]) -> None:
        facts = {"cache": SubjectFacts("Cache"), "redis": SubjectFacts("Redis")}
        calls = {"get": Calls.of([1.0])}
        record = Record({}, {}, facts, {}, [Trial("s", "redis", 0, 1, 0, 1.0, 1, calls, wrong=1)])
        assert command.judged(record) == 0
        record.trials.append(Trial("s", "cache", 4, 1, 0, 1.0, 1, calls, wrong=2))
        assert command.judged(record) == 3
        assert "s, cache, repetition 5: 2 wrong values" in capsys.readouterr().out
        record.trials.clear()
        record.absences.append(Absence("cache", "broke", "s", failed=True))
        assert command.judged(record) == 3

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
    def test_an_interrupt_leaves_nothing_behind(self, tmp_path: Path, number: int) -> None:
        asked = ["--scenario", "counters", "--subject", "cache", "--repeats", "1000", "--processes", "2"]
        process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks", *asked, "--out", str(tmp_path / "out"), "--directory", str(tmp_path)],
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        while not list(tmp_path.glob(f"{PREFIX}*/*counters*/cache.db")):
            assert process.poll() is None, process.communicate()[1]
        process.send_signal(number)
        assert "interrupted" in process.communicate(timeout=60)[1]
        assert process.returncode == 130
        assert not list(tmp_path.glob(f"{PREFIX}*"))
        with pytest.raises(ProcessLookupError):
            os.killpg(process.pid, 0)


def test_a_record_that_is_none_is_explained(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    for text in ("", "[]", "{}", '{"format": 99}'):
        path.write_text(text)
        with pytest.raises(BenchmarkError, match=r"record\.json"):
            load(path)
