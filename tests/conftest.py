"""What every test gets: leak checks, hypothesis profiles, and no silent skips in CI."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing.forkserver as forkserver
import multiprocessing.resource_tracker as resource_tracker
import os
import re
import threading
from collections.abc import Generator, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol, TypeVar

import hypothesis
import pytest

from diskcache_like import Cache, files

from .kinds import KINDS, Clock, Kind, parameters

CI = os.environ.get("CI") == "true"

# Skips that mean "this machine lacks something the run was set up to have": in CI they hide what was meant to run.
UNWELCOME_SKIP = re.compile(r"server|native helper|compiler|cryptography", re.IGNORECASE)

JOIN_SECONDS = 10.0

Report = TypeVar("Report", pytest.TestReport, pytest.CollectReport)

hypothesis.settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
# The machine may be busy with other things, so no deadline here either.
hypothesis.settings.register_profile("dev", deadline=None)
# For a long look: pytest --hypothesis-profile=thorough
hypothesis.settings.register_profile("thorough", deadline=None, max_examples=3000)
hypothesis.settings.load_profile("ci" if CI else "dev")


@pytest.fixture(autouse=True)
def no_leaks() -> Iterator[None]:
    """Fail a test that leaves a file descriptor, a thread or a child process behind."""
    descriptors, threads, children = open_descriptors(), set(threading.enumerate()), child_processes()
    yield
    for thread in set(threading.enumerate()) - threads:
        thread.join(JOIN_SECONDS)  # one that is on its way out is no leak
    leaked_threads = set(threading.enumerate()) - threads
    leaked_children = child_processes() - children
    leaked = leaked_descriptors(descriptors)
    if leaked:
        gc.collect()  # what only a reference cycle keeps open is garbage, not a leak
        leaked = leaked_descriptors(descriptors)
    assert not leaked_threads, f"threads left running: {leaked_threads}"
    assert not leaked_children, f"child processes left running: {leaked_children}"
    assert not leaked, f"file descriptors left open: {leaked}"


def open_descriptors() -> dict[int, str]:
    """Return the open file descriptors with what each refers to."""
    found = {}
    for entry in Path("/proc/self/fd").iterdir():
        try:
            found[int(entry.name)] = str(entry.readlink())
        except FileNotFoundError:  # the descriptor that listed the directory
            continue
    return found


def leaked_descriptors(before: dict[int, str]) -> dict[int, str]:
    """Return the descriptors opened since `before`, but for those multiprocessing keeps for the life of the process."""
    kept = set(standing_descriptors())
    return {fd: name for fd, name in open_descriptors().items() if before.get(fd) != name and fd not in kept}


def standing_descriptors() -> Iterator[int]:
    """Yield the descriptors of multiprocessing's resource tracker and fork server."""
    for owner, names in (
        (resource_tracker._resource_tracker, ("_fd",)),
        (forkserver._forkserver, ("_forkserver_alive_fd", "_forkserver_fd")),
    ):
        for name in names:
            fd = getattr(owner, name, None)
            if fd is not None:
                yield fd


def child_processes() -> set[int]:
    """Return the live children of this process, but for multiprocessing's own helpers."""
    found: set[int] = set()
    for task in Path("/proc/self/task").iterdir():
        try:
            found.update(map(int, (task / "children").read_text().split()))
        except FileNotFoundError:  # the thread has just ended
            continue
    helpers = {
        getattr(resource_tracker._resource_tracker, "_pid", None),
        getattr(forkserver._forkserver, "_forkserver_pid", None),
    }
    return found - helpers


def bytes_on_disk(cache: Cache) -> int:
    """Return the size of the databases and value files, not of what belongs to the processes that use them."""
    passing = ("-wal", "-shm", ".gen", ".board", ".lock")
    total = 0
    for name in files.names_below(cache.directory):
        with contextlib.suppress(FileNotFoundError):
            total += 0 if name.endswith(passing) else os.lstat(os.path.join(cache.directory, name)).st_size
    return total


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Turn the skip of a test into a failure in CI, where what it needs should have been there."""
    report = yield
    return refuse_skip(report)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Turn the skip of a whole module into a failure in CI, likewise."""
    report = yield
    return refuse_skip(report)


def refuse_skip(report: Report) -> Report:
    """Make a failure of a skip whose reason names something CI must have."""
    if CI and report.skipped and not hasattr(report, "wasxfail"):
        # A skip is told as (path, line, reason).
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        if UNWELCOME_SKIP.search(reason):
            report.outcome = "failed"
            report.longrepr = f"skipped in CI: {reason}"
    return report


class Opener(Protocol):
    """Opens handles on the test's one cache."""

    def __call__(self, **settings: Any) -> Cache: ...


@pytest.fixture
def clock() -> Clock:
    """Return the clock that the test's caches tell the time by."""
    return Clock()


@pytest.fixture(params=parameters(KINDS))
def kind(request: pytest.FixtureRequest) -> Kind:
    """Return each kind of cache in turn."""
    found: Kind = request.param
    return found


@pytest.fixture
def open_cache(kind: Kind, clock: Clock, tmp_path: Path) -> Iterator[Opener]:
    """Return a function that opens handles on one cache; at the end that must be sound, and they are closed."""
    handles: list[Cache] = []

    def open_handle(**settings: Any) -> Cache:
        handles.append(kind.open(tmp_path / "cache", clock=clock, **settings))
        return handles[-1]

    yield open_handle
    try:
        if handles:
            assert [str(problem.message) for problem in handles[0].check()] == []
    finally:
        for handle in handles:
            handle.close()


@pytest.fixture
def cache(open_cache: Opener) -> Cache:
    """Return a new cache of each kind."""
    return open_cache()


@pytest.fixture
def diskcache() -> ModuleType:
    """Return DiskCache, for the half of a test that shows what it does."""
    module = pytest.importorskip("diskcache")
    assert isinstance(module, ModuleType)
    return module


@pytest.fixture
def theirs(diskcache: ModuleType, tmp_path: Path) -> Iterator[Any]:
    """Return a cache of DiskCache."""
    with diskcache.Cache(tmp_path / "theirs") as cache:
        yield cache
