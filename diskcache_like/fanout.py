"""FanoutCache: a cache in several shards, so that writers of different keys rarely wait for each other."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from typing import Any, TypeVar

from .cache import Cache
from .disk import Disk
from .errors import SettingError

T = TypeVar("T")
_NAME = re.compile(r"[^\x00]{1,200}")


class FanoutCache(Cache):
    """A cache in `shards` databases.

    Differs from `Cache` in its defaults: eight shards, a short timeout, and what a timeout does: a write that did not
    get its shard's lock in time is given up and answers False (or its default) instead of raising. The directory's
    stored number of shards wins over the argument. `size_limit` is divided among the shards.
    """

    _SHARDS = 8

    def __init__(
        self,
        directory: str | os.PathLike[str] | None = None,
        shards: int = 8,
        timeout: float = 0.010,
        disk: type[Disk] = Disk,
        *,
        pickle: str | None = None,
        secret: bytes | str | None = None,
        strict: bool = False,
        shared: bool = False,
        coherence: str | None = None,
        generation_slots: int = 1 << 16,
        clock: Callable[[], float] = time.time,
        **settings: Any,
    ) -> None:
        self._open(
            directory, shards, timeout, disk, pickle, secret, strict, shared, coherence, generation_slots, clock, settings
        )
        self._secret_given = secret
        self._children: dict[tuple[str, str], Cache] = {}

    def _timed_out(self, answer: T) -> T:
        return answer

    def cache(self, name: str, timeout: float = 60, disk: type[Disk] | None = None, **settings: Any) -> Cache:
        """Return the cache called `name` in a subdirectory; the same object each time while this handle lives.

        `disk` is this cache's own by default.
        """
        child = self._children.get(("cache", name))
        if child is None:
            options: dict[str, Any] = {"secret": self._secret_given, **_inherited(self._options), **settings}
            child = Cache(self._child_path("cache", name), timeout, disk or type(self.disk), **options)
            self._children["cache", name] = child
        return child

    def _child_path(self, kind: str, name: str) -> str:
        """Return the directory of a named child; each part of the name is one directory level below this one's."""
        parts = name.split("/")
        if not _NAME.fullmatch(name) or any(part in ("", ".", "..") for part in parts):
            raise SettingError(f"{kind} name is {name!r}, expected a relative name without empty parts, '.' and '..'")
        return os.path.join(self.directory, kind, *parts)

    def close(self) -> None:
        """Close every file of this cache and of its named children."""
        for child in self._children.values():
            child.close()
        super().close()

    def __getstate__(self) -> Any:
        return (self.directory, len(self._shards.stores), self.timeout, type(self.disk), self._options)

    def __setstate__(self, state: Any) -> None:
        directory, shards, timeout, disk, options = state
        self.__init__(directory, shards, timeout, disk, **options)  # type: ignore[misc]


def _inherited(options: dict[str, Any]) -> dict[str, Any]:
    names = ("pickle", "strict", "shared", "coherence", "generation_slots")
    return {name: options[name] for name in names}
