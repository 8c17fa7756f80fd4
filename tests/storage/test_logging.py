"""Warnings are logged, too: a line of each kind in a minute, by documented names."""

from __future__ import annotations

import logging
import subprocess
import sys
import time
import warnings

import pytest

from diskcache_like.errors import CorruptDatabaseWarning, NotKeptWarning
from diskcache_like.system import callers


@pytest.fixture(autouse=True)
def _nothing_logged_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(callers, "_logged", {})


def test_a_line_of_each_kind_is_logged_in_a_minute(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1_000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for second in range(121):
            now = 1_000.0 + second
            callers.warn(f"damaged at {second} %s", CorruptDatabaseWarning)
            callers.warn("not kept", NotKeptWarning)
    found = [(one.name, one.levelno, one.getMessage()) for one in caplog.records]
    assert found[0] == ("diskcache_like.CorruptDatabaseWarning", logging.WARNING, "damaged at 0 %s")
    assert [name for name, _, _ in found].count("diskcache_like.NotKeptWarning") == 3
    assert [text for name, _, text in found if "Corrupt" in name] == [f"damaged at {each} %s" for each in (0, 60, 120)]


def test_a_warning_that_is_an_error_is_logged_before(caplog: pytest.LogCaptureFixture) -> None:
    with warnings.catch_warnings(), pytest.raises(NotKeptWarning):
        warnings.simplefilter("error")
        callers.warn("not kept", NotKeptWarning)
    assert [one.getMessage() for one in caplog.records] == ["not kept"]


def test_without_a_handler_nothing_is_printed_twice() -> None:
    script = (
        "from diskcache_like.system.callers import warn\nfrom diskcache_like import NotKeptWarning\n"
        "warn('not kept', NotKeptWarning)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stderr.count("not kept") == 1
