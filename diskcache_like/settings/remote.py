"""Remote: where several machines share a cache, and what holds when that server is slow or gone."""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass
from typing import Any, Final, Literal

from ..errors import SettingError

OnError = Literal["local", "miss", "raise"]

_ON_ERROR: Final = ("local", "miss", "raise")
_NAMESPACE_LIMIT: Final = 200  # bytes


@dataclass(frozen=True)
class Remote:
    """A server of Redis 6 or newer, or Valkey, that the caches of several machines share.

    `server`: its address (redis://, rediss:// or unix://), or a client of redis-py, such as one that asks sentinels.
    `namespace`: what the caches have in common; others see nothing of it. `secret`: authenticates what is stored there
    (bytes or text, 16 or more; default: that of the cache), needed unless the cache has pickle='never'.

    `max_staleness`: seconds by which a read may miss what another machine has written; 0 asks the server with each
    read, None lets entries live here until they expire.

    `timeout` and `connect_timeout`: seconds for a request and a connection. `on_error`: what a read does without an
    answer: 'local' serves what is here, for `stale_if_error` seconds beyond `max_staleness`; 'miss'; or 'raise', a
    RemoteError, as a write does. `lease`: seconds for which a machine that computes a value keeps the others waiting if
    it dies. `max_value`: bytes above which a value stays on its machine. `max_requests`: in flight, for each process.

    Raises SettingError for anything else.
    """

    server: Any
    _: KW_ONLY
    namespace: str
    secret: bytes | str | None = None
    max_staleness: float | None = 1.0
    timeout: float = 0.25
    connect_timeout: float = 0.5
    on_error: OnError = "local"
    stale_if_error: float = 0.0
    lease: float = 10.0
    max_value: int = 1 << 20
    max_requests: int = 64

    def __post_init__(self) -> None:
        given: object = self.namespace
        if not isinstance(given, str) or not 0 < len(given.encode("utf-8", "surrogatepass")) <= _NAMESPACE_LIMIT:
            raise SettingError(f"namespace is {self.namespace!r}, expected text of 1 to {_NAMESPACE_LIMIT} bytes")
        if self.on_error not in _ON_ERROR:
            raise SettingError(f"on_error is {self.on_error!r}, expected one of {', '.join(map(repr, _ON_ERROR))}")
        for name in ("timeout", "connect_timeout", "lease"):
            self._check_number(name, positive=True)
        self._check_number("stale_if_error")
        if self.max_staleness is not None:
            self._check_number("max_staleness")
        self._check_integer("max_requests", 1)
        self._check_integer("max_value", 0)

    def _check_number(self, name: str, positive: bool = False) -> None:
        given = getattr(self, name)
        is_number = isinstance(given, int | float) and not isinstance(given, bool)
        if not is_number or not (given > 0 if positive else given >= 0) or not given < math.inf:
            raise SettingError(f"{name} is {given!r}, expected seconds, {'more than 0' if positive else '0 or more'}")

    def _check_integer(self, name: str, least: int) -> None:
        given = getattr(self, name)
        if type(given) is not int or given < least:
            raise SettingError(f"{name} is {given!r}, expected an integer, {least} or more")

    def __getstate__(self) -> Any:
        """Leave the secret out: no pickle may hold it."""
        return {**self.__dict__, "secret": None}

    def __repr__(self) -> str:
        return f"Remote(namespace={self.namespace!r}, max_staleness={self.max_staleness!r})"
