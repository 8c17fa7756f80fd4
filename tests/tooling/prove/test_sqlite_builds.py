"""The builder of other versions of SQLite: what it lacks is said, and nothing is compiled that was not checked."""

from __future__ import annotations

from pathlib import Path

import pytest

from prove import sqlite_builds
from prove.proof import CannotRun

VERSION = "3.51.1"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty place for sources and libraries, without cargo to fill it."""
    monkeypatch.setattr(sqlite_builds, "CACHE", tmp_path)
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setenv("HOME", "/nowhere")
    return tmp_path


def test_without_cargo_it_is_said_where_a_source_may_be_put(cache: Path) -> None:
    with pytest.raises(CannotRun, match=rf"install cargo, or put its sqlite3.c at {cache}/sqlite3-{VERSION}.c"):
        sqlite_builds.source(VERSION)


def test_a_source_with_another_sum_is_refused(cache: Path) -> None:
    (cache / f"sqlite3-{VERSION}.c").write_text("int main(void) { return 1; }\n")
    with pytest.raises(CannotRun, match=r"is not sqlite3\.c of SQLite"):
        sqlite_builds.source(VERSION)


def test_without_a_compiler_it_is_said_how_to_get_one(cache: Path) -> None:
    with pytest.raises(CannotRun, match="C compiler: apt-get install gcc"):
        sqlite_builds.library(VERSION)


def test_a_source_without_the_window_is_not_taken_for_widened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_builds, "CACHE", tmp_path)
    monkeypatch.setattr(sqlite_builds, "source", lambda version: sqlite_builds.SOURCE_ID)
    with pytest.raises(CannotRun, match=r"needs 'if\( pInfo->nBackfill"):
        sqlite_builds.library(VERSION, widened=True)


def test_a_library_is_compiled_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_builds, "CACHE", tmp_path)
    monkeypatch.setattr(sqlite_builds, "source", lambda version: f"int version(void) {{ return {version}; }}\n")
    first, other = sqlite_builds.library("1"), sqlite_builds.library("2")
    assert first != other
    monkeypatch.setattr(sqlite_builds, "_compile", None)
    assert sqlite_builds.library("1") == first


def test_what_a_compiler_says_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_builds, "CACHE", tmp_path)
    monkeypatch.setattr(sqlite_builds, "source", lambda version: "no C")
    with pytest.raises(CannotRun, match=r"a C compiler that compiles SQLite: .*error"):
        sqlite_builds.library(VERSION)
