"""Compression dictionaries as rows of the database, by version.

Each shard has its own copy, so that a quarantined database takes nothing with it that another shard needs. A word of
the header changes with every change here, so that other processes notice without a query.
"""

from __future__ import annotations

from contextlib import suppress

from ..coherence.generations import MAX_WORD, Header
from ..errors import DecodeError
from .sqlite import statements as sql
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
    """Return a version that no entry of this shard can name, not even one of a quarantined database before this one."""
    return max([store.session.epoch * PER_DATABASE, *versions(store)]) + 1


def read(store: Store, version: int) -> object:
    """Return what is stored as that version, None if nothing is; raise DecodeError for one that does not open."""
    rows = store.select(sql.SELECT_SETTING, (f"{PREFIX}{version}",))
    if not rows or store.disk.sealer is None:
        return rows[0][0] if rows else None
    return store.disk.sealer.open_setting(f"{PREFIX}{version}", rows[0][0])


def add(store: Store, version: int, content: bytes, timeout: float | None) -> bool:
    """Store a new version; return False if another process was first, whose dictionary has to stay."""
    for attempt in store.attempts():
        with attempt, store.locked(timeout):
            name = f"{PREFIX}{version}"
            if store.select(sql.SELECT_SETTING, (name,)):
                return False
            sealer = store.disk.sealer
            store.connection.put_setting(name, content if sealer is None else sealer.seal_setting(name, content))
            _note_change(store)
    return True


def remove(store: Store, version: int, timeout: float | None) -> None:
    """Remove a version."""
    for attempt in store.attempts():
        with attempt, store.locked(timeout):
            store.connection.drop_setting(f"{PREFIX}{version}")
            _note_change(store)


def _note_change(store: Store) -> None:
    store.session.header[Header.DICTIONARY] = (store.session.header[Header.DICTIONARY] + 1) & MAX_WORD


def seal_again(store: Store) -> None:
    """Seal every version of an encrypted cache with the present data key; in the caller's transaction."""
    sealer = store.disk.sealer
    assert sealer is not None
    for version in versions(store):
        name = f"{PREFIX}{version}"
        with suppress(DecodeError):
            content = read(store, version)
            assert isinstance(content, bytes)
            store.connection.put_setting(name, sealer.seal_setting(name, content))


def mark(store: Store) -> tuple[int, int]:
    """Return a pair that changes whenever the dictionaries do."""
    return store.session.epoch, store.session.header[Header.DICTIONARY]
