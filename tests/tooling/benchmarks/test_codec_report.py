"""The matrix of codecs: what is measured, what is chosen from made-up numbers, tables, heat maps and the page."""

from __future__ import annotations

import builtins
import json
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from benchmarks import command, page
from benchmarks.codecs import frames, heatmap, report, trial, values
from benchmarks.codecs.__main__ import main
from benchmarks.codecs.choice import Candidate, front, knee, recommendations
from benchmarks.codecs.matrix import Cell, Matrix, geometric_mean, load
from benchmarks.codecs.subjects import COMPRESSORS, SERIALIZERS, Opened, Subject, open_all, subjects
from benchmarks.codecs.values import KINDS, SIZES, plain_size, samples
from benchmarks.measure import Costs
from benchmarks.subjects import BenchmarkError
from diskcache_like.operations.inspection import records_of

from ...support.project import ROOT

SVG = "{http://www.w3.org/2000/svg}"
MSGPACK, JSON, PICKLE = (Subject(name, "none") for name in ("msgpack", "json", "pickle"))
ZLIB, ZSTD = Subject("msgpack", "zlib", 6), Subject("msgpack", "zstd", 3)
SMALL_JSON = Subject("json", "zstd", 3)
TINY = ("--seconds", "0.001", "--repeats", "2", "--size", "50B")
BEGIN, END = page.marks(report.CHOICE)
PROSE = "# Codecs\n\nBefore.\n\n{}\n{}\n\nBetween.\n\n{}\n{}\n\nAfter.\n".format(
    *page.marks(report.CHOICE), *page.marks(report.NUMBERS)
)


