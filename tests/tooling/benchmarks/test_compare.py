"""The comparison of two revisions: what it calls slower, what it refuses, and that it leaves nothing behind."""

from __future__ import annotations

import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks import command, compare, duel, revisions
from benchmarks.compare import BASE, BEYOND, FASTER, HEAD, SAME, SLOWER, UNCLEAR, WITHIN, Comparison
from benchmarks.crew import Crew
from benchmarks.duel import CALLS, Bound
from benchmarks.peers.spec import BenchmarkError

from ...support.project import ROOT

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")

# Many short turns: the interval then leaves out those that something else on this machine disturbed.
QUICK = ["--repeats", "18", "--seconds", "0.09"]

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
        assert Comparison(ratios).verdict(0.1) == verdict

    @pytest.mark.parametrize(
        ("ratios", "verdict"),
        [([1.26] * 6, BEYOND), ([1.26] * 5 + [1.25], UNCLEAR), ([1.25] * 6, WITHIN), ([1.2] * 5 + [1.3], UNCLEAR)],
    )
    def test_a_bound_fails_only_where_the_whole_interval_is_beyond_it(self, ratios: list[float], verdict: str) -> None:
        bound = Bound("set-tagged", "set-untagged", 1.25)
        one = Comparison(ratios)
        assert one.verdict_on(bound) == verdict
        status = command.MISSED_ONE if verdict == BEYOND else command.GOOD
        assert compare.conclude(compare.Result(bounds={bound: one}), 0.1) == status

    def test_both_blocks_of_a_repetition_make_one_ratio(self) -> None:
        comparison = Comparison()
        comparison.add({BASE: [1, 3], HEAD: [2, 4]})
        assert comparison.ratios == [1.5]
        assert comparison.per_call == {BASE: [1, 3], HEAD: [2, 4]}


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

    def test_a_helper_is_compiled_in_each_revisions_own_way_for_both_or_for_none(
        self, checkout: Path, tmp_path: Path
    ) -> None:
        program = "import pathlib; pathlib.Path({}, '_native.so').write_text('{}')"
        (checkout / revisions.BUILDER).parent.mkdir()
        (checkout / revisions.BUILDER).write_text(program.format("'diskcache_like', 'coherence'", "old"))
        commit("old")
        (checkout / "setup.py").write_text(program.format("'diskcache_like', 'coherence'", "new"))
        commit("new")
        (checkout / "setup.py").write_text("import sys; sys.exit('no compiler')")
        commit("broken")
        names = ("first", "old", "new", "broken")
        found = {name: revisions.export(checkout, name, tmp_path / name) for name in names}

        def build(*chosen: str) -> tuple[str, list[str]]:
            told = revisions.build_helpers([found[name] for name in chosen], tmp_path / "-".join(chosen))
            built = [path for name in chosen for path in found[name].directory.glob(revisions.HELPERS)]
            return told, [path.read_text() for path in built]

        assert build("old", "new") == ("compiled for both", ["old", "new"])
        assert build("first", "new") == ("compiled; first has no source for it", ["new"])
        assert build("old", "broken") == ("none: it cannot be compiled in broken (no compiler)", [])
        assert build("first", "first") == ("none: the revisions have no source for it", [])


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
        assert statistics.median(found["hot-get"]["ratios"]) < found["set"]["low"]
        assert (found["set"]["verdict"], len(found["set"]["ratios"])) == (SLOWER, 18)
        assert found["set"]["low"] > 1.1

    def test_the_other_way_round_it_is_faster_and_what_is_not_committed_counts(
        self, checkout: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        write(BUSY)
        assert run(tmp_path, ".", "first", "--only", "set") == command.GOOD
        assert FASTER in capsys.readouterr().out
        assert run(tmp_path, "HEAD", ".", "--only", "set") == command.MISSED_ONE

    def test_contended_calls_show_it_too(
        self, checkout: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        write(BUSY)
        calls = ["--only", "contended-set", "--processes", "2", "--repeats", "36", "--seconds", "1"]
        assert run(tmp_path, "HEAD", ".", *calls) == command.MISSED_ONE
        assert "SLOWER: contended-set" in capsys.readouterr().out

    def test_a_call_that_takes_too_long_beside_another_one_fails(
        self, checkout: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        slow = (
            "def set(self, key, value, tag=None): self.data[key] = [value for _ in range(8_000 if tag else 2_000)][0]"
        )
        calls = ["--only", "set-tagged", "--threshold", "900%", "--json", str(tmp_path / "found.json")]
        write(more=slow)
        assert run(tmp_path, ".", ".", *calls) == command.MISSED_ONE
        assert "BEYOND: set-tagged takes" in capsys.readouterr().out
        write(more=slow.replace("8_000", "2_000"))
        assert run(tmp_path, ".", ".", *calls) == command.GOOD
        assert json.loads((tmp_path / "found.json").read_text())["bounds"]["set-tagged / set-untagged"]["most"] == 1.25

    def test_a_revision_is_the_same_as_itself(self, checkout: Path, tmp_path: Path) -> None:
        # The threshold is beyond any noise: what is tested is that both are measured alike.
        assert run(tmp_path, "first", "HEAD", "--only", "set", "--threshold", "900%") == command.GOOD

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
        write("if value.startswith(b'user:00000007'): return False")
        assert run(tmp_path, "first", ".", "--only", "hot-get") == command.FAILED
        assert "get('user:00000007:profile') returned None" in capsys.readouterr().err

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
            (["--seconds", "0"], "a positive number of seconds"),
            (["--only", "nonsense"], "hot-get"),
            (["--directory", "/no/such/directory"], "no such directory"),
        ],
    )
    def test_a_wrong_command_line_is_explained(
        self, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        with pytest.raises(SystemExit) as raised:
            compare.main(["HEAD", ".", *arguments])
        assert raised.value.code == command.UNUSABLE
        assert message in capsys.readouterr().err

    @pytest.mark.parametrize(
        "interrupt", [lambda group: os.killpg(group, signal.SIGINT), lambda group: os.kill(group, signal.SIGTERM)]
    )
    def test_an_interruption_leaves_nothing_behind(
        self, interrupt: Callable[[int], None], checkout: Path, tmp_path: Path
    ) -> None:
        work = tmp_path / "work"
        work.mkdir()
        with subprocess.Popen(
            [sys.executable, "-m", "benchmarks.compare", "first", ".", "--seconds", "900", "--directory", str(work)],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        ) as process:
            assert process.stdout is not None
            while not process.stdout.readline().startswith(b"directory: "):
                assert process.poll() is None
            interrupt(process.pid)
            # Ends only when every process that inherited the pipes has ended.
            _, errors = process.communicate()
        assert (process.returncode, errors) == (command.INTERRUPTED, b"benchmarks.compare: interrupted\n")
        assert list(work.iterdir()) == []
        assert len(git("worktree", "list").splitlines()) == 1
        assert git("status", "--porcelain") == ""


def test_every_call_runs_on_the_package_itself(tmp_path: Path) -> None:
    with Crew(1) as crew:
        assert crew.run(duel.take_side, [duel.Side(ROOT, tmp_path / "caches", 0)]) == [[]]
        for name in CALLS:
            ((began, ended),) = crew.run(duel.measure_block, [duel.Block(name, 1, 25)])
            assert ended > began, name


def test_a_package_from_elsewhere_is_refused(tmp_path: Path) -> None:
    with (
        Crew(1) as crew,
        pytest.raises(BenchmarkError, match=r"diskcache_like came from .* instead of the revision in"),
    ):
        crew.run(duel.take_side, [duel.Side(tmp_path, tmp_path / "caches", 0)])
