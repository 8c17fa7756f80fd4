"""Compression dictionaries as rows of the database, by version.

Each shard has its own copy, so that a shard that is set aside takes nothing with it that another one needs. A word of
the header changes with every change here, so that other processes notice without a query.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..coherence.generations import Header
from . import statements as sql

if TYPE_CHECKING:
    from .store import Store

PREFIX = "dictionary."
MAX_VERSION = (1 << 16) - 1
PER_DATABASE = 256


def versions(store: Store) -> list[int]:
    """Return the versions that there are, in order; a row of any other name is not one."""
    names = [name for (name,) in store.select(sql.SELECT_DICTIONARY_NAMES) if isinstance(name, str)]
    numbers = [name.removeprefix(PREFIX) for name in names]
    found = sorted(int(number) for number in numbers if number.isascii() and number.isdigit() and len(number) <= 5)
    return [version for version in found if 0 < version <= MAX_VERSION]


def next_version(store: Store) -> int:
    """Return a version that no entry of this shard can name: the successor of a damaged database counts on from it."""
    return max([store.epoch * PER_DATABASE, *versions(store)]) + 1


def read(store: Store, version: int) -> object:
    """Return what is stored as that version, None if nothing is."""
    rows = store.select(sql.SELECT_SETTING, (f"{PREFIX}{version}",))
    return rows[0][0] if rows else None


def add(store: Store, version: int, content: bytes, timeout: float | None) -> bool:
    """Store a new version; return False if another process was first, whose dictionary has to stay."""
    for attempt in store.attempts():
        with attempt, store.locked(timeout):
            if read(store, version) is not None:
                return False
            store.put_setting(f"{PREFIX}{version}", content)
            store.header[Header.DICTIONARY] += 1
    return True


def remove(store: Store, version: int, timeout: float | None) -> None:
    """Remove a version."""
    for attempt in store.attempts():
        with attempt, store.locked(timeout):
            store.drop_setting(f"{PREFIX}{version}")
            store.header[Header.DICTIONARY] += 1


def mark(store: Store) -> tuple[int, int]:
    """Return what is another pair once the dictionaries are other ones."""
    return store.epoch, store.header[Header.DICTIONARY]
