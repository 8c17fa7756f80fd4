"""FanoutCache: a cache in several shards, so that writers of different keys rarely wait for each other."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, TypeVar

from .cache import Cache
from .disk import Disk
from .errors import SecretError, SettingError
from .persistent import Deque, Index, KeptCache
from .rotation import children_of
from .storage.shards import close_each, refuse_link

T = TypeVar("T")
_NAME = re.compile(r"[^\x00]{1,200}")


class FanoutCache(Cache):
    """A cache in `shards` databases.

    Differs from `Cache` in its defaults: eight shards, a short timeout, and what a timeout does: a write that did not
    get its shard's lock in time is given up and answers False (or its default) instead of raising. The directory's
    stored number of shards wins over the argument. `size_limit` is for all shards together: each is sure of its even
    share, which no single value may exceed, and may use what the others leave until they need it. Making a new cache
    waits up to a minute for others who make it too.
    """

    _OPENING = 60.0  # making or repairing shards is not an operation to be given up after some milliseconds

    def __init__(
        self,
        directory: str | os.PathLike[str] | None = None,
        shards: int = 8,
        timeout: float = 0.010,
        disk: type[Disk] = Disk,
        **settings: Any,
    ) -> None:
        self._open(directory, shards, timeout, disk, settings)

    def _open(
        self,
        directory: str | os.PathLike[str] | None,
        shards: int,
        timeout: float,
        disk: type[Disk],
        settings: dict[str, Any],
    ) -> None:
        super()._open(directory, shards, timeout, disk, settings)
        self._children: dict[tuple[str, str], Cache | Deque | Index] = {}

    def __getstate__(self) -> Any:
        """Return the positional arguments to make a handle like this one; a subclass may add those of its own."""
        return (self.directory, len(self._shards.stores), self.timeout, type(self.disk))

    def transact(self, retry: bool = True) -> AbstractContextManager[None]:
        """Make the body one transaction over all shards; like `Cache.transact`, but waits without limit by default."""
        return super().transact(retry=retry)

    def _timed_out(self, answer: T) -> T:
        return answer

    def _wait_for_all(self, retry: bool) -> float | None:
        return None  # a count that leaves out the shards that were busy would look like a whole removal

    def cache(self, name: str, timeout: float = 60, disk: type[Disk] | None = None, **settings: Any) -> Cache:
        """Return the cache called `name` in a subdirectory; the same object each time while this handle lives.

        `disk` is this cache's own by default.
        """
        child = self._children.get(("cache", name))
        if child is None:
            options = {**self._passed_on(), **settings}
            child = self._adopted(
                "cache", name, Cache(self._child_path("cache", name), timeout, disk or type(self.disk), **options)
            )
        assert isinstance(child, Cache)
        return child

    def deque(self, name: str, maxlen: float | None = None) -> Deque:
        """Return the deque called `name` in a subdirectory; the same object each time while this handle lives.

        `maxlen` replaces the length limit that is stored with it; with None that stays as it is.
        """
        child = self._children.get(("deque", name))
        if child is None:
            child = self._adopted("deque", name, Deque.fromcache(self._kept("deque", name), maxlen=maxlen))
        assert isinstance(child, Deque)
        if maxlen is not None and maxlen != child.maxlen:
            child.maxlen = maxlen
        return child

    def index(self, name: str) -> Index:
        """Return the index called `name` in a subdirectory; the same object each time while this handle lives."""
        child = self._children.get(("index", name))
        if child is None:
            child = self._adopted("index", name, Index.fromcache(self._kept("index", name)))
        assert isinstance(child, Index)
        return child

    def _adopted(self, kind: str, name: str, opened: Cache | Deque | Index) -> Cache | Deque | Index:
        """Return the child to use: `opened`, or what another thread opened first, `opened` then being closed.

        `setdefault` of a dictionary with such keys is one step, so all threads get the same.
        """
        child = self._children.setdefault((kind, name), opened)
        if child is not opened:
            _close(opened)
        return child

    def _kept(self, kind: str, name: str) -> Cache:
        """Return the cache of a deque or index: with this cache's options but for those that let entries go."""
        return KeptCache(self._child_path(kind, name), disk=type(self.disk), **{**self._passed_on(), "strict": True})

    def _passed_on(self) -> dict[str, Any]:
        sealed = {"encrypt": True} if self._sealer is not None else {}  # whether this handle asked for it or found it
        return {**self._options.to_pass_on(), "secret": self._options.secret, **sealed}

    def rotate(self, new_secret: bytes | str, progress: Callable[[int, int], object] | None = None) -> None:
        """Do what `Cache.rotate` does for this cache and for its named children, who come first."""
        for kind, name in list(children_of(self.directory)):
            self._rotate_child(kind, name, new_secret, progress)
        super().rotate(new_secret, progress)

    def _rotate_child(
        self, kind: str, name: str, new_secret: bytes | str, progress: Callable[[int, int], object] | None
    ) -> None:
        """Rotate a child that has this cache's secret; one of its own, or that is not encrypted, stays as it is."""
        child = self._children.get((kind, name))
        if child is not None:
            (child if isinstance(child, Cache) else child.cache).rotate(new_secret, progress)
            return
        for secret in (self._options.secret, new_secret):
            options = {**self._passed_on(), "secret": secret, "encrypt": None}
            with contextlib.suppress(SecretError), Cache(self._child_path(kind, name), **options) as opened:
                if opened._sealer is not None:
                    opened.rotate(new_secret, progress)
                return

    def _child_path(self, kind: str, name: str) -> str:
        """Return the directory of a named child; each part of the name is one directory level below this one's."""
        parts = name.split("/")
        if not _NAME.fullmatch(name) or any(part in ("", ".", "..") for part in parts):
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
