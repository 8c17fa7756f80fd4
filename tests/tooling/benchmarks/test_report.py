"""What a benchmark record is made into: tables, plots, and the results on a page of the documentation."""

from __future__ import annotations

import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import page, render
from benchmarks.intervals import Interval, Spread
from benchmarks.measure import CURVE, Calls
from benchmarks.report import panels, plots, results, styles, tables
from benchmarks.report.record import Record, ScenarioFacts, SubjectFacts, Trial, load
from benchmarks.report.summaries import curve_spreads, percentile_spread, slowest, speedup
from benchmarks.report.text import Table, duration

from ...support.project import ROOT
from .sample_record import ALONE, LABELS, SCENARIOS, STEPS, sample_record

DRAWN = {
    *("classic-8-get-set-delete-bars", "classic-1-delete-curves", "classic-throughput", "classic-1-size"),
    *("think-get-cost", "bulk-get_many-set_many-bars", f"{ALONE}-hit-bars", f"{ALONE}-hit-curves", f"{ALONE}-size"),
}
SVG = "{http://www.w3.org/2000/svg}"
BEGIN, END = page.marks(results.RESULTS)
PROSE = f"# Page\n\nBefore.\n\n{BEGIN}\n{END}\n\nAfter.\n"


@pytest.fixture(scope="module")
def record() -> Record:
    return sample_record()


@pytest.fixture
def few(record: Record) -> Record:
    """Return a record that is drawn quickly."""
    kept = (ALONE, "queue")
    some = Record(record.machine, record.options, record.subjects, {name: record.scenarios[name] for name in kept})
    some.trials = [one for one in record.trials if one.scenario in kept]
    some.absences = record.absences
    return some


@pytest.fixture(scope="module")
def drawn(record: Record, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[plots.Drawing]]:
    """Draw each kind of plot at least once, and what is odd: one subject alone, a step of zero, subjects missing."""
    directory = tmp_path_factory.mktemp("plots") / "new"
    return directory, plots.draw(record, directory, chosen=lambda drawing: drawing.name in DRAWN)


def trial(repetition: int, samples: list[float], seconds: float = 1.0, **more: Any) -> Trial:
    return Trial("s", "a", repetition, 1, 0, seconds, len(samples), {"get": Calls.of(samples)}, **more)


def one_of(*trials: Trial) -> Record:
    return Record({}, {}, {"a": SubjectFacts("A")}, {"s": ScenarioFacts("S", "?")}, list(trials))


def every_table(record: Record) -> list[Table]:
    return [table for scenario in record.scenarios for table in tables.scenario_tables(record, scenario)]


class TestSummaries:
    def test_percentiles_are_medians_and_the_slowest_is_the_slowest_of_all(self) -> None:
        trials = [trial(0, [1.0] * 10), trial(1, [2.0] * 10), trial(2, [9.0] * 9 + [70.0])]
        assert percentile_spread(trials, "get", "p50") == Spread(2, Interval(1, 9, 0.75), 3)
        assert slowest(trials, "get") == 70

    def test_too_few_calls_have_no_high_percentiles_and_no_end_of_the_curve(self) -> None:
        trials = [trial(0, [float(number) for number in range(100)])]
        assert percentile_spread(trials, "get", "p99")
        assert percentile_spread(trials, "get", "p999") is None
        shares = [share for share, _ in curve_spreads(trials, "get")]
        assert shares == [slower / 1e6 for slower in CURVE if slower >= 10_000]

    def test_a_speedup_pairs_repetitions(self) -> None:
        ours = [trial(0, [1.0] * 6), trial(1, [1.0] * 4), trial(2, [1.0] * 5)]
        theirs = [trial(1, [1.0]), trial(0, [1.0] * 2)]
        assert speedup(ours, theirs) == Spread(3.5, Interval(3, 4, 0.5), 2)
        assert speedup(ours, []) is None


