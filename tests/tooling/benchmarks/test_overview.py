"""The one picture: which ratio stands in which cell, how it is written and coloured, and the page that shows it."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import overview, overview_picture
from benchmarks.harness import Amounts
from benchmarks.intervals import Spread
from benchmarks.record import Calls, Record, ScenarioFacts, SubjectFacts, Trial
from benchmarks.subjects import BenchmarkError

PAGE = "before\n<!-- overview:begin -->\nold\n<!-- overview:end -->\nafter\n"


@pytest.fixture
def record() -> Record:
    """Return the sample."""
    return sample()


def sample() -> Record:
    """Make a run in which DiskCache takes four times as long to get and half as long to delete."""
    facts = {f"overview-{count}": ScenarioFacts("calls", "?", "bytes") for count in (1, 8)}
    subjects = {"cache": SubjectFacts("diskcache_like"), "diskcache": SubjectFacts("DiskCache 5.6.3")}
    made = Record({"CPU": "Imagined"}, {"repeats": 3, "processes": 8}, subjects, facts)
    for count in (1, 8):
        for repetition in range(3):
            slower = 1 + repetition  # of both alike, as a machine that is busy for a while makes it
            for name, times in (("cache", (100.0, 100.0)), ("diskcache", (400.0, 50.0))):
                calls = {call: Calls.of([time * slower]) for call, time in zip(("get", "delete"), times, strict=True)}
                made.trials.append(Trial(f"overview-{count}", name, repetition, count, 1_000_000, 1, 2, calls))
    return made


@pytest.fixture(scope="module", autouse=True)
def fonts(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Draw once before the tests: matplotlib leaves its fonts open for the life of the process."""
    overview_picture.draw(sample(), tmp_path_factory.mktemp("fonts"))


def test_a_ratio_is_the_peers_time_over_ours_within_a_repetition(record: Record) -> None:
    found = overview_picture.grid(record)
    assert found.rows == [(1_000_000, "diskcache")]
    for count in (1, 8):
        assert found.cells[1_000_000, "diskcache", "get", count]["p99"].median == 4
        assert found.cells[1_000_000, "diskcache", "delete", count]["p50"].median == 0.5
        assert (1_000_000, "diskcache", "set", count) not in found.cells


@pytest.mark.parametrize(
    ("ratio", "text"), [(0.031, "0.03x"), (0.5, "0.50x"), (1, "1.0x"), (9.96, "10x"), (1234.4, "1,234x")]
)
def test_a_ratio_has_two_digits(ratio: float, text: str) -> None:
    assert overview_picture.ratio_text(ratio) == text


def spread(*ratios: float) -> Spread:
    return Spread.of(list(ratios))


def test_faster_is_blue_slower_is_orange_and_what_may_be_alike_is_neither() -> None:
    faster, slower = (overview_picture.shade(spread(ratio, ratio, ratio)) for ratio in (10, 0.1))
    assert faster[2] > faster[0]
    assert slower[0] > slower[2]
    assert overview_picture.shade(spread(1000, 1000, 1000))[0] < faster[0], "more is deeper"
    assert overview_picture.shade(spread(0.9, 1.5, 1.6)) == (1.0, 1.0, 1.0)


def test_a_page_gets_the_picture_losses_included(record: Record, tmp_path: Path) -> None:
    record.save(tmp_path / "run.json")
    target = tmp_path / "README.md"
    target.write_text(PAGE)
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


def test_a_page_without_a_place_is_refused_before_anything_is_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "README.md").write_text("nothing")
    assert overview.main(["--docs", str(tmp_path / "README.md")]) == 2
    assert "overview:begin" in capsys.readouterr().err


def test_a_short_run_measures_ours_and_every_peer_that_is_there(tmp_path: Path) -> None:
    amounts = Amounts(repeats=1, operations=20, seconds=0.05, processes=2)
    record = overview.measure(amounts, tmp_path)
    measured = {trial.subject for trial in record.trials}
    assert {"cache", "diskcache"} <= measured
    assert measured | {one.subject for one in record.absences} == set(overview.SUBJECTS)
    assert {trial.processes for trial in record.trials} == {1, 2}
    assert not any(one.wrong or one.unexpected for one in record.trials if one.subject == "cache")
    with pytest.raises(BenchmarkError):
        overview.publish(record, tmp_path / "missing.md")
