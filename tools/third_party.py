"""Run other projects' tests with DiskCache and on this package, and print a table of the totals.

`make third-party` runs it; `make test` does not, for it downloads source distributions from PyPI and installs what
their tests need (a few hundred megabytes). Each project gets an environment of its own, so that their requirements
cannot meet. The tests are run as they were published: what is passed over is said in `PROJECTS`, with the reason.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import venv
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
DISKCACHE = "diskcache==5.6.3"
INSTALLING = 900  # seconds
TESTING = 600


class Project(NamedTuple):
    """A source distribution and what to run of its tests."""

    requirement: str
    uses: str
    tests: tuple[str, ...]
    needs: tuple[str, ...] = ()
    install: bool = True  # the project itself too
    conftest: str = ""  # put beside the tests where the distribution lacks its own


# The fixtures that cashews' tests ask for by name, on its disk backend with one cache, as the project runs it.
CASHEWS = """\
from unittest.mock import Mock

import pytest
from cashews import Cache
from cashews.backends.diskcache import DiskCache


@pytest.fixture(params=[pytest.param("diskcache", marks=pytest.mark.diskcache)])
async def raw_backend(request, tmp_path):
    backend = DiskCache(directory=tmp_path / "cache", shards=0)
    await backend.init()
    yield backend, request.param
    await backend.close()


@pytest.fixture
def target(raw_backend):
    return Mock(wraps=raw_backend[0], is_full_disable=False)


@pytest.fixture
def cache(target):
    made = Cache(name="diskcache")
    made._add_backend(target)
    return made
"""

PROJECTS = {
    project.requirement.partition("==")[0]: project
    for project in (
        # Without test_djangocache, whose Django project is not in the distribution, and test_doctest, which looks for
        # examples in DiskCache's own docstrings and for its documentation.
        Project(
            DISKCACHE,
            "all of it",
            tuple(f"tests/test_{name}.py" for name in ("core", "fanout", "deque", "index", "recipes")),
            ("pytest-cov",),
            install=False,
        ),
        Project(
            "outlines==1.3.3",
            "a Disk subclass, args_to_key",
            ("tests/test_cache.py",),
            ("pytest-asyncio", "pytest-mock"),
        ),
        Project(
            "dvc-data==3.18.3",
            "a Disk and a Cache subclass, SQL of its own",
            ("tests/hashfile/test_cache.py",),
            ("pytest-benchmark", "pytest-mock", "pytest-cov"),
        ),
        Project(
            "hashstash==1.2.0",
            "a mapping on Cache",
            ("tests", "-k", "diskcache"),
            ("hypothesis", "numpy", "pandas", "redis"),
        ),
        Project(
            "autogen-ext==0.7.5",
            "a store on Cache",
            ("tests/cache_store/test_diskcache_store.py", "tests/models/test_chat_completion_cache.py"),
            ("pytest-asyncio", "redis"),
        ),
        Project(
            "instructor==1.17.0",
            "a store on Cache",
            ("tests/cache", "tests/coverage/test_cache_coverage.py"),
            ("anthropic", "pytest-asyncio", "python-dotenv"),
        ),
        # Only what uses the disk backend: the rest needs a Redis server, or tests backends in memory. Entries live for
        # 20 ms in many tests, which is why the project has tests that fail run again too.
        Project(
            "cashews==7.6.0",
            "a backend on Cache",
            ("tests", "--asyncio-mode=auto", "--reruns=5", "-m", "diskcache and not redis"),
            ("hypothesis", "pytest-asyncio", "pytest-rerunfailures"),
            conftest=CASHEWS,
        ),
    )
}


class Totals(NamedTuple):
    """What a run of pytest came to."""

    passed: int
    failed: tuple[str, ...]
    skipped: int

    def __str__(self) -> str:
        skipped = f", {self.skipped} skipped" if self.skipped else ""
        return f"{self.passed} passed, {len(self.failed)} failed{skipped}"


def run(command: list[str], cwd: Path, timeout: float, **environment: str) -> str:
    """Run a command and return what it printed; its exit code is told by its output where that matters."""
    env = {**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1", **environment}
    done = subprocess.run(command, cwd=cwd, timeout=timeout, env=env, capture_output=True, text=True, check=False)
    if done.returncode and "-m pytest" not in " ".join(command):
        raise SystemExit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    return done.stdout + done.stderr


def fetch(project: Project, folder: Path, python: Path) -> Path:
    """Download and unpack the project's source distribution, and return where it is."""
    download = ["-m", "pip", "download", "-q", "--no-deps", "--no-binary", ":all:", "-d", "sdist"]
    run([str(python), *download, project.requirement], folder, INSTALLING)
    (archive,) = (folder / "sdist").glob("*.tar.gz")
    with tarfile.open(archive) as packed:
        packed.extractall(folder / "source", filter="data")
    (source,) = (folder / "source").iterdir()
    return source


