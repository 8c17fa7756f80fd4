"""Revisions of the package: exported from the repository side by side, each with its helper compiled if all can.

A revision that has a `setup.py` is built by its `build_ext`, whatever that compiles and with what; an older one has a
program in the package that compiles the helper in place.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.peers.spec import BenchmarkError

PACKAGE = "diskcache_like"
WORKING_TREE = "."
NEEDED = (PACKAGE, "setup.py", "setup.cfg", "pyproject.toml", "README.md", "tools")  # to build it
BUILDER = Path(PACKAGE, "coherence", "native_build.py")
HELPERS = "**/*.so"


class RevisionError(BenchmarkError):
    """A revision cannot be exported."""


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
    """Write the package as it was at a commit, or as it lies in the working tree, below `directory`."""
    directory.mkdir()
    if name == WORKING_TREE:
        label = f"working tree on {_git(top, 'rev-parse', '--short', 'HEAD')}"
        _copy_working_tree(top, directory)
    else:
        commit = resolve(top, name)
        label = f"{name} ({_git(top, 'rev-parse', '--short', commit)})"
        # Through an index of its own, which leaves the checkout's index and worktrees alone.
        index = {"GIT_INDEX_FILE": str(directory / "index")}
        _git(top, "read-tree", commit, **index)
        files = _git(top, "ls-files", "-z", "--", *NEEDED, **index).split("\0")
        _git(top, "checkout-index", f"--prefix={directory}/", "--", *filter(None, files), **index)
    if not (directory / PACKAGE / "__init__.py").is_file():
        raise RevisionError(f"revision {name!r} has no package {PACKAGE}/ at its top, so there is nothing to measure")
    return Revision(name, label, directory)


def resolve(top: Path, name: str) -> str:
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


def build_helpers(revisions: Sequence[Revision], scratch: Path) -> str:
    """Compile the helper of every revision, or of none if one of them fails, and say which."""
    commands = {one: found for one in revisions if (found := _build_command(one))}
    if not commands:
        return "none: the revisions have no source for it"
    scratch.mkdir()
    for one, command in commands.items():
        if reason := _build(command, one.directory, scratch):
            for built in (path for other in commands for path in other.directory.glob(HELPERS)):
                built.unlink()
            return f"none: it cannot be compiled in {one.name} ({reason})"
    lacking = [one.name for one in revisions if one not in commands]
    return f"compiled; {' and '.join(lacking)} has no source for it" if lacking else "compiled for both"


def _build_command(revision: Revision) -> list[str]:
    """Return what compiles a revision's helper in place, if it has one."""
    if (revision.directory / "setup.py").is_file():
        return [sys.executable, "setup.py", "--quiet", "build_ext", "--inplace"]
    return [sys.executable, str(BUILDER)] if (revision.directory / BUILDER).is_file() else []


def _build(command: Sequence[str], directory: Path, scratch: Path) -> str:
    """Compile in a directory; return why not, if so."""
    # A session of its own, and temporary files in ours: an interruption ends the compiler too and leaves nothing.
    with subprocess.Popen(
        command,
        cwd=directory,
        env={**os.environ, "TMPDIR": str(scratch)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            _, errors = process.communicate()
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    lines = errors.strip().splitlines()
    return "" if process.returncode == 0 else lines[-1] if lines else f"status {process.returncode}"
