"""Rows: what the store takes and gives, and what a `decide` function may answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class Row(NamedTuple):
    """What one entry puts into the columns of its row."""

    v: bytes
    expire: float | None = None
    tag: bytes | None = None
    size: int = 0
    file: bytes | str | None = None
    original_key: bytes | None = None
    queue: bytes | None = None
    num: int | None = None


class Remove:
    """What a `decide` function returns to have the entry removed; `REMOVE` is the one instance."""


REMOVE = Remove()


class Touch(NamedTuple):
    """What a `decide` function returns to change nothing but the expiry."""

    expire: float | None
    v: bytes


Change = bytes | Row | Touch | Remove | None
Decide = Callable[[bytes | None], Change]
