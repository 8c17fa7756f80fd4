"""The rig itself: what a proof finds is told with how to repeat it, whatever way the proof ends."""

from __future__ import annotations

import json
import random
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from prove import __main__ as command
from prove import report
from prove.catalogue import PROOFS as KNOWN
from prove.proof import ENOUGH, WHOLE, Findings, Part, Proof, Trial, Unreachable, scattered
from prove.runner import Outcome, Runner

from .sample_proofs import BAD, DEADLY, PROOFS

SAMPLES = "tests.tooling.prove.sample_proofs"
SEED = 7
BRIEF = 0.01


@pytest.fixture
def runner() -> Iterator[Runner]:
    with Runner(SEED, catalogue=SAMPLES) as made:
        yield made


def run(runner: Runner, name: str, only: int | None = None) -> Outcome:
    return runner.run(name, PROOFS[name], BRIEF, only)


def shared(monkeypatch: pytest.MonkeyPatch, items: int, processors: int, share: Part = WHOLE) -> Outcome:
    """Run the proof whose parts are shared among processes, with as many items as the seed says."""
    monkeypatch.setattr("os.sched_getaffinity", lambda process: set(range(processors)))
    with Runner(items, catalogue=SAMPLES, share=share) as made:
        return run(made, "shared")


def test_a_promise_that_holds_is_told_with_what_was_counted_and_measured(runner: Runner) -> None:
    outcome = run(runner, "holds")
    assert outcome.held
    assert outcome.findings.cases >= 3
    assert outcome.findings.counts == {"operations": 2 * outcome.findings.cases}
    assert outcome.findings.figures == {"largest": "5 ms"}


def test_a_violation_is_told_with_the_case_that_repeats_it(runner: Runner) -> None:
    outcome = run(runner, "breaks")
    assert not outcome.held
    assert len(outcome.findings.violations) == 3, "then it is enough"
    case, text = outcome.findings.violations[0]
    assert "larger than a half" in text
    again = run(runner, "breaks", only=case)
    assert again.findings.cases == 1
    assert [found for found, _ in again.findings.violations] == [case]


def test_an_error_that_nobody_expected_is_a_violation(runner: Runner) -> None:
    outcome = run(runner, "raises")
    ((case, text),) = outcome.findings.violations
    assert case == 2
    assert "TypeError" in text


@pytest.mark.parametrize(("name", "how"), [("dies", "died of SIGSEGV"), ("dies-with-a-child", "ended with status 3")])
def test_the_end_of_the_process_is_a_violation(runner: Runner, name: str, how: str) -> None:
    outcome = run(runner, name)
    ((case, text),) = outcome.findings.violations
    assert how in text
    again = run(runner, name, only=case)
    assert [found for found, _ in again.findings.violations] == [case]


def test_a_hang_is_a_violation() -> None:
    with Runner(SEED, catalogue=SAMPLES, patience=2.0) as impatient:
        outcome = run(impatient, "hangs")
    ((_, text),) = outcome.findings.violations
    assert "hung" in text


@pytest.mark.parametrize("processors", [1, 2, 3])
def test_the_parts_of_a_proof_do_every_case_once(monkeypatch: pytest.MonkeyPatch, processors: int) -> None:
    outcome = shared(monkeypatch, 40, processors)
    assert outcome.held
    assert outcome.findings.counts == {f"item {number}": 1 for number in range(40)}
    assert "40 cases" in report.how_often(outcome)
    assert "items: all 40, largest item: 39" in report.how_often(outcome)


def test_the_shares_of_a_proof_do_every_case_once_whatever_processors_each_has(monkeypatch: pytest.MonkeyPatch) -> None:
    counts: Counter[str] = Counter()
    for share, processors, known in ((Part(0, 3), 1, 14), (Part(1, 3), 3, 13), (Part(2, 3), 2, 13)):
        outcome = shared(monkeypatch, 40, processors, share)
        assert outcome.findings.reached == {"items": (known, known)}, "of this share"
        counts.update(outcome.findings.counts)
    assert counts == {f"item {number}": 1 for number in range(40)}


@pytest.mark.parametrize("of", [1, 2, 3, 7])
@pytest.mark.parametrize("items", [1, 5, 100])
def test_shares_and_their_parts_are_disjoint_and_complete(of: int, items: int) -> None:
    seen: list[int] = []
    for number in range(of):
        for part in range(number + 1):  # each share on another number of processors
            with Trial(SEED, 60, part=Part(number, of).split(part, number + 1)) as trial:
                trial.each(range(items), seen.append, "items")
    assert sorted(seen) == list(range(items))


def test_each_share_of_cases_at_random_draws_others() -> None:
    seen: list[float] = []
    for share in (WHOLE, Part(1, 3), Part(2, 3)):
        with Trial(SEED, 0, part=share) as trial:
            trial.repeat(lambda chance: seen.append(chance.random()), least=5)
    assert len(set(seen)) == 15


