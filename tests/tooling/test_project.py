"""The project itself: what it ships, what importing it costs, and that its Makefile tells the truth."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
import tomllib
from importlib.resources import files

import pytest

import diskcache_like

from ..support.project import ROOT

# Optional dependencies, and parts of the standard library that are slow to import and needed by few callers.
IMPORTED_LATE = {
    "asyncio",
    "cryptography",
    "django",
    "multiprocessing",
    "opentelemetry",
    "prometheus_client",
    "redis",
    "rich",
    "zstandard",
}


def test_version_is_the_installed_one() -> None:
    assert diskcache_like.__version__ == importlib.metadata.version("diskcache-like")


def test_version_is_written_once() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert "version" in project["dynamic"]
    written = [
        path.relative_to(ROOT).as_posix()
        for path in (*ROOT.glob("*.*"), *(ROOT / "diskcache_like").rglob("*.py"), ROOT / "docs" / "conf.py")
        if path.is_file()
        and path.suffix in {".cfg", ".ini", ".py", ".toml"}
        and re.search(rf"""["'= ]{re.escape(diskcache_like.__version__)}["'\s]""", path.read_text())
    ]
    assert written == ["diskcache_like/__init__.py"]


def test_hard_dependencies_are_few() -> None:
    requirements = importlib.metadata.requires("diskcache-like") or []
    hard = [requirement for requirement in requirements if "extra ==" not in requirement]
    assert [re.match(r"[\w-]+", requirement)[0] for requirement in hard] == ["msgpack", "zlib-ng"]  # type: ignore[index]


def test_types_are_shipped() -> None:
    assert files("diskcache_like").joinpath("py.typed").is_file()


def test_import_is_light() -> None:
    program = "import sys, diskcache_like; print(*{name.partition('.')[0] for name in sys.modules})"
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert not IMPORTED_LATE & set(done.stdout.split())


def test_tests_that_interrupt_pass_in_the_background_job_of_a_script() -> None:
    """Which a shell starts with SIGINT ignored."""
    program = (
        "import signal; from tests import conftest; conftest.pytest_configure(); signal.raise_signal(signal.SIGINT)"
    )
    job = ["sh", "-c", "trap '' INT; exec \"$@\"", "sh", sys.executable, "-c", program]
    done = subprocess.run(job, cwd=ROOT, capture_output=True, text=True, check=False)
    assert "KeyboardInterrupt" in done.stderr


def test_make_help_lists_every_target() -> None:
    text = (ROOT / "Makefile").read_text()
    phony = re.search(r"^\.PHONY: (.*)$", text, re.MULTILINE)
    assert phony
    listed = subprocess.run(["make", "help"], check=True, capture_output=True, text=True, cwd=ROOT).stdout
    told = set(re.findall(r"^make (\S+)", listed, re.MULTILINE))
    assert told == set(phony[1].split()) - {"venv-module"}
    assert {"demo", "test", "lint", "types", "imports", "unit", "docs", "bench-quick", "clean"} <= told


@pytest.mark.parametrize("name", ["LICENSE", "README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md"])
def test_document_is_there(name: str) -> None:
    assert (ROOT / name).stat().st_size > 0


@pytest.mark.parametrize(
    ("folder", "forbidden"),
    [
        ("tests/support", r"from (\.\.|tests\.(?!support)|prove|tools)"),
        ("prove", r"from (tests\.(?!support)|tools)"),
        ("tools", r"from tests\.(?!support)"),
    ],
)
def test_what_tests_share_imports_no_test(folder: str, forbidden: str) -> None:
    importing = re.compile(rf"^\s*{forbidden}", re.MULTILINE)
    found = [path for path in (ROOT / folder).rglob("*.py") if importing.search(path.read_text())]
    assert found == []


@pytest.mark.parametrize(
    "folder",
    sorted(file.parent.relative_to(ROOT).as_posix() for file in (ROOT / "diskcache_like").glob("*/**/__init__.py")),
)
def test_each_folder_of_the_package_lists_its_files(folder: str) -> None:
    place = ROOT / folder
    listed = set(re.findall(r"`(\w+)/?`", (place / "__init__.py").read_text(encoding="utf-8")))
    files = {file.stem for file in place.glob("*.py")} - {"__init__"}
    folders = {file.parent.name for file in place.glob("*/__init__.py")}
    assert files | folders <= listed
