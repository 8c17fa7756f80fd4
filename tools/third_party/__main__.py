"""Run other projects' tests with what they are for and on this package, and print tables of the totals.

`make third-party` runs it, which downloads source distributions from PyPI, or repositories, and installs what their
tests need (a few hundred megabytes). `make test` runs `make hosts`: the tests of the libraries that
`diskcache_like.integrations` is for, as far as PyPI has them, on this package alone; one that fails is an error. Each project gets an environment of its own, so that their
requirements cannot meet. The tests are run as they were published: what is passed over is said in `projects`, with the
reason. Those for DiskCache run through `diskcache_like.compat`, others with files of `adapters` in place of the
project's own fixtures: on `AsyncCache`, or on a module of `diskcache_like.integrations`.
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
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from .projects import DISKCACHE, PROJECTS, Project

ADAPTERS = Path(__file__).parent / "adapters"
ROOT = ADAPTERS.parent.parent.parent
INSTALLING = 900  # seconds
TESTING = 600
DISKCACHE_HEADS = ("with DiskCache", "on diskcache_like")
ASYNC_HEADS = ("as it is", "on AsyncCache")
HOST_HEADS = ("as it is", "on the adapter")


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
    """Download and unpack the project's source distribution or repository, and return where it is."""
    if project.repository is not None:
        address, tag = project.repository
        run(["git", "clone", "-q", "--depth=1", f"--branch={tag}", address, "source"], folder, INSTALLING)
        return folder / "source"
    download = ["-m", "pip", "download", "-q", "--no-deps", "--no-binary", ":all:", "-d", "sdist"]
    run([str(python), *download, project.requirement], folder, INSTALLING)
    (archive,) = (folder / "sdist").glob("*.tar.gz")
    with tarfile.open(archive) as packed:
        packed.extraction_filter = getattr(tarfile, "data_filter", None)  # there is none before Python 3.11.4
        packed.extractall(folder / "source")
    (source,) = (folder / "source").iterdir()
    return source


def prepare(project: Project, folder: Path) -> tuple[Path, Path]:
    """Make the project's environment and return its Python, and the folder that the tests lie in."""
    folder.mkdir(parents=True)
    venv.create(folder / "venv", with_pip=True)
    python = folder / "venv" / "bin" / "python"
    source = fetch(project, folder, python)
    itself = project.requirement if project.repository else str(source)
    wanted = ["pytest", "msgpack>=1.0.5", DISKCACHE, *project.needs, *([itself] if project.install else [])]
    run([str(python), "-m", "pip", "install", "-q", *wanted], folder, INSTALLING)
    alone = folder / "tests-alone"  # beside the source lies the package, which would be imported instead
    alone.mkdir()
    shutil.copytree(source / project.folder, alone / project.folder)
    for name in ("conftest.py", "pyproject.toml", "pytest.ini"):
        if (source / name).exists():
            shutil.copy(source / name, alone)
    if project.conftest:
        (alone / "conftest.py").write_text(project.conftest)
    return python, alone


def totals(python: Path, tests: Path, project: Project, through: tuple[str, ...]) -> Totals:
    """Run the tests and read the totals from what pytest prints."""
    options = ["-m", "pytest", "-rfE", "--tb=no", "-p", "no:cacheprovider", "--color=no"]
    command = [str(python), *through, *options, *project.tests, *project.deselected]
    environment = {"PYTHONPATH": str(ROOT), "COLUMNS": "200", **dict(project.environment)}
    output = run(command, tests, TESTING, **environment)
    last = re.findall(r"^=+ (.*) in [\d.]+s.*=+$", output, re.MULTILINE)
    if not last:
        raise SystemExit(f"no totals from {project.requirement}:\n{output}")
    counts = {word.rstrip("s"): int(number) for number, word in re.findall(r"(\d+) (\w+)", last[-1])}
    failed = re.findall(r"^(?:FAILED|ERROR) (\S+?)(?: - .*)?$", output, re.MULTILINE)
    return Totals(counts.get("passed", 0), tuple(sorted(failed)), counts.get("skipped", 0))


def compare(project: Project, folder: Path) -> tuple[Totals, Totals]:
    """Run the project's tests with what they are for and on this package."""
    python, tests = prepare(project, folder)
    return totals(python, tests, project, ()), on_this_package(python, tests, project, folder)


def on_this_package(python: Path, tests: Path, project: Project, folder: Path) -> Totals:
    """Run the project's tests on this package."""
    if not project.adapters:
        return totals(python, tests, project, ("-m", "diskcache_like.compat"))
    adapted = folder / "tests-adapted"
    shutil.copytree(tests, adapted)
    for name, place in project.adapters:
        shutil.copy(ADAPTERS / name, adapted / place)
    return totals(python, adapted, project, ())


def check(folder: Path) -> int:
    """Run the tests of the libraries with adapters on this package, two projects at a time; return 1 if one fails."""
    projects = [project for project in PROJECTS.values() if project.integration and project.repository is None]

    def run_one(project: Project) -> Totals:
        own = folder / project.name
        return on_this_package(*prepare(project, own), project, own)

    code = 0
    with ThreadPoolExecutor(2) as pool:
        for project, found in zip(projects, pool.map(run_one, projects), strict=True):
            sys.stdout.write(f"{project.requirement}: {found}\n" + "".join(f"  {name}\n" for name in found.failed))
            if found.failed or not found.passed:
                code = 1
    return code


def heads_of(project: Project) -> tuple[str, str]:
    """Return what the last two columns of the project's table are called."""
    if project.integration:
        return HOST_HEADS
    return ASYNC_HEADS if project.beside else DISKCACHE_HEADS


def main() -> None:
    """Compare the projects that are named, or all, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("project", nargs="*", choices=[[], *PROJECTS], help="which (default: all)")
    parser.add_argument("--keep", metavar="FOLDER", type=Path, help="work there and leave it; must not exist yet")
    parser.add_argument("--check", action="store_true", help="only the libraries with adapters, on this package alone")
    given = parser.parse_args()
    if given.check:
        with tempfile.TemporaryDirectory(prefix="third-party-") as temporary:
            raise SystemExit(check(Path(temporary)))
    rows: dict[tuple[str, str], list[str]] = {DISKCACHE_HEADS: [], ASYNC_HEADS: [], HOST_HEADS: []}
    details = []
    passed_over = []
    with tempfile.TemporaryDirectory(prefix="third-party-") as temporary:
        folder = (given.keep or Path(temporary)).absolute()
        for name in given.project or PROJECTS:
            sys.stderr.write(f"{name} ...\n")
            project = PROJECTS[name]
            theirs, ours = compare(project, folder / name)
            beside = f"{project.beside}: " if project.beside else ""
            rows[heads_of(project)].append(f"| {project.requirement} | {project.uses} | {beside}{theirs} | {ours} |")
            details += [f"{name}: {test}" for test in ours.failed if test not in theirs.failed]
            passed_over += [f"{name}: {reason}: {', '.join(tests)}" for reason, tests in project.passed_over]
    for heads, lines in rows.items():
        if lines:
            heading = f"| project | what it uses | {heads[0]} | {heads[1]} |\n|---|---|---|---|\n"
            sys.stdout.write(heading + "\n".join(lines) + "\n\n")
    if passed_over:
        sys.stdout.write("Passed over:\n" + "\n".join(passed_over) + "\n")
    if details:
        sys.stdout.write("Pass as they are, fail here:\n" + "\n".join(details) + "\n")


if __name__ == "__main__":
    main()
