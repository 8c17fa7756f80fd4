"""Beside Celery's tests of result backends: those for any key-value store, and for files, get `integrations.celery`."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest

from diskcache_like.integrations.celery import CeleryBackend


class KVBackend(CeleryBackend):
    """A backend in a temporary directory."""

    supports_result_compression = False

    def __init__(self, app: Any, **options: Any) -> None:
        self._temporary = tempfile.TemporaryDirectory(prefix="celery-")
        super().__init__(app, cache=self._temporary.name, **options)


class CompressingKVBackend(KVBackend):
    supports_result_compression = True


NAMES = {"KVBackend": KVBackend, "CompressingKVBackend": CompressingKVBackend, "FilesystemBackend": CeleryBackend}


@pytest.fixture(autouse=True)
def _adapted(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if Path(request.module.__file__ or "").parent.name == "backends":
        for name in NAMES.keys() & vars(request.module):
            monkeypatch.setattr(request.module, name, NAMES[name])