class TestTables:
    def test_every_subject_and_call_has_its_row(self, record: Record) -> None:
        for scenario in SCENARIOS:
            for step in record.steps(scenario):
                found = record.of(scenario, step)
                percentiles = tables.percentile_table(record, scenario, step, found)
                calls = {name: trials[0].calls.items() for name, trials in found.items()}
                expected = {(LABELS[name], call) for name, some in calls.items() for call, one in some if one.count}
                assert {(row[0], row[1]) for row in percentiles.rows} == expected
                totals = tables.totals_table(record, scenario, step, found)
                assert [row[0] for row in totals.rows] == [LABELS[name] for name in found]
                assert all(len(row) == len(table.columns) for table in (percentiles, totals) for row in table.rows)

    def test_cells_carry_units_and_there_are_no_averages(self, record: Record) -> None:
        table = tables.percentile_table(record, "classic", 1, record.of("classic", 1))
        times = [cell for row in table.rows for cell in (row[4], *row[6:]) if cell != "-"]
        assert all(re.fullmatch(r"[\d.]+ (ns|µs|ms|s)", cell) for cell in times)
        assert all(".." in row[5] for row in table.rows)
        assert "5 repetitions with intervals of 93.75 % confidence" in table.text()
        text = "".join(table.text() for table in every_table(record))
        assert not re.search(r"average|\bmean\b|\bavg\b", text, re.IGNORECASE)

    def test_a_step_is_named_with_its_unit(self, record: Record) -> None:
        titles = [table.title for table in every_table(record)]
        assert {"Classic workload, 1 process: totals", "Classic workload, 8 processes: time per call"} <= {*titles}
        assert {"Growth, 1,000,000 entries: totals", "Bulk of 1,000: totals"} <= {*titles}

    def test_who_is_missing_is_named_with_the_reason(self, record: Record) -> None:
        growth = next(iter(tables.scenario_tables(record, "growth"))).text()
        assert "cachekit skipped: cannot import cachekit; install it with: python -m pip install cachekit" in growth
        assert "Redis 7.0.15, redis-py 7.1 failed: redis-server ended with signal 9" in growth
        assert "set_many" not in growth, "absences of other scenarios stay there"
        queue = "".join(table.text() for table in tables.scenario_tables(record, "queue"))
        assert "diskcache_like 0.1.0 failed: the queue broke" in queue, "a scenario that nobody finished"

    def test_a_ratio_needs_the_baseline(self, record: Record) -> None:
        assert "ratio" in tables.totals_table(record, "growth", 10_000, record.of("growth", 10_000)).columns
        alone = tables.totals_table(record, ALONE, 0, record.of(ALONE, 0))
        assert "ratio" not in alone.columns
        assert "ratio:" not in alone.text()

    def test_one_repetition_has_no_interval_and_nothing_counted_is_a_dash(self) -> None:
        percentiles, totals = every_table(one_of(trial(0, [], 0.0)))
        assert [list(row) for row in percentiles.rows] == [["A", "-", "0", *["-"] * 8]]
        assert totals.rows[0][:3] == ["A", "-", "-"]
        assert "1 repetition " in every_table(one_of(trial(0, [5.0])))[0].text()

    def test_counts_are_summed_and_peaks_are_largest(self) -> None:
        counts = {"misses": 700, "timeouts": 2, "unexpected": 3, "wrong": 1}
        used: dict[str, Any] = {"cpu_seconds": 1e-6, "server_cpu_seconds": 2e-6, "disk_bytes": 2048}
        trials = [
            trial(number, [1000.0], peak_memory=peak, **counts, **used) for number, peak in enumerate((1024, 4096))
        ]
        percentiles, totals = every_table(one_of(*trials))
        assert list(totals.rows[0][3:]) == ["1,400", "4", "6", "2", "3.00 µs", "4.0 KiB", "2.0 KiB"]
        assert (percentiles.rows[0][3], percentiles.rows[0][-1]) == ("1,406", "2.00 µs")


def words(path: Path) -> str:
    """Return all text of an SVG; labels that are broken into lines are joined again."""
    return " ".join(" ".join(element.itertext()) for element in ET.parse(path).iter(f"{SVG}text"))


