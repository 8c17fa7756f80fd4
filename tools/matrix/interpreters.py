"""The Pythons of this machine, and an environment for each with as much as can be installed."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

ROOT = Path(__file__).parents[2]
CACHE = ROOT / ".cache" / "matrix"
PROJECT = ROOT / "pyproject.toml"
NAMES = [f"3.{minor}{threading}" for minor in range(11, 20) for threading in ("", "t") if minor > 13 or not threading]
EXTRAS = ("bench", "django", "json", "lz4", "test", "zstd")
BUILDER = "setuptools>=77"  # builds the package without isolation
WHEELS = ("--only-binary", ":all:")  # compiling a library takes long, and rarely works where nobody offers a wheel
MACHINE = platform.machine()
SECONDS = 900  # after which an installation is given up
PROBE = """\
import json, platform, sqlite3, sysconfig
free = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
print(json.dumps([platform.python_version(), free, sqlite3.sqlite_version, platform.machine()]))
"""


class Interpreter(NamedTuple):
    """A Python, the SQLite that its sqlite3 module uses, and the CPU it is for."""

    path: str
    version: str
    free_threaded: bool
    sqlite: str
    machine: str = MACHINE

    def __str__(self) -> str:
        foreign = f", {self.machine} under qemu" if self.machine != MACHINE else ""
        return f"{self.version}{'t' if self.free_threaded else ''}{foreign}"

    @classmethod
    def probe(cls, path: str, preload: Path | None = None) -> Self | None:
        """Ask a Python what it is, None if it does not start; `preload` is put in front of its libraries."""
        environment = {**os.environ, **({"LD_PRELOAD": str(preload)} if preload else {})}
        try:
            done = subprocess.run(
                [path, "-c", PROBE], env=environment, capture_output=True, text=True, timeout=60, check=True
            )
        except (OSError, subprocess.SubprocessError):
            return None
        return cls(path, *json.loads(done.stdout))


def found() -> list[Interpreter]:
    """Return one Python of each kind: this one, those on PATH, and those of pyenv, the newest of each."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    kinds: dict[str, Interpreter] = {}
    for path in (sys.executable, *_on_path(), *_of_pyenv(pyenv)):
        if one := Interpreter.probe(path):
            kinds.setdefault(_kind(str(one)), one)
    return [kinds[name] for name in NAMES if name in kinds]


def _kind(version: str) -> str:
    """Return `3.13t` for `3.13.5t`."""
    return re.sub(r"^(3\.\d+)[^t]*", r"\1", version)


def _on_path() -> Iterator[str]:
    for name in NAMES:
        if path := shutil.which(f"python{name}"):
            yield path


def _of_pyenv(versions: Path) -> Iterator[str]:
    folders = sorted(versions.glob("3.*"), key=lambda folder: [int(each) for each in re.findall(r"\d+", folder.name)])
    for folder in reversed(folders):
        if _kind(folder.name) in NAMES:
            yield str(folder / "bin" / "python")


class Environment(NamedTuple):
    """Where a Python's environment is, which requirements it has not got, and how many times longer it may take."""

    python: Path
    missing: tuple[str, ...]
    patience: int = 1


def environment(interpreter: Interpreter) -> Environment:
    """Return the environment of a Python, which is made if need be."""
    folder = CACHE / str(interpreter)
    python, stamp = folder / "bin" / "python", folder / "installed.json"
    wanted = requirements()
    key = hashlib.sha256(repr((interpreter, wanted)).encode()).hexdigest()
    made = json.loads(stamp.read_text()) if stamp.exists() else {}
    if made.get("key") != key:
        _run([interpreter.path, "-m", "venv", "--clear", str(folder)])
        made = {"key": key, "missing": _install(python, wanted)}
    # Always: the compiled core may be older than its source, or not be there any more.
    _pip(python, "--no-deps", "--no-build-isolation", "--editable", str(ROOT))
    stamp.write_text(json.dumps(made))
    return Environment(python, tuple(made["missing"]))


def requirements() -> list[str]:
    """Return what building and testing the package takes, as pyproject.toml says."""
    extras = _project()["optional-dependencies"]
    wanted = {BUILDER, *_project()["dependencies"]}
    return sorted(wanted.union(*(extras[extra] for extra in EXTRAS)))


def _project() -> dict[str, Any]:
    project: dict[str, Any] = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]
    return project


def _install(python: Path, wanted: Sequence[str]) -> list[str]:
    """Install all at once, or else one by one; return what there is no wheel of.

    What the package cannot do without is compiled then, and older versions of other things are tried.
    """
    if _pip(python, *WHEELS, *wanted):
        return []
    missing = []
    for one in wanted:
        if _pip(python, *WHEELS, one) or (one in _project()["dependencies"] and _pip(python, one)):
            continue
        name = re.split(r"[^\w.-]", one)[0]
        missing.append(f"{one} (an older one)" if _pip(python, *WHEELS, name) else one)
    return missing


def _pip(python: Path, *arguments: str) -> bool:
    return _run([str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *arguments]) == 0


def _run(command: Sequence[str]) -> int:
    return subprocess.run(command, cwd=ROOT, timeout=SECONDS, capture_output=True, check=False).returncode
