"""Rotation: an encrypted cache gets another secret and another data key while it is in use.

Three rounds over the shards: each is opened by both secrets and seals with a new data key from then on; every entry is
sealed anew; each is opened by the new secret alone. Whenever a rotation is killed, one of the two secrets opens all
shards, and to call it again goes on where it was.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from . import signing
from .errors import SettingError
from .files import folders
from .keyring import Master, Sealer
from .storage import rekeying
from .storage.layout import is_database
from .storage.store import Store

if TYPE_CHECKING:
    from .entries import Entries

Progress = Callable[[int, int], object]
CHILDREN = ("cache", "deque", "index")


def rotate(cache: Entries, new_secret: bytes | str, progress: Progress | None) -> None:
    """Do what `Cache.rotate` says."""
    secret = signing.given_secret(new_secret, {})
    if cache._sealer is None or secret is None:
        raise SettingError(
            f"{cache.directory!r} is not encrypted: a secret that only authenticates cannot be changed; copy the"
            " entries into a cache made with encrypt=True"
        )
    new = Master(secret, cache._options.namespace)
    sealed = list(_left_to_do(cache._shards.stores, new))
    epochs = [rekeying.begin(store, sealer, new) for store, sealer in sealed]
    count = _Count(sum(store.count() for store, _ in sealed), progress)
    for (store, sealer), epoch in zip(sealed, epochs, strict=True):
        rekeying.renew_entries(store, sealer, epoch, count.add)
    for (store, sealer), epoch in zip(sealed, epochs, strict=True):
        rekeying.finish(store, sealer, epoch, new)
    cache._take_secret(new_secret)


def _left_to_do(stores: list[Store], new: Master) -> Iterator[tuple[Store, Sealer]]:
    """Yield the shards that have to be rotated: all, or those that an interrupted rotation had not finished."""
    pairs = [(store, store.disk.sealer) for store in stores if store.disk.sealer is not None]
    for _, sealer in pairs:
        sealer.reload()
    resumed = any(len(sealer.keyring.wraps) > 1 and sealer.keyring.is_opened_by(new) for _, sealer in pairs)
    for store, sealer in pairs:
        finished = len(sealer.keyring.wraps) == 1 and sealer.keyring.is_opened_by(new)
        if not (resumed and finished):
            yield store, sealer


class _Count:
    """Tell how far a rotation is."""

    def __init__(self, total: int, progress: Progress | None) -> None:
        self._done, self._total, self._progress = 0, total, progress

    def add(self, number: int) -> None:
        """Count entries that are done, of which there may be more than there were at the beginning."""
        self._done += number
        if self._progress is not None:
            self._progress(self._done, max(self._total, self._done))


def children_of(directory: str) -> Iterator[tuple[str, str]]:
    """Yield kind and name of the named children in the directory of a FanoutCache."""
    for kind in CHILDREN:
        top = os.path.join(directory, kind)
        for path, _, names in folders(top):
            if any(map(is_database, names)) and path != top:
                yield kind, os.path.relpath(path, top)
