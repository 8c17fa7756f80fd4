"""`make sanitize`: what it says where it cannot run, and that nothing that is reported is passed over."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tools import sanitize


@pytest.mark.parametrize(("ci", "status"), [("true", 1), ("", 0)])
def test_a_compiler_without_sanitizers_is_told_of_and_fails_in_ci(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], ci: str, status: int
) -> None:
    compiler = tmp_path / sanitize.COMPILER
    compiler.write_text("#!/bin/sh\necho libasan.so\n")
    compiler.chmod(stat.S_IRWXU)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CI", ci)
    assert sanitize.main([]) == status
    assert capfd.readouterr().err == "sanitize: not run: gcc has no libasan.so that can be loaded\n"


def test_without_a_compiler_it_is_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CI", "true")
    assert sanitize.main([]) == 0
    assert capfd.readouterr().err == "sanitize: not run: there is no gcc\n"


@pytest.mark.parametrize(
    ("runs", "status"),
    [
        ([(-6, sanitize.FOUND), (0, "")], 0),
        ([(-6, sanitize.FOUND), (1, "")], 1),
        ([(-6, sanitize.FOUND), (0, "of a child that nobody missed")], 1),
        ([(0, "")], 1),
    ],
)
def test_a_report_or_a_control_that_is_not_caught_is_a_failure(
    monkeypatch: pytest.MonkeyPatch, runs: list[tuple[int, str]], status: int
) -> None:
    results: Iterator[Any] = iter(runs)
    monkeypatch.setattr(sanitize, "runtime", Path)
    monkeypatch.setattr(sanitize, "watched", lambda *_: next(results))
    assert sanitize.main([]) == status


def test_the_fault_of_the_control_is_one_of_the_core() -> None:
    source = sanitize.ROOT / sanitize.PACKAGE / "coherence" / sanitize.FAULT.file
    assert source.read_text().count(sanitize.FAULT.sound) == 1
