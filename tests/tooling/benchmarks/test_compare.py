"""The comparison of two revisions: what it calls slower, what it refuses, and that it leaves nothing behind."""

from __future__ import annotations

import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import command, compare, revisions
from benchmarks.compare import BASE, BEYOND, FASTER, HEAD, SAME, SLOWER, UNCLEAR, WITHIN, Bound, Result
from benchmarks.crew import Crew
from benchmarks.intervals import Spread
from benchmarks.measure import Costs
from benchmarks.peers.spec import BenchmarkError
from benchmarks.workspace import Workspace

from ...support.project import ROOT

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")

# Many short turns: the interval then leaves out those that something else on this machine disturbed.
QUICK = ["--repeats", "18", "--operations", "50"]

# A package that stores nothing but in memory; what a revision changes stands in braces.
PACKAGE = """
class Cache:
    def __init__(self, directory, **settings):
        self.data = STORES.setdefault(directory, {{}})

    def get(self, key):
        return self.data.get(key)

    def set(self, key, value):
        {in_set}
        self.data[key] = value

    def delete(self, key):
        return self.data.pop(key, None) is not None

    def close(self):
        pass

    {more}

STORES = {{}}
"""
BUSY = "for _ in range(2_000): pass"


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a repository with one commit, tagged `first`, and go there."""
    top = tmp_path / "checkout"
    (top / "diskcache_like").mkdir(parents=True)
    # A generation starts two processes, which takes most of the time.
    monkeypatch.setattr(compare, "GENERATIONS", 1)
    for who in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{who}_NAME", "Somebody")
        monkeypatch.setenv(f"GIT_{who}_EMAIL", "somebody@example.org")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    monkeypatch.chdir(top)
    git("init", "-q")
    write()
    commit("first")
    return top


def git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], check=True, capture_output=True, text=True).stdout


def write(in_set: str = "pass", more: str = "pass") -> None:
    Path("diskcache_like", "__init__.py").write_text(PACKAGE.format(in_set=in_set, more=more))


def commit(tag: str) -> None:
    git("add", "--all")
    git("commit", "-q", "-m", tag)
    git("tag", tag)


def run(tmp_path: Path, base: str, head: str, *more: str) -> int:
    """Compare in a directory of its own, which must be empty afterwards."""
    work = tmp_path / "work"
    work.mkdir(exist_ok=True)
    try:
        return compare.main([base, head, *QUICK, "--directory", str(work), *more])
    finally:
        assert list(work.iterdir()) == []


class TestVerdict:
    @pytest.mark.parametrize(
        ("ratios", "verdict"),
        [
            ([1.11] * 6, SLOWER),
            ([1.11] * 5 + [1.1], SAME),  # of six values, all belong to the interval
            ([1.11] * 8 + [0.5], SLOWER),
            ([1.0] * 6, SAME),
            ([1.1] * 6, SAME),
            ([0.9] * 6, FASTER),
            ([0.9] * 5 + [0.92], SAME),
            ([0.91] * 6, SAME),  # 1 / 1.1 is 0.909
        ],
    )
    def test_only_a_whole_interval_beyond_the_threshold_counts(self, ratios: list[float], verdict: str) -> None:
        assert compare.verdict(Spread.of(ratios), 0.1) == verdict

    @pytest.mark.parametrize(
        ("ratios", "verdict"),
        [([1.26] * 6, BEYOND), ([1.26] * 5 + [1.25], UNCLEAR), ([1.25] * 6, WITHIN), ([1.2] * 5 + [1.3], UNCLEAR)],
    )
    def test_a_bound_fails_only_where_the_whole_interval_is_beyond_it(self, ratios: list[float], verdict: str) -> None:
        times = {"set-tagged": ratios, "set-untagged": [1.0] * len(ratios)}
        result = Result({name: {BASE: some, HEAD: some} for name, some in times.items()})
        ((bound, one),) = result.bounds().items()
        assert (bound, compare.verdict_on(bound, one)) == (Bound("set-tagged", "set-untagged", 1.25), verdict)
        status = command.MISSED_ONE if verdict == BEYOND else command.GOOD
        assert compare.conclude(result, 0.1) == status


class TestRevisions:
    def test_a_commit_is_exported_without_touching_the_checkout(self, checkout: Path, tmp_path: Path) -> None:
        write(BUSY)
        Path("notes").touch()
        before = git("status", "--porcelain")
        found = revisions.export(checkout, "first", tmp_path / "found")
        assert "range" not in (found.directory / "diskcache_like" / "__init__.py").read_text()
        assert git("status", "--porcelain") == before
        assert len(git("worktree", "list").splitlines()) == 1

    def test_the_working_tree_is_exported_as_it_is(self, checkout: Path, tmp_path: Path) -> None:
        Path("diskcache_like", "gone.py").touch()
        Path(".gitignore").write_text("*.so\n")
        commit("second")
        Path("diskcache_like", "gone.py").unlink()
        for new in ("fresh.py", "old.so"):
            Path("diskcache_like", new).touch()
        write(BUSY)
        found = revisions.export(checkout, ".", tmp_path / "found").directory / "diskcache_like"
        assert sorted(path.name for path in found.iterdir()) == ["__init__.py", "fresh.py"]
        assert "range" in (found / "__init__.py").read_text()

    def test_each_is_compiled_in_its_own_way_and_one_that_cannot_be_is_refused(
        self, checkout: Path, tmp_path: Path
    ) -> None:
        (checkout / "setup.py").write_text("import pathlib; pathlib.Path('diskcache_like', 'made').write_text('so')")
        commit("made")
        (checkout / "setup.py").write_text("import sys; sys.exit('no compiler')")
        found = revisions.export(checkout, "made", tmp_path / "made")
        assert (found.directory / "diskcache_like" / "made").read_text() == "so"
        with pytest.raises(revisions.RevisionError, match="cannot be compiled: no compiler"):
            revisions.export(checkout, ".", tmp_path / "broken")


class TestCompare:
    def test_a_busy_loop_in_set_fails_and_is_named(
        self, checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setattr(compare, "GENERATIONS", 2)
        write(BUSY)
        commit("second")
        written = tmp_path / "found.json"
        calls = ["--only", "set", "--only", "hot-get", "--json", str(written)]
        assert run(tmp_path, "first", "second", *calls) == command.MISSED_ONE
        shown = capsys.readouterr().out
        assert "SLOWER: set: HEAD takes" in shown
        found = json.loads(written.read_text())["calls"]
        # Not that it is no slower at all: on a busy machine so few repetitions may say so.
        took = json.loads(written.read_text())["times_ns"]
        hot_get = [mine / other for mine, other in zip(took["hot-get"][HEAD], took["hot-get"][BASE], strict=True)]
        assert statistics.median(hot_get) < found["set"]["low"]
        assert (found["set"]["verdict"], len(took["set"][HEAD])) == (SLOWER, 18)
        assert found["set"]["low"] > 1.1

    def test_the_other_way_round_it_is_faster_and_what_is_not_committed_counts(
        self, checkout: Path, tmp_path: Path
    ) -> None:
        write(BUSY)
        written = tmp_path / "found.json"
        run(tmp_path, ".", "first", "--only", "set", "--json", str(written))
        # Not that no call is slower: on a busy machine so few repetitions may say that of one that did not change.
        assert json.loads(written.read_text())["calls"]["set"]["verdict"] == FASTER
        assert run(tmp_path, "HEAD", ".", "--only", "set") == command.MISSED_ONE

    def test_contended_calls_show_it_too(
        self, checkout: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        write(BUSY)
        calls = ["--only", "contended-set", "--processes", "2", "--repeats", "36", "--operations", "400"]
        assert run(tmp_path, "HEAD", ".", *calls) == command.MISSED_ONE
        assert "SLOWER: contended-set" in capsys.readouterr().out

    def test_a_call_that_takes_too_long_beside_another_one_fails(
        self, checkout: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        slow = (
            "def set(self, key, value, tag=None): self.data[key] = [value for _ in range(8_000 if tag else 2_000)][0]"
        )
        slow += "\n    def evict(self, tag): pass"
        calls = ["--only", "set-tagged", "--threshold", "900%"]
        write(more=slow)
        assert run(tmp_path, ".", ".", *calls) == command.MISSED_ONE
        assert "BEYOND: set-tagged takes" in capsys.readouterr().out
        write(more=slow.replace("8_000", "2_000"))
        assert run(tmp_path, ".", ".", *calls) == command.GOOD

    def test_what_a_revision_does_not_have_yet_is_new(
        self, checkout: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        write(more="def incr(self, key): pass")
        commit("second")
        assert run(tmp_path, "first", "second", "--only", "incr", "--only", "add") == command.GOOD
        shown = capsys.readouterr().out
        assert "new in HEAD" in shown
        assert "in neither" in shown
        assert run(tmp_path, "second", "first", "--only", "incr") == command.GOOD
        assert "gone in HEAD" in capsys.readouterr().out

    def test_a_call_that_breaks_fails_the_measurement(
        self, checkout: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        write("if value.startswith(b'user:00000007'): return")
        assert run(tmp_path, "first", ".", "--only", "hot-get") == command.FAILED
        assert "HEAD: " in capsys.readouterr().err

    @pytest.mark.parametrize(
        ("base", "message"), [("no-such-branch", "unknown revision 'no-such-branch'"), ("empty", "no package")]
    )
    def test_a_revision_that_cannot_be_measured_is_named(
        self, checkout: Path, tmp_path: Path, base: str, message: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        git("tag", "empty", git("commit-tree", "-m", "nothing", git("mktree", "--missing").strip()).strip())
        assert run(tmp_path, base, "first") == command.UNUSABLE
        told = capsys.readouterr().err
        assert message in told
        assert base in told

    def test_outside_a_checkout_it_says_so(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
        monkeypatch.chdir(tmp_path)
        assert run(tmp_path, "HEAD", ".") == command.UNUSABLE
        assert f"{tmp_path} is not in a git checkout" in capsys.readouterr().err

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["--threshold", "much"], "a percentage such as 10%"),
            (["--threshold=-5%"], "a percentage such as 10%"),
        ],
    )
    def test_a_wrong_command_line_is_explained(
        self, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        with pytest.raises(SystemExit) as raised:
            compare.main(["HEAD", ".", *arguments])
        assert raised.value.code == command.UNUSABLE
        assert message in capsys.readouterr().err

    def test_an_interruption_leaves_nothing_behind(self, checkout: Path, tmp_path: Path) -> None:
        work = tmp_path / "work"
        work.mkdir()
        with subprocess.Popen(
            [sys.executable, "-m", "benchmarks.compare", "first", ".", "--repeats", "9000", "--directory", str(work)],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        ) as process:
            assert process.stdout is not None
            while not process.stdout.readline().startswith(b"directory: "):
                assert process.poll() is None
            os.killpg(process.pid, signal.SIGINT)
            # Ends only when every process that inherited the pipes has ended.
            _, errors = process.communicate()
        assert (process.returncode, errors) == (command.INTERRUPTED, b"benchmarks.compare: interrupted\n")
        assert list(work.iterdir()) == []
        assert len(git("worktree", "list").splitlines()) == 1
        assert git("status", "--porcelain") == ""


def test_every_call_runs_on_the_package_itself(tmp_path: Path) -> None:
    found = revisions.Revision("here", "here", ROOT)
    effort = compare.Effort(repeats=1, operations=30, processes=2)
    sides = {BASE: found, HEAD: found}
    result = compare.measure_all(sides, effort, list(compare.CALLS), Workspace(tmp_path), Costs(0, 0))
    assert not result.lacking
    assert result.times.keys() == compare.CALLS.keys()
    assert all(time > 0 for both in result.times.values() for (time,) in both.values())


def test_a_package_from_elsewhere_is_refused(tmp_path: Path) -> None:
    with (
        Crew(1) as crew,
        pytest.raises(BenchmarkError, match=r"diskcache_like came from .* instead of the revision in"),
    ):
        crew.run(compare.take_side, [tmp_path])
