"""Revisions of the package: exported from the repository side by side, each with its helper compiled if both can."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.subjects import BenchmarkError

PACKAGE = "diskcache_like"
WORKING_TREE = "."
BUILDER = Path(PACKAGE, "coherence", "native_build.py")
HELPERS = "_native*.so"


class RevisionError(BenchmarkError):
    """A revision cannot be exported."""


@dataclass(frozen=True)
class Revision:
    """One revision, exported: `directory` holds nothing but the package."""

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
        _check_out(top, commit, directory)
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


def _check_out(top: Path, commit: str, directory: Path) -> None:
    """Write a commit's package through an index of its own, which leaves the checkout's index and worktrees alone."""
    index = {"GIT_INDEX_FILE": str(directory / "index")}
    if not _git(top, "ls-tree", commit, "--", PACKAGE):
        return
    _git(top, "read-tree", f"--prefix={PACKAGE}/", f"{commit}:{PACKAGE}", **index)
    _git(top, "checkout-index", "--all", f"--prefix={directory}/", **index)


def _copy_working_tree(top: Path, directory: Path) -> None:
    """Copy the tracked files as they are now, and new ones that are not ignored."""
    names = _git(top, "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", PACKAGE)
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
    able = [revision for revision in revisions if (revision.directory / BUILDER).is_file()]
    if not able:
        return "none: the revisions have no source for it"
    if importlib.util.find_spec("cffi") is None:
        return "none: cffi is not installed"
    scratch.mkdir()
    for number, revision in enumerate(able):
        twin = next((one for one in able[:number] if _same_helper(one, revision)), None)
        reason = _copy_helper(twin, revision) if twin else _build(revision, scratch)
        if reason:
            for built in able:
                _remove_helper(built)
            return f"none: it cannot be compiled in {revision.name} ({reason})"
    lacking = [revision.name for revision in revisions if revision not in able]
    return f"compiled; {' and '.join(lacking)} has no source for it" if lacking else "compiled for both"


def _same_helper(one: Revision, other: Revision) -> bool:
    return (one.directory / BUILDER).read_bytes() == (other.directory / BUILDER).read_bytes()


def _copy_helper(source: Revision, target: Revision) -> str:
    for built in (source.directory / BUILDER.parent).glob(HELPERS):
        shutil.copyfile(built, target.directory / BUILDER.parent / built.name)
    return ""


def _remove_helper(revision: Revision) -> None:
    for built in (revision.directory / BUILDER.parent).glob(HELPERS):
        built.unlink()


def _build(revision: Revision, scratch: Path) -> str:
    """Compile one helper in place; return why not, if so."""
    command = [sys.executable, str(revision.directory / BUILDER)]
    # A session of its own, and temporary files in ours: an interruption ends the compiler too and leaves nothing.
    with subprocess.Popen(
        command,
        cwd=revision.directory,
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