def prepare(project: Project, folder: Path) -> tuple[Path, Path]:
    """Make the project's environment and return its Python, and the folder that the tests lie in."""
    folder.mkdir(parents=True)
    venv.create(folder / "venv", with_pip=True)
    python = folder / "venv" / "bin" / "python"
    source = fetch(project, folder, python)
    wanted = ["pytest", "msgpack>=1.0.5", DISKCACHE, *project.needs, *([str(source)] if project.install else [])]
    run([str(python), "-m", "pip", "install", "-q", *wanted], folder, INSTALLING)
    alone = folder / "tests-alone"  # beside the source lies the package, which would be imported instead
    alone.mkdir()
    shutil.copytree(source / "tests", alone / "tests")
    for name in ("conftest.py", "pyproject.toml", "pytest.ini"):
        if (source / name).exists():
            shutil.copy(source / name, alone)
    if project.conftest:
        (alone / "conftest.py").write_text(project.conftest)
    return python, alone


def totals(python: Path, tests: Path, project: Project, through: tuple[str, ...]) -> Totals:
    """Run the tests and read the totals from what pytest prints."""
    options = ["-m", "pytest", "-rfE", "--tb=no", "-p", "no:cacheprovider", "--color=no"]
    output = run([str(python), *through, *options, *project.tests], tests, TESTING, PYTHONPATH=str(ROOT), COLUMNS="200")
    last = re.findall(r"^=+ (.*) in [\d.]+s.*=+$", output, re.MULTILINE)
    if not last:
        raise SystemExit(f"no totals from {project.requirement}:\n{output}")
    counts = {word.rstrip("s"): int(number) for number, word in re.findall(r"(\d+) (\w+)", last[-1])}
    failed = re.findall(r"^(?:FAILED|ERROR) (\S+?)(?: - .*)?$", output, re.MULTILINE)
    return Totals(counts.get("passed", 0), tuple(sorted(failed)), counts.get("skipped", 0))


def compare(project: Project, folder: Path) -> tuple[Totals, Totals]:
    """Run the project's tests with DiskCache and on this package."""
    python, tests = prepare(project, folder)
    return (
        totals(python, tests, project, ()),
        totals(python, tests, project, ("-m", "diskcache_like.compat")),
    )


def main() -> None:
    """Compare the projects that are named, or all, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("project", nargs="*", choices=[[], *PROJECTS], help="which (default: all)")
    parser.add_argument("--keep", metavar="FOLDER", type=Path, help="work there and leave it; must not exist yet")
    given = parser.parse_args()
    rows, details = [], []
    with tempfile.TemporaryDirectory(prefix="third-party-") as temporary:
        folder = (given.keep or Path(temporary)).absolute()
        for name in given.project or PROJECTS:
            sys.stderr.write(f"{name} ...\n")
            project = PROJECTS[name]
            theirs, ours = compare(project, folder / name)
            rows.append(f"| {project.requirement} | {project.uses} | {theirs} | {ours} |")
            details += [f"{name}: {test}" for test in ours.failed if test not in theirs.failed]
    sys.stdout.write("| project | what it uses | with DiskCache | on diskcache_like |\n|---|---|---|---|\n")
    sys.stdout.write("\n".join(rows) + "\n")
    if details:
        sys.stdout.write("\nPass with DiskCache, fail here:\n" + "\n".join(details) + "\n")


if __name__ == "__main__":
    main()