@pytest.fixture(autouse=True, scope="module")
def fonts(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Draw once before the tests: matplotlib keeps its fonts open, which is no leak of theirs."""
    heatmap.draw(invented({MSGPACK: (1.0, 1.0)}), tmp_path_factory.mktemp("fonts"))


def cell(subject: Subject, kind: str, size: str, time: float, share: float) -> Cell:
    plain = SIZES[size]
    times = tuple(time * plain / 1_000 / 2 * noise for noise in (1.0, 1.5, 0.9))
    return Cell(subject, kind, size, plain, plain * share, times, times)


def invented(numbers: dict[Subject, tuple[float, float]]) -> Matrix:
    """Return a run in which each codec takes the same time per 1,000 bytes, and the same share, everywhere."""
    matrix = Matrix({"CPU": "imagined"}, {"seconds": 1.0})
    matrix.skipped = {"compressor='lz4' needs 'lz4': pip install 'diskcache-like[lz4]'": ["msgpack + lz4 0"]}
    for kind in KINDS:
        for size in SIZES:
            for subject, (time, share) in numbers.items():
                matrix.cells.append(cell(subject, kind, size, time, share))
    return matrix


@pytest.fixture
def matrix() -> Matrix:
    numbers = {MSGPACK: (10.0, 1.0), ZLIB: (200.0, 0.3), ZSTD: (30.0, 0.35)}
    return invented({**numbers, JSON: (8.0, 1.1), SMALL_JSON: (12.0, 0.32), PICKLE: (1.0, 0.01)})


def chosen(matrix: Matrix) -> dict[str, Subject]:
    short = {"balance, values that JSON can represent": "json"}
    return {
        short.get(one.rule.goal, one.rule.goal).partition(",")[0]: one.chosen.subject for one in recommendations(matrix)
    }


def without(monkeypatch: pytest.MonkeyPatch, *packages: str) -> None:
    """Let imports of packages fail as where they are not installed."""
    real = builtins.__import__

    def refuse(name: str, *arguments: Any) -> Any:
        if name.partition(".")[0] in packages:
            raise ModuleNotFoundError(f"No module named {name!r}")
        return real(name, *arguments)

    monkeypatch.setattr(builtins, "__import__", refuse)


class TestValues:
    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("size", SIZES)
    def test_each_is_about_as_large_as_it_is_called(self, kind: str, size: str) -> None:
        found = samples(kind, SIZES[size])
        assert sum(map(plain_size, found)) / len(found) == pytest.approx(SIZES[size], rel=0.15)
        assert len(found) == max(1, min(16, 64_000 // SIZES[size]))

    @pytest.mark.parametrize("kind", KINDS)
    def test_they_are_the_same_in_every_run(self, kind: str) -> None:
        code = f"from benchmarks.codecs.values import samples; print(samples({kind!r}, 500))"
        shown = [subprocess.check_output([sys.executable, "-c", code], cwd=ROOT) for _ in range(2)]
        assert shown[0] == shown[1] == f"{samples(kind, 500)}\n".encode()

    def test_text_and_records_can_be_compressed_and_bytes_cannot(self, tmp_path: Path) -> None:
        opened = Opened(ZLIB, tmp_path)
        shares = {}
        for kind in KINDS:
            (value,) = samples(kind, 100_000)
            shares[kind] = len(opened.encode(value)[1]) / plain_size(value)
        opened.cache.close()
        assert shares["records"] < 0.5
        assert shares["text"] < 0.5
        assert shares["bytes"] > 0.99

    def test_a_size_is_shown_with_its_unit_apart(self) -> None:
        assert [values.unit_apart(size) for size in SIZES] == ["50 B", "500 B", "1 KB", "10 KB", "100 KB", "1 MB"]


class TestSubjects:
    def test_every_serializer_meets_every_compressor_and_level(self) -> None:
        found = list(subjects(SERIALIZERS, COMPRESSORS))
        assert len(set(found)) == len(found) == len({one.label for one in found})
        pairs = {(one.serializer, one.compressor, one.level) for one in found}
        assert pairs == {
            (one, name, level) for one in SERIALIZERS for name in COMPRESSORS for level in COMPRESSORS[name]
        }

    def test_it_is_opened_as_the_recommendation_says(self) -> None:
        assert MSGPACK.arguments == {}
        assert Subject("json", "zstd", 9).arguments == {
            "serializer": "json",
            "compressor": "zstd",
            "compress_level": 9,
        }

    def test_what_is_measured_is_what_the_cache_stores(self, tmp_path: Path) -> None:
        opened = Opened(Subject("json", "zlib", 6), tmp_path)
        value = {"word": "again " * 100}
        mode, payload = opened.encode(value)
        opened.cache["key"] = value
        ((_, record),) = records_of(opened.cache, ["key"])
        assert (record.mode, record.payload) == (mode, payload)
        assert opened.decoder()(opened.encoder()(value)[:2]) == value
        opened.cache.close()

    def test_a_missing_package_is_named_with_the_command_that_installs_it(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        without(monkeypatch, "lz4", "zstandard")
        paths = (tmp_path / str(number) for number in range(100))
        opened, skipped = open_all(list(subjects(["msgpack"], COMPRESSORS)), lambda name: next(paths))
        for one in opened.values():
            one.cache.close()
        assert {one.compressor for one in opened} == {"none", "zlib"}
        by_extra = {
            re.findall(r"pip install 'diskcache-like\[(\w+)\]'", reason)[0]: some for reason, some in skipped.items()
        }
        assert {name: {one.compressor for one in some} for name, some in by_extra.items()} == {
            "lz4": {"lz4"},
            "zstd": {"zstd"},
        }


class TestMeasuring:
    def test_a_value_that_comes_back_as_another_is_told(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        opened = {MSGPACK: Opened(MSGPACK, tmp_path)}
        monkeypatch.setattr(Opened, "decoder", lambda self: lambda stored: [True, 2.0])
        monkeypatch.setattr(trial, "samples", lambda kind, size: [[1, 2.0]])
        found, wrong = trial.places(opened, ["floats"], ["50B"], lambda text, fraction: None)
        opened[MSGPACK].cache.close()
        assert (found, wrong) == ([], ["msgpack on floats of 50B: a value came back as another one"])

    def test_fast_ones_are_called_more_often_and_all_fit_the_budget(self) -> None:
        timings = [trial.Timing(lambda one: one, [1]) for _ in range(3)]
        for timing, cost in zip(timings, (10_000.0, 100_000.0, 60_000_000.0), strict=True):
            timing.cost = cost
        trial.share_out(timings, 100e6)
        assert [timing.rounds for timing in timings] == [2_000, 200, 1]

    def test_a_budget_too_small_means_one_call_each(self) -> None:
        timings = [trial.Timing(lambda one: one, [1]) for _ in range(2)]
        trial.share_out(timings, 1.0)
        assert [timing.rounds for timing in timings] == [1, 1]

    def test_all_take_turns_in_every_repetition(self) -> None:
        calls: list[int] = []
        kinds = [trial.Timing(calls.append, [number]) for number in range(4)]
        places = [trial.Place(one, "text", "50B", 50, 50, *kinds[at : at + 2]) for at, one in ((0, MSGPACK), (2, JSON))]
        calls.clear()
        cells = trial.run(places, 1e-9, 3, Costs(0, 0), lambda text, fraction: None)
        assert [sorted(calls[at : at + 4]) for at in (0, 4, 8)] == [[0, 1, 2, 3]] * 3
        assert [(one.subject, len(one.encode), len(one.decode)) for one in cells] == [(MSGPACK, 3, 3), (JSON, 3, 3)]


def candidate(time: float, share: float, subject: Subject = MSGPACK) -> Candidate:
    return Candidate(subject, (time, time, time), share)


class TestChoice:
    def test_each_rule_chooses_by_the_numbers(self, matrix: Matrix) -> None:
        assert chosen(matrix) == {
            "speed": MSGPACK,
            "balance": ZSTD,
            "json": SMALL_JSON,
            "size": ZLIB,
            "interchange": JSON,
            "floats": ZLIB,
        }

    def test_nearly_as_fast_goes_to_what_needs_less(self) -> None:
        assert chosen(invented({MSGPACK: (10.0, 1.0), ZSTD: (9.6, 1.0)}))["speed"] == MSGPACK
        assert chosen(invented({MSGPACK: (10.0, 1.0), ZSTD: (9.4, 1.0)}))["speed"] == ZSTD

    def test_saving_less_than_an_eighth_is_not_worth_any_time(self) -> None:
        assert chosen(invented({MSGPACK: (10.0, 1.0), ZSTD: (20.0, 0.88)}))["floats"] == MSGPACK
        assert chosen(invented({MSGPACK: (10.0, 1.0), ZSTD: (20.0, 0.87)}))["floats"] == ZSTD

    def test_nearly_as_small_goes_to_the_faster(self) -> None:
        assert chosen(invented({ZLIB: (200.0, 0.3), ZSTD: (30.0, 0.302)}))["size"] == ZSTD
        assert chosen(invented({ZLIB: (200.0, 0.3), ZSTD: (30.0, 0.304)}))["size"] == ZLIB

    def test_pickle_is_never_chosen(self) -> None:
        assert chosen(invented({PICKLE: (1.0, 0.1)})) == {}

    def test_the_front_leaves_out_what_another_beats_in_both(self) -> None:
        best = [candidate(1, 1), candidate(3, 0.5), candidate(9, 0.2)]
        assert front([candidate(4, 0.6), *reversed(best), candidate(9, 0.3), candidate(3, 0.5)]) == best

    def test_the_knee_gives_up_least(self) -> None:
        assert knee([candidate(1, 1)]) == candidate(1, 1)
        # Half the logarithm of the time for most of the size, and most of the time for half of the size.
        some = [candidate(1, 1), candidate(10, 0.2), candidate(70, 0.3), candidate(90, 0.15), candidate(100, 0.1)]
        assert knee(some) == candidate(10, 0.2)
        assert knee([candidate(1, 1), candidate(10, 0.9), candidate(100, 0.1)]) == candidate(1, 1)

    def test_time_is_told_as_a_multiple_of_the_default_turn_by_turn(self, matrix: Matrix) -> None:
        size = next(one for one in recommendations(matrix) if one.rule.goal == "size")
        assert size.time is not None
        assert size.time.median == pytest.approx(20)
        assert size.time.interval.low == pytest.approx(size.time.interval.high)
        assert size.share == pytest.approx(0.3)

    def test_a_rule_whose_values_were_not_all_measured_chooses_nothing(self, matrix: Matrix) -> None:
        matrix.cells = [one for one in matrix.cells if (one.kind, one.size) != ("text", "100KB")]
        assert set(chosen(matrix)) == {"speed", "json", "interchange", "floats"}
        assert "No rule found all" in report.recommendation_table(Matrix({}, {})).text()

    def test_no_kind_outweighs_another(self) -> None:
        assert geometric_mean([1, 100]) == pytest.approx(10)
        assert geometric_mean([0.2, 0.2]) == pytest.approx(0.2)


class TestReport:
    def test_tables_show_every_codec_with_units_and_intervals(self, matrix: Matrix) -> None:
        first = next(report.tables(matrix))
        assert first.title == "records, 50 B"
        assert [row[0] for row in first.rows] == [one.label for one in matrix.subjects]
        encode, between = first.rows[0][1:3]
        assert (encode, between, first.rows[0][-1]) == ("0.25 ns", "0.23 ns..0.38 ns", "100.0 %")
        assert "3 repetitions with intervals of 75.00 % confidence" in first.text()
        assert len(list(report.tables(matrix))) == len(KINDS) * len(SIZES) + 1

    def test_speed_is_in_bytes_of_the_plain_size(self) -> None:
        one = Cell(ZLIB, "text", "1KB", 1_000, 300, (2_000.0,), (500.0,))
        assert (one.speed("encode"), one.speed("decode"), one.share) == (500, 2_000, 0.3)

    def test_the_recommendation_says_how_to_open_the_cache(self, matrix: Matrix) -> None:
        text = report.recommendation_table(matrix).markdown()
        assert "| size | msgpack + zlib 6 | `Cache(directory, compressor='zlib', compress_level=6)` | 20.00x" in text
        assert report.rules_text(matrix).count("\n- ") == 5

    def test_a_record_comes_back_as_it_was(self, matrix: Matrix, tmp_path: Path) -> None:
        matrix.save(tmp_path / "run.json")
        assert load(tmp_path / "run.json") == matrix

    @pytest.mark.parametrize(
        ("change", "told"),
        [
            ({"format": 2}, "another version"),
            ({"cells": [{}]}, "not a record"),
            ({"cells": 5}, "not a record"),
            ({"kind": "nothing"}, "are not values that are measured"),
            ({"encode": [1.0]}, "not complete"),
            ({"plain": 0}, "not complete"),
        ],
    )
    def test_what_is_no_record_is_refused(
        self, matrix: Matrix, tmp_path: Path, change: dict[str, Any], told: str
    ) -> None:
        path = tmp_path / "run.json"
        matrix.save(path)
        content = json.loads(path.read_text())
        if change.keys() <= content.keys():
            content |= change
        else:
            content["cells"][3] |= change
        path.write_text(json.dumps(content))
        with pytest.raises(BenchmarkError, match=told):
            load(path)


class TestHeatMaps:
    @pytest.fixture
    def few(self, matrix: Matrix) -> Matrix:
        matrix.cells = [one for one in matrix.cells if one.kind in ("records", "bytes")]
        return matrix

    def test_each_is_a_valid_png_and_svg_with_every_number(self, few: Matrix, tmp_path: Path) -> None:
        assert heatmap.draw(few, tmp_path / "new") == ["share", "encode", "decode"]
        for one in heatmap.MAPS:
            image = (tmp_path / "new" / f"{one.name}.png").read_bytes()
            assert image.startswith(b"\x89PNG\r\n\x1a\n")
            assert image.endswith(b"IEND\xaeB`\x82")
            root = ET.parse(tmp_path / "new" / f"{one.name}.svg").getroot()
            assert root.tag == f"{SVG}svg"
            words = ["".join(element.itertext()) for element in root.iter(f"{SVG}text")]
            for expected in (one.title, "records", "bytes", "1 MB", *(subject.label for subject in few.subjects)):
                assert expected in words
            for value in (one.write(one.measure(cell)) for cell in few.cells):
                assert value in words
            assert len(words) >= len(few.cells)

    def test_the_same_numbers_give_the_same_files(self, few: Matrix, tmp_path: Path) -> None:
        for name in ("one", "two"):
            heatmap.draw(few, tmp_path / name)
        for path in (tmp_path / "one").iterdir():
            assert path.read_bytes() == (tmp_path / "two" / path.name).read_bytes()

    @pytest.mark.parametrize(
        ("number", "text"),
        [
            (0.04, "0.0"),
            (9.94, "9.9"),
            (9.96, "10"),
            (999.4, "999"),
            (999.6, "1.0k"),
            (9_949, "9.9k"),
            (12_345, "12k"),
            (3.6e6, "3.6M"),
        ],
    )
    def test_numbers_fit_their_fields(self, number: float, text: str) -> None:
        assert heatmap.short(number) == text

    def test_bright_is_good(self) -> None:
        share, encode, _ = heatmap.MAPS
        assert share.shade(0.1) > share.shade(1.0) > share.shade(2.0) == 0
        assert encode.shade(20_000) == 1 > encode.shade(100) > encode.shade(1) == 0


class TestPage:
    def test_it_is_filled_and_again_without_a_change(self, matrix: Matrix, tmp_path: Path) -> None:
        path = tmp_path / "page.md"
        path.write_text(PROSE)
        report.fill(path, matrix)
        first = {file: file.read_bytes() for file in tmp_path.rglob("*.*") if file.is_file()}
        report.fill(path, matrix)
        assert {file: file.read_bytes() for file in tmp_path.rglob("*.*") if file.is_file()} == first
        text = path.read_text()
        assert text.startswith(f"# Codecs\n\nBefore.\n\n{BEGIN}\n")
        assert text.endswith(f"{page.marks(report.NUMBERS)[1]}\n\nAfter.\n")
        first_part, _, second_part = text.partition(f"{END}\n\nBetween.\n\n")
        assert "| size | msgpack + zlib 6 |" in first_part
        assert first_part.count("\n- ") == 6
        assert "images/codecs/share.svg" in second_part
        linked = set(re.findall(r"\]\(([^)]+)\)", text))
        assert {file.relative_to(tmp_path).as_posix() for file in first if file != path} == linked
        assert len(linked) == 6
        assert "pip install 'diskcache-like[lz4]'" in text

    @pytest.mark.parametrize("missing", [report.CHOICE, report.NUMBERS])
    def test_a_page_without_a_place_stays_as_it_is(self, matrix: Matrix, tmp_path: Path, missing: str) -> None:
        path = tmp_path / "page.md"
        path.write_text(PROSE.replace(page.marks(missing)[0], ""))
        with pytest.raises(BenchmarkError, match=f"no place for {missing}; put <!-- {missing}:begin -->"):
            report.fill(path, matrix)
        assert [file.name for file in tmp_path.iterdir()] == ["page.md"]

    def test_the_documentation_has_its_place(self) -> None:
        for mark in (report.CHOICE, report.NUMBERS):
            assert page.marked(ROOT / "docs" / "codecs.md", mark)[0].startswith("# Choosing a codec")

    def test_the_compact_table_leaves_out_levels_of_other_serializers(self, matrix: Matrix) -> None:
        other = Subject("json", "zlib", 6)
        matrix.cells.append(cell(other, "records", "1KB", 1, 1))
        shown = [row[0] for row in report.compact_table(matrix).rows]
        assert other.label not in shown
        assert {JSON.label, PICKLE.label, ZLIB.label} <= set(shown)


class TestCommand:
    def test_a_tiny_run_prints_writes_and_draws(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        path = tmp_path / "page.md"
        path.write_text(PROSE)
        files = ("--json", str(tmp_path / "run.json"), "--out", str(tmp_path / "out"), "--docs", str(path))
        assert main([*TINY, "--compressor", "none", "--compressor", "zlib", *files]) == 0
        told = capsys.readouterr().out
        assert "bytes, 50 B" in told
        matrix = load(tmp_path / "run.json")
        assert {one.serializer for one in matrix.subjects} == set(SERIALIZERS)
        assert all(len(one.encode) == len(one.decode) == 2 and max(one.encode) > 0 for one in matrix.cells)
        assert matrix.options["repetitions"] == 2
        assert len(list((tmp_path / "out").iterdir())) == len(list((tmp_path / "images" / "codecs").iterdir())) == 6
        assert main(["--read", str(tmp_path / "run.json")]) == 0
        assert "bytes, 50 B" in capsys.readouterr().out

    def test_a_missing_package_is_told_and_is_no_failure(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        without(monkeypatch, "lz4")
        assert (
            main([*TINY, "--serializer", "msgpack", "--kind", "text", "--compressor", "lz4", "--compressor", "none"])
            == 0
        )
        told = capsys.readouterr().out
        assert re.search(r"skipped: msgpack \+ lz4 0, msgpack \+ lz4 9: .*pip install 'diskcache-like\[lz4\]'", told)

    def test_a_wrong_value_is_a_failure(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setattr(Opened, "decoder", lambda self: lambda stored: None)
        assert main([*TINY, "--serializer", "json", "--kind", "text", "--compressor", "none"]) == 3
        assert "FAILED: json on text of 50B: a value came back as another one" in capsys.readouterr().out

    @pytest.mark.parametrize(
        ("kind", "wrong", "known"),
        [
            ("serializer", "msgpak", "did you mean 'msgpack'? Known are: msgpack, json, pickle"),
            ("compressor", "brotli", "Known are: none, lz4, zlib, zstd"),
            ("kind", "records2", "did you mean 'records'? Known are: records, text, floats, bytes"),
            ("size", "7KB", "Known are: 50B, 500B, 1KB, 10KB, 100KB, 1MB"),
        ],
    )
    def test_a_wrong_name_lists_the_known_ones(
        self, capsys: pytest.CaptureFixture[str], kind: str, wrong: str, known: str
    ) -> None:
        assert main([f"--{kind}", wrong]) == 2
        told = capsys.readouterr().err
        assert f"there is no {kind} {wrong!r}" in told
        assert known in told

    def test_importing_it_imports_no_matplotlib(self) -> None:
        code = "import sys, benchmarks.codecs.__main__; sys.exit('matplotlib' in sys.modules)"
        assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


class TestFrames:
    TINY = ("--rows", "50", "--seconds", "0.01", "--repeats", "2")

    def test_a_run_fills_the_page_with_every_way(self, tmp_path: Path) -> None:
        filled = tmp_path / "page.md"
        filled.write_text("Before.\n{}\n{}\nAfter.\n".format(*page.marks(frames.MARK)), encoding="utf-8")
        assert frames.main([*self.TINY, "--docs", str(filled)]) == command.GOOD
        text = filled.read_text(encoding="utf-8")
        assert text.startswith("Before.\n")
        assert text.endswith("After.\n")
        for kind, serializer in frames.WAYS:
            assert f"| {'dictionaries' if kind == frames.RAW else kind} | {serializer} |" in text
        assert "| 1.00x | 1.00..1.00 |" in text

    def test_a_value_that_comes_back_as_another_is_told(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        real = Opened.decoder
        monkeypatch.setattr(Opened, "decoder", lambda self: lambda stored: real(self)(stored)[:1])
        assert frames.main(self.TINY) == command.FAILED
        assert "rows of 50 rows came back as another value" in capsys.readouterr().out

    def test_a_page_without_a_place_is_not_measured_for(self, tmp_path: Path) -> None:
        filled = tmp_path / "page.md"
        filled.write_text("Before.\n", encoding="utf-8")
        assert frames.main([*self.TINY, "--docs", str(filled)]) == command.UNUSABLE
        assert filled.read_text(encoding="utf-8") == "Before.\n"
