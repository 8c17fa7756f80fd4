"""What a benchmark record is made into: tables, plots, and the results on a page of the documentation."""

from __future__ import annotations

import builtins
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import page, panels, plots, render, styles, tables
from benchmarks.intervals import Interval, Spread
from benchmarks.record import CURVE, Calls, Record, ScenarioFacts, SubjectFacts, Trial, load
from benchmarks.repetitions import curve_spreads, percentile_spread, slowest, speedup
from benchmarks.report import duration
from benchmarks.subjects import BenchmarkError

from ...support.project import ROOT
from .sample_record import ALONE, LABELS, SCENARIOS, STEPS, sample_record

DRAWN = {
    *("classic-8-get-set-delete-bars", "classic-1-delete-curves", "classic-throughput", "classic-1-size"),
    *("think-get-cost", "bulk-get_many-set_many-bars", f"{ALONE}-hit-bars", f"{ALONE}-hit-curves", f"{ALONE}-size"),
}
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def record() -> Record:
    return sample_record()


@pytest.fixture(scope="module")
def saved(record: Record, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("record") / "run.json"
    record.save(path)
    return path


@pytest.fixture(scope="module")
def drawn(record: Record, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[plots.Drawing]]:
    """Draw each kind of plot at least once, and what is odd: one subject alone, a step of zero, subjects missing."""
    directory = tmp_path_factory.mktemp("plots") / "new"
    return directory, plots.draw(record, directory, chosen=lambda drawing: drawing.name in DRAWN)


def trial(repetition: int, samples: list[float], seconds: float = 1.0, **more: Any) -> Trial:
    return Trial("s", "a", repetition, 1, 0, seconds, len(samples), {"get": Calls.of(samples)}, **more)


class TestRepetitions:
    def test_percentiles_are_medians_and_the_slowest_is_the_slowest_of_all(self) -> None:
        trials = [trial(0, [1.0] * 10), trial(1, [2.0] * 10), trial(2, [9.0] * 9 + [70.0])]
        spread = percentile_spread(trials, "get", "p50")
        assert spread == Spread(2, Interval(1, 9, 0.75), 3)
        assert slowest(trials, "get") == 70

    def test_too_few_calls_have_no_high_percentiles(self) -> None:
        few, enough = [trial(0, [1.0] * 999)], [trial(0, [1.0] * 1_000)]
        assert percentile_spread(few, "get", "p99") is not None
        assert percentile_spread(few, "get", "p999") is None
        assert percentile_spread(enough, "get", "p999") is not None
        assert percentile_spread(few, "set", "p50") is None

    def test_curves_end_where_one_call_is_slower(self) -> None:
        points = curve_spreads([trial(0, [float(one) for one in range(1_000)])], "get")
        assert [share for share, _ in points] == [slower / 1e6 for slower in CURVE if slower >= 1_000]
        assert points[-1][1].median == 998
        assert curve_spreads([trial(0, [])], "get") == []

    def test_a_speedup_pairs_repetitions(self) -> None:
        ours = [trial(0, [1.0], 1), trial(1, [1.0], 2), trial(2, [], 2)]
        theirs = [trial(1, [1.0], 6), trial(0, [1.0], 4)]
        assert speedup(ours, theirs) == Spread(3.5, Interval(3, 4, 0.5), 2)
        assert speedup(ours, []) is None


class TestTables:
    def test_columns_align(self, record: Record) -> None:
        for table in tables.tables(record):
            lines = table.text().splitlines()
            rule = next(line for line in lines if line.startswith("--"))
            ends = [found.end() for found in re.finditer("-+", rule)]
            rows = lines[lines.index(rule) + 1 :][: len(table.rows)]
            for row in [lines[lines.index(rule) - 1], *rows]:
                assert all(row[end : end + 2].strip() == "" for end in ends), row
                assert len(row) <= len(rule)

    def test_there_are_no_averages(self, record: Record) -> None:
        text = "".join(table.text() for table in tables.tables(record))
        assert not re.search(r"average|\bmean\b|\bavg\b", text, re.IGNORECASE)

    def test_every_subject_and_call_has_its_row(self, record: Record) -> None:
        for scenario in SCENARIOS:
            for step in record.steps(scenario):
                found = record.of(scenario, step)
                shown = tables.percentile_table(record, scenario, step, found)
                expected = {
                    (LABELS[name], call)
                    for name, trials in found.items()
                    for call, one in trials[0].calls.items()
                    if one.count
                }
                assert {(row[0], row[1]) for row in shown.rows} == expected
                totals = tables.totals_table(record, scenario, step, found)
                assert [row[0] for row in totals.rows] == [LABELS[name] for name in found]
                assert all(len(row) == len(totals.columns) for row in totals.rows)

    def test_cells_carry_units(self, record: Record) -> None:
        table = tables.percentile_table(record, "classic", 1, record.of("classic", 1))
        times = [cell for row in table.rows for cell in (row[4], *row[6:]) if cell != "-"]
        assert all(re.fullmatch(r"[\d.]+ (ns|µs|ms|s)", cell) for cell in times)
        assert all(".." in row[5] for row in table.rows)
        assert "5 repetitions with intervals of 93.75 % confidence" in table.text()

    def test_a_kind_of_call_has_its_misses_and_its_total(self) -> None:
        record = Record({}, {}, {"a": SubjectFacts("A")}, {"s": ScenarioFacts("S", "?")})
        record.trials = [trial(number, [1000.0, 2000.0], misses=3) for number in range(2)]
        row = next(tables.tables(record)).rows[0]
        assert (row[3], row[-1]) == ("6", "6.00 µs")

    def test_a_step_is_named_with_its_unit(self, record: Record) -> None:
        titles = [table.title for table in tables.tables(record)]
        assert "Classic workload, 1 process: totals" in titles
        assert "Classic workload, 8 processes: time per call" in titles
        assert "Growth, 1,000,000 entries: totals" in titles
        assert "Bulk of 1,000: totals" in titles

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
        record = Record({}, {}, {"a": SubjectFacts("A")}, {"s": ScenarioFacts("S", "?")}, [trial(0, [], 0.0)])
        percentiles, totals = tables.tables(record)
        assert [list(row) for row in percentiles.rows] == [["A", "-", "0", *["-"] * 8]]
        assert totals.rows[0][:3] == ["A", "-", "-"]
        record.trials = [trial(0, [5.0])]
        assert "1 repetition " in next(tables.tables(record)).text()

    def test_counts_are_summed_and_peaks_are_largest(self) -> None:
        record = Record({}, {}, {"a": SubjectFacts("A")}, {"s": ScenarioFacts("S", "?")})
        counts = {"misses": 700, "timeouts": 2, "unexpected": 3, "wrong": 1}
        record.trials = [
            trial(number, [1.0], peak_memory=peak, cpu_seconds=1e-6, server_cpu_seconds=2e-6, disk_bytes=2048, **counts)
            for number, peak in enumerate((1024, 4096))
        ]
        row = list(tables.tables(record))[1].rows[0]
        assert list(row[3:]) == ["1,400", "4", "6", "2", "3.00 µs", "4.0 KiB", "2.0 KiB"]


def words(path: Path) -> str:
    """Return all text of an SVG; labels that are broken into lines are joined again."""
    return " ".join(" ".join(element.itertext()) for element in ET.parse(path).iter(f"{SVG}text"))


class TestPlots:
    def test_each_is_a_valid_png_and_svg(self, drawn: tuple[Path, list[plots.Drawing]]) -> None:
        directory, made = drawn
        assert {drawing.name for drawing in made} == DRAWN
        assert {path.name for path in directory.iterdir()} == {
            f"{drawing.name}.{kind}" for drawing in made for kind in ("png", "svg")
        }
        for drawing in made:
            image = (directory / f"{drawing.name}.png").read_bytes()
            assert image.startswith(b"\x89PNG\r\n\x1a\n")
            assert image.endswith(b"IEND\xaeB`\x82")
            assert ET.parse(directory / f"{drawing.name}.svg").getroot().tag == f"{SVG}svg"

    def test_each_names_its_subjects_units_and_what_it_shows(
        self, record: Record, drawn: tuple[Path, list[plots.Drawing]]
    ) -> None:
        directory, made = drawn
        units = {plots.SIZE: "(B|KiB|MiB)", plots.THROUGHPUT: "operations per second"}
        for drawing in made:
            text = words(directory / f"{drawing.name}.svg")
            assert drawing.title in text
            assert re.search(
                units.get(drawing.kind, r"\d (ns|µs|ms|s)\b.*time per call|time per call.*\d (ns|µs|ms|s)\b"), text
            )
            found = record.of(drawing.scenario, drawing.step)
            for name, trials in found.items():
                if drawing.kind in (plots.COST, plots.THROUGHPUT) and len({one.step for one in trials}) == 1:
                    continue  # one point is no line
                calls = drawing.call.split("-") if drawing.call else []
                if not calls or any(one.calls[call].count for one in trials for call in calls if call in one.calls):
                    assert LABELS[name] in text, drawing.name
            if drawing.kind in (plots.COST, plots.THROUGHPUT):
                assert SCENARIOS[drawing.scenario].step in text

    @pytest.mark.parametrize("name", ["classic-1-delete-curves", "classic-throughput"])
    def test_a_palette_loses_no_line_its_colour(self, drawn: tuple[Path, list[plots.Drawing]], name: str) -> None:
        from PIL import Image, ImageColor

        drawing = (drawn[0] / f"{name}.svg").read_text().lower()
        with Image.open(drawn[0] / f"{name}.png") as image:
            shades = [shade for _, shade in image.convert("RGB").getcolors(1 << 24) or []]
        for colour in styles.COLOURS:
            wanted = ImageColor.getrgb(colour)
            near = any(max(abs(a - b) for a, b in zip(shade, wanted, strict=True)) <= 8 for shade in shades)  # type: ignore[arg-type]
            assert near or colour.lower() not in drawing, colour

    def test_every_kind_is_there_where_its_numbers_are(self, record: Record) -> None:
        kinds: dict[str, set[str]] = {}
        for drawing in plots.drawings(record):
            kinds.setdefault(drawing.scenario, set()).add(drawing.kind)
        every = {plots.BARS, plots.CURVES, plots.SIZE}
        for scenario in SCENARIOS:
            over = {plots.THROUGHPUT, plots.COST} if scenario in STEPS else set()
            assert kinds.get(scenario, set()) == (set() if scenario == "queue" else every | over)

    def test_names_are_unique_and_safe(self) -> None:
        facts = {"../x": ScenarioFacts("X", "?"), "y": ScenarioFacts("Y", "?", "entries")}
        calls = {"get/../../etc": Calls.of([1.0]), "set": Calls.of([1.0])}
        many = [Trial(scenario, "a", 0, 1, step, 1, 1, calls) for scenario in facts for step in (1, 2)]
        names = [one.name for one in plots.drawings(Record({}, {}, {"a": SubjectFacts("A")}, facts, many[1:]))]
        assert len(set(names)) == len(names)
        assert all(re.fullmatch(r"[\w.-]+", name) for name in names)

    def test_the_same_record_gives_the_same_files(self, record: Record, tmp_path: Path) -> None:
        made = [tmp_path / "one", tmp_path / "two"]
        for directory in made:
            plots.draw(record, directory, chosen=lambda drawing: drawing.scenario == ALONE)
        first, second = ({path.name: path.read_bytes() for path in directory.iterdir()} for directory in made)
        assert first == second
        assert len(first) == 6
        assert not any(b"<dc:date>" in content for content in first.values())

    def test_the_background_is_white_and_the_users_settings_do_not_matter(self, record: Record, tmp_path: Path) -> None:
        import matplotlib as mpl

        bars = f"{ALONE}-hit-bars"
        with mpl.rc_context({"savefig.transparent": True, "svg.fonttype": "path", "font.size": 40, "figure.dpi": 20}):
            plots.draw(record, tmp_path / "odd", chosen=lambda drawing: drawing.name == bars)
        plots.draw(record, tmp_path / "plain", chosen=lambda drawing: drawing.name == bars)
        odd = (tmp_path / "odd" / f"{bars}.svg").read_text()
        assert odd == (tmp_path / "plain" / f"{bars}.svg").read_text()
        assert re.search(r'id="patch_1">\s*<path[^>]*fill: #ffffff', odd)

    def test_an_unknown_format_is_refused_before_anything_is_drawn(self, record: Record, tmp_path: Path) -> None:
        with pytest.raises(BenchmarkError, match="unknown format of plots: gif; known: png, svg"):
            plots.draw(record, tmp_path / "none", ["png", "gif"])
        assert not (tmp_path / "none").exists()

    @given(st.integers(1, 100), st.integers(1, 12))
    def test_panels_hold_every_subject_once_and_not_too_many(self, count: int, limit: int) -> None:
        labels = [str(number) for number in range(count)]
        split = panels.parts(labels, limit)
        assert [label for part in split for label in part] == labels
        assert max(map(len, split)) <= limit
        assert max(map(len, split)) - min(map(len, split)) <= 1

    @given(st.lists(st.floats(0, 1e300), min_size=1))
    def test_axes_reach_around_everything(self, some: list[float]) -> None:
        low, high = panels.bounds([Spread.of(some)], some)
        assert 0 < low < high
        assert all(low <= max(one, panels.FLOOR) <= high for one in some)

    def test_no_two_of_thirty_subjects_look_alike(self) -> None:
        looks = [styles.look(place) for place in range(30)]
        assert len(set(looks)) == 30
        for start in range(30 - panels.LINE_LIMIT):
            near = looks[start : start + panels.LINE_LIMIT]
            assert len({(one.marker, one.dashes) for one in near}) == len(near), "in grey as well"

    def test_a_subject_looks_the_same_whatever_else_is_measured_and_no_two_look_alike(self) -> None:
        assert {styles.look_of("redis", place) for place in range(30)} == {styles.SUBJECTS["redis"]}
        assert len(set(styles.SUBJECTS.values())) == len(styles.SUBJECTS)
        peers = [styles.SUBJECTS[name].colour for name in ("cache", "diskcache", "memcached", "redis", "lmdb")]
        assert len(set(peers)) == len(peers)

    @given(st.integers(1, 100), st.integers(2, 12))
    def test_every_panel_of_lines_has_the_product_beside_its_peers(self, count: int, limit: int) -> None:
        labels = [str(number) for number in range(count)]
        split = panels.beside(labels, limit)
        assert all(part[0] == "0" and len(part) <= limit for part in split)
        assert [label for part in split for label in part[1:]] == labels[1:]

    def test_values_stand_beside_their_dots(self, drawn: tuple[Path, list[plots.Drawing]], record: Record) -> None:
        directory, _ = drawn
        spread = percentile_spread(record.of(ALONE)["cache"], "hit", "p50")
        assert spread
        assert duration(spread.median) in words(directory / f"{ALONE}-hit-bars.svg")

    @pytest.mark.parametrize("colour", styles.COLOURS)
    def test_colours_stand_out_from_white(self, colour: str) -> None:
        channels = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
        linear = [one / 12.92 if one <= 0.04045 else ((one + 0.055) / 1.055) ** 2.4 for one in channels]
        luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
        assert 1.05 / (luminance + 0.05) >= 2, "its yellow has 1.3"

    @pytest.mark.parametrize(
        ("nanoseconds", "text"),
        [(1, "1 ns"), (100, "100 ns"), (1e3, "1 µs"), (1e7, "10 ms"), (1e9, "1 s"), (1e12, "1000 s")],
    )
    def test_ticks_have_units(self, nanoseconds: float, text: str) -> None:
        assert styles.tick_duration(nanoseconds) == text


class TestCommand:
    def test_tables_are_printed_and_plots_drawn_without_a_terminal(
        self,
        record: Record,
        saved: Path,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        few = Record(record.machine, {}, record.subjects, {ALONE: record.scenarios[ALONE]})
        few.trials = [one for one in record.trials if one.scenario == ALONE]
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
        self, saved: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        without_matplotlib(monkeypatch)
        assert render.main([str(saved), "--no-plots"]) == 0
        assert "Classic workload, 8 processes: totals" in capsys.readouterr().out
        assert render.main([str(saved)]) == 2
        told = capsys.readouterr()
        assert "Classic workload, 8 processes: totals" in told.out, "tables come first"
        assert "pip install 'diskcache-like[plots]'" in told.err
        assert "Traceback" not in told.err

    def test_importing_it_imports_no_matplotlib(self) -> None:
        code = "import sys, benchmarks.render; sys.exit('matplotlib' in sys.modules)"
        assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0

    @pytest.mark.parametrize(
        ("content", "told"),
        [
            (None, "No such file"),
            ("{", "not a record"),
            ('{"format": 99}', "another version"),
            ("[]", "not a record"),
        ],
    )
    def test_what_is_no_record_is_refused(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str | None, told: str
    ) -> None:
        path = tmp_path / "run.json"
        if content is not None:
            path.write_text(content)
        assert render.main([str(path)]) == 2
        assert told in capsys.readouterr().err

    def test_an_unknown_format_is_named(self, saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert render.main([str(saved), "--formats", "gif"]) == 2
        assert "unknown format of plots: gif; known: png, svg" in capsys.readouterr().err

    def test_a_record_comes_back_as_it_was(self, record: Record, saved: Path) -> None:
        assert load(saved) == record

    @pytest.mark.parametrize(
        ("word", "told"),
        [("subject", "nobody"), ("scenario", "nothing")],
    )
    def test_a_trial_of_something_unknown_is_refused(self, tmp_path: Path, word: str, told: str) -> None:
        odd = Record({}, {}, {"a": SubjectFacts("A")}, {"s": ScenarioFacts("S", "?")}, [trial(0, [1.0])])
        odd.trials = [Trial(**{**vars(odd.trials[0]), word: told})]
        odd.save(tmp_path / "odd.json")
        with pytest.raises(BenchmarkError, match=told):
            load(tmp_path / "odd.json")

    def test_a_curve_of_another_length_is_refused(self, tmp_path: Path) -> None:
        odd = Record({}, {}, {"a": SubjectFacts("A")}, {"s": ScenarioFacts("S", "?")}, [trial(0, [1.0])])
        odd.trials[0].calls["get"] = Calls(1, 1, 1, 1, 1, 1, (1.0, 2.0), 1)
        odd.save(tmp_path / "odd.json")
        with pytest.raises(BenchmarkError, match="2 points on the curve of 'get'"):
            load(tmp_path / "odd.json")


def without_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let imports of matplotlib fail as where it is not installed."""
    real = builtins.__import__

    def refuse(name: str, *arguments: Any) -> Any:
        if name.partition(".")[0] == "matplotlib":
            raise ModuleNotFoundError(f"No module named {name!r}")
        return real(name, *arguments)

    monkeypatch.setattr(builtins, "__import__", refuse)


BEGIN, END = page.marks(page.RESULTS)
PROSE = f"# Page\n\nBefore.\n\n{BEGIN}\n{END}\n\nAfter.\n"


class TestPage:
    @pytest.fixture
    def few(self, record: Record) -> Record:
        """Return a record that is drawn quickly."""
        kept = (ALONE, "queue")
        some = Record(record.machine, record.options, record.subjects, {name: record.scenarios[name] for name in kept})
        some.trials = [one for one in record.trials if one.scenario in kept]
        some.absences = record.absences
        return some

    def test_results_are_filled_in_and_again_without_a_change(self, few: Record, tmp_path: Path) -> None:
        path = tmp_path / "page.md"
        path.write_text(PROSE)
        page.fill(path, few)
        first = {file: file.read_bytes() for file in tmp_path.rglob("*.*") if file.is_file()}
        page.fill(path, few)
        assert {file: file.read_bytes() for file in tmp_path.rglob("*.*") if file.is_file()} == first
        text = path.read_text()
        assert text.startswith(f"# Page\n\nBefore.\n\n{BEGIN}\n")
        assert text.endswith(f"{END}\n\nAfter.\n")
        assert "Imagined, 2 cores usable" in text
        assert "the queue broke" in text
        linked = set(re.findall(r"\]\(([^)]+)\)", text))
        assert linked == {f"images/benchmarks/{ALONE}-hit-bars.{kind}" for kind in ("png", "svg")}
        assert {file.relative_to(tmp_path).as_posix() for file in first if file != path} == linked

    def test_plots_of_an_earlier_record_go_and_other_files_stay(self, few: Record, tmp_path: Path) -> None:
        images = tmp_path / page.IMAGES
        images.mkdir(parents=True)
        for name in ("old-bars.svg", "old-bars.png", "kept.txt"):
            (images / name).write_text("")
        (tmp_path / "page.md").write_text(PROSE)
        page.fill(tmp_path / "page.md", few)
        assert {file.name for file in images.iterdir()} == {
            f"{ALONE}-hit-bars.png",
            f"{ALONE}-hit-bars.svg",
            "kept.txt",
        }

    @pytest.mark.parametrize(
        "text",
        ["# Page\n", PROSE + PROSE, BEGIN, f"{END}\n{BEGIN}\n"],
        ids=["no marks", "twice", "no end", "reversed"],
    )
    def test_a_page_without_one_place_is_left_alone(self, few: Record, tmp_path: Path, text: str) -> None:
        path = tmp_path / "page.md"
        path.write_text(text)
        with pytest.raises(BenchmarkError, match="results:begin"):
            page.fill(path, few)
        assert path.read_text() == text
        assert [file.name for file in tmp_path.iterdir()] == ["page.md"]

    def test_the_command_fills_a_page(self, few: Record, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        few.save(tmp_path / "run.json")
        (tmp_path / "page.md").write_text(PROSE)
        assert render.main([str(tmp_path / "run.json"), "--docs", str(tmp_path / "page.md")]) == 0
        assert "1 plots and all tables" in capsys.readouterr().out
        assert not (tmp_path / "run-plots").exists()
        assert render.main([str(tmp_path / "run.json"), "--docs", str(tmp_path / "none.md")]) == 2
        assert "cannot read the page" in capsys.readouterr().err

    def test_the_page_shows_a_choice_of_the_plots(self, record: Record) -> None:
        names = {one.name for one in plots.drawings(record) if page.belongs(record, one)}
        assert {"classic-1-get-set-delete-bars", "classic-8-get-set-delete-bars", "classic-8-get-curves"} <= names
        assert {"classic-throughput", "growth-get-cost", "sizes-set-cost", "growth-1000000-size"} <= names
        assert not {"classic-2-get-set-delete-bars", "sizes-100-get-curves", "think-0-size"} & names

    def test_the_documentation_has_its_place(self) -> None:
        assert page.marked(ROOT / "docs" / "benchmarks.md", page.RESULTS)[0].startswith("# Benchmarks")
