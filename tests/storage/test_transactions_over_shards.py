"""Transactions over several shards: all of one or nothing, whenever its process dies and whatever the disk refuses."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from diskcache_like import Cache
from diskcache_like.coherence.generations import Header
from diskcache_like.encoding.values import encode_value
from diskcache_like.errors import CacheError, CorruptDatabaseWarning, DiskFull, StorageError
from diskcache_like.storage import redo_log
from diskcache_like.storage.opening import opener
from diskcache_like.storage.opening.identity import COMMITTING, LAST_TRANSACTION
from diskcache_like.storage.shard.ownership import Transaction
from diskcache_like.storage.shard.transactions import Transactions
from diskcache_like.storage.shard.writer_connection import WriterConnection
from diskcache_like.storage.store import Store
from diskcache_like.system import boot as system_boot

from ..support import shard_transactions
from ..support.crash_scenarios import cut_off, die, nurse, victims
from ..support.inspection import problems
from ..support.integrity import mend, opened
from ..support.statement_hooks import watch
from ..support.workers import PATIENCE, Crew, Worker

LATER = [f"late {number}" for number in range(20)]
KIND = "fanout"  # prove/ does the same to encrypted ones


@pytest.fixture(scope="module")
def nurse_() -> Iterator[Worker]:
    with Crew() as crew:
        yield crew.start(nurse)


# -- deaths -----------------------------------------------------------------------------------------------------------


def journaling(steps: list[str]) -> int:
    """Return the step at which a transaction begins to write its journal."""
    return steps.index("before INSERT INTO setting", steps.index("before DELETE FROM entry"))


def test_a_transaction_is_whole_after_a_death_at_any_step_of_its_commits(nurse_: Worker, tmp_path: Path) -> None:
    """Deaths are completed by an opening, in turn with each of the things that a handle which was open may do."""
    directory, completed, seen = tmp_path / "cache", [*shard_transactions.COMPLETE.values()], set()
    with opened(directory, KIND) as hot, opened(directory, KIND, hot_size_limit=0) as cold:
        shard_transactions.prepare(hot)
        steps = die(nurse_, directory, KIND, "across shards", -1)
        assert steps is not None
        for at in range(journaling(steps), len(steps)):
            shard_transactions.prepare(hot)
            if die(nurse_, directory, KIND, "across shards", at) is not None:  # fewer steps than the first time
                break
            if at % 2:
                completed[at // 2 % len(completed)](hot)
            else:
                opened(directory, KIND).close()
            state = shard_transactions.found(cold)
            assert shard_transactions.is_whole(state), f"half of a transaction after a death {steps[at]}"
            assert shard_transactions.found(hot) == state
            seen.add(len(state[0]))
            mend(hot)
    assert len(seen) == 2, "every death was on the same side of the decision"


def test_completing_may_be_cut_short_at_any_step(nurse_: Worker, tmp_path: Path) -> None:
    cut_off(nurse_, tmp_path / "template", KIND)
    deaths = 0
    for at in victims(nurse_, tmp_path, KIND, "open a copy"):
        deaths += 1
        with opened(tmp_path / str(at), KIND, strict=True) as cache:
            assert shard_transactions.found(cache) == (shard_transactions.AFTER, shard_transactions.REQUEUED)
            mend(cache)
    assert deaths > 12


def test_a_header_whose_maker_died_has_others_look_for_a_transaction(
    nurse_: Worker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut_off(nurse_, tmp_path, KIND)
    for path in tmp_path.glob("*/cache.gen"):
        path.unlink()
    monkeypatch.setattr(opener, "_renew", lambda *_: None)  # what comes just after the header is made
    with opened(tmp_path, KIND) as cache:
        assert shard_transactions.found(cache) == (shard_transactions.AFTER, shard_transactions.REQUEUED)
    monkeypatch.undo()
    with opened(tmp_path, KIND) as cache:
        mend(cache)


def test_a_rotation_begins_with_completing(nurse_: Worker, tmp_path: Path) -> None:
    with opened(tmp_path / "cache", "sealed fanout") as cache:
        cut_off(nurse_, tmp_path / "cache", "sealed fanout")
        cache.rotate("another secret, of more than sixteen")
        assert shard_transactions.found(cache) == (shard_transactions.AFTER, shard_transactions.REQUEUED)
        assert journal_of(cache) == {}
        mend(cache)


@pytest.mark.parametrize("which", ["with the journal", "without its part"])
def test_a_database_may_be_quarantined_before_its_transaction_is_completed(
    nurse_: Worker, tmp_path: Path, which: str
) -> None:
    """Its entries are missing then; of the others all are new if the journal is left, and all old if it is not."""
    shard, rows = kept_journal(nurse_, tmp_path / "cache")
    damaged_one = shard if which == "with the journal" else 1 - shard
    database = tmp_path / "cache" / f"{damaged_one:03d}" / "cache.db"
    with contextlib.closing(sqlite3.connect(database)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    database.write_bytes(database.read_bytes()[:100] + b"\xff" * 10_000)
    with pytest.warns(CorruptDatabaseWarning):
        cache = opened(tmp_path / "cache", "fanout")
    with cache:
        lost = cache._shards.stores[damaged_one]
        wanted = shard_transactions.BEFORE if which == "with the journal" else shard_transactions.AFTER
        left = {key: value for key, value in wanted.items() if cache._rows.locate(key)[2] is not lost}
        assert shard_transactions.found(cache)[0] == left
        mend(cache)
        shard_transactions.prepare(cache)
        if which == "without its part":
            plant(cache, shard, dict(rows))  # what was meant for the one that is quarantined
            cache.set(("number", 0), 0)
            assert shard_transactions.found(cache) == (shard_transactions.BEFORE, shard_transactions.QUEUED)
        shard_transactions.change(cache)
        assert shard_transactions.found(cache) == (shard_transactions.AFTER, shard_transactions.REQUEUED)


# -- refusals ---------------------------------------------------------------------------------------------------------


class Refused:
    """Have COMMIT fail in the n-th shard that commits a transaction, so many times."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, at: int, times: int, error: Callable[[], CacheError]) -> None:
        self._at, self._left, self._error = at, times, error
        self._commits, self._commit = 0, WriterConnection.commit
        monkeypatch.setattr(WriterConnection, "commit", lambda connection, txn: self(connection, txn))

    def __call__(self, connection: WriterConnection, txn: Transaction) -> None:
        self._commits += 1
        if self._commits > self._at and self._left:
            self._left -= 1
            raise self._error()
        self._commit(connection, txn)


