"""What every test gets: leak checks, hypothesis profiles, and no silent skips in CI."""

from __future__ import annotations

import gc
import os
import re
import signal
import threading
from collections.abc import Generator, Iterator
from contextlib import closing
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import hypothesis
import pytest

from diskcache_like import Cache

from .support.cache_kinds import KINDS, QUICK, Clock, Kind, Opener, parameters
from .support.leaks import child_processes, leaked_descriptors, open_descriptors
from .support.small_disks import MEBIBYTE, Disk, NotPermitted, mounted
from .support.tampering import fill
from .support.workers import Crew

CI = os.environ.get("CI") == "true"

# Skips that mean "this machine lacks something the run was set up to have": in CI they hide what was meant to run.
UNWELCOME_SKIP = re.compile(r"server|browser|compiler|cryptography", re.IGNORECASE)

JOIN_SECONDS = 10.0

Report = TypeVar("Report", pytest.TestReport, pytest.CollectReport)

hypothesis.settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
# The machine may be busy with other things, so no deadline here either.
hypothesis.settings.register_profile("dev", deadline=None)
# For a long look: pytest --hypothesis-profile=thorough
hypothesis.settings.register_profile("thorough", deadline=None, max_examples=3000)
hypothesis.settings.load_profile("ci" if CI else "dev")


def pytest_configure() -> None:
    """Let SIGINT interrupt tests and their children: a script starts its background jobs with that signal ignored."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    """Keep the thousands of collected tests out of each `gc.collect`, of which some tests make dozens."""
    gc.collect()
    gc.freeze()


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
def crew() -> Iterator[Crew]:
    """Return those who start the test's other processes, all of which are gone at its end."""
    with Crew() as made:
        yield made


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


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Return the directory of a closed cache with something of every sort in it."""
    with closing(Cache(tmp_path / "cache", **QUICK)) as cache:
        fill(cache)
    return tmp_path / "cache"


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    """Return an empty disk of four mebibytes."""
    try:
        with mounted(tmp_path / "disk", 4 * MEBIBYTE) as made:
            yield made
    except NotPermitted as reason:
        pytest.skip(str(reason))
