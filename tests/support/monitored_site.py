"""A site that gunicorn serves for tests: its requests use a cache, and its page `/metrics` is for Prometheus.

The environment says where the cache is. With `PROMETHEUS_MULTIPROC_DIR`, the page has that mode's own counter, too.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any

from prometheus_client import CollectorRegistry, Counter, generate_latest, multiprocess

from diskcache_like import Cache
from diskcache_like.integrations.prometheus import Collector

DIRECTORY = "MONITORED_SITE_CACHE"

if DIRECTORY in os.environ:
    cache = Cache(os.environ[DIRECTORY])
    requests = Counter("requests", "Requests that were answered, except for /metrics.", registry=None)
    registry = CollectorRegistry()
    multiprocess.MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
    registry.register(Collector(cache))


def application(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    """Set or get the key that the path names, or tell what was counted; a header says which process answers."""
    _, action, *key = environ["PATH_INFO"].split("/")
    if action == "metrics":
        body = generate_latest(registry)
    else:
        requests.inc()
        body = repr(cache.set(key[0], "value") if action == "set" else cache.get(key[0])).encode()
    start_response("200 OK", [("Content-Length", str(len(body))), ("Pid", str(os.getpid()))])
    return [body]
