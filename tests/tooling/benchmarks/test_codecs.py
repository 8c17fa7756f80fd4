"""The matrix of codecs: what is measured, what is chosen from made-up numbers, tables, heat maps and the page."""

from __future__ import annotations

import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks import command, page
from benchmarks.codecs import frames, heatmap, report
from benchmarks.codecs.__main__ import main
from benchmarks.codecs.choice import Candidate, front, knee, recommendations
from benchmarks.codecs.matrix import Cell, Matrix, Timing, geometric_mean, share_out
from benchmarks.codecs.subjects import COMPRESSORS, SERIALIZERS, Opened, Subject
from benchmarks.codecs.values import KINDS, SIZES, plain_size, samples
from diskcache_like import Disk
from diskcache_like.operations.inspection import records_of

from ...support.project import ROOT

MSGPACK, JSON, PICKLE = (Subject(name) for name in ("msgpack", "json", "pickle"))
ZLIB, ZSTD = Subject("msgpack", "zlib", 6), Subject("msgpack", "zstd", 3)
SMALL_JSON = Subject("json", "zstd", 3)
TINY = ("--seconds", "0.001", "--repeats", "2", "--size", "50B")
BEGIN, END = page.marks(report.CHOICE)
PROSE = f"# Codecs\n\nBefore.\n\n{BEGIN}\n{END}\n\nBetween.\n\n{{}}\n{{}}\n\nAfter.\n".format(
    *page.marks(report.NUMBERS)
)


def invented(numbers: dict[Subject, tuple[float, float]]) -> Matrix:
    """Return a run in which each codec takes the same time per 1,000 bytes, and the same share, everywhere."""
    matrix = Matrix({"CPU": "imagined"}, {"seconds": 1.0})
    matrix.skipped = {"compressor='lz4' needs 'lz4': pip install 'diskcache-like[lz4]'": ["msgpack + lz4 0"]}
    for kind in KINDS:
        for size, plain in SIZES.items():
            for subject, (time, share) in numbers.items():
                times = tuple(time * plain / 1_000 / 2 * noise for noise in (1.0, 1.5, 0.9))
                matrix.cells.append(Cell(subject, kind, size, plain, plain * share, times, times))
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