class TestPlots:
    def test_each_names_its_subjects_units_and_what_it_shows(
        self, record: Record, drawn: tuple[Path, list[plots.Drawing]]
    ) -> None:
        directory, made = drawn
        assert {path.name for path in directory.iterdir()} == {
            f"{name}.{kind}" for name in DRAWN for kind in ("png", "svg")
        }
        units = {plots.SIZE: "(B|KiB|MiB)", plots.THROUGHPUT: "operations per second"}
        usual = r"\d (ns|µs|ms|s)\b.*time per call|time per call.*\d (ns|µs|ms|s)\b"
        for drawing in made:
            assert (directory / f"{drawing.name}.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
            text = words(directory / f"{drawing.name}.svg")
            assert drawing.title in text
            assert re.search(units.get(drawing.kind, usual), text)
            over = drawing.kind in (plots.COST, plots.THROUGHPUT)
            for name, trials in record.of(drawing.scenario, drawing.step).items():
                is_no_line = over and len({one.step for one in trials}) == 1
                calls = drawing.call.split("-") if drawing.call else []
                if not is_no_line and (not calls or any(one.calls[call].count for one in trials for call in calls)):
                    assert LABELS[name] in text, drawing.name
            assert not over or SCENARIOS[drawing.scenario].step in text
        spread = percentile_spread(record.of(ALONE)["cache"], "hit", "p50")
        assert spread
        assert duration(spread.median) in words(directory / f"{ALONE}-hit-bars.svg"), "values stand beside their dots"

    def test_a_palette_loses_no_line_its_colour(self, drawn: tuple[Path, list[plots.Drawing]]) -> None:
        from PIL import Image, ImageColor

        drawing = (drawn[0] / "classic-throughput.svg").read_text().lower()
        with Image.open(drawn[0] / "classic-throughput.png") as image:
            shades: list[Any] = [shade for _, shade in image.convert("RGB").getcolors(1 << 24) or []]
        for colour in {look.colour for look in styles.SUBJECTS.values()}:
            wanted = ImageColor.getrgb(colour)
            near = any(max(abs(a - b) for a, b in zip(shade, wanted, strict=True)) <= 8 for shade in shades)
            assert near or colour.lower() not in drawing, colour

    def test_every_kind_is_there_where_its_numbers_are_under_a_name_of_its_own(self, record: Record) -> None:
        kinds: dict[str, set[str]] = {}
        for drawing in plots.drawings(record):
            kinds.setdefault(drawing.scenario, set()).add(drawing.kind)
        every = {plots.BARS, plots.CURVES, plots.SIZE}
        for scenario in SCENARIOS:
            over = {plots.THROUGHPUT, plots.COST} if scenario in STEPS else set()
            assert kinds.get(scenario, set()) == (set() if scenario == "queue" else every | over)
        odd = one_of(Trial("s", "a", 0, 1, 1, 1, 1, {"get/../../etc": Calls.of([1.0]), "set": Calls.of([1.0])}))
        names = [one.name for some in (record, odd) for one in plots.drawings(some)]
        assert len(set(names)) == len(names)
        assert all(re.fullmatch(r"[\w.-]+", name) for name in names)

    def test_the_same_record_gives_the_same_files_whatever_the_users_settings(
        self, record: Record, tmp_path: Path
    ) -> None:
        import matplotlib as mpl

        odd: Any = {"savefig.transparent": True, "svg.fonttype": "path", "font.size": 40, "figure.dpi": 20}
        for name, settings in (("one", {}), ("two", odd)):
            with mpl.rc_context(settings or None):
                plots.draw(record, tmp_path / name, chosen=lambda drawing: drawing.scenario == ALONE)
        first, second = ({one.name: one.read_bytes() for one in (tmp_path / name).iterdir()} for name in ("one", "two"))
        assert first == second
        assert len(first) == 6
        assert re.search(rb'id="patch_1">\s*<path[^>]*fill: #ffffff', first[f"{ALONE}-hit-bars.svg"])

    @given(st.integers(1, 40), st.integers(2, 12))
    def test_every_panel_of_lines_has_the_product_beside_its_peers(self, count: int, limit: int) -> None:
        labels = [str(number) for number in range(count)]
        split = panels.beside(labels, limit)
        assert all(part[0] == "0" and len(part) <= limit for part in split)
        assert [label for part in split for label in part[1:]] == labels[1:]

    @given(st.lists(st.floats(0, 1e300), min_size=1))
    def test_axes_reach_around_everything(self, some: list[float]) -> None:
        low, high = panels.bounds([Spread.of([one]) for one in some])
        assert all(low <= max(one, panels.FLOOR) <= high for one in some)

    def test_no_two_subjects_look_alike_and_colours_stand_out_from_white(self) -> None:
        looks = [styles.look_of(name, place) for place, name in enumerate(styles.SUBJECTS)]
        looks += [styles.look_of(f"other {place}", place) for place in range(20)]
        assert len({str(look) for look in looks}) == len(looks)
        for colour in {look.colour for look in looks}:
            channels = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
            linear = [one / 12.92 if one <= 0.04045 else ((one + 0.055) / 1.055) ** 2.4 for one in channels]
            luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
            assert 1.05 / (luminance + 0.05) >= 2, "its yellow has 1.3"

    def test_ticks_have_units(self) -> None:
        times = {1: "1 ns", 100: "100 ns", 1e3: "1 µs", 1e7: "10 ms", 1e9: "1 s", 1e12: "1000 s"}
        assert [styles.tick_duration(one) for one in times] == list(times.values())


class TestRender:
    def test_tables_are_printed_and_plots_drawn_without_a_terminal(self, few: Record, tmp_path: Path) -> None:
        few.save(tmp_path / "few.json")
        run = subprocess.run(
            [sys.executable, "-m", "benchmarks.render", tmp_path / "few.json", "--formats", "svg"],
            cwd=ROOT,
            env={"PATH": "/usr/bin:/bin", "MPLCONFIGDIR": str(tmp_path / "settings"), "PYTHONUTF8": "1"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        assert (run.returncode, run.stderr) == (0, "")
        assert "Memoized function: totals" in run.stdout
        assert {path.suffix for path in (tmp_path / "few-plots").iterdir()} == {".svg"}

    def test_tables_need_no_matplotlib_and_plots_say_what_installs_it(
        self, few: Record, tmp_path: Path, without: Callable[..., None], capsys: pytest.CaptureFixture[str]
    ) -> None:
        few.save(tmp_path / "few.json")
        without("matplotlib")
        assert render.main([str(tmp_path / "few.json"), "--no-plots"]) == 0
        assert "Memoized function: totals" in capsys.readouterr().out
        assert render.main([str(tmp_path / "few.json")]) == 2
        told = capsys.readouterr()
        assert "Memoized function: totals" in told.out, "tables come first"
        assert "pip install 'diskcache-like[plots]'" in told.err

    @pytest.mark.parametrize("module", ["render", "codecs.__main__"])
    def test_importing_a_command_imports_no_matplotlib(self, module: str) -> None:
        code = f"import sys, benchmarks.{module}; sys.exit('matplotlib' in sys.modules)"
        assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0

    @pytest.mark.parametrize(
        ("content", "told"),
        [(None, "No such file"), ("{", "not a record"), ('{"format": 99}', "another version"), ("[]", "not a record")],
    )
    def test_what_is_no_record_is_refused(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str | None, told: str
    ) -> None:
        path = tmp_path / "run.json"
        if content is not None:
            path.write_text(content)
        assert render.main([str(path)]) == 2
        assert told in capsys.readouterr().err

    def test_a_record_comes_back_as_it_was(self, record: Record, tmp_path: Path) -> None:
        record.save(tmp_path / "run.json")
        assert load(tmp_path / "run.json") == record

    def test_an_unknown_format_is_named_before_anything_is_drawn(
        self, few: Record, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        few.save(tmp_path / "few.json")
        assert render.main([str(tmp_path / "few.json"), "--formats", "png,gif"]) == 2
        assert "unknown format of plots: gif; known: png, svg" in capsys.readouterr().err
        assert [file.name for file in tmp_path.iterdir()] == ["few.json"]


class TestPage:
    def test_results_are_filled_in_and_again_without_a_change(self, few: Record, tmp_path: Path) -> None:
        path, images = tmp_path / "results" / "index.md", tmp_path / results.IMAGES
        path.parent.mkdir()
        path.write_text(PROSE)
        path.with_name("old.md").write_text(f"# Old\n\n{BEGIN}\n{END}\n")
        path.with_name("objectives.md").write_text("# Another command's")
        images.mkdir(parents=True)
        for name in ("old-bars.svg", "old-bars.png", "kept.txt"):
            (images / name).write_text("")
        few.save(tmp_path / "run.json")
        assert render.main([str(tmp_path / "run.json"), "--docs", str(path)]) == 0
        assert not (tmp_path / "run-plots").exists()
        first = {file: file.read_bytes() for file in tmp_path.rglob("*.*") if file.is_file()}
        results.fill(path, few)
        assert {file: file.read_bytes() for file in tmp_path.rglob("*.*") if file.is_file()} == first
        text = path.read_text()
        assert text.startswith(f"# Page\n\nBefore.\n\n{BEGIN}\n")
        assert text.endswith(f"{END}\n\nAfter.\n")
        assert "Imagined, 2 cores usable" in text
        assert f"]({ALONE}.md): " in text
        assert {one.name for one in path.parent.iterdir()} == {"index.md", "objectives.md", f"{ALONE}.md", "queue.md"}
        assert "the queue broke" in path.with_name("queue.md").read_text()
        linked = set(re.findall(r"\]\(\.\./([^)]+)\)", path.with_name(f"{ALONE}.md").read_text()))
        assert linked == {f"images/benchmarks/{ALONE}-hit-bars.{kind}" for kind in ("png", "svg")}
        assert {file.relative_to(tmp_path).as_posix() for file in images.iterdir()} == {
            *linked,
            "images/benchmarks/kept.txt",
        }

    def test_the_page_shows_a_choice_of_the_plots(self, record: Record) -> None:
        names = {one.name for one in plots.drawings(record) if results.belongs(record, one)}
        assert {"classic-1-get-set-delete-bars", "classic-8-get-set-delete-bars", "classic-8-get-curves"} <= names
        assert {"classic-throughput", "growth-get-cost", "sizes-set-cost", "growth-1000000-size"} <= names
        assert not {"classic-2-get-set-delete-bars", "sizes-100-get-curves", "think-0-size"} & names
