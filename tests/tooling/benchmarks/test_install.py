"""Installing what the benchmarks compare with: one that fails does not keep the others away."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks.peers import install


def test_a_client_that_cannot_be_installed_is_named_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(install, "clients", lambda: ["good", "bad", "fine"])
    tried: list[list[str]] = []

    def ran(command: Sequence[str]) -> bool:
        tried.append(list(command[len(install.PIP) :]))
        return "bad" not in command

    monkeypatch.setattr(install, "ran", ran)
    (line,) = install.install_clients()
    assert line.startswith("no bad; install it with: ")
    assert tried == [["good", "bad", "fine"], ["good"], ["bad"], ["fine"]]


def test_the_clients_are_those_of_the_extra() -> None:
    assert {"lmdb", "redis[hiredis]", "diskcache_rs"} <= {
        one.partition(">=")[0].partition("==")[0] for one in install.clients()
    }


def test_a_missing_program_is_named_where_it_may_not_be_installed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    told = [line.split(";")[0] for line in install.install_programs()]
    assert told == ["no memcached", "no redis-server", "no chromium"]
    browser = tmp_path / "google-chrome"
    browser.write_text("")
    browser.chmod(0o700)
    assert install.missing() == ["memcached", "redis-server"], "another browser will do"


def test_services_are_held_back_by_a_rule_that_goes_away(tmp_path: Path) -> None:
    policy = tmp_path / "policy-rc.d"
    with pytest.raises(KeyboardInterrupt), install.services_held_back(policy):
        assert policy.read_text().endswith("exit 101\n")
        assert policy.stat().st_mode & 0o777 == 0o755
        raise KeyboardInterrupt
    assert not policy.exists()
    policy.write_text("a rule of the machine")
    with install.services_held_back(policy):
        pass
    assert policy.read_text() == "a rule of the machine"
