"""One run of tests and proofs in one environment, with one SQLite, and what came of it."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree

from .interpreters import ROOT, Environment

SECONDS = 1800  # after which a run counts as hung
LINES = 30  # of what a run printed that did not get to its end


@dataclass
class Result:
    """What tests came to, or proofs."""

    passed: int = 0
    failed: list[str] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter)  # by reason

    def __str__(self) -> str:
        return f"{self.passed:,} passed, {len(self.failed)} failed, {self.skipped.total()} skipped"


def run_tests(
    environment: Environment, preload: Path | None, names: list[str], processes: int, left_out: Mapping[str, str]
) -> Result:
    """Run files or folders of tests, all if none is named; `left_out` gives reasons by the names of single tests."""
    with tempfile.TemporaryDirectory(prefix="matrix-") as folder:
        report = Path(folder) / "report.xml"
        options = ["-q", "-p", "no:cacheprovider", f"--junitxml={report}", f"--numprocesses={processes}"]
        options += [f"--deselect=tests/{name}" for name in left_out]
        files = [f"tests/{name}" for name in names]
        text = _run(environment, preload, "pytest", *options, "--dist=loadfile", *files)
        result = _read_tests(report) if report.exists() else _broken(text)
    if not (result.passed or result.failed):
        result = _broken(text)  # such as a file that is not there, which pytest reports as no tests
    result.skipped.update(left_out.values())
    return result


def _read_tests(report: Path) -> Result:
    result = Result()
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        name = f"{case.get('classname')}::{case.get('name')}"
        wrong, skipped = case.findall("failure") + case.findall("error"), case.find("skipped")
        if wrong:
            first, _, _ = wrong[0].get("message", "").partition("\n")
            result.failed.append(f"{name}: {first[:200]}")
        elif skipped is not None:
            result.skipped[skipped.get("message", "")] += 1
        else:
            result.passed += 1
    return result


def run_proofs(environment: Environment, preload: Path | None, seconds: float) -> Result:
    """Run every proof briefly."""
    with tempfile.TemporaryDirectory(prefix="matrix-") as folder:
        report = Path(folder) / "report.json"
        text = _run(environment, preload, "prove", "--seconds", str(seconds), "--json", str(report))
        return _read_proofs(report) if report.exists() else _broken(text)


def _read_proofs(report: Path) -> Result:
    result = Result()
    found = json.loads(report.read_text())
    for proof in found["proofs"]:
        if proof["skipped"]:
            result.skipped[f"{proof['name']}: {proof['skipped']}"] += 1
        elif proof["held"]:
            result.passed += 1
        else:
            text = proof["violations"][0][1].splitlines()[-1] if proof["violations"] else "found nothing"
            result.failed.append(f"{proof['name']}, seed {found['seed']}: {text}")
    return result


def _broken(text: str) -> Result:
    return Result(failed=["nothing ran:\n" + "\n".join(text.splitlines()[-LINES:])])


def _run(environment: Environment, preload: Path | None, module: str, *arguments: str) -> str:
    """Run a module and return what it printed; its report tells how it went."""
    variables = {key: value for key, value in os.environ.items() if key not in ("CI", "LD_PRELOAD", "PYTHONPATH")}
    if preload:
        variables["LD_PRELOAD"] = str(preload)
    try:
        done = subprocess.run(
            [environment.python, "-m", module, *arguments],
            cwd=ROOT,
            env=variables,
            timeout=SECONDS * environment.patience,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        return f"{error.stdout!r}\nhung for {SECONDS * environment.patience} s"
    return done.stdout
