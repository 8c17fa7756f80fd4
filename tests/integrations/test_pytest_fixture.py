"""The fixtures that pytest gets: they cost nothing where they are not used."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

from ..support.project import ROOT

USES = """
def test_time_passes_by_the_clock(diskcache, diskcache_clock, tmp_path):
    diskcache.set("token", "abc", expire=60)
    diskcache_clock.advance(59)
    assert diskcache["token"] == "abc"
    diskcache_clock.advance(1)
    assert "token" not in diskcache
    assert diskcache.directory == str(tmp_path / "diskcache")


def test_each_test_has_a_cache_of_its_own(diskcache):
    assert len(diskcache) == 0
    diskcache["token"] = 1
"""
DOES_NOT = """
import sys


def test_nothing_is_imported():
    assert "diskcache_like_pytest" in sys.modules
    assert "diskcache_like" not in sys.modules
"""


def run(folder: Path, test: str) -> str:
    (folder / "test_it.py").write_text(test)
    command = [sys.executable, "-m", "pytest", "-p", "diskcache_like_pytest", "-p", "no:cacheprovider", "test_it.py"]
    env = {"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # or it might be found twice
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_a_test_gets_a_cache_and_a_clock(tmp_path: Path) -> None:
    assert "2 passed" in run(tmp_path, USES)


def test_the_package_is_not_imported_where_no_test_wants_it(tmp_path: Path) -> None:
    assert "1 passed" in run(tmp_path, DOES_NOT)


def test_pytest_finds_it() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["project"]["entry-points"]["pytest11"] == {"diskcache_like": "diskcache_like_pytest"}
    assert project["tool"]["setuptools"]["py-modules"] == ["diskcache_like_pytest"]
