"""The programs in `examples/other_languages`: Python, Node and Go share entries."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ..support.project import ROOT

EXAMPLE = ROOT / "examples" / "other_languages"
SAID = """\
python: serving
node: a basket for Ada, visit 2
go: 2 items for Ada, visit 3
python: 3 visits, a basket of 36 bytes
python: 1 page forgotten, False
"""


def test_python_node_and_go_share_entries(tmp_path: Path) -> None:
    missing = [program for program in ("node", "npm", "go") if shutil.which(program) is None]
    if missing:
        pytest.skip(f"no {', '.join(missing)} here: install it to try the example")
    copy = tmp_path / "example"
    shutil.copytree(EXAMPLE, copy, ignore=shutil.ignore_patterns("node_modules"))
    subprocess.run(["npm", "ci", "--silent", "--no-audit", "--no-fund"], cwd=copy / "node", check=True)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, copy / "shop.py"], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == SAID
