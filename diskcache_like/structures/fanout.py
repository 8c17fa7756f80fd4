"""FanoutCache: a cache in several shards, so that writers of different keys rarely wait for each other."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

from ..cache import Cache
from ..disk.contract import Disk
from ..entries.handle import Opening
from ..entries.options import Arguments
from ..entries.rotation import children_of
from ..errors import SecretError, SettingError, Timeout
from ..operations import awaited
from ..storage.opening.directory import refuse_link
from ..storage.shards import close_each
from ..system.generics import K, V
from .deque import Deque
from .durable import DurableCache
from .index import Index

if TYPE_CHECKING:
    from ..operations.awaited import AsyncFanoutCache

T = TypeVar("T")
C = TypeVar("C", Cache, Deque, Index)
_NAME = re.compile(r"[^\x00]{1,200}")


class FanoutCache(Cache[K, V]):
    """A cache in `shards` databases.

    It differs from `Cache` in its defaults: eight shards, a short timeout, and a write of one key or a batch that does
    not get its shard's lock in time gives up and returns False (or its default) instead of raising. Operations on the
    whole cache, such as `clear`, `evict` or `flush`, wait without limit, and `peekitem`, `check` and `stats` raise
    Timeout. The number of shards stored in the directory wins over the argument. `size_limit` is for all shards
    together: each is sure of its even share, which no single value may exceed, and may use what the others leave free
    until they need it. Of `max_entries` each may have its even part, and one at least. Opening waits up to a minute for
    other processes that are making the same cache.
    """

    _OPENING = Opening(timeout=60.0)  # some milliseconds are not enough to make or repair shards
    _CHILD: type[Cache] = Cache  # the class of named caches

    def __init__(
        self,
        directory: str | os.PathLike[str] | None = None,
        shards: int = 8,
        timeout: float = 0.010,
        disk: type[Disk] = Disk,
        **settings: Unpack[Arguments],
    ) -> None:
        self._open(directory, shards, timeout, disk, settings)
        self._children: dict[tuple[str, str], Cache | Deque | Index] = {}

    @property
    def aio(self) -> AsyncFanoutCache[K, V]:
        """Return this cache for coroutines; see `AsyncFanoutCache`."""
        found: AsyncFanoutCache[K, V] = awaited.face("AsyncFanoutCache", self)
        return found

    def __getstate__(self) -> Any:
        """Return the positional arguments to make a handle like this one; a subclass may add those of its own."""
        return (self.directory, len(self._shards.stores), self.timeout, type(self.disk))

    def transact(self, retry: bool = True) -> AbstractContextManager[None]:
        """Make the body one transaction over all shards; like `Cache.transact`, but waits without limit by default."""
        return super().transact(retry=retry)

    def _failed(self, answer: T) -> T:
        if isinstance(sys.exception(), Timeout):
            return answer
        raise  # noqa: PLE0704

    def _wait_for_all(self, retry: bool) -> float | None:
        return None  # a count without the busy shards would look as if everything had been removed

    def cache(
        self, name: str, timeout: float = 60, disk: type[Disk] | None = None, **settings: Unpack[Arguments]
    ) -> Cache:
        """Return the cache called `name` in a subdirectory; the same object each time while this handle lives.

        `timeout` (seconds), `disk` (this cache's own by default) and settings take effect the first time. Raises
        SettingError if `name` cannot name a folder.
        """

        def opened() -> Cache:
            options = {**self._passed_on(), **self._remote_of("cache", name), **settings}
            return self._CHILD(self._child_path("cache", name), timeout, disk or type(self.disk), **options)

        return self._child("cache", name, opened)

    def deque(self, name: str, maxlen: float | None = None) -> Deque:
        """Return the deque called `name` in a subdirectory; the same object each time while this handle lives.

        `maxlen` replaces the length limit that is stored with it; with None that stays as it is.
        """
        child = self._child("deque", name, lambda: Deque.fromcache(self._durable("deque", name), maxlen=maxlen))
        if maxlen is not None and maxlen != child.maxlen:
            child.maxlen = maxlen
        return child

    def index(self, name: str) -> Index:
        """Return the index called `name` in a subdirectory; the same object each time while this handle lives."""
        return self._child("index", name, lambda: Index.fromcache(self._durable("index", name)))

    def _child(self, kind: str, name: str, make: Callable[[], C]) -> C:
        """Return a child, opening it the first time. If another thread was first, return its child."""
        given: Any = name
        child: Any = self._children.get((kind, name)) if isinstance(given, str) else None
        if child is None:  # or `make` refuses the name
            opened = make()
            # `setdefault` of a dictionary with such keys is one step, so all threads get the same child.
            child = self._children.setdefault((kind, name), opened)
            if child is not opened:
                _close(opened)
        found: C = child
        return found

    def _durable(self, kind: str, name: str) -> Cache:
        """Return the cache of a deque or index: it has this cache's options, but loses no entries."""
        return DurableCache(self._child_path(kind, name), disk=type(self.disk), **{**self._passed_on(), "strict": True})

    def _passed_on(self) -> dict[str, Any]:
        options = self._handle.options
        # Encrypted children for an encrypted cache, whether this handle asked for encryption or found it.
        sealed = {} if self._handle.sealer is None else {"encrypt": True}
        return {**options.to_pass_on(), "secret": options.secret, "remote": None, **sealed}

    def _remote_of(self, kind: str, name: str) -> dict[str, Any]:
        """Return the option `remote` of a named cache: a namespace of its own on this cache's server."""
        remote = self._handle.options.remote
        return {} if remote is None else {"remote": replace(remote, namespace=f"{remote.namespace}/{kind}/{name}")}

    def rotate(self, new_secret: bytes | str, progress: Callable[[int, int], object] | None = None) -> None:
        """Do what `Cache.rotate` does, first for the named children and then for this cache."""
        for kind, name in list(children_of(self.directory)):
            self._rotate_child(kind, name, new_secret, progress)
        super().rotate(new_secret, progress)

    def _rotate_child(
        self, kind: str, name: str, new_secret: bytes | str, progress: Callable[[int, int], object] | None
    ) -> None:
        """Rotate a child that has this cache's secret; leave one that has its own, or is not encrypted, as it is."""
        child = self._children.get((kind, name))
        if child is not None:
            (child if isinstance(child, Cache) else child.cache).rotate(new_secret, progress)
            return
        for secret in (self._handle.options.secret, new_secret):
            options = {**self._passed_on(), "secret": secret, "encrypt": None}
            with contextlib.suppress(SecretError), Cache(self._child_path(kind, name), **options) as opened:
                if opened._handle.sealer is not None:
                    opened.rotate(new_secret, progress)
                return

    def _child_path(self, kind: str, name: str) -> str:
        """Return the directory of a named child; each part of its name is one more level below this directory."""
        given: Any = name
        parts = given.split("/") if isinstance(given, str) else [""]
        if any(part in ("", ".", "..") for part in parts) or not _NAME.fullmatch(name):
            raise SettingError(f"{kind} name is {name!r}, expected a relative name without empty parts, '.' and '..'")
        path = self.directory
        for part in (kind, *parts):
            path = os.path.join(path, part)
            refuse_link(path)
        return path

    def close(self) -> None:
        """Close every file of this cache and of its named children."""
        close_each([*(partial(_close, child) for child in list(self._children.values())), super().close])


def _close(child: Cache | Deque | Index) -> None:
    (child if isinstance(child, Cache) else child.cache).close()
