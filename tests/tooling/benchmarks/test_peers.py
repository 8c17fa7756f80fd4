"""The peers of the benchmark: servers that are started and stopped, and what happens where one is missing or fails."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks import adapters, catalogue, peers, servers
from benchmarks.catalogue import Candidate
from benchmarks.measure import Costs
from benchmarks.section import Options, Run
from benchmarks.servers import running
from benchmarks.subjects import DISKCACHE, OURS, BenchmarkError, MissingSubject, Spec
from benchmarks.workspace import Workspace

PROGRAM = f"""#!{sys.executable}
import socket, sys, pathlib
server = socket.socket(socket.AF_UNIX)
server.bind(next(word for word in sys.argv if word.startswith("/") and word.endswith("socket")))
server.listen()
pathlib.Path(sys.argv[0]).with_name("pid").write_text(str(__import__("os").getpid()))
while True:
    server.accept()[0].close()
"""


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return the only directory that programs are looked for in."""
    path = tmp_path / "programs"
    path.mkdir()
    monkeypatch.setenv("PATH", str(path))
    yield path
    pid = path / "pid"
    if pid.exists() and pid.read_text():  # it may have been ended just before it wrote
        with pytest.raises(ProcessLookupError):
            os.kill(int(pid.read_text()), 0)


def install(path: Path, name: str, program: str = PROGRAM) -> None:
    (path / name).write_text(program)
    (path / name).chmod(0o700)


@pytest.mark.parametrize("name", servers.SERVERS)
def test_a_server_runs_for_a_block_and_is_gone_after_it(programs: Path, tmp_path: Path, name: str) -> None:
    install(programs, servers.SERVERS[name].program)
    with pytest.raises(KeyboardInterrupt), running(name, tmp_path / "server") as server:
        assert server.socket.is_socket()
        assert server.socket.parent.stat().st_mode & 0o777 == 0o700
        assert server.ending == ""
        raise KeyboardInterrupt


def test_a_missing_server_is_named_with_what_installs_it(programs: Path, tmp_path: Path) -> None:
    with pytest.raises(MissingSubject, match="apt-get install memcached"), running("memcached", tmp_path / "server"):
        pass


def test_a_socket_with_too_long_a_path_is_an_error(programs: Path, tmp_path: Path) -> None:
    install(programs, "redis-server")
    with pytest.raises(BenchmarkError, match="shorter path"), running("redis", tmp_path / ("long" * 30)):
        pass


def test_a_limit_on_memory_is_on_the_command_line() -> None:
    memcached, redis = servers.SERVERS["memcached"].arguments, servers.SERVERS["redis"].arguments
    assert memcached("socket", 64)[2:4] == ["-m", "64"]
    assert redis("socket", 64)[-4:] == ["--maxmemory", "64mb", "--maxmemory-policy", "allkeys-lru"]
    assert "--maxmemory" not in redis("socket", None)


def test_a_version_is_what_the_program_says(programs: Path) -> None:
    assert servers.version("redis") == ""
    install(programs, "redis-server", f"#!{sys.executable}\nprint('Redis server v=7.0.15 sha=00000000:0')")
    assert servers.version("redis") == "7.0.15"


def test_a_server_that_ends_at_once_is_an_error(programs: Path, tmp_path: Path) -> None:
    install(programs, "redis-server", f"#!{sys.executable}\nimport sys; sys.exit(7)")
    with pytest.raises(BenchmarkError, match="status 7"), running("redis", tmp_path / "server"):
        pass


def test_a_missing_client_is_named_with_what_installs_it() -> None:
    with pytest.raises(MissingSubject, match="pip install one-that-is-missing"):
        adapters.client("one_that_is_missing", "one-that-is-missing")


class Shaky:
    """Stand for a store that works alone and fails in company."""

    def __init__(self, directory: str, broken: bool = False) -> None:
        self.data: dict[Any, Any] = {}
        self.broken = broken

    def get(self, key: Any, /) -> Any:
        return self.data.get(key)

    def set(self, key: Any, value: Any, /) -> Any:
        if self.broken and isinstance(key, bytes) and os.getppid() != 1 and key == b"7":
            raise OSError("the store broke down")
        self.data[key] = value

    def delete(self, key: Any, /) -> Any:
        return self.data.pop(key, None)

    def close(self) -> None:
        self.data.clear()


def test_one_that_fails_fails_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shaky = Spec("Shaky", __name__, "nothing", "Shaky", (("broken", True),))
    lacking = Spec("Lacking", __name__, "nothing", "absent")
    candidates = {"shaky": Candidate(shaky, "Shaky"), "lacking": Candidate(lacking, "Lacking")}
    monkeypatch.setattr(catalogue, "SUBJECTS", candidates)
    monkeypatch.setattr(peers, "SUBJECTS", candidates)
    options = Options(operations=100, repeats=1, processes=2)
    (tmp_path / "work").mkdir()
    found = peers.peers(Run(OURS, DISKCACHE, options, Costs(0, 0), Workspace(tmp_path / "work")))
    shown = "\n".join(table.text() for table in found.tables)
    assert found.problems == []
    assert "Lacking skipped: cannot import absent" in shown
    assert "Shaky failed with 1 process(es): OSError: the store broke down" in shown
    assert shown.count("DiskCache 5.6.3  ") >= 3, "the others are measured all the same"


def absent(directory: str) -> None:
    raise MissingSubject("cannot import absent")