def refused() -> CacheError:
    return StorageError("input/output error")


def full() -> CacheError:
    return DiskFull("no room", "cache.db")


@pytest.mark.parametrize("due", [0, 1])
def test_a_transaction_cut_off_while_an_earlier_one_is_completed_is_whole_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, due: int
) -> None:
    with opened(tmp_path, "fanout") as cache, opened(tmp_path, "fanout") as other:
        shard_transactions.prepare(cache)
        waiting, take_alone = threading.Event(), Transactions.take_alone

        def noted(transactions: Transactions, timeout: float | None) -> None:
            waiting.set()
            take_alone(transactions, timeout)

        monkeypatch.setattr(Transactions, "take_alone", noted)
        # As if its process had been killed.
        monkeypatch.setattr(cache._shards._redo_log, "complete", lambda error, txns: None)
        Refused(monkeypatch, 1, 1, refused)
        completing = threading.Thread(target=other._shards._redo_log.roll_forward, args=(None,))
        with cache.transact():
            # What the other sees: one shard is due, for an earlier transaction's sake, and all the others are not.
            cache._shards.stores[due].shard.header[Header.CROSS_SHARD] = COMMITTING
            completing.start()
            assert waiting.wait(PATIENCE)
            shard_transactions.change(cache)
        completing.join(PATIENCE)
        assert not completing.is_alive()
        shard_transactions.COMPLETE["a transaction"](other)
        assert shard_transactions.found(other) == (shard_transactions.AFTER, shard_transactions.REQUEUED)
        mend(other)


