"""The projects whose tests are run, what of them, and what is put in their place or passed over, with the reason."""

from __future__ import annotations

from itertools import chain
from typing import NamedTuple

DISKCACHE = "diskcache==5.6.3"


class Project(NamedTuple):
    """A source distribution and what to run of its tests.

    `adapters` take the places of a project's own files, or are a `conftest.py` that replaces what the tests ask for.

    Where those are not in it, they come from the repository: its address, and the tag of the same version.
    """

    requirement: str
    uses: str
    tests: tuple[str, ...]
    needs: tuple[str, ...] = ()
    install: bool = True  # the project itself too
    conftest: str = ""  # put beside the tests where the distribution lacks its own
    repository: tuple[str, str] | None = None
    beside: str = ""  # what the tests are for, if that is not DiskCache; they run on AsyncCache then
    adapters: tuple[tuple[str, str], ...] = ()  # files of `adapters`, by the paths of the files whose place they take
    integration: bool = False  # they run on a module of `diskcache_like.integrations` then
    folder: str = "tests"  # where the tests lie in the distribution
    passed_over: tuple[tuple[str, tuple[str, ...]], ...] = ()  # (reason, tests that are not run for it)
    environment: tuple[tuple[str, str], ...] = ()

    @property
    def name(self) -> str:
        """Return the name of the distribution."""
        return self.requirement.partition("==")[0]

    @property
    def deselected(self) -> list[str]:
        """Return the options of pytest that pass tests over."""
        return [f"--deselect={test}" for _, tests in self.passed_over for test in tests]


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

# Those of async-lru's tests that are about what `memoize` does not have, by what that is. Not run at all is
# `test_internals`, which is about private classes.
ASYNC_LRU = {
    "its private parts": (
        "test_basic.py::test_alru_cache_dict_not_shared",
        "test_cache_clear.py::test_cache_clear_pending_task",
        "test_cache_clear.py::test_cache_clear_ttl_callback",
    ),
    "cache_close": ("test_close.py", "test_thread_safety.py::test_cross_loop_cache_close_works"),
    "a limit for the number of a function's results": (
        "test_size.py::test_alru_cache_removing_lru_keys",
        "test_size.py::test_alru_cache_zero_max_size",
        "test_cache_contains.py::test_cache_contains_does_not_change_lru_order",
        "test_key.py::test_key_with_maxsize",
        "test_ttl.py::test_ttl_limited_cache",
    ),
    "a jitter in seconds": ("test_ttl.py::test_ttl_with_jitter", "test_ttl.py::test_jitter"),
}

HISHEL = ("async", "sync")
STORAGE, CLIENT = "tests/_core/_{}/test_sqlite_storage.py", "tests/test_{}_httpx.py"
HISHEL_PASSED_OVER: dict[str, dict[str, tuple[str, ...]]] = {
    "its tables, statements and files": {
        STORAGE: (
            "round_trip_rechunks_and_returns_exact_body",
            "ttl_hides_then_next_write_deletes",
            "frequent_reads_do_not_write",
            "remove_racing_with_lookup_touch_stays_removed",
            "reader_raises_when_entry_deleted_mid_read",
            "storage_failure_mid_stream_does_not_fail_consumer",
            "create_entry_failure_serves_uncached",
            "corrupt_row_does_not_break_lookup_or_cleanup",
            "old_database_is_refused_and_left_untouched",
            "connection_with_tables_of_its_own_is_left_untouched",
            "switch_to_wal_retries_while_locked",
            "switch_to_wal_only_retries_locks",
            "database_failures_do_not_fail_the_caller",
            "queries_use_indexes",
            "cost_with_100k_entries",
            "entries_get_their_id_and_key_from_the_row_not_the_blob",
            "eviction_between_select_and_touch_is_a_miss_not_an_error",
            "only_the_evicted_entry_is_skipped",
            "removal_between_select_and_touch_is_a_miss",
            "failed_touch_still_serves_the_entry",
            "try_write_reports_rows_changed_or_failure",
        ),
        CLIENT: ("unsafe_request_still_succeeds_when_the_database_is_locked",),
    },
    "`max_size`: the cache has a limit": {
        STORAGE: (
            "lru_evicts_least_recently_used_and_stops_when_it_fits",
            "database_stays_near_limit_over_many_writes",
            "cache_full_of_recently_used_entries_stops_storing_but_serves",
            "too_big_response_is_not_cached_but_fully_delivered[kwargs1]",
        ),
    },
    "when the space of a removed response is free": {
        STORAGE: (
            "remove_hides_immediately_and_is_deleted_after_grace",
            "crashed_writer_is_removed_after_grace",
        ),
    },
    "readers go on, however slow they are": {
        STORAGE: ("stalled_reader_past_grace_raises_instead_of_truncating",),
    },
    "a closed cache opens again": {
        STORAGE: ("closed_storage_raises_and_does_not_reopen",),
        CLIENT: ("closing_transport_closes_upstream_and_storage",),
    },
}

