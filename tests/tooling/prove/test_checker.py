"""The checker of histories: what has an order, what has none, and that the model says what a cache does."""

from __future__ import annotations

import itertools
import random
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diskcache_like import Cache
from prove.linearizability import checker, structures
from prove.linearizability.calls import EVERYDAY, RUN, WHOLE, Draw, Raised, Weights, play
from prove.linearizability.checker import Operation, State, Undecided, refuted
from prove.linearizability.clients import Handle, opened
from prove.linearizability.histories import PENDING, Call, Piece, Place, Recorded, changes, parts, violations
from prove.linearizability.proofs import judge, places_of
from prove.proof import Trial

ONE: dict[Place, int] = {"k": 0, "l": 0, "q": 0}
TWO: dict[Place, int] = {"k": 0, "l": 1, "q": 0}  # places in two shards


def told(*lines: tuple[int, int, Call, Any]) -> list[Recorded]:
    """Return a history of operations, each given by the times of call and return, the call, and the answer."""
    return [
        Recorded(client, call, called, PENDING if answer is GONE else answer, returned, answer is GONE)
        for client, (called, returned, call, answer) in enumerate(lines)
    ]


def is_legal(*lines: tuple[int, int, Call, Any], shards: dict[Place, int] = ONE) -> bool:
    return not violations(told(*lines), shards)


SET = ("set", "k", 1, ())
GET = ("get", "k")

LEGAL = {
    "nothing": (),
    "a read that overlaps a write sees the value before": ((0, 9, SET, True), (1, 2, GET, None)),
    "a read that overlaps a write sees the value after": ((0, 9, SET, True), (1, 2, GET, 1)),
    "two writes at once, the later call first": (
        (0, 9, SET, True), (1, 8, ("set", "k", 2, ()), True), (10, 11, GET, 1),
    ),
    "a touch at the moment of return": ((0, 5, SET, True), (5, 6, GET, None)),
    "counts in any order": (
        (0, 9, ("incr", "k", 1, 0), 2), (0, 9, ("incr", "k", 1, 0), 1), (0, 9, ("decr", "k", 1, 0), 1),
    ),
    "one of two adds": ((0, 9, ("add", "k", 1, ()), False), (0, 9, ("add", "k", 2, ()), True)),
    "who is expired is there for nobody": (
        (0, 1, SET, True), (2, 3, ("expire", "k"), True), (4, 5, ("pop", "k"), None), (6, 7, ("touch", "k"), False),
        (8, 9, ("add", "k", 2, ()), True),
    ),
    "clear counts who is expired": ((0, 1, SET, True), (2, 3, ("expire", "k"), True), (4, 5, ("clear",), 1)),
    "clear finds who is expired removed": ((0, 1, SET, True), (2, 3, ("expire", "k"), True), (4, 5, ("clear",), 0)),
    "clear finds one of two, who is expired, removed": (
        (0, 1, SET, True), (2, 3, ("set", "l", 2, ()), True), (4, 5, ("expire", "k"), True), (6, 7, ("clear",), 1),
    ),
    "clear removes what comes while it runs": (
        (0, 9, ("clear",), 2), (1, 2, SET, True), (3, 4, GET, None), (5, 6, ("set", "k", 2, ()), True), (7, 8, GET, None),
    ),
    "evict removes its tag only": (
        (0, 1, ("set", "k", 1, ("t",)), True), (2, 3, ("set", "l", 2, ("u",)), True), (4, 5, ("evict", ("t",), "any"), 1),
        (6, 7, GET, None), (8, 9, ("get", "l"), 2),
    ),
    "evict removes who is expired, and does not count them": (
        (0, 1, ("set_many", {"k": 1, "l": 1}, ("t",)), 2), (2, 3, ("expire", "k"), True),
        (4, 5, ("evict", ("t",), "any"), 1), (6, 7, ("clear",), 0),
    ),
    "evict removes what has any of the tags": (
        (0, 1, ("set", "k", 1, ("t",)), True), (2, 3, ("set", "l", 2, ("u",)), True),
        (4, 5, ("evict", ("t", "u"), "any"), 2), (6, 7, GET, None),
    ),
    "evict removes one of the tags, then the other": (
        (0, 1, ("set", "k", 1, ("t",)), True), (2, 3, ("set", "l", 2, ("u",)), True),
        (4, 9, ("evict", ("t", "u"), "any"), 2), (5, 6, GET, None), (6, 7, ("get", "l"), 2),
    ),
    "evict removes only what has all of the tags": (
        (0, 1, ("set", "k", 1, ("t",)), True), (2, 3, ("set", "l", 2, ("t", "u")), True),
        (4, 5, ("evict", ("t", "u"), "all"), 1), (6, 7, GET, 1), (6, 7, ("get", "l"), None),
    ),
    "a soft evict decides about each key by itself": (
        (0, 1, ("set_many", {"k": 1, "l": 1}, ("t",)), 2), (2, 9, ("soft", ("k", "l"), ("t",), "any"), None),
        (3, 4, GET, None), (5, 6, ("get", "l"), 1), (10, 11, ("get", "l"), None),
    ),
    "retag keeps the value": (
        (0, 1, ("set", "k", 1, ("t",)), True), (2, 3, ("retag", "k", ("u",), ("t",)), True),
        (4, 5, ("entry", "k"), (1, ("u",))), (6, 7, ("evict", ("t",), "any"), 0), (8, 9, ("look", "k"), 1),
    ),
    "a swap returns what it replaced": (
        (0, 9, ("swap", "k", 1, ()), 2), (0, 9, ("swap", "k", 2, ()), None), (10, 11, GET, 1),
    ),
    "who waits gets what another computed": (
        (0, 9, ("compute", "k", 1, ()), 2), (0, 9, ("compute", "k", 2, ()), 2), (10, 11, GET, 2),
    ),
    "what was written during a computation stays": (
        (0, 9, ("compute", "k", 1, ()), 1), (1, 2, ("set", "k", 2, ()), True), (3, 4, GET, 2), (10, 11, GET, 2),
    ),
    "one computes when what another has computed is gone": (
        (0, 9, ("compute", "k", 1, ()), 1), (0, 9, ("compute", "k", 2, ()), 2), (0, 9, ("delete", "k"), True),
    ),
    "incr keeps the tag": (
        (0, 1, ("set", "k", 1, ("t",)), True), (2, 3, ("incr", "k", 1, 0), 2), (4, 5, ("evict", ("t",), "any"), 1),
    ),
    "get_many reads key by key": (
        (0, 9, ("set_many", {"k": 1, "l": 1}, ()), 2), (1, 8, ("get_many", ("k", "l")), {"k": 1}),
    ),
    "a queue": (
        (0, 1, ("push", "q", 1, "back", ()), True), (2, 3, ("push", "q", 2, "front", ()), True),
        (4, 5, ("peek", "q", "back"), 1), (6, 9, ("pull", "q", "front"), 1),
        (6, 9, ("pull", "q", "front"), 2), (10, 11, ("pull", "q", "front"), None),
    ),
    "a transaction reads its own writes": (
        (0, 1, ("transact", (SET, GET, ("pop", "k")), False), (True, 1, 1)), (2, 3, GET, None),
    ),
    "a transaction that was undone": ((0, 1, ("transact", (SET, GET), True), (True, 1)), (2, 3, GET, None)),
}  # fmt: skip

