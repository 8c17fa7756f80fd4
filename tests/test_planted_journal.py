"""A rollback journal that somebody planted: SQLite would remove the file that it names as its super-journal."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from diskcache_like import Cache, UnsafeDirectory

MAGIC = bytes.fromhex("d9d505f920a163d7")


def journal(superior: Path, page: int, pages: int) -> bytes:
    """Return a journal of no pages that names a super-journal."""
    name = os.fsencode(superior)
    head = MAGIC + bytes(8) + pages.to_bytes(4, "big") + (512).to_bytes(4, "big") + page.to_bytes(4, "big")
    lock_page = 0x40000000 // page + 1
    tail = lock_page.to_bytes(4, "big") + name + len(name).to_bytes(4, "big") + sum(name).to_bytes(4, "big") + MAGIC
    return head.ljust(512, b"\0") + tail


@pytest.mark.parametrize("mode", ["wal", "delete"])
def test_a_planted_journal_removes_no_file(tmp_path: Path, mode: str) -> None:
    victim, directory = tmp_path / "victim", tmp_path / "cache"
    victim.write_text("mine")
    with Cache(directory, sqlite_journal_mode=mode) as cache:
        cache["key"] = 1
    size = (directory / "cache.db").stat().st_size
    (directory / "cache.db-journal").write_bytes(journal(victim, 2048, size // 2048))
    with pytest.raises(UnsafeDirectory, match="journal"):
        Cache(directory)
    assert victim.read_text() == "mine"
