"""What the tests of the benchmarks share."""

from __future__ import annotations

import builtins
from collections.abc import Callable
from typing import Any

import pytest

from benchmarks.report import plots

from .sample_record import ALONE, sample_record


@pytest.fixture(scope="session", autouse=True)
def fonts(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Draw once before the tests: matplotlib keeps its fonts open for the life of the process, which is no leak."""
    plots.draw(sample_record(), tmp_path_factory.mktemp("fonts"), chosen=lambda drawing: drawing.scenario == ALONE)


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return what lets imports of packages fail as where they are not installed."""

    def remove(*packages: str) -> None:
        real = builtins.__import__

        def refuse(name: str, *arguments: Any) -> Any:
            if name.partition(".")[0] in packages:
                raise ModuleNotFoundError(f"No module named {name!r}")
            return real(name, *arguments)

        monkeypatch.setattr(builtins, "__import__", refuse)

    return remove
