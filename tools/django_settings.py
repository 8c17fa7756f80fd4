"""What runs inside Django's test-suite: its settings, DjangoCache in the place of Django's backends, and the report.

Django's runner (`runtests.py --settings=tools.django_settings cache`) imports this as its settings. The classes of
`LocMemCache` and `FileBasedCache` are replaced, so that every test that names one of them tests DjangoCache.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
import unittest
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import quote

from django.core.cache.backends import filebased, locmem
from django.test.runner import DiscoverRunner

from diskcache_like import DjangoCache

REPORT = "DJANGO_SUITE_REPORT"  # the variable that names the file for the report
DIRECTORY = "DJANGO_SUITE_CACHES"  # and the directory for caches that have a name only

DATABASES = {alias: {"ENGINE": "django.db.backends.sqlite3"} for alias in ("default", "other")}
SECRET_KEY = "for tests only"
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
USE_TZ = False
TEST_RUNNER = "tools.django_settings.Runner"

# Tests that say nothing about a backend of ours, each with the reason. A class stands for all of its tests.
NOT_APPLICABLE = {
    "DummyCacheTests": "tests Django's dummy backend, which keeps nothing",
    "AsyncDummyCacheTests": "tests Django's dummy backend, which keeps nothing",
    "DBCacheTests": "tests Django's database backend",
    "DBCacheWithTimeZoneTests": "tests Django's database backend",
    "CreateCacheTableForDBCacheTests": "tests a command for Django's database backend",
    "PyLibMCCacheTests": "tests Django's memcached backend, and needs a server",
    "PyMemcacheCacheTests": "tests Django's memcached backend, and needs a server",
    "RedisCacheTests": "tests Django's Redis backend, and needs a server",
    "TestMakeTemplateFragmentKey": "uses no cache",
    "test_cull": "counts the entries that MAX_ENTRIES leaves; here size_limit limits bytes",
    "test_zero_cull": "counts the entries that MAX_ENTRIES leaves; here size_limit limits bytes",
    "test_lru_get": "counts the entries that MAX_ENTRIES leaves; here size_limit limits bytes",
    "test_lru_set": "counts the entries that MAX_ENTRIES leaves; here size_limit limits bytes",
    "test_lru_incr": "counts the entries that MAX_ENTRIES leaves; here size_limit limits bytes",
    "test_locking_on_pickle": "looks at LocMemCache's lock",
    "test_get_ignores_enoent": "removes the file that FileBasedCache keeps per entry",
    "test_empty_cache_file_considered_expired": "empties the file that FileBasedCache keeps per entry",
    "test_has_key_race_handling": "replaces the open() by which FileBasedCache reads an entry",
    "test_get_does_not_ignore_non_filenotfound_exceptions": "replaces the open() by which FileBasedCache reads an entry",
}


class SteppingTime:
    """The `time` module of Django's tests, whose `sleep` moves the clock and takes no time.

    All else is the real module, changes included: there are tests that replace `time.time`.
    """

    def __init__(self) -> None:
        vars(self)["ahead"] = 0.0  # seconds slept through

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        vars(self)["ahead"] += seconds

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(time, name, value)

    def __delattr__(self, name: str) -> None:
        delattr(time, name)


def now() -> float:
    """Return the time as Django's tests see it; some of them replace the module with one of theirs."""
    seen: Any = getattr(sys.modules.get("cache.tests"), "time", time)
    told: float = seen.time() + getattr(seen, "ahead", 0.0)
    return told


class InDirectory(DjangoCache):
    """DjangoCache by the clock of the tests; LOCATION is a directory, as it is of FileBasedCache."""

    def __init__(self, location: Any, params: Mapping[str, Any]) -> None:
        options = {"clock": now, "durability": "process", "generation_slots": 1 << 10, **params.get("OPTIONS", {})}
        super().__init__(location, {"SHARDS": 2, **params, "OPTIONS": options})  # most tests make a new directory


class ByName(InDirectory):
    """DjangoCache where LOCATION is any name, as it is of LocMemCache."""

    def __init__(self, location: str, params: Mapping[str, Any]) -> None:
        super().__init__(Path(os.environ[DIRECTORY], quote(location, safe="") or "unnamed"), {"SHARDS": 8, **params})
        self._expire_info = Expiries(self)


class Expiries:
    """The dictionary from stored keys to expiry times that tests read in LocMemCache."""

    def __init__(self, cache: DjangoCache) -> None:
        self._cache = cache._cache

    def __getitem__(self, made: str) -> Any:
        return self._cache.get(made, expire_time=True)[1]


locmem.LocMemCache = ByName
filebased.FileBasedCache = InDirectory


class Runner(DiscoverRunner):  # type: ignore[misc]  # Django has no types
    """Run what applies, and report what ran, what failed, and what was left out for which reason."""

    def build_suite(self, *args: Any, **kwargs: Any) -> unittest.TestSuite:
        """Return the suite without the tests that do not apply."""
        self.left_out: dict[str, str] = {}
        suite = super().build_suite(*args, **kwargs)
        tests: ModuleType = importlib.import_module("cache.tests")
        tests.time = SteppingTime()  # type: ignore[attr-defined]
        kept = [test for test in flat(suite) if not self.leaves_out(test)]
        return unittest.TestSuite(kept)

    def leaves_out(self, test: unittest.TestCase) -> bool:
        """Tell whether a test does not apply, and note why."""
        class_, method = type(test).__name__, test.id().rpartition(".")[2]
        reason = NOT_APPLICABLE.get(class_) or NOT_APPLICABLE.get(method)
        if reason:
            self.left_out[f"{class_}.{method}"] = reason
        return reason is not None

    def suite_result(self, suite: unittest.TestSuite, result: unittest.TestResult, **kwargs: Any) -> int:
        """Write the report."""
        bad = [*result.failures, *result.errors, *((test, "") for test in result.unexpectedSuccesses)]
        report = {
            "run": result.testsRun - len(result.skipped),
            "failed": sorted({str(test) for test, _ in bad}),
            "skipped": {str(test): reason for test, reason in result.skipped},
            "not_applicable": self.left_out,
        }
        Path(os.environ[REPORT]).write_text(json.dumps(report))
        failures: int = super().suite_result(suite, result, **kwargs)
        return failures


def flat(suite: Iterable[Any]) -> Iterator[unittest.TestCase]:
    """Yield the tests of a suite and of the suites in it."""
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            yield from flat(test)
        else:
            yield test