@pytest.mark.parametrize("error", [refused, full])
def test_a_refused_decision_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Callable[[], CacheError]
) -> None:
    with opened(tmp_path, "fanout") as cache:
        shard_transactions.prepare(cache)
        with monkeypatch.context() as patch:
            Refused(patch, 0, 1, error)
            with pytest.raises(type(error())):
                shard_transactions.change(cache)
        assert shard_transactions.found(cache) == (shard_transactions.BEFORE, shard_transactions.QUEUED)
        assert problems(cache) == [], "files of what was rolled back stay"
        shard_transactions.change(cache)
        assert shard_transactions.found(cache) == (shard_transactions.AFTER, shard_transactions.REQUEUED)
        mend(cache)


@pytest.mark.parametrize("error", [refused, full])
def test_a_commit_refused_once_after_the_decision_is_made_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Callable[[], CacheError]
) -> None:
    with opened(tmp_path, "fanout") as cache:
        shard_transactions.prepare(cache)
        Refused(monkeypatch, 1, 1, error)
        shard_transactions.change(cache)
        assert shard_transactions.found(cache) == (shard_transactions.AFTER, shard_transactions.REQUEUED)
        mend(cache)


@pytest.mark.parametrize("name", shard_transactions.COMPLETE)
def test_a_disk_that_fails_after_the_decision_is_told_and_made_good_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    with opened(tmp_path, "fanout") as cache, opened(tmp_path, "fanout") as other:
        shard_transactions.prepare(cache)
        with monkeypatch.context() as patch:
            Refused(patch, 1, 100, refused)
            with pytest.raises(StorageError, match="is completed when that shard is written again"):
                shard_transactions.change(cache)
            with pytest.raises(StorageError):  # nothing comes between
                shard_transactions.COMPLETE["a transaction"](other)
        shard_transactions.COMPLETE[name](other)
        assert (
            shard_transactions.found(other)
            == shard_transactions.found(cache)
            == (shard_transactions.AFTER, shard_transactions.REQUEUED)
        )
        mend(cache)


# -- journals that lie ------------------------------------------------------------------------------------------------


def journal_of(cache: Cache) -> dict[str, bytes]:
    """Return the rows of a journal, and the shard that they are in."""
    found: dict[str, bytes] = {}
    for store in cache._shards.stores:
        found.update(store.select("SELECT name, value FROM setting WHERE name LIKE 'joint.redo.%'"))
    return found


def plant(cache: Cache, shard: int, rows: dict[str, object]) -> None:
    """Put a journal into a shard as if somebody had died just now."""
    store = cache._shards.stores[shard]
    with store.locked(None):
        for name, value in rows.items():
            store.connection.put_setting(name, value)
    for each in cache._shards.stores:
        each.shard.header[Header.CROSS_SHARD] = COMMITTING


def kept_journal(nurse_: Worker, directory: Path) -> tuple[int, dict[str, bytes]]:
    """Return the journal of a transaction that was cut off, and the number of its shard."""
    cut_off(nurse_, directory, "fanout")
    return journal_in(directory)


def journal_in(directory: Path) -> tuple[int, dict[str, bytes]]:
    """Return the journal that lies in a directory, and the number of its shard."""
    for number in range(2):
        with contextlib.closing(sqlite3.connect(directory / f"{number:03d}" / "cache.db")) as database:
            rows = dict(database.execute("SELECT name, value FROM setting WHERE name LIKE 'joint.redo.%'").fetchall())
        if rows:
            return number, rows
    raise AssertionError("no journal is there")


