"""Caches that share a server, as tests of the tier open them, and waiting for what a server says."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from diskcache_like import Cache, Remote

from ..support.cache_kinds import QUICK

SECRET = "a secret of all machines"
NAMESPACE = "shop"
PATIENCE = 30.0  # seconds after which a test gives up; none waits for it to pass
POLL = 0.002
PATIENT: dict[str, Any] = {"timeout": 10.0, "connect_timeout": 10.0}  # for tests in which nothing fails

Found = TypeVar("Found")


def until(look: Callable[[], Found], what: str) -> Found:
    """Return what `look()` finds as soon as that is something true."""
    deadline = time.monotonic() + PATIENCE
    while not (found := look()):
        assert time.monotonic() < deadline, f"{what}: not within {PATIENCE:.0f} s; last: {found!r}"
        time.sleep(POLL)
    return found


def remote_of(server: Any, **options: Any) -> Remote:
    """Return a `Remote` for the machines of a test."""
    return Remote(server, **{"namespace": NAMESPACE, "secret": SECRET, **PATIENT, **options})


def is_up(cache: Cache) -> bool:
    """Tell whether a machine hears from the server."""
    return cache.remote.stats().state == "up"


def counted(cache: Cache, name: str) -> int:
    """Return a counter of a machine."""
    return cache.remote.stats().counts[name]


class Machines:
    """Opens caches on machines by their names, and closes them."""

    def __init__(self, server: Any, directory: Path) -> None:
        self.server = server
        self.directory = directory
        self._opened: list[Any] = []

    def place(self, name: str) -> Path:
        """Return the directory of a machine."""
        return self.directory / name

    def open(self, name: str, kind: Callable[..., Any] = Cache, **options: Any) -> Any:
        """Return a handle on a machine's cache; what belongs to `Remote` goes there, the rest to the cache."""
        known = set(Remote.__dataclass_fields__)
        remote = remote_of(
            options.pop("server", self.server), **{key: options.pop(key) for key in known & options.keys()}
        )
        made = kind(self.place(name), remote=remote, **{**QUICK, **options})
        self._opened.append(made)
        return made

    def pair(self, **options: Any) -> tuple[Any, Any]:
        """Return a cache on each of two machines."""
        return self.open("a", **options), self.open("b", **options)

    def close(self) -> None:
        """Close all."""
        while self._opened:
            self._opened.pop().close()
