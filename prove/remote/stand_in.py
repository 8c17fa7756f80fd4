"""A cache beyond one machine as one would write it in an hour: a client, and a dictionary with a time to live.

It keeps none of the promises across machines, and shows that the judges notice. `at_server` keeps no dictionary, and is
as good as the server.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from ..proof import Proof
from .clients import Place, Product, Tier
from .history import Outcome
from .judges import TOO_OLD
from .machines import SharedServer

LIFE = 5.0  # seconds for which the dictionary is believed
ATTEMPTS = 1  # to send a request; one that is sent again may take effect after that of another, or twice

COUNT = """
local value = redis.call('GET', KEYS[1])
local total = (value and tonumber(value) or tonumber(ARGV[2])) + tonumber(ARGV[1])
redis.call('SET', KEYS[1], string.format('%.0f', total))
return string.format('%.0f', total)
"""
READ = "redis.call('DEL', KEYS[2]); return redis.call('GET', KEYS[1])"  # which a node that was demoted refuses


class StandIn:
    """Values on the server, and copies of them in a dictionary for so many seconds."""

    def __init__(self, url: str, timeout: float, life: float) -> None:
        again = Retry(NoBackoff(), ATTEMPTS - 1)
        self._client = redis.Redis.from_url(
            url, protocol=3, socket_timeout=timeout, socket_connect_timeout=timeout, retry=again
        )
        self._life = life
        self._copies: dict[str, tuple[float, Any]] = {}

    def get(self, key: str) -> Any:
        """Return the value or None."""
        until, value = self._copies.get(key, (0.0, None))
        if time.monotonic() >= until:
            value = self._client.eval(READ, 2, key, "nothing")
            self._keep(key, value)
        return int(value) if isinstance(value, bytes) and b":" not in value else value

    def set(self, key: str, value: Any) -> bool:
        """Store a value."""
        done = bool(self._client.set(key, value))
        self._keep(key, value)
        return done

    def add(self, key: str, value: Any) -> bool:
        """Store a value where there is none."""
        self._copies.pop(key, None)
        return bool(self._client.set(key, value, nx=True))

    def incr(self, key: str, delta: int, default: int) -> int:
        """Add to a number."""
        self._copies.pop(key, None)
        return int(self._client.eval(COUNT, 1, key, delta, default))

    def delete(self, key: str) -> bool:
        """Remove what there is."""
        self._copies.pop(key, None)
        return bool(self._client.delete(key))

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _keep(self, key: str, value: Any) -> None:
        if self._life:
            self._copies[key] = time.monotonic() + self._life, value


@contextmanager
def _opened(place: Place, life: float) -> Iterator[Tier]:
    made = StandIn(place.url, place.settings.timeout, life)
    try:
        yield made
    finally:
        made.close()


def open_stand_in(place: Place) -> Any:
    """Open one with a dictionary."""
    return _opened(place, LIFE)


def open_at_server(place: Place) -> Any:
    """Open one without."""
    return _opened(place, 0.0)


def outcome(error: Exception) -> Outcome | None:
    """Tell what became of a call that raised."""
    if isinstance(error, redis.exceptions.ReadOnlyError) or "connecting to" in str(error):
        return "refused"
    return "unknown" if isinstance(error, (redis.RedisError, OSError)) else None


def no_listener(_: Path) -> None:
    """Return None: nobody listens."""


STAND_IN = Product(open_stand_in, outcome, no_listener)
AT_SERVER = Product(open_at_server, outcome, no_listener)


PROOFS = {  # of the rig, not of this package
    "remote-server": Proof(8, "machines ask the server for every value", SharedServer(AT_SERVER, bounds=(0.0,))),
    "remote-dictionary": Proof(8, "machines keep values for a while", SharedServer(STAND_IN), finds=TOO_OLD),
}
