"""The version matrix: which Pythons it finds, what it reads from a run, and that nothing that failed is passed over."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from prove.proof import CannotRun
from prove.sqlite_builds import ORIGINS
from tools.matrix import __main__ as command
from tools.matrix import emulation, interpreters, runs
from tools.matrix.interpreters import Environment, Interpreter
from tools.matrix.runs import Result, _read_proofs, _read_tests

from ..support.project import ROOT

THIS = Interpreter(sys.executable, "3.13.0", free_threaded=False, sqlite="3.40.1")
OTHER = THIS._replace(version="3.14.0", free_threaded=True)


def test_a_python_is_asked_what_it_is() -> None:
    found = Interpreter.probe(sys.executable)
    assert found is not None
    assert str(found).startswith(f"{sys.version_info.major}.{sys.version_info.minor}.")
    assert Interpreter.probe("/nowhere/python3.13") is None
    assert Interpreter.probe("/bin/false") is None, "such as a name of pyenv's without a version behind it"


def test_of_each_kind_the_first_that_starts_is_taken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("3.12.1", "3.12.10", "3.9.1", "3.13.5t", "3.14.2t", "3.13-dev"):
        (tmp_path / "versions" / name / "bin").mkdir(parents=True)
    asked: list[str] = []

    def probe(path: str) -> Interpreter | None:
        asked.append(path)
        name = path.split("/")[-3]
        starts = name[0] == "3" and "dev" not in name
        return THIS._replace(version=name.rstrip("t"), free_threaded=name[-1] == "t") if starts else None

    monkeypatch.setattr(Interpreter, "probe", probe)
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    monkeypatch.setenv("PATH", "/nowhere")
    assert [str(one) for one in interpreters.found()] == ["3.12.10", "3.14.2t"], (
        "without a lock, Python is promised from 3.14 on"
    )
    assert not [path for path in asked if "3.9.1" in path]


def test_the_first_python_runs_with_every_sqlite() -> None:
    pairs = list(command.combinations([THIS, OTHER], None))
    assert pairs[0] == (THIS, "own")
    assert pairs[-1] == (OTHER, "own")
    assert len(pairs) == 2 + len(ORIGINS)
    assert list(command.combinations([THIS, OTHER], ["3.54.1"])) == [(THIS, "3.54.1"), (OTHER, "3.54.1")]


def test_a_report_of_tests_is_counted_with_the_reasons_of_what_was_skipped(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    report.write_text(
        '<testsuites><testsuite><testcase classname="a" name="b"/><testcase classname="a" name="c">'
        '<skipped message="no server"/></testcase><testcase classname="a" name="d"><failure message="assert 1&#10;2"/>'
        '</testcase><testcase classname="" name="a.py"><error message=""/></testcase></testsuite></testsuites>'
    )
    found = _read_tests(report)
    assert (found.passed, found.failed, found.skipped) == (1, ["a::d: assert 1", "::a.py: "], Counter({"no server": 1}))
    assert str(found) == "1 passed, 2 failed, 1 skipped"


def test_a_report_of_proofs_is_counted_with_the_seed_of_what_failed(tmp_path: Path) -> None:
    report, held = tmp_path / "report.json", {"name": "x", "skipped": "", "held": True, "violations": []}
    proofs = [
        held,
        {**held, "skipped": "needs a mount"},
        {**held, "held": False, "violations": [[3, "long\nlost"]]},
        {**held, "held": False},
    ]
    report.write_text(json.dumps({"seed": 7, "proofs": proofs}))
    found = _read_proofs(report)
    assert (found.passed, found.skipped) == (1, Counter({"x: needs a mount": 1}))
    assert found.failed == ["x, seed 7: lost", "x, seed 7: found nothing"]


def test_rows_tell_results_failures_and_what_was_not_run() -> None:
    rows = [
        command.Row("3.13.0", "3.40.1", ("polars>=1",), Result(5, ["t: no"], Counter({"why": 2}))),
        command.Row("3.13.0", "3.54.1", reason="needs cargo"),
    ]
    *_, first, second = command.table(rows).splitlines()
    assert first == "| 3.13.0 | 3.40.1 | 5 passed, 1 failed, 2 skipped | - | polars>=1 |"
    assert second == "| 3.13.0 | 3.54.1 | not run: needs cargo | - | - |"
    assert list(command.details(rows)) == ["Python 3.13.0, SQLite 3.40.1: t: no", "skipped: why"]


def test_every_chosen_test_is_there() -> None:
    assert [name for name in command.CHOSEN if not (ROOT / "tests" / name).is_file()] == []


def test_a_run_in_which_nothing_ran_has_failed() -> None:
    missing = runs.run_tests(Environment(Path(sys.executable), ()), None, ["api/test_nothing.py"], 1, {})
    assert not missing.passed
    assert "no tests ran" in missing.failed[0]


def test_a_run_that_failed_fails_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["matrix", "--python", sys.executable, "--sqlite", "own"])
    monkeypatch.setattr(command, "run", lambda *_: command.Row("x", "y", tests=Result(1, ["broken"])))
    assert command.main() == command.FAILED
    monkeypatch.setattr(command, "run", lambda *_: command.Row("x", "y", tests=Result(1)))
    assert command.main() == command.HELD


def test_a_python_that_does_not_start_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["matrix", "--python", "/nowhere/python"])
    with pytest.raises(SystemExit, match="--python /nowhere/python: it does not start"):
        command.main()


def test_a_python_for_another_cpu_says_so() -> None:
    assert str(THIS) == "3.13.0"
    assert str(THIS._replace(machine="an abacus")) == "3.13.0, an abacus under qemu"


def test_an_emulator_may_take_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[float] = []

    def hang(*_: object, timeout: float, **__: object) -> None:
        given.append(timeout)
        raise subprocess.TimeoutExpired("pytest", timeout)

    monkeypatch.setattr(subprocess, "run", hang)
    result = runs.run_tests(Environment(Path(sys.executable), (), patience=4), None, [], 1, {})
    assert given == [runs.SECONDS * 4]
    assert "hung for 7200 s" in result.failed[0]


def test_requirements_come_from_the_project() -> None:
    wanted = interpreters.requirements()
    assert "msgpack>=1.0.5" in wanted
    assert any(one.startswith("hypothesis") for one in wanted)


def test_arm64_without_an_emulator_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["matrix", "--arm64"])
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(SystemExit, match=r"--arm64: .* apt-get install qemu-user-static mmdebstrap gcc-aarch64"):
        command.main()


def test_arm64_without_the_right_to_register_an_emulator_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(emulation, "HANDLERS", tmp_path)
    monkeypatch.setattr(emulation, "HANDLER", tmp_path / "missing")
    (tmp_path / "register").touch()
    with pytest.raises(CannotRun, match=r"takes root: .*missing"):
        emulation.register()
    (tmp_path / "missing").write_text(":x:M::\n")
    emulation.register()
    assert (tmp_path / "register").read_text() == ":x:M::"


def test_what_an_emulator_cannot_do_is_left_out_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def run(_: Environment, __: Path | None, *arguments: str) -> str:
        asked.extend(arguments)
        return ""

    monkeypatch.setattr(runs, "_run", run)
    for name in emulation.BEYOND_QEMU:
        file, _, test = name.partition("::")
        assert f"def {test}(" in (ROOT / "tests" / file).read_text(encoding="utf-8")
    result = runs.run_tests(Environment(Path(sys.executable), ()), None, [], 1, emulation.BEYOND_QEMU)
    assert {f"--deselect=tests/{name}" for name in emulation.BEYOND_QEMU} <= {*asked}
    assert result.skipped == Counter(emulation.BEYOND_QEMU.values())
