"""Run commands of the command line in this process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from diskcache_like.cli import main

LIMIT = 60.0  # seconds after which a test gives up on another process; no test waits for it to pass


class Shell:
    """Runs commands on the test's cache and keeps what they print."""

    def __init__(self, directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.directory = directory
        self._capsys = capsys
        self.err = ""

    def run(self, command: str, *arguments: object, code: int = 0) -> str:
        """Run a command on the cache; return what it printed."""
        self._capsys.readouterr()
        found = main.main([command, str(self.directory), *map(str, arguments)])
        out, self.err = self._capsys.readouterr()
        assert found == code, self.err
        return out

    def json(self, command: str, *arguments: object, code: int = 0) -> list[Any]:
        """Run a command with `--json`; return the objects that it printed."""
        return [json.loads(line) for line in self.run(command, "--json", *arguments, code=code).splitlines()]