ILLEGAL = {
    "a stale read": ((0, 1, SET, True), (2, 3, GET, None)),
    "a value that nobody wrote": ((0, 1, SET, True), (2, 3, GET, 7)),
    "a value from the future": ((0, 1, GET, 1), (2, 3, SET, True)),
    "new and then old": ((0, 9, SET, True), (1, 2, GET, 1), (3, 4, GET, None)),
    "an increment that was lost": ((0, 9, ("incr", "k", 1, 0), 1), (0, 9, ("incr", "k", 1, 0), 1)),
    "two who both added": ((0, 9, ("add", "k", 1, ()), True), (0, 9, ("add", "k", 2, ()), True)),
    "two who both removed": (
        (0, 1, SET, True), (2, 9, ("delete", "k"), True), (2, 9, ("delete", "k"), True),
    ),
    "an entry that came back": ((0, 1, SET, True), (2, 3, ("pop", "k"), 1), (4, 5, GET, 1)),
    "a value whose expiry was forgotten": ((0, 1, SET, True), (2, 3, ("expire", "k"), True), (4, 5, GET, 1)),
    "an item pulled twice": (
        (0, 1, ("push", "q", 1, "back", ()), True), (2, 9, ("pull", "q", "front"), 1),
        (2, 9, ("pull", "q", "back"), 1),
    ),
    "an item pulled ahead of an older one": (
        (0, 1, ("push", "q", 1, "back", ()), True), (2, 3, ("push", "q", 2, "back", ()), True),
        (4, 5, ("pull", "q", "front"), 2),
    ),
    "clear counts more than there was": ((0, 1, SET, True), (2, 3, ("clear",), 2)),
    "clear leaves an entry": ((0, 1, SET, True), (2, 3, ("clear",), 1), (4, 5, GET, 1)),
    "clear counts less than it removed": ((0, 1, SET, True), (2, 3, ("clear",), 0), (4, 5, GET, None)),
    "evict counts who is expired": (
        (0, 1, ("set_many", {"k": 1, "l": 1}, ("t",)), 2), (2, 3, ("expire", "k"), True),
        (4, 5, ("evict", ("t",), "any"), 2),
    ),
    "evict removes another tag": (
        (0, 1, ("set", "k", 1, ("u",)), True), (2, 3, ("evict", ("t",), "any"), 0), (4, 5, GET, None),
    ),
    "evict leaves what has one of the tags": (
        (0, 1, ("set", "k", 1, ("t", "u")), True), (2, 3, ("evict", ("u", "v"), "any"), 0), (4, 5, GET, 1),
    ),
    "evict removes what has one tag of all": (
        (0, 1, ("set", "k", 1, ("t",)), True), (2, 3, ("evict", ("t", "u"), "all"), 1),
    ),
    "evict removes the other of the tags first": (
        (0, 1, ("set", "k", 1, ("t",)), True), (2, 3, ("set", "l", 2, ("u",)), True),
        (4, 9, ("evict", ("t", "u"), "any"), 2), (5, 6, ("get", "l"), None), (7, 8, GET, 1),
    ),
    "a soft evict leaves an entry": (
        (0, 1, ("set", "k", 1, ("t",)), True), (2, 3, ("soft", ("k", "l"), ("t",), "any"), None), (4, 5, GET, 1),
    ),
    "a tag that came back": (
        (0, 1, ("set", "k", 1, ("t",)), True), (2, 3, ("retag", "k", (), ("t",)), True),
        (4, 5, ("entry", "k"), (1, ("t",))),
    ),
    "two who replaced the same": (
        (0, 1, SET, True), (2, 9, ("swap", "k", 2, ()), 1), (2, 9, ("swap", "k", 3, ()), 1),
    ),
    "a computation overwrites what was written meanwhile": (
        (0, 9, ("compute", "k", 1, ()), 1), (1, 2, ("set", "k", 2, ()), True), (3, 4, GET, 2), (10, 11, GET, 1),
    ),
    "two who both computed": ((0, 9, ("compute", "k", 1, ()), 1), (0, 9, ("compute", "k", 2, ()), 2)),
    "what was there is computed": ((0, 1, SET, True), (2, 3, ("compute", "k", 2, ()), 2)),
    "half a set_many": (
        (0, 9, ("set_many", {"k": 1, "l": 1}, ()), 2), (1, 2, GET, 1), (3, 4, ("get", "l"), None),
    ),
    "a set_many that counts less": ((0, 9, ("set_many", {"k": 1, "l": 1}, ()), 1),),
    "half a transaction": (
        (0, 9, ("transact", (SET, ("set", "l", 1, ())), False), (True, True)), (1, 2, GET, 1),
        (3, 4, ("get", "l"), None),
    ),
    "an undone transaction that was seen": ((0, 9, ("transact", (SET,), True), (True,)), (1, 2, GET, 1)),
    "a transaction between whose reads somebody wrote": (
        (0, 1, SET, True), (2, 9, ("transact", (GET, ("get", "l")), False), (1, 2)), (3, 4, ("pop", "k"), 1),
        (5, 6, ("set", "l", 2, ()), True),
    ),
    "transactions that each missed the other": (
        (0, 9, ("transact", (GET, ("set", "l", 1, ())), False), (None, True)),
        (0, 9, ("transact", (("get", "l"), SET), False), (None, True)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LEGAL)
def test_a_history_with_an_order_is_accepted(name: str) -> None:
    assert is_legal(*LEGAL[name])


@pytest.mark.parametrize("name", ILLEGAL)
def test_a_history_without_one_is_refused(name: str) -> None:
    assert not is_legal(*ILLEGAL[name])


TRANSACTION = ("transact", (SET, ("set", "l", 1, ())), False)
HALF_SEEN = ((0, 9, TRANSACTION, (True, True)), (1, 2, GET, 1), (3, 4, ("get", "l"), None))


def test_shards_commit_one_after_the_other_but_let_nobody_write_between() -> None:
    assert is_legal(*HALF_SEEN, shards=TWO)
    assert not is_legal(*HALF_SEEN, (5, 6, ("add", "l", 2, ()), True), shards=TWO)
    late = ("transact", (("get", "l"), ("set", "k", 2, ())), False)
    assert not is_legal(*HALF_SEEN[:2], (3, 4, late, (None, True)), shards=TWO)
    assert is_legal(*HALF_SEEN[:2], (3, 4, late, (1, True)), shards=TWO)
    assert not is_legal(*HALF_SEEN[:2], (3, 4, ("transact", (GET, ("get", "l")), False), (1, None)), shards=TWO)
    assert not is_legal(*HALF_SEEN[:2], (3, 4, ("clear",), 1), shards=TWO)
    assert not is_legal(*HALF_SEEN, (5, 6, ("get", "l"), 1), (7, 8, GET, None), shards=TWO)


def test_shards_have_a_set_many_of_their_own() -> None:
    half = (0, 9, ("set_many", {"k": 1, "l": 1}, ()), 2), (1, 2, GET, 1), (3, 4, ("get", "l"), None)
    assert is_legal(*half, shards=TWO)
    assert is_legal(*half, (5, 6, ("add", "l", 2, ()), True), shards=TWO)
    assert not is_legal(*half[:2], (10, 11, ("get", "l"), None), shards=TWO)


def test_shards_are_cleared_one_after_the_other() -> None:
    both = (0, 1, ("set_many", {"k": 1, "l": 2}, ()), 2)
    assert is_legal(both, (2, 9, ("clear",), 2), (3, 4, GET, None), (5, 6, ("get", "l"), 2), shards=TWO)
    assert not is_legal(both, (2, 9, ("clear",), 2), (3, 4, ("get", "l"), None), (5, 6, GET, 1), shards=TWO)
    assert not is_legal(both, (2, 9, ("clear",), 2), (3, 4, GET, None), (5, 6, ("get", "l"), 2), shards=ONE)


def test_a_refusal_tells_what_could_not_be_placed() -> None:
    (text,) = violations(told(*ILLEGAL["new and then old"]), ONE)
    assert "at most 2 of 3" in text
    assert [line.rpartition("  ")[2] for line in text.splitlines() if line.startswith(">")] == ["get(k) = None"]


# -- operations whose client was killed --------------------------------------------------------------------------------

DEATH = 5  # when the clients of the pending operations were gone
KILLED_SET = (2, DEATH, SET, PENDING)
SET_2 = ("set", "k", 2, ())
SET_L = ("set", "l", 1, ())
BOTH = ("transact", (SET, SET_L), False)
KILLED_BOTH = (2, DEATH, BOTH, PENDING)
LAST = ("transact", (GET, ("get", "l")), False)  # as of a handle that was opened when all had ended
PUSHED = (0, 1, ("push", "q", 1, "back", ()), True)

PENDING_LEGAL = {
    "it took effect": (KILLED_SET, (7, 8, GET, 1)),
    "it took none": (KILLED_SET, (7, 8, GET, None)),
    "it took effect while it ran": (KILLED_SET, (3, 4, GET, 1), (7, 8, GET, 1)),
    "it is seen late": (KILLED_SET, (6, 7, GET, None), (8, 9, GET, 1)),
    "it took effect, and was overwritten": (KILLED_SET, (6, 7, SET_2, True), (8, 9, GET, 2)),
    "it took effect before one that was called while its client lived": (
        KILLED_SET, (4, 9, SET_2, True), (10, 11, GET, 1),
    ),
    "a count with or without it": (
        (0, 1, SET, True), (2, DEATH, ("incr", "k", 5, 0), PENDING), (2, DEATH, ("decr", "k", 2, 0), PENDING),
        (7, 8, GET, 6), (9, 10, ("incr", "k", 1, 0), 7),
    ),
    "an add that did nothing": ((0, 1, SET_2, True), (2, DEATH, ("add", "k", 1, ()), PENDING), (7, 8, GET, 2)),
    "who was expired by it": (
        (0, 1, SET, True), (2, DEATH, ("expire", "k"), PENDING), (6, 7, GET, None), (8, 9, ("clear",), 1),
    ),
    "a computation that stored": ((2, DEATH, ("compute", "k", 1, ()), PENDING), (7, 8, GET, 1)),
    "a computation whose value another one found as it stored its own": (
        (2, DEATH, ("compute", "k", 1, ()), PENDING), (6, 7, ("compute", "k", 2, ()), 2), (8, 9, GET, 1),
    ),
    "a computation that ended with its client": (
        (2, DEATH, ("compute", "k", 1, ()), PENDING), (6, 7, ("compute", "k", 2, ()), 2), (8, 9, GET, 2),
    ),
    "half of a soft evict": (
        (0, 1, ("set_many", {"k": 1, "l": 1}, ("t",)), 2), (2, DEATH, ("soft", ("k", "l"), ("t",), "any"), PENDING),
        (7, 8, LAST, (None, 1)),
    ),
    "an item that it pulled": (PUSHED, (2, DEATH, ("pull", "q", "front"), PENDING), (7, 8, ("pull", "q", "front"), None)),
    "an item that it pushed": (
        (2, DEATH, ("push", "q", 1, "back", ()), PENDING), (7, 8, ("pull", "q", "front"), 1),
    ),
    "reads": (
        (2, DEATH, GET, PENDING), (2, DEATH, ("get_many", ("k", "l")), PENDING), (2, DEATH, ("peek", "q", "front"), PENDING),
        (2, DEATH, ("transact", (GET,), False), PENDING), (7, 8, GET, None),
    ),
    "all of a transaction": (KILLED_BOTH, (7, 8, LAST, (1, 1))),
    "nothing of a transaction": (KILLED_BOTH, (7, 8, LAST, (None, None))),
    "clear": ((0, 1, SET, True), (2, DEATH, ("clear",), PENDING), (7, 8, GET, None)),
    "evict": (
        (0, 1, ("set", "k", 1, ("t",)), True), (1, 2, SET_L, True), (2, DEATH, ("evict", ("t",), "any"), PENDING),
        (7, 8, LAST, (None, 1)),
    ),
}  # fmt: skip

PENDING_ILLEGAL = {
    "an effect before its call": ((0, 1, GET, 1), KILLED_SET),
    "an effect that is gone again": (KILLED_SET, (6, 7, GET, 1), (8, 9, GET, None)),
    "an effect behind a write that was called when its client was gone": (
        KILLED_SET, (6, 7, SET_2, True), (8, 9, GET, 1),
    ),
    "an effect twice": (
        (2, DEATH, ("incr", "k", 1, 0), PENDING), (6, 7, GET, 1), (8, 9, GET, 2),
    ),
    "an effect before, and behind, another write": (
        KILLED_SET, (3, 4, GET, 1), (5, 9, SET_2, True), (10, 11, GET, 1),
    ),
    "what was acknowledged before is lost": ((0, 1, SET_2, True), (2, DEATH, ("touch", "k"), PENDING), (7, 8, GET, None)),
    "two items pulled by one": (
        PUSHED, (1, 2, ("push", "q", 2, "back", ()), True), (3, DEATH, ("pull", "q", "front"), PENDING),
        (7, 8, ("pull", "q", "front"), None),
    ),
    "an item of its pull that came back": (
        PUSHED, (2, DEATH, ("pull", "q", "front"), PENDING), (6, 7, ("peek", "q", "front"), None),
        (8, 9, ("pull", "q", "front"), 1),
    ),
    "half of a transaction": (KILLED_BOTH, (7, 8, LAST, (1, None))),
    "the other half": (KILLED_BOTH, (7, 8, LAST, (None, 1))),
    "an undone transaction": ((2, DEATH, ("transact", (SET,), True), PENDING), (7, 8, GET, 1)),
    "an evict of another tag": (
        (0, 1, ("set", "k", 1, ("u",)), True), (2, DEATH, ("evict", ("t",), "any"), PENDING), (7, 8, GET, None),
    ),
    "half a set_many": ((2, DEATH, ("set_many", {"k": 1, "l": 1}, ()), PENDING), (7, 8, LAST, (1, None))),
    "half a clear": (
        (0, 1, BOTH, (True, True)), (2, DEATH, ("clear",), PENDING), (7, 8, LAST, (1, None)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PENDING_LEGAL)
def test_an_operation_of_a_killed_client_has_an_effect_or_none(name: str) -> None:
    assert is_legal(*PENDING_LEGAL[name])


@pytest.mark.parametrize("name", PENDING_ILLEGAL)
def test_an_operation_of_a_killed_client_has_no_other_effect(name: str) -> None:
    assert not is_legal(*PENDING_ILLEGAL[name])


def test_shards_complete_a_transaction_whose_client_was_killed_before_anything_else_is_written() -> None:
    for seen in ((1, 1), (None, None)):
        assert is_legal(KILLED_BOTH, (7, 8, LAST, seen), shards=TWO)
    for torn in ((1, None), (None, 1)):
        assert not is_legal(KILLED_BOTH, (7, 8, LAST, torn), shards=TWO)
    half = KILLED_BOTH, (6, 7, GET, 1), (8, 9, ("get", "l"), None)
    assert is_legal(*half, shards=TWO), "a reader outside of a transaction waits for nobody"
    assert is_legal(*half, (10, 11, ("incr", "l", 1, 0), 2), shards=TWO)
    assert not is_legal(*half, (10, 11, ("incr", "l", 1, 0), 1), shards=TWO)
    assert not is_legal(*half, (10, 11, LAST, (1, None)), shards=TWO)
    assert not is_legal(*half, (10, 11, LAST, (1, 1)), (12, 13, ("get", "l"), None), shards=TWO)
    assert not is_legal(KILLED_BOTH, (6, 7, SET_2, True), (8, 9, LAST, (1, 1)), shards=TWO), "begun after a later write"


def test_shards_have_parts_of_their_own_of_what_a_killed_client_did() -> None:
    for call in (("set_many", {"k": 1, "l": 1}, ()), ("clear",)):
        before = (0, 1, ("set_many", {"k": 7, "l": 7}, ()), 2)
        new = None if call == ("clear",) else 1
        found = [
            seen
            for seen in itertools.product((7, new), repeat=2)
            if is_legal(before, (2, DEATH, call, PENDING), (7, 8, LAST, seen), shards=TWO)
        ]
        assert found == ([(7, 7), (None, 7), (None, None)] if new is None else [(7, 7), (7, 1), (1, 7), (1, 1)])


def test_a_write_to_another_shard_closes_nothing() -> None:
    """What a killed client has committed to one shard may be seen late, until somebody writes there."""
    late = (0, 1, LAST, (None, None)), KILLED_SET, (6, 7, SET_L, True), (8, 9, GET, None), (10, 11, GET, 1)
    assert is_legal(*late, shards=TWO)
    assert not is_legal(*late, shards=ONE)
    both = (0, 1, ("set_many", {"k": 7, "l": 7}, ()), 2)
    cleared = (
        both,
        (2, DEATH, ("clear",), PENDING),
        (6, 7, SET_2, True),
        (8, 9, ("get", "l"), 7),
        (10, 11, ("get", "l"), None),
    )
    assert is_legal(*cleared, shards=TWO)
    assert not is_legal(*cleared, shards=ONE)


def test_a_refusal_tells_what_was_pending() -> None:
    (text,) = violations(
        told(*PENDING_ILLEGAL["an effect behind a write that was called when its client was gone"]), ONE
    )
    assert "at most 1 of 2" in text
    assert [line[0] for line in text.splitlines() if "set(" in line] == ["?", " "]


# -- operations whose task was cancelled ------------------------------------------------------------------------------

GONE = object()  # stands for the answer of such an operation
END = 5  # when their tasks went on
CANCELLED_SET = (2, END, SET, GONE)
CANCELLED_BOTH = (2, END, BOTH, GONE)
CANCELLED_COMPUTE = (2, END, ("compute", "k", 1, ()), GONE)

CANCELLED_LEGAL = {
    "it took effect": (CANCELLED_SET, (7, 8, GET, 1)),
    "it took none": (CANCELLED_SET, (7, 8, GET, None)),
    "it took effect while it ran": (CANCELLED_SET, (3, 4, GET, 1), (7, 8, GET, 1)),
    "it was overwritten at once": (CANCELLED_SET, (END, 6, SET_2, True), (7, 8, GET, 2)),
    "it overwrote what was called before its end": (CANCELLED_SET, (4, 9, SET_2, True), (10, 11, GET, 1)),
    "a read that began while it ran sees none of it": (CANCELLED_SET, (4, 7, GET, None), (8, 9, GET, 1)),
    "all of a transaction": (CANCELLED_BOTH, (7, 8, LAST, (1, 1))),
    "nothing of a transaction": (CANCELLED_BOTH, (7, 8, LAST, (None, None))),
    "clear": ((0, 1, SET, True), (2, END, ("clear",), GONE), (7, 8, GET, None)),
    "a computation goes on for somebody else who waits for it": (
        CANCELLED_COMPUTE, (4, 9, ("compute", "k", 2, ()), 1), (6, 7, GET, None), (10, 11, GET, 1),
    ),
    "a computation goes on though who waited for it got another value": (
        CANCELLED_COMPUTE, (3, 4, SET_2, True), (3, 6, ("compute", "k", 3, ()), 2), (7, 8, ("delete", "k"), True),
        (9, 10, GET, None), (11, 12, GET, 1),
    ),
}  # fmt: skip

CANCELLED_ILLEGAL = {
    "an effect before its call": ((0, 1, GET, 1), CANCELLED_SET),
    "an effect after its end": (CANCELLED_SET, (6, 7, GET, None), (8, 9, GET, 1)),
    "an effect that is gone again": (CANCELLED_SET, (6, 7, GET, 1), (8, 9, GET, None)),
    "an effect behind a write that was called after its end": (CANCELLED_SET, (6, 7, SET_2, True), (8, 9, GET, 1)),
    "an effect twice": ((2, END, ("incr", "k", 1, 0), GONE), (6, 7, GET, 2)),
    "an item of its pull that came back": (
        PUSHED, (2, END, ("pull", "q", "front"), GONE), (6, 7, ("peek", "q", "front"), None),
        (8, 9, ("pull", "q", "front"), 1),
    ),
    "half of a transaction": (CANCELLED_BOTH, (7, 8, LAST, (1, None))),
    "an undone transaction": ((2, END, ("transact", (SET,), True), GONE), (7, 8, GET, 1)),
    "a computation that went on though nobody waited": (
        CANCELLED_COMPUTE, (6, 7, GET, None), (8, 9, ("compute", "k", 2, ()), 1),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CANCELLED_LEGAL)
def test_an_operation_of_a_cancelled_task_has_an_effect_or_none(name: str) -> None:
    assert is_legal(*CANCELLED_LEGAL[name])


@pytest.mark.parametrize("name", CANCELLED_ILLEGAL)
def test_an_operation_of_a_cancelled_task_has_no_effect_later(name: str) -> None:
    assert not is_legal(*CANCELLED_ILLEGAL[name])


def test_shards_have_all_or_nothing_of_a_transaction_whose_task_was_cancelled() -> None:
    assert is_legal(CANCELLED_BOTH, (6, 7, GET, 1), (8, 9, ("get", "l"), 1), shards=TWO)
    assert not is_legal(CANCELLED_BOTH, (6, 7, GET, 1), (8, 9, ("get", "l"), None), shards=TWO)
    assert is_legal(CANCELLED_BOTH, (3, 4, GET, 1), (3, 4, ("get", "l"), None), (6, 7, LAST, (1, 1)), shards=TWO)
    cleared = (0, 1, BOTH, (True, True)), (2, END, ("clear",), GONE)
    assert is_legal(*cleared, (6, 7, LAST, (None, 1)), shards=TWO), "a removal goes shard by shard"
    assert not is_legal(*cleared, (6, 7, LAST, (None, 1)), (8, 9, LAST, (None, None)), shards=TWO)


# -- against all orders -----------------------------------------------------------------------------------------------


class Pretend:
    """A cache in memory, which takes one call after the other."""

    def __init__(self) -> None:
        self._entries: dict[str, int] = {}
        self._queue: deque[int] = deque()

    def answer(self, call: Call) -> Any:
        """Take a call on one place and return its answer."""
        name, place, *arguments = call
        if name in ("push", "pull"):
            return self._queued(name, *arguments)
        entries, here = self._entries, place in self._entries
        if name == "set" or (name == "add" and not here):
            entries[place] = arguments[0]
            return True
        if name == "incr":
            delta, default = arguments
            entries[place] = entries.get(place, default) + delta
            return entries[place]
        if name in ("get", "pop"):
            return entries.get(place) if name == "get" else entries.pop(place, None)
        if name in ("delete", "expire"):
            return entries.pop(place, None) is not None
        return False

    def _queued(self, name: str, *arguments: Any) -> Any:
        queue, front = self._queue, arguments[-1] == "front" if name == "pull" else arguments[1] == "front"
        if name == "pull":
            return None if not queue else queue.popleft() if front else queue.pop()
        (queue.appendleft if front else queue.append)(arguments[0])
        return True


def applied(state: dict[str, Any], call: Call, answer: Any) -> dict[str, Any] | None:
    """Return the state after a call on one place, None if its answer is wrong there."""
    piece = Piece(list(state), ONE)
    (part,) = parts(Recorded(0, call, 0, answer, 0), ONE)
    for after, _ in piece._step(part, alone=False)((*state.values(), 0)):
        return dict(zip(state, after, strict=False))
    return None


def calls() -> st.SearchStrategy[list[Call]]:
    """Draw calls on two keys and a queue, with values of their own."""
    names = st.sampled_from(["get", "set", "add", "incr", "pop", "delete", "expire", "push", "pull"])
    return st.lists(st.tuples(names, st.sampled_from("kl"), st.sampled_from(["front", "back"])), max_size=6).map(
        lambda drawn: [spelled(number, *one) for number, one in enumerate(drawn, 1)]
    )


def spelled(number: int, name: str, key: str, side: str) -> Call:
    if name in ("set", "add"):
        return name, key, number, ()
    if name == "incr":
        return name, key, 10, number
    if name == "push":
        return name, "q", number, side, ()
    return (name, "q", side) if name == "pull" else (name, key)


def history_of(made: Sequence[Call], source: random.Random) -> list[Recorded]:
    """Return what a cache answered that took one call after the other, with intervals about those moments."""
    cache = Pretend()
    return [
        Recorded(
            number, call, 10 * number - source.randint(0, 25), cache.answer(call), 10 * number + source.randint(0, 25)
        )
        for number, call in enumerate(made)
    ]


def orders(history: Sequence[Recorded]) -> Iterator[tuple[Recorded, ...]]:
    """Yield every order in which nothing precedes what had returned before it was called."""
    for order in itertools.permutations(history):
        if not any(is_amiss(one, other) for one, other in itertools.combinations(order, 2)):
            yield order


def is_amiss(one: Recorded, other: Recorded) -> bool:
    """Tell whether `one` cannot come before `other`."""
    if other.answer is not PENDING or other.cancelled:
        return one.called > other.returned
    return one.answer is not PENDING and one.called > other.returned and changes(one.call, one.answer)


def has_order(history: Sequence[Recorded]) -> bool:
    """Judge a history by trying all orders, of all or without some of what is pending."""
    pending = [one for one in history if one.answer is PENDING]
    answered = [one for one in history if one.answer is not PENDING]
    chosen = itertools.chain.from_iterable(
        itertools.combinations(pending, number) for number in range(len(pending) + 1)
    )
    for order in itertools.chain.from_iterable(orders([*answered, *some]) for some in chosen):
        state: dict[str, Any] | None = {"k": None, "l": None, "q": ()}
        for one in order:
            state = None if state is None else applied(state, one.call, one.answer)
        if state is not None:
            return True
    return False


@given(made=calls(), source=st.randoms(use_true_random=False))
def test_what_was_done_in_some_order_is_accepted(made: list[Call], source: random.Random) -> None:
    assert violations(history_of(made, source), ONE) == []


@given(made=calls().filter(bool), source=st.randoms(use_true_random=False))
def test_an_altered_answer_is_judged_as_all_orders_judge_it(made: list[Call], source: random.Random) -> None:
    history = history_of(made, source)
    number = source.randrange(len(history))
    others = [one.answer for one in history] + [None, True, False, (None, None)]
    history[number] = history[number]._replace(answer=source.choice(others))
    assert (violations(history, ONE) == []) == has_order(history)


@given(made=calls().filter(bool), source=st.randoms(use_true_random=False))
def test_a_lost_answer_is_judged_as_all_orders_judge_it(made: list[Call], source: random.Random) -> None:
    history = history_of(made, source)
    for number in source.sample(range(len(history)), min(2, len(history))):
        history[number] = history[number]._replace(answer=PENDING, cancelled=source.random() < 0.5)
    if source.random() < 0.5:
        number = source.randrange(len(history))
        other = source.choice(history)
        history[number] = history[number]._replace(answer=other.answer, cancelled=other.cancelled)
    assert (violations(history, ONE) == []) == has_order(history)


def test_orders_leave_nothing_to_the_checker() -> None:
    """The judge of the test before: it finds the orders that there are."""
    assert has_order(told(*LEGAL["two writes at once, the later call first"]))
    assert not has_order(told(*ILLEGAL["new and then old"]))


def test_a_configuration_is_looked_at_once() -> None:
    """Twelve operations at once have 479 million orders, but few sets of them that may have been placed."""
    looked = 0

    def effect(state: State) -> list[tuple[State, bool]]:
        nonlocal looked
        looked += 1
        return [((state[0] + 1,), True)] if state[0] < 11 else []

    assert refuted([Operation(0, 9, effect)] * 12, (0,)) is not None
    assert looked <= 12 << 12


# -- against a cache --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("weights", [EVERYDAY, WHOLE], ids=["everyday", "whole"])
def test_the_model_says_what_a_cache_does(tmp_path: Path, shards: int, weights: Weights) -> None:
    with opened(tmp_path, Handle("slots", True), shards) as cache:
        for seed in range(40):
            cache.clear()
            found, draw = alone(cache, random.Random(seed), weights)
            assert violations(found, places_of(cache, draw)) == []


def alone(cache: Cache, source: random.Random, weights: Weights) -> tuple[list[Recorded], Draw]:
    """Play the calls of several clients one after the other."""
    draw = Draw(source, "x", weights)
    history = draw.history(3)
    made = [*history.before, *itertools.chain(*history.clients)]
    return [Recorded(0, call, *answer) for call, answer in zip(made, play(cache, made), strict=True)], draw


def test_an_exception_is_an_answer(tmp_path: Path) -> None:
    with opened(tmp_path, Handle("slots", True), 1) as cache:
        ((_, first, _), (_, second, _)) = play(cache, [("incr", "k", "text", 0), ("get", "k")])
    assert isinstance(first, Raised)
    assert "TypeError" in first.error
    assert second is None


def test_every_kind_of_operation_is_drawn_and_played() -> None:
    assert set(WHOLE) - {"undone"} == set(RUN) - {"deque.limit", *structures.OPERATIONS}
    assert {*structures.DEQUE, *structures.INDEX} == set(structures.OPERATIONS) < set(RUN)
    assert set(EVERYDAY) < set(RUN)


def test_a_history_with_too_many_orders_is_counted_and_is_no_violation(monkeypatch: pytest.MonkeyPatch) -> None:
    tangled = told(*((0, 9, ("set", "k", each, ()), True) for each in range(8)), (10, 11, GET, "never set"))
    assert violations(tangled, ONE)
    monkeypatch.setattr(checker, "MOST", 20)
    with pytest.raises(Undecided):
        violations(tangled, ONE)
    with Trial(7, 0.0) as trial:
        judge(trial, tangled, ONE, [])
        assert trial.findings.violations == []
        assert trial.findings.counts["histories with too many orders to try all"] == 1
