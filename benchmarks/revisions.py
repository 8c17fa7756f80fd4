"""Revisions of the package: exported from the repository side by side, each with its core in C compiled in place."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from benchmarks.peers.spec import BenchmarkError

PACKAGE = "diskcache_like"
WORKING_TREE = "."
NEEDED = (PACKAGE, "setup.py", "setup.cfg", "pyproject.toml", "README.md", "tools")  # to build it
BUILD = (sys.executable, "setup.py", "--quiet", "build_ext", "--inplace")


class RevisionError(BenchmarkError):
    """A revision cannot be exported or compiled."""


@dataclass(frozen=True)
class Revision:
    """One revision, exported: `directory` holds the package and what builds it."""

    name: str
    label: str
    directory: Path


def repository(inside: Path) -> Path:
    """Return the top of the git checkout around `inside`."""
    try:
        return Path(_git(inside, "rev-parse", "--show-toplevel"))
    except RevisionError as error:
        raise RevisionError(
            f"{inside} is not in a git checkout ({error}); run this in a clone of the project, whose history it needs"
        ) from error


def export(top: Path, name: str, directory: Path) -> Revision:
    """Write the package as it was at a commit, or as it lies in the working tree, below `directory`, and compile it."""
    directory.mkdir()
    if name == WORKING_TREE:
        label = f"working tree on {_git(top, 'rev-parse', '--short', 'HEAD')}"
        _copy_working_tree(top, directory)
    else:
        commit = _resolve(top, name)
        label = f"{name} ({_git(top, 'rev-parse', '--short', commit)})"
        # Through an index of its own, which leaves the checkout's index and worktrees alone.
        index = {"GIT_INDEX_FILE": str(directory / "index")}
        _git(top, "read-tree", commit, **index)
        files = _git(top, "ls-files", "-z", "--", *NEEDED, **index).split("\0")
        _git(top, "checkout-index", f"--prefix={directory}/", "--", *filter(None, files), **index)
    if not (directory / PACKAGE / "__init__.py").is_file():
        raise RevisionError(f"revision {name!r} has no package {PACKAGE}/ at its top, so there is nothing to measure")
    if (directory / "setup.py").is_file() and (reason := _build(directory)):
        raise RevisionError(f"revision {name!r} cannot be compiled: {reason}")
    return Revision(name, label, directory)


def _resolve(top: Path, name: str) -> str:
    """Return the full hash of a commit."""
    try:
        return _git(top, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}")
    except RevisionError as error:
        raise RevisionError(
            f"unknown revision {name!r} in {top}; expected a branch, a tag, a commit or anything else that "
            f"`git rev-parse` knows, or {WORKING_TREE!r} for the working tree as it is"
        ) from error


def _copy_working_tree(top: Path, directory: Path) -> None:
    """Copy the tracked files as they are now, and new ones that are not ignored."""
    names = _git(top, "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *NEEDED)
    for name in filter(None, names.split("\0")):
        source, target = top / name, directory / name
        if source.is_file():  # one that is deleted but still in the index is not
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)


def _git(directory: Path, *arguments: str, **environment: str) -> str:
    """Run git and return what it prints."""
    command = ["git", "-C", str(directory), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment}, check=False)
    except FileNotFoundError as error:
        raise RevisionError("git is not installed; install it with: apt-get install git") from error
    if done.returncode:
        raise RevisionError(done.stderr.strip() or f"git {arguments[0]} ended with status {done.returncode}")
    return done.stdout.strip()


def _build(directory: Path) -> str:
    """Compile what a revision compiles; return why not, if so."""
    # A session of its own, and temporary files in ours: an interruption ends the compiler too and leaves nothing.
    here = {**os.environ, "TMPDIR": str(directory)}
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(BUILD, cwd=directory, env=here, start_new_session=True, **quiet) as process:  # type: ignore[call-overload]
        try:
            _, errors = process.communicate()
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    lines = errors.strip().splitlines()
    return "" if process.returncode == 0 else str(lines[-1]) if lines else f"status {process.returncode}"
