"""Parts: what the operations of a cache work with, named once for the classes that spell them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from ..entries.handle import Handle
from ..entries.hot import HotLayer
from ..entries.loading import Loader
from ..entries.row_codec import RowCodec
from ..errors import Timeout, refused_with_remote
from ..storage.shards import ShardSet
from ..storage.store import Store

if TYPE_CHECKING:
    from ..tier.tier import Tier

T = TypeVar("T")


class Parts:
    """The parts of an open cache, which `Cache` makes, and how long its operations wait for the write lock."""

    _handle: Handle
    _shards: ShardSet
    _rows: RowCodec
    _hot: HotLayer
    _loader: Loader
    _tier: Tier | None  # where entries of several machines lie, with `remote=`

    def _namespaced(self, key: Any) -> Any:
        """Return the key as the cache has it."""
        return key

    def _wait(self, retry: bool) -> float | None:
        """Return the seconds that an operation waits for the write lock; None for as long as it takes."""
        return None if retry else self._handle.timeout

    def _wait_for_all(self, retry: bool) -> float | None:
        """Return the seconds that the removal of many entries waits for each lock."""
        return self._wait(retry)

    def _failed(self, answer: T) -> T:
        """Raise the error being handled; a FanoutCache returns `answer` instead for a Timeout."""
        raise  # noqa: PLE0704

    def _here_only(self, what: str) -> None:
        """Refuse what would hold on this machine alone."""
        if self._tier is not None:
            raise refused_with_remote(what)

    def _remove_from_all(self, remove: Callable[[Store], int]) -> int:
        """Remove entries from every shard, and return how many went; a Timeout carries the count so far."""
        removed = 0
        for store in self._shards.stores:
            try:
                removed += remove(store)
            except Timeout as error:
                error.args = (removed + getattr(error, "count", 0),)
                return self._failed(removed)
        return removed