def test_what_a_share_finds_is_repeated_by_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [outcome for number in range(3) if not (outcome := shared(monkeypatch, 60, 2, Part(number, 3))).held]
    (outcome,) = found
    (text,) = report.failures(found, 60)
    assert f"--case {BAD} " in text
    assert f"--share {outcome.share}" in text
    with Runner(60, catalogue=SAMPLES, share=outcome.share) as again:
        assert [case for case, _ in run(again, "shared", only=BAD).findings.violations] == [BAD]


def test_a_share_without_a_case_says_so_and_controls_are_run_whole() -> None:
    with Runner(SEED, catalogue=SAMPLES, share=Part(8, 9)) as made:
        nothing, control = run(made, "raises"), run(made, "finds")
    assert nothing.held
    assert report.how_often(nothing) == "0 cases, items: none in this share"
    assert control.share == WHOLE
    assert control.held


def test_what_one_part_finds_is_told_with_what_the_others_did(monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = shared(monkeypatch, 60, 3)
    ((case, text),) = outcome.findings.violations
    assert case == BAD
    assert "not this one" in text
    assert outcome.findings.reached == {"items": (60, 60)}
    with Runner(60, catalogue=SAMPLES) as again:
        assert [found for found, _ in run(again, "shared", only=case).findings.violations] == [BAD]


def test_a_part_that_dies_ends_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = shared(monkeypatch, 80, 2)
    assert (DEADLY, "the process ended with status 3") in outcome.findings.violations
    assert 40 <= sum(outcome.findings.counts.values()) < 80
    assert not outcome.held


def test_a_control_has_to_find_a_violation(runner: Runner) -> None:
    finds, finds_nothing = run(runner, "finds"), run(runner, "finds-nothing")
    assert run(runner, "finds-in-a-child").held
    assert run(runner, "finds-late").held, "a control goes on beyond its time"
    assert finds.held
    assert len(finds.findings.violations) == 1, "one is enough"
    assert not finds_nothing.held
    dies = run(runner, "dies-looking")
    assert not dies.held
    assert report.violations(dies) == "1"
    assert report.violations(finds) == "found, as it must"
    assert report.violations(finds_nothing) == "NOT FOUND"


@pytest.mark.parametrize("name", ["finds-another", "finds-another-in-a-child"])
def test_a_control_that_ends_by_another_error_has_found_nothing(runner: Runner, name: str) -> None:
    outcome = run(runner, name)
    assert not outcome.held
    assert report.violations(outcome) == f"{ENOUGH} of ANOTHER KIND", "it goes on, to find its own"
    text, *_ = report.failures([outcome], SEED)
    assert "larger than a half" in text, "what led to the error is told"
    assert "LookupError" in text
    assert f"--only {name} --seed {SEED} --case" in text


def test_what_cannot_run_is_named_with_the_reason_and_is_a_failure_in_ci(
    runner: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcome = run(runner, "lacks")
    assert "a machine from the future" in report.how_often(outcome)
    monkeypatch.delenv("CI", raising=False)
    assert command._status([outcome]) == command.HELD
    monkeypatch.setenv("CI", "true")
    assert command._status([outcome]) == command.VIOLATED


def test_what_others_publish_may_be_out_of_reach_in_ci_too(runner: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    def make(space: Path) -> Path:
        raise Unreachable("needs what a registry has")

    outcome = runner.run("holds", replace(PROOFS["holds"], preload=make), 1)
    assert "needs what a registry has" in report.how_often(outcome)
    monkeypatch.setenv("CI", "true")
    assert command._status([outcome]) == command.HELD


def test_nothing_is_left_of_a_proof_that_dies(runner: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with Runner(SEED, catalogue=SAMPLES) as made:
        run(made, "litters")
        assert any(tmp_path.iterdir())
    assert not any(tmp_path.iterdir())


def test_each_goes_through_all_items_or_says_how_many() -> None:
    seen: list[int] = []
    with Trial(SEED, 60) as trial:
        trial.each(range(50), seen.append, "items")
        assert sorted(seen) == list(range(50))
        assert trial.findings.reached == {"items": (50, 50)}
        trial.seconds = 0
        trial.findings = Findings()
        trial.each(range(50), seen.append, "more")
        assert trial.findings.reached["more"] == (1, 50), "one, however little time there is"
    with Trial(SEED, 60, only=17) as trial:
        trial.each(range(50), seen.append, "items")
        assert seen[51:] == [17]


@pytest.mark.parametrize("of", [1, 3])
@pytest.mark.parametrize("first", [1, 20, 50])
def test_the_items_of_one_cache_come_before_the_others(first: int, of: int) -> None:
    everything: list[int] = []
    for number in range(of):
        seen: list[int] = []
        with Trial(SEED, 60, part=Part(number, of)) as trial:
            trial.each(range(50), seen.append, "items", first=first)
        (known, done), whole = trial.findings.reached["items of one of the caches"], trial.findings.reached["items"]
        assert known == done
        assert all(item < first for item in seen[:done])
        assert all(item >= first for item in seen[done:])
        assert whole == (len(seen), len(seen))
        everything += seen
    assert sorted(everything) == list(range(50))


@pytest.mark.parametrize("number", [0, 1, 2, 3, 10, 97, 5040])
def test_items_are_scattered_as_the_seed_has_it(number: int) -> None:
    orders = [list(scattered(number, seed)) for seed in range(20)]
    assert all(sorted(order) == list(range(number)) for order in orders)
    assert list(scattered(number, 3)) == orders[3]
    assert len({tuple(order) for order in orders}) > (number > 2) * 2


def test_a_proof_has_more_of_a_long_run_where_it_is_to_come_to_an_amount() -> None:
    proof = Proof(1, "much", lambda trial: None, share=2.0, bulk=4.0)
    assert [proof.weight(seconds) for seconds in (0, 900, 3600, 36000)] == [2.0, 3.0, 6.0, 6.0]


def test_scratch_directories_go_with_the_case_and_the_rest_with_the_trial() -> None:
    with Trial(SEED, 0) as trial:
        made: list[Path] = []

        def case(chance: random.Random) -> None:
            made.append(trial.fresh())
            made[-1].mkdir()

        trial.repeat(case, least=2)
        assert not any(path.exists() for path in made)
        kept = trial.kept
        assert kept.is_dir()
    assert not kept.exists()


OUTCOMES = [
    Outcome(
        "ok",
        Proof(2, "much", lambda trial: None),
        findings=Findings(12, {"kills": 1234}, {"places": (3, 40)}, {"longest": (2, "2 ms")}),
    ),
    Outcome(
        "bad",
        Proof(1, "more", lambda trial: None),
        asked=2.5,
        findings=Findings(1, violations=[(99, "a stale value")]),
    ),
]


def test_the_table_is_ordered_by_promise() -> None:
    assert report.rows(OUTCOMES) == [
        ("1", "more", "1 case", "1"),
        ("2", "much", "12 cases, 1,234 kills, places: 3 of 40, longest: 2 ms", "0"),
    ]
    assert report.markdown(OUTCOMES).splitlines()[2] == "| 1 | more | 1 case | 1 |"


def test_a_failure_names_the_command_that_repeats_it() -> None:
    (text,) = report.failures(OUTCOMES, SEED)
    assert "a stale value" in text
    assert 'make prove ARGS="--only bad --seed 7 --case 99 --seconds 2.50"' in text


def test_the_report_for_programs_has_everything() -> None:
    told = json.loads(report.as_json(OUTCOMES, SEED))
    assert told["seed"] == SEED
    assert [(proof["name"], proof["held"]) for proof in told["proofs"]] == [("ok", True), ("bad", False)]
    assert told["proofs"][0]["counts"] == {"kills": 1234}


def use(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    """Have the command line prove the samples."""
    monkeypatch.setattr(sys, "argv", ["prove", *arguments])
    monkeypatch.setattr(command, "PROOFS", PROOFS)
    monkeypatch.setattr(command, "CATALOGUE", SAMPLES)


def test_the_command_ends_with_1_on_a_violation_and_0_without(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    use(monkeypatch, "--only", "holds", "--seconds", "0.1", "--seed", "3", "--json", str(tmp_path / "found.json"))
    assert command.main() == command.HELD
    assert json.loads((tmp_path / "found.json").read_text())["seed"] == 3
    page = tmp_path / "page.md"
    page.write_text("before <!-- proofs:begin --> old <!-- proofs:end --> after")
    use(monkeypatch, "--only", "breaks", "--seconds", "0.1", "--seed", "3", "--docs", str(page))
    assert command.main() == command.VIOLATED
    assert "| 2 | half of it |" in page.read_text()
    assert "old" not in page.read_text()
    assert "--only breaks --seed 3 --case" in capsys.readouterr().out


def test_the_command_names_the_share_that_it_ran(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    page = tmp_path / "page.md"
    page.write_text("<!-- proofs:begin --> <!-- proofs:end -->")
    asked = ("--only", "raises", "--seconds", "0.1", "--seed", "3", "--share", "2/2")
    use(monkeypatch, *asked, "--docs", str(page), "--json", str(tmp_path / "found.json"))
    command.main()
    assert "seed 3, share 2/2" in capsys.readouterr().out
    assert "--seed 3 --share 2/2" in page.read_text()
    assert json.loads((tmp_path / "found.json").read_text())["share"] == "2/2"


@pytest.mark.parametrize("text", ["0/3", "4/3", "x", "1/0", "2", "-1/3", "1/3/5", "1.5/3", "1/1000000000"])
def test_what_is_no_share_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    use(monkeypatch, f"--share={text}")
    with pytest.raises(SystemExit):
        command.main()
    assert f"argument --share: expected K/N with 1 <= K <= N, such as 2/3, not '{text}'" in capsys.readouterr().err


def test_a_case_goes_with_one_proof(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    use(monkeypatch, "--case", "4")
    with pytest.raises(SystemExit):
        command.main()
    assert "--only" in capsys.readouterr().err


def test_unknown_proofs_are_answered_with_the_known(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["prove", "--only", "nothing"])
    with pytest.raises(SystemExit):
        command.main()
    told = capsys.readouterr().err
    assert all(name in told for name in KNOWN)