@pytest.mark.parametrize("restarted", [True, False])
def test_a_shard_has_no_later_write_without_an_earlier_one_after_a_power_loss(
    nurse_: Worker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, restarted: bool
) -> None:
    """Commits that are not synced may be lost in the one shard and not in the one with the journal."""
    directory = tmp_path / "cache"
    with opened(directory, KIND) as cache:
        shard_transactions.prepare(cache)
    shutil.copytree(directory, tmp_path / "lost")
    with opened(directory, KIND) as cache:
        cache.set_many(dict.fromkeys(LATER, "later"))
    assert die(nurse_, directory, KIND, "cut off", 0) is None
    shard, _ = journal_in(directory)
    other = f"{1 - shard:03d}"
    if restarted:
        shutil.rmtree(directory / other)
        shutil.copytree(tmp_path / "lost" / other, directory / other)
        (tmp_path / "boot_id").write_text("5eed5eed-5eed-5eed-5eed-5eed5eed5eed")
        monkeypatch.setattr(system_boot, "_BOOT_ID", tmp_path / "boot_id")
    with opened(directory, KIND) as cache:
        values, _ = shard_transactions.found(cache)
        for key in (*shard_transactions.BEFORE, *shard_transactions.AFTER):
            if cache._rows.locate(key)[2].directory.endswith(other):
                wanted = shard_transactions.BEFORE if restarted else shard_transactions.AFTER
                assert values.get(key) == wanted.get(key)
        there = [cache.get(key) for key in LATER if cache._rows.locate(key)[2].directory.endswith(other)]
        assert there == [None if restarted else "later"] * len(there) != []
        mend(cache)


def test_an_old_journal_does_nothing(nurse_: Worker, tmp_path: Path) -> None:
    shard, rows = kept_journal(nurse_, tmp_path / "cache")
    with opened(tmp_path / "cache", "fanout") as cache:
        assert shard_transactions.found(cache) == (shard_transactions.AFTER, shard_transactions.REQUEUED)
        shard_transactions.prepare(cache)
        plant(cache, shard, dict(rows))
        cache.set("k", 1)
        assert shard_transactions.found(cache) == (shard_transactions.BEFORE, shard_transactions.QUEUED)
        assert journal_of(cache) == {}
        mend(cache)


