"""What Celery's own tests, which `make third-party` runs, do not ask of the backend."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from celery.exceptions import BackendStoreError, ImproperlyConfigured

from diskcache_like import Cache
from diskcache_like.integrations.celery import CeleryBackend

from ..support.cache_kinds import Clock
from ..support.project import ROOT

CLASS = f"{CeleryBackend.__module__}:{CeleryBackend.__name__}"


def app(backend: str, **settings: Any) -> Any:
    made = Celery(set_as_current=False, backend=backend, broker="memory://")
    made.conf.update(settings)
    return made


def test_the_entry_point_names_the_class() -> None:
    entry = f'[project.entry-points."celery.result_backends"]\ndiskcache-like = "{CLASS}"'
    assert entry in (ROOT / "pyproject.toml").read_text()


def test_results_expire(cache: Cache, clock: Clock) -> None:
    backend = CeleryBackend(app("disabled"), cache=cache, expires=60)
    backend.mark_as_done("id", {"answer": 42})
    assert backend.get_result("id") == {"answer": 42}
    clock.now += 60
    assert backend.get_state("id") == "PENDING"
    backend.cleanup()
    assert len(cache) == 0


def test_a_url_names_the_directory_and_options_are_settings(tmp_path: Path) -> None:
    options = {"max_entries": 9, "global_keyprefix": "mine"}
    made = app(f"{CLASS}://{tmp_path}/results", result_backend_transport_options=options).backend
    made.mark_as_done("id", 1)
    other = pickle.loads(pickle.dumps(made))
    with made.cache as cache, other.cache as again:
        assert cache.max_entries == 9
        assert list(again) == [b"mine_celery-task-meta-id"]


def test_a_pickled_backend_has_its_cache_and_its_expiry(cache: Cache) -> None:
    made = CeleryBackend(app("disabled"), cache=cache.namespace("celery"), expires=60)
    made.mark_as_done("id", 1)
    again = pickle.loads(pickle.dumps(made))
    with again.cache._cache:
        assert again.expires == 60
        assert again.get_result("id") == 1


def test_a_result_that_can_never_fit_is_an_error(tmp_path: Path) -> None:
    with Cache(tmp_path, size_limit=10_000) as cache, pytest.raises(BackendStoreError, match="larger than size_limit"):
        CeleryBackend(app("disabled"), cache=cache).mark_as_done("id", "x" * 20_000)


def test_parts_of_a_chord_are_counted_by_all_workers(tmp_path: Path, clock: Clock) -> None:
    with Cache(tmp_path, clock=clock) as first, Cache(tmp_path, clock=clock) as second:
        one, other = (CeleryBackend(app("disabled"), cache=cache) for cache in (first, second))
        assert (one.incr(b"key"), other.incr(b"key")) == (1, 2)
        one.expire(b"key", 10)
        clock.now += 10
        assert other.get(b"key") is None


@pytest.mark.parametrize("url", ["diskcache-like://", "diskcache-like://relative", None])
def test_an_absolute_directory_is_needed(url: str | None) -> None:
    with pytest.raises(ImproperlyConfigured, match="an absolute directory"):
        CeleryBackend(app("disabled"), url=url)
