"""Rows: what the store takes and gives, and what a `decide` function may answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from ...encoding.record import Metadata


class Row(NamedTuple):
    """What one entry puts into the columns of its row."""

    packed: bytes
    expire: float | None = None  # when the entry goes
    fresh: float | None = None  # when it expires, if it is kept after that
    tags: str | None = None  # the names of its tags in the index
    size: int = 0
    file: bytes | str | None = None
    original_key: bytes | None = None
    queue: bytes | None = None
    num: int | None = None

    @staticmethod
    def expiries(metadata: Metadata) -> tuple[float | None, float | None]:
        """Return what the columns `expire` and `fresh` say of an entry."""
        expire, _, retain_until, *_ = metadata
        return (expire, None) if retain_until is None else (retain_until, expire)


class Remove:
    """What a `decide` function returns to have the entry removed; `REMOVE` is the one instance."""


REMOVE = Remove()


class Touch(NamedTuple):
    """What a `decide` function returns to change the metadata and not the value."""

    packed: bytes
    expire: float | None
    fresh: float | None
    tags: str | None


Change = bytes | Row | Touch | Remove | None
Decide = Callable[[bytes | None], Change]