class TestValues:
    @pytest.mark.parametrize("kind", KINDS)
    def test_each_is_about_as_large_as_it_is_called_and_the_same_in_every_run(self, kind: str) -> None:
        for size in SIZES.values():
            found = samples(kind, size)
            assert sum(map(plain_size, found)) / len(found) == pytest.approx(size, rel=0.15)
            assert len(found) == max(1, min(16, 64_000 // size))
        code = f"from benchmarks.codecs.values import samples; print(samples({kind!r}, 500))"
        assert subprocess.check_output([sys.executable, "-c", code], cwd=ROOT) == f"{samples(kind, 500)}\n".encode()

    def test_what_is_measured_is_what_the_cache_stores(self, tmp_path: Path) -> None:
        opened = Opened(Subject("json", "zlib", 6), tmp_path)
        value = {"word": "again " * 100}
        mode, payload = opened.encoder(value)[:2]
        opened.cache["key"] = value
        ((_, record),) = records_of(opened.cache, ["key"])
        assert (record.mode, record.payload) == (mode, payload)
        assert opened.decoder((mode, payload)) == value
        opened.cache.close()

    def test_fast_calls_are_made_more_often_and_all_fit_the_budget(self) -> None:
        timings = [Timing(lambda one: one, [1]) for _ in range(3)]
        for timing, cost in zip(timings, (10_000.0, 100_000.0, 60_000_000.0), strict=True):
            timing.cost = cost
        share_out(timings, 100e6)
        assert [timing.rounds for timing in timings] == [2_000, 200, 1]
        share_out(timings, 1.0)
        assert [timing.rounds for timing in timings] == [1, 1, 1], "one call each at least"


def candidate(time: float, share: float, subject: Subject = MSGPACK) -> Candidate:
    return Candidate(subject, (time, time, time), share)


class TestChoice:
    def test_each_rule_chooses_by_the_numbers(self, matrix: Matrix) -> None:
        whole = {"speed": MSGPACK, "balance": ZSTD, "json": SMALL_JSON, "size": ZLIB}
        assert chosen(matrix) == {**whole, "interchange": JSON, "floats": ZLIB}
        assert chosen(invented({PICKLE: (1.0, 0.1)})) == {}, "pickle is never chosen"

    @pytest.mark.parametrize(
        ("goal", "one", "other", "expected"),
        [
            ("speed", (10.0, 1.0), (9.6, 1.0), MSGPACK),  # nearly as fast goes to what needs less
            ("speed", (10.0, 1.0), (9.4, 1.0), ZSTD),
            ("floats", (10.0, 1.0), (20.0, 0.88), MSGPACK),  # less than an eighth is not worth any time
            ("floats", (10.0, 1.0), (20.0, 0.87), ZSTD),
            ("size", (200.0, 0.3), (30.0, 0.302), ZSTD),  # nearly as small goes to the faster
            ("size", (200.0, 0.3), (30.0, 0.304), MSGPACK),
        ],
    )
    def test_what_is_nearly_alike_is_decided_by_the_rest(
        self, goal: str, one: tuple[float, float], other: tuple[float, float], expected: Subject
    ) -> None:
        assert chosen(invented({MSGPACK: one, ZSTD: other}))[goal] == expected

    def test_the_front_leaves_out_what_another_beats_in_both_and_the_knee_gives_up_least(self) -> None:
        best = [candidate(1, 1), candidate(3, 0.5), candidate(9, 0.2)]
        assert front([candidate(4, 0.6), *reversed(best), candidate(9, 0.3), candidate(3, 0.5)]) == best
        assert knee([candidate(1, 1)]) == candidate(1, 1)
        # Half the logarithm of the time for most of the size, and most of the time for half of the size.
        some = [candidate(1, 1), candidate(10, 0.2), candidate(70, 0.3), candidate(90, 0.15), candidate(100, 0.1)]
        assert knee(some) == candidate(10, 0.2)

    def test_time_is_told_as_a_multiple_of_the_default_turn_by_turn(self, matrix: Matrix) -> None:
        size = next(one for one in recommendations(matrix) if one.rule.goal == "size")
        assert size.time is not None
        assert size.time.median == pytest.approx(20)
        assert size.time.interval.low == pytest.approx(size.time.interval.high)
        assert size.chosen.share == pytest.approx(0.3)
        assert geometric_mean([1, 100]) == pytest.approx(10), "no kind outweighs another"

    def test_a_rule_whose_values_were_not_all_measured_chooses_nothing(self, matrix: Matrix) -> None:
        matrix.cells = [one for one in matrix.cells if (one.kind, one.size) != ("text", "100KB")]
        assert set(chosen(matrix)) == {"speed", "json", "interchange", "floats"}
        assert "No rule found all" in report.recommendation_table(Matrix({}, {})).text()


class TestReport:
    def test_tables_show_every_codec_with_units_and_intervals(self, matrix: Matrix) -> None:
        first, *_, last = shown = list(report.tables(matrix))
        assert first.title == "records, 50 B"
        assert [row[0] for row in first.rows] == [one.label for one in matrix.subjects]
        assert (*first.rows[0][1:3], first.rows[0][-1]) == ("0.25 ns", "0.23 ns..0.38 ns", "100.0 %")
        assert "3 repetitions with intervals of 75.00 % confidence" in first.text()
        assert len(shown) == len(KINDS) * len(SIZES) + 1
        text = last.markdown()
        assert "| size | msgpack + zlib 6 | `Cache(directory, compressor='zlib', compress_level=6)` | 20.00x" in text
        one = Cell(ZLIB, "text", "1KB", 1_000, 300, (2_000.0,), (500.0,))
        assert (one.speed("encode"), one.speed("decode"), one.share) == (500, 2_000, 0.3)

    def test_heat_maps_show_every_number_and_are_the_same_again(self, matrix: Matrix, tmp_path: Path) -> None:
        matrix.cells = [one for one in matrix.cells if one.kind in ("records", "bytes")]
        assert heatmap.draw(matrix, tmp_path / "one") == heatmap.draw(matrix, tmp_path / "two")
        for path in (tmp_path / "one").iterdir():
            assert path.read_bytes() == (tmp_path / "two" / path.name).read_bytes()
        for one in heatmap.MAPS:
            assert (tmp_path / "one" / f"{one.name}.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
            root = ET.parse(tmp_path / "one" / f"{one.name}.svg").getroot()
            words = ["".join(element.itertext()) for element in root.iter("{http://www.w3.org/2000/svg}text")]
            shown = {one.title, "records", "bytes", "1 MB", *(subject.label for subject in matrix.subjects)}
            assert shown | {one.write(one.measure(cell)) for cell in matrix.cells} <= {*words}
        share, encode, _ = heatmap.MAPS
        assert share.shade(0.1) > share.shade(1.0) > share.shade(2.0) == 0, "bright is good"
        assert encode.shade(20_000) == 1 > encode.shade(100) > encode.shade(1) == 0

    def test_numbers_fit_their_fields(self) -> None:
        numbers = {0.04: "0.0", 9.94: "9.9", 9.96: "10", 999.4: "999", 999.6: "1.0k", 9_949: "9.9k", 3.6e6: "3.6M"}
        assert [heatmap.short(one) for one in numbers] == list(numbers.values())

    def test_a_page_is_filled_and_again_without_a_change(self, matrix: Matrix, tmp_path: Path) -> None:
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
        assert "pip install 'diskcache-like[lz4]'" in second_part
        assert "zlib 6 | " not in second_part.partition("msgpack + zlib 6")[0], "of others, a choice of levels"
        linked = set(re.findall(r"\]\(([^)]+)\)", text))
        assert {one.relative_to(tmp_path).as_posix() for one in first if one != path} == linked
        assert len(linked) == 6


class TestCommand:
    def test_a_tiny_run_prints_writes_and_draws(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert main([*TINY, "--compressor", "none", "--compressor", "zlib", "--out", str(tmp_path / "out")]) == 0
        shown = capsys.readouterr().out
        assert "bytes, 50 B" in shown
        wanted = [
            Subject(one, name, level) for one in SERIALIZERS for name in ("none", "zlib") for level in COMPRESSORS[name]
        ]
        assert all(shown.count(f"\n{one.label}  ") >= len(KINDS) for one in wanted)
        assert len(list((tmp_path / "out").iterdir())) == 6

    def test_a_missing_package_is_told_and_is_no_failure(
        self, without: Callable[..., None], capsys: pytest.CaptureFixture[str]
    ) -> None:
        without("lz4")
        few = ["--serializer", "msgpack", "--kind", "text", "--compressor", "lz4", "--compressor", "none"]
        assert main([*TINY, *few]) == 0
        told = capsys.readouterr().out
        assert re.search(r"skipped: msgpack \+ lz4 0, msgpack \+ lz4 9: .*pip install 'diskcache-like\[lz4\]'", told)

    def test_a_wrong_value_is_a_failure(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setattr(Disk, "fetch", lambda *_: None)
        assert main([*TINY, "--serializer", "json", "--kind", "text", "--compressor", "none"]) == command.FAILED
        assert "FAILED: json on text of 50B: a value came back as another one" in capsys.readouterr().out
        assert frames.main(["--rows", "50", "--seconds", "0.01", "--repeats", "2"]) == command.FAILED
        assert "msgpack on dictionaries of 50 rows: a value came back as another" in capsys.readouterr().out

    def test_a_run_of_frames_fills_the_page_with_every_way(self, tmp_path: Path) -> None:
        filled = tmp_path / "page.md"
        filled.write_text("Before.\n{}\n{}\nAfter.\n".format(*page.marks(frames.MARK)), encoding="utf-8")
        few = ["--rows", "50", "--seconds", "0.01", "--repeats", "2"]
        assert frames.main([*few, "--docs", str(filled)]) == command.GOOD
        text = filled.read_text(encoding="utf-8")
        ways = [("dictionaries", "msgpack"), *((kind, one) for kind in frames.MAKERS for one in ("arrow", "pickle"))]
        assert all(f"| {kind} | {serializer} |" in text for kind, serializer in ways)
        assert "| 1.00x | 1.00..1.00 |" in text
        filled.write_text("Before.\n", encoding="utf-8")
        assert frames.main([*few, "--docs", str(filled)]) == command.UNUSABLE
