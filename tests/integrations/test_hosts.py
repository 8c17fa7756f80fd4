"""What holds for every adapter: it is thin, costs nothing where it is not used, and says which extra it needs."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from diskcache_like import integrations

from ..support.project import ROOT
from .test_without_libraries import PRELUDE

HOSTS = {  # extra and module: what they import
    "cachelib": "cachelib",
    "celery": "celery",
    "dogpile": "dogpile",
    "hishel": "hishel",
    "key-value": "key_value",
    "langchain": "langchain_core",
    "langgraph": "langgraph",
    "requests-cache": "requests_cache",
}
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
LONGEST = 150  # lines


@pytest.mark.parametrize("extra", HOSTS)
def test_without_its_host_an_adapter_names_the_extra(extra: str) -> None:
    assert extra in EXTRAS
    package = HOSTS[extra]
    program = f"{PRELUDE}\nimport diskcache_like.integrations.{extra.replace('-', '_')}"
    done = subprocess.run([sys.executable, "-c", program, "", package], check=False, capture_output=True, text=True)
    last = done.stderr.splitlines()[-1]
    assert last.startswith("diskcache_like.errors.MissingDependency")
    assert last.endswith(f"which is not installed: pip install 'diskcache-like[{extra}]'")


def test_adapters_are_thin() -> None:
    for module in Path(*integrations.__path__).glob("*.py"):
        assert len(module.read_text().splitlines()) < LONGEST, module


def test_no_host_is_imported_with_the_package() -> None:
    program = f"import diskcache_like, sys; print(sys.modules.keys() & {set(HOSTS.values())})"
    assert subprocess.check_output([sys.executable, "-c", program], text=True) == "set()\n"