def damaged(rows: dict[str, bytes]) -> Iterator[dict[str, object]]:
    """Yield journals that are damaged or planted."""
    head = rows[redo_log.HEAD]
    identifier, (part,), *_ = redo_log._head(head)
    for other in (head[:-1], b"", "text", 1):
        yield {**rows, redo_log.HEAD: other}
    yield {redo_log.HEAD: head}  # pieces are missing
    for name, content in rows.items():
        for position in range(0, len(content), len(content) // 10):
            flipped = bytes((content[position] ^ 8,))
            yield {**rows, name: content[:position] + flipped + content[position + 1 :]}
    for planted in PLANTED:
        body = encode_value(planted)
        told = [part.shard, part.before, 0, 1, redo_log._digest(body)]
        yield {redo_log.HEAD: sealed([redo_log.FORMAT, identifier, [told], [body], 0])}
        yield {redo_log.HEAD: sealed([redo_log.FORMAT, identifier, [told], [], 0]), redo_log.CHUNK.format(0): body}
    for lie in (
        [part.shard, part.before, 0, 1 << 60, b""],
        [part.shard, part.before, -5, 2, b""],
        [part.shard, part.before, 10**5000, 1, b""],
        [part.shard, part.before, 0, 10**5000, b""],
        [part.shard, part.before],
        "part",
    ):
        yield {**rows, redo_log.HEAD: sealed([redo_log.FORMAT, identifier, [lie], [1, None], 0])}
    yield {redo_log.HEAD: sealed([redo_log.FORMAT + 1, identifier, [], [], 0])}
    yield {redo_log.HEAD: sealed([redo_log.FORMAT, identifier, [], []])}


def sealed(head: object) -> bytes:
    """Return the head of a journal with a checksum that is right."""
    content = encode_value(head)
    return redo_log._digest(content) + content


ROW = [4, b"k", 1, 2, 0, None, None, 0, None, None, None, None, b"v"]
PLANTED: list[object] = [
    None,
    [],
    [[4], [], []],
    [[5], [], [], []],  # no home
    [["4"], [], [], []],
    [[1 << 63], [], [], []],
    [[4], [[8, *ROW[1:]]], [], []],  # another place
    [[4], [ROW[:-1]], [], []],
    [[4], [[4, None, *ROW[2:]]], [], []],  # a key that is none
    [[4], [[4, b"k", 1 << 70, *ROW[3:]]], [], []],
    [[4], [[4, [], *ROW[2:]]], [], []],
    [[], [], [["../../x", 1]], []],
    [[], [], [], [["joint.mark", [b""]]]],
    [[], [], [], [["modulus", [1, 2]]]],
    [[], [], [], [[1, []]]],
    [[], [], [], [["\ud800", [1]]]],  # text that SQLite cannot take
    [[4], [[4, b"k", 1, 2, 0, None, "\ud800", *ROW[7:]]], [], []],
    [[0, 4], [[0, *ROW[1:10], b"q", 1, b"v"], [4, *ROW[1:10], b"q", 1, b"v"]], [], []],  # two items of one number
]


def test_a_damaged_or_planted_journal_changes_nothing_and_goes(nurse_: Worker, tmp_path: Path) -> None:
    shard, rows = kept_journal(nurse_, tmp_path / "cache")
    with opened(tmp_path / "cache", "fanout") as cache:
        shard_transactions.prepare(cache)
        other = cache._shards.stores[1 - shard]
        _, parts, *_ = redo_log._head(rows[redo_log.HEAD])
        for number, planted in enumerate(damaged(rows)):
            with other.locked(None):
                other.connection.put_setting(LAST_TRANSACTION, parts[0].before)  # the shard waits for its part
            plant(cache, shard, planted)
            with pytest.warns(CorruptDatabaseWarning, match="redo log"):
                cache.set(("number", 0), 0)
            assert shard_transactions.found(cache) == (shard_transactions.BEFORE, shard_transactions.QUEUED), (
                f"journal {number} was believed"
            )
            assert journal_of(cache) == {}
            assert problems(cache) == []


def test_a_journal_for_a_shard_that_is_none_goes(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    with opened(tmp_path / "cache", "fanout") as cache:
        parts = [["../../outside", None, 0, 1, b""], ["", None, 0, 1, b""]]
        plant(cache, 0, {redo_log.HEAD: sealed([redo_log.FORMAT, b"1", parts, [], 0])})
        assert cache.set("k", 1)
        assert journal_of(cache) == {}
        mend(cache)
    assert list((tmp_path / "outside").iterdir()) == []


def test_any_number_for_a_cut_off_transaction_in_the_header_is_only_a_look(tmp_path: Path) -> None:
    for kind in ("one", "fanout"):
        with opened(tmp_path / kind, kind) as cache:
            cache.set("k", 1)
            for store in cache._shards.stores:
                store.shard.header[Header.CROSS_SHARD] = (1 << 64) - 1
            assert cache.set("k", 2)
            assert (cache["k"], len(cache)) == (2, 1)
            assert not any(store.shard.header[Header.CROSS_SHARD] for store in cache._shards.stores)


# -- what it does not cost --------------------------------------------------------------------------------------------


def test_a_transaction_that_changes_one_shard_writes_no_journal(tmp_path: Path) -> None:
    statements: list[str] = []
    with opened(tmp_path, "fanout") as cache:
        watch(cache, statements.append)
        with cache.transact():
            cache.set("k", 1)
            assert cache.get("other") is None
    assert [statement for statement in statements if "setting" in statement] == []


def test_a_large_transaction_is_written_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redo_log, "CHUNK_BYTES", 5_000)
    pieces: list[int] = []
    put = redo_log._put

    def noted(store: Store, name: str, content: bytes) -> None:
        pieces.append(len(content))
        put(store, name, content)

    monkeypatch.setattr(redo_log, "_put", noted)
    with opened(tmp_path, "fanout") as cache:
        with cache.transact():
            for number in range(200):
                cache[number] = "x" * 1_000
        assert len(pieces) > 10
        assert max(pieces) < 7_000
        assert journal_of(cache) == {}
        assert len(cache) == 200
        mend(cache)