# Their suites for a backend of their own, with an adapter in its place.
INTEGRATIONS = (
    Project(
        "cachelib==0.17.0",
        "the tests for every cache",
        ("tests/test_simple_cache.py",),
        ("pytest-xprocess",),
        beside="SimpleCache",
        adapters=(("cachelib_suite.py", "tests/test_simple_cache.py"),),
        integration=True,
    ),
    Project(
        "Flask-Caching==2.5.1",
        "everything that runs on SimpleCache",
        ("tests", "-k", "not Redis and not Memcache and not FileSystem and not Null"),
        ("pytest-xprocess", "asgiref"),
        beside="SimpleCache",
        adapters=(("flask_caching_suite.py", "conftest.py"),),
        integration=True,
        passed_over=(
            ("its private parts", ("tests/test_backend_cache.py::TestSimpleCache::test_purge",)),
            (
                "an old name of an argument",
                ("tests/test_backend_cache.py::TestSimpleCache::test_deprecated_ignore_errors",),
            ),
            (
                "serializers of cachelib's: the cache has its own",
                ("tests/test_serializer.py", "tests/test_cachelib.py::test_backend_uses_cachelib_serializer"),
            ),
        ),
    ),
    Project(
        "Flask-Session==0.8.0",
        "the tests of its sessions in cachelib",
        ("tests/test_cachelib.py", "-o", "addopts="),
        ("cachelib", "msgspec", "flask[async]"),
        repository=("https://github.com/pallets-eco/flask-session", "0.8.0"),
        beside="FileSystemCache",
        adapters=(("flask_session_suite.py", "conftest.py"),),
        integration=True,
    ),
    Project(
        "requests-cache==1.3.3",
        "the tests for every storage and every backend",
        ("tests/integration/test_memory.py",),
        (
            "itsdangerous",
            "pytest-httpbin",
            "pytest-rerunfailures",
            "requests-mock",
            "responses",
            "rich",
            "time-machine",
            "ujson",
        ),
        beside="its storage in memory",
        adapters=(("requests_cache_suite.py", "tests/integration/test_memory.py"),),
        integration=True,
        environment=(("USE_PYTEST_HTTPBIN", "true"),),
    ),
    Project(
        "dogpile.cache==1.5.0",
        "its fixtures for backends, serializers and mutexes",
        ("tests/cache/test_dbm_backend.py", "-o", "addopts=", "-p", "no:warnings"),
        beside="its backend on dbm",
        adapters=(("dogpile_suite.py", "tests/cache/test_dbm_backend.py"),),
        integration=True,
    ),
    # What the project asks of every store, and of its wrappers around one; the rest needs servers.
    Project(
        "py-key-value-aio==0.4.4",
        "a store, alone and in the project's wrappers",
        ("tests/stores/disk/test_disk.py", "tests/stores/wrappers", "-o", "addopts="),
        (
            "cachetools",
            "cryptography",
            "dirty-equals",
            "inline-snapshot",
            "pathvalidate",
            "pydantic",
            "pytest-asyncio",
        ),
        repository=("https://github.com/strawgate/py-key-value", "0.4.4"),
        beside="its stores on DiskCache and in memory",
        integration=True,
        adapters=(
            ("key_value_suite.py", "tests/stores/disk/test_disk.py"),
            ("key_value_suite.py", "tests/stores/wrappers/conftest.py"),
        ),
    ),
    Project(
        "langchain-tests==1.1.9",
        "the tests for every cache and store",
        ("tests/unit_tests", "-k", "InMemoryCache or InMemoryStore", "--asyncio-mode=auto"),
        beside="its cache and store in memory",
        adapters=(
            ("langchain_suite.py", "tests/unit_tests/test_in_memory_cache.py"),  # those of the next file, too
            ("__init__.py", "tests/unit_tests/test_in_memory_base_store.py"),
        ),
        integration=True,
    ),
    Project(
        "langgraph-checkpoint==4.3.2",
        "the tests of its cache in Redis",
        ("tests/test_redis_cache.py", "--asyncio-mode=auto"),
        ("pytest-asyncio", "redis"),
        beside="its cache in Redis",
        adapters=(("langgraph_suite.py", "conftest.py"),),
        integration=True,
        passed_over=(
            (
                "that nothing is found or stored without a server",
                tuple(
                    f"tests/test_redis_cache.py::TestRedisCache::test_redis_unavailable_{name}"
                    for name in ("get", "set", "async")
                ),
            ),
            (
                "its keys in Redis",
                ("tests/test_redis_cache.py::TestRedisCache::test_corrupted_data_handling",),
            ),
        ),
    ),
    Project(
        "celery==5.7.0",
        "the tests of key-value backends, and of the one in files",
        (
            "t/unit/backends/test_base.py",
            "t/unit/backends/test_filesystem.py",
            "-k",
            "KeyValueStoreBackend or compression or FilesystemBackend",
            *("-p", "celery.contrib.pytest"),
        ),
        ("msgpack", "pytest-subtests", "pyyaml"),
        folder="t",
        beside="its backends in memory and in files",
        adapters=(("celery_suite.py", "conftest.py"),),
        integration=True,
        passed_over=(
            (
                "chords without a counter",
                tuple(
                    f"t/unit/backends/test_base.py::test_KeyValueStoreBackend::{name}"
                    for name in ("test_on_chord_part_return", "test_chord_apply_fallback")
                ),
            ),
            (
                "private parts of the backends",
                (
                    "t/unit/backends/test_base.py::test_result_compression_binary_serializer::test_store_and_get_binary_result",
                ),
            ),
            (
                "URLs and names of files",
                tuple(
                    f"t/unit/backends/test_filesystem.py::test_FilesystemBackend::{name}"
                    for name in (
                        "test_a_path_in_url",
                        "test_raises_meaningful_errors_for_invalid_urls",
                        "test_localhost_is_removed_from_url",
                        "test_mark_as_done_writes_file",
                        "test_compressed_binary_serializer_result_round_trips",
                        "test_forget_deletes_file",
                        "test_cleanup",
                    )
                ),
            ),
        ),
    ),
    Project(
        "hishel==2.0.0",
        "the tests of its storages in SQLite, and of its clients for httpx and requests",
        (
            *(f"tests/_core/_{kind}/test_sqlite_storage.py" for kind in HISHEL),
            *(f"tests/test_{kind}_httpx.py" for kind in HISHEL),
            "tests/test_requests.py",
        ),
        ("anyio", "anysqlite", "fakeredis", "httpx", "httpx2", "inline-snapshot", "requests", "time-machine"),
        beside="its storages in SQLite",
        adapters=(("hishel_suite.py", "conftest.py"),),
        integration=True,
        passed_over=tuple(
            (
                reason,
                tuple(
                    f"{file.format(kind)}::test_{name}"
                    for kind in HISHEL
                    for file, names in files.items()
                    for name in names
                ),
            )
            for reason, files in HISHEL_PASSED_OVER.items()
        ),
    ),
)

PROJECTS = {
    project.name: project
    for project in (
        *INTEGRATIONS,
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
        # Without the tests that need a server.
        Project(
            "aiocache==0.12.3",
            "a backend",
            ("tests/acceptance", "--asyncio-mode=auto", "-m", "not redis and not memcached"),
            ("marshmallow<4", "pytest-asyncio", "pytest-mock"),
            beside="its backend in memory",
            adapters=(("aiocache_backend.py", "tests/acceptance/conftest.py"),),
        ),
        Project(
            "async-lru==2.4.0",
            "memoize of coroutine functions",
            (
                "tests",
                "--asyncio-mode=auto",
                "--ignore=tests/test_internals.py",
                *(f"--deselect=tests/{name}" for name in chain(*ASYNC_LRU.values())),
            ),
            ("pytest-asyncio",),
            beside="itself, in memory",
            adapters=(("async_lru.py", "async_lru.py"),),
        ),
    )
}
