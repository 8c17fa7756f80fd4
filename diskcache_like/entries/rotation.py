"""Rotation: an encrypted cache gets another secret and another data key while it is in use.

It goes over the shards three times. The first pass lets both secrets open each shard, and from then on the shard seals
with a new data key. The second seals every entry again. The third removes the old secret. If a rotation is killed at
any point, one of the two secrets opens all shards, and another call goes on where it stopped.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

from ..crypto import signing
from ..crypto.keyring import MasterKey, Sealer
from ..errors import SettingError
from ..storage import rekeying
from ..storage.opening.identity import is_database
from ..storage.store import Store
from ..system.paths import walk
from .handle import Handle

Progress = Callable[[int, int], object]
CHILDREN = ("cache", "deque", "index")


def rotate(handle: Handle, new_secret: bytes | str, progress: Progress | None) -> None:
    """Do what `Cache.rotate` says."""
    secret = signing.given_secret(new_secret, {})
    if handle.sealer is None or secret is None:
        raise SettingError(
            f"{handle.directory!r} is not encrypted: a secret that only authenticates cannot be changed; copy the"
            " entries into a cache made with encrypt=True"
        )
    new = MasterKey(secret, handle.options.key_context)
    sealed = list(_left_to_do(handle.shards.stores, new))
    epochs = [rekeying.begin(store, sealer, new) for store, sealer in sealed]
    done, total = 0, sum(store.count() for store, _ in sealed)

    def count(number: int) -> None:
        nonlocal done
        done += number
        if progress is not None:
            progress(done, max(total, done))  # there may be more entries than at the beginning

    for (store, sealer), epoch in zip(sealed, epochs, strict=True):
        rekeying.renew_entries(store, sealer, epoch, count)
    for (store, sealer), epoch in zip(sealed, epochs, strict=True):
        rekeying.finish(store, sealer, epoch, new)
    handle.take_secret(new_secret)


def _left_to_do(stores: list[Store], new: MasterKey) -> Iterator[tuple[Store, Sealer]]:
    """Yield the shards to rotate: all of them, or those that an interrupted rotation has not finished."""
    pairs = [(store, store.disk.sealer) for store in stores if store.disk.sealer is not None]
    for _, sealer in pairs:
        sealer.reload()
    resumed = any(len(sealer.keyring.wraps) > 1 and sealer.keyring.is_opened_by(new) for _, sealer in pairs)
    for store, sealer in pairs:
        finished = len(sealer.keyring.wraps) == 1 and sealer.keyring.is_opened_by(new)
        if not (resumed and finished):
            yield store, sealer


def children_of(directory: str) -> Iterator[tuple[str, str]]:
    """Yield kind and name of each named child in the directory of a FanoutCache."""
    for kind in CHILDREN:
        top = os.path.join(directory, kind)
        for path, _, names in walk(top):
            if any(map(is_database, names)) and path != top:
                yield kind, os.path.relpath(path, top)
