"""The row codec by itself: keys to places, values to rows and back, with stand-ins for the session and its store."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest

from diskcache_like import DecodeError, ValueTooLarge
from diskcache_like.disk.contract import Disk
from diskcache_like.encoding.keys import queue_key
from diskcache_like.encoding.record import MODE_RAW, NO_METADATA, Metadata, Record
from diskcache_like.entries.atomic_key import AtomicKey
from diskcache_like.entries.metrics import Metrics
from diskcache_like.entries.row_codec import RowCodec
from diskcache_like.errors import DiskFull
from diskcache_like.storage.store import Row


class Store:
    """A store without a database."""

    displaced = 0

    def __init__(self) -> None:
        self.disk = Disk("")
        self.freed = False
        self.recovery = self

    def reclaim_when_locked(self, timeout: float, for_file: bool) -> bool:
        return self.freed

    def in_transaction(self) -> bool:
        return False

    def find(self, h: int, stored: bytes) -> None:
        return


def codec(strict: bool = False, limit: float = math.inf) -> tuple[RowCodec, Any, Any]:
    """Return a codec with the session and the store that it was given."""
    store = Store()
    session = SimpleNamespace(
        shards=SimpleNamespace(stores=[store], modulus=(1 << 61) - 1),
        disk=store.disk,
        sealer=None,
        signs_all=False,
        pickle_policy="signed",
        clock=lambda: 100.0,
        timeout=1.0,
        value_limit=limit,
        metrics=Metrics(),
        options=SimpleNamespace(strict=strict),
        directory="nowhere",
    )
    return RowCodec(session), session, store  # type: ignore[arg-type]


@pytest.mark.parametrize("key", ["text", b"bytes", 7, (1, "two"), None])
def test_what_becomes_a_row_comes_back(key: Any) -> None:
    rows, _, store = codec()
    location = rows.locate(key)
    row = rows.row(key, location, (MODE_RAW, b"payload", None, 0), Metadata(105.0, b"\x03tag"))
    assert isinstance(row, Row)
    record = rows.verified(key, location, row.v)
    assert record == Record(MODE_RAW, b"payload", Metadata(105.0, b"\x03tag"))
    assert rows.is_live(record)
    assert rows.locate(key) == location
    assert location[2] is store


def test_a_plain_entry_is_a_record_alone() -> None:
    rows, _, _ = codec()
    location = rows.locate("key")
    row = rows.row("key", location, (MODE_RAW, b"payload", None, 0), NO_METADATA)
    assert type(row) is bytes
    assert rows.verified("key", location, row) == Record(MODE_RAW, b"payload")


def test_an_item_of_a_queue_without_metadata_has_a_simple_record() -> None:
    rows, _, _ = codec()
    key = queue_key("jobs", 5)
    row = rows.row(key, rows.locate(key), (MODE_RAW, b"payload", None, 0), NO_METADATA)
    assert isinstance(row, Row)
    assert len(row.v) == len(b"payload") + 5


def test_a_record_of_another_key_is_reported() -> None:
    rows, session, _ = codec()
    row = rows.row("key", rows.locate("key"), (MODE_RAW, b"payload", None, 0), NO_METADATA)
    assert rows.verified_own("other", rows.locate("other"), row) is None  # type: ignore[arg-type]
    assert session.metrics.damaged == 1


def test_damage_is_raised_in_strict_mode_and_names_the_key() -> None:
    rows, _, _ = codec(strict=True)
    with pytest.raises(DecodeError, match="'nowhere': key 'key'"):
        rows.verified_own("key", rows.locate("key"), b"\x01 damaged")
    with pytest.raises(DecodeError, match="file is gone"):
        rows.report_lost_file("key")


def test_a_row_beyond_the_limit_is_oversize() -> None:
    rows, _, _ = codec(limit=100)
    assert not rows.is_oversize(bytes(100))
    assert rows.is_oversize(bytes(101))
    assert rows.is_oversize(Row(bytes(50), size=51))
    assert isinstance(rows.too_large("key"), ValueTooLarge)


@pytest.mark.parametrize(("freed", "read"), [(True, False), (False, False), (True, True)])
def test_a_full_disk_is_tried_again_once(freed: bool, read: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, _, store = codec()
    store.freed = freed
    tries: list[None] = []
    encoded = (MODE_RAW, b"payload", None, 0)

    def encode(value: Any, read: bool, key: Any) -> Any:
        tries.append(None)
        if len(tries) == 1:
            raise DiskFull("full", "")
        return encoded

    monkeypatch.setattr(store.disk, "encode", encode)
    if freed and not read:
        assert rows.encode(store, "value", read, "key") == encoded
    else:
        with pytest.raises(DiskFull):
            rows.encode(store, "value", read, "key")
        assert len(tries) == 1


def test_moments_are_those_of_the_given_clock() -> None:
    loader: Any = None  # which moments do not need
    key = AtomicKey(codec()[0], loader, "key")
    assert (key.now(), key.expiry(5), key.expiry(None)) == (100.0, 105.0, None)
    assert (key.left(103.0), key.left(90.0), key.left(None)) == (3.0, 0.001, math.inf)
    assert not key.in_transaction()
