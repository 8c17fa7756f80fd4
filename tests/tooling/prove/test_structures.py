"""The model of a deque and an index answers as they do, and a history on one without an order is found."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from diskcache_like import Cache
from prove.linearizability.calls import Weights, answer_of
from prove.linearizability.histories import NO_ORDER, Recorded
from prove.linearizability.structures import DEQUE, INDEX, DrawStructure, violations

KINDS = {"deque": DEQUE, "index": INDEX}


def recorded(*calls: tuple[tuple[Any, ...], Any], at_once: bool = False) -> list[Recorded]:
    """Return a history of calls with their answers, one after the other or all at once, each by another client."""
    return [
        Recorded(client, call, 0 if at_once else 2 * client, answer, 99 if at_once else 2 * client + 1)
        for client, (call, answer) in enumerate(calls)
    ]


def found(history: Sequence[Recorded]) -> bool:
    """Tell whether the judge finds no order."""
    (text,) = violations(history, {}) or ("",)
    return text.startswith(NO_ORDER)


@pytest.mark.parametrize("kind", KINDS)
def test_one_client_is_answered_as_the_model_is(tmp_path: Path, kind: str) -> None:
    weights: Weights = KINDS[kind]
    with Cache(tmp_path) as cache:
        for seed in range(30):
            cache.clear()
            history = DrawStructure(random.Random(seed), "", weights).history(3)
            calls = [*history.before, *(call for client in history.clients for call in client)]
            played = [(call, answer_of(cache, call)) for call in calls]
            assert not violations(recorded(*played), {})


def test_what_no_order_explains_is_found() -> None:
    limit = (("deque.limit", 2), None)
    append, other = (("deque.append", 1), None), (("deque.append", 2), None)
    assert not found(recorded(limit, append, other, (("deque.popleft",), 1)))
    assert found(recorded(limit, append, other, (("deque.popleft",), 2)))
    assert not found(recorded(limit, append, other, (("deque.popleft",), 2), at_once=True))
    assert found(recorded(limit, append, other, (("deque.len",), 3), at_once=True))
    assert found(recorded(limit, append, (("deque.pop",), "IndexError")))
    assert found(recorded(limit, (("deque.extend", [1, 2, 3]), None), (("deque.at", 0), 1)))  # that one was dropped


def test_an_index_has_its_order() -> None:
    put, other = (("index.put", "a", 1), None), (("index.put", "b", 2), None)
    assert not found(recorded(put, other, (("index.put", "a", 3), None), (("index.popitem", True), ("b", 2))))
    assert found(recorded(put, other, (("index.popitem", True), ("a", 1))))
    assert not found(recorded(put, other, (("index.popitem", True), ("a", 1)), at_once=True))
    assert found(recorded(put, (("index.setdefault", "a", 5), 5)))
    assert found(recorded(put, other, (("index.move", "a", "b"), (2, 2)), (("index.at", "a"), 1)))
