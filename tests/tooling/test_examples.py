"""The programs in `examples/`: each runs, is short, and says what its last line says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from ..support.project import ROOT

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
LONGEST = 60  # lines
LAST_LINES = {
    "async_crawler": r"30 pages asked for, 3 fetched",
    "command_line_tool": r"\d+ lines in 7 files; 0 known before, 7 read",
    "job_queue": r"30 jobs done, sum of squares 8555, last True",
    "language_model": r"1 answer of the small model forgotten",
    "memoize_slow_function": r"0 from the cache, 3 computed",
    "web_sessions": r"401 please log in",
}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    arguments = [str(tmp_path / "cache")] if path.stem == "memoize_slow_function" else []
    done = subprocess.run([sys.executable, path, *arguments], check=False, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert re.fullmatch(LAST_LINES[path.stem], done.stdout.splitlines()[-1])


def test_examples_are_short() -> None:
    assert len(EXAMPLES) == len(LAST_LINES)
    assert {path.name for path in EXAMPLES if len(path.read_text().splitlines()) > LONGEST} == set()
