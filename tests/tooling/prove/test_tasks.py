"""Clients that are asyncio tasks: they make the same calls, and a cancelled one is told from all others."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from diskcache_like import Cache
from prove.linearizability.calls import RUN, WHOLE, Cancelled, DrawLooked, Raised
from prove.linearizability.clients import Handle, answer_of_task, opened
from prove.linearizability.histories import Call, Recorded, violations
from prove.linearizability.proofs import places_of
from tests.support.workers import PATIENCE


@pytest.mark.parametrize("shards", [1, 3])
def test_a_face_answers_one_task_as_the_model_does(tmp_path: Path, shards: int) -> None:
    with opened(tmp_path, Handle("slots", True), shards) as cache:
        for seed in range(20):
            cache.clear()
            draw = DrawLooked(random.Random(seed), "x", WHOLE)
            history = draw.history(3)
            made = [*itertools.chain(*(each for position in range(3) for each in history.phases(position)))]
            answers = asyncio.run(answers_of(cache, made))
            found = [Recorded(0, call, 2 * at, answers[at], 2 * at + 1) for at, call in enumerate(made)]
            assert violations(found, places_of(cache, draw)) == []


async def answers_of(cache: Cache, calls: Sequence[Call]) -> list[object]:
    return [await answer_of_task(cache.aio, call, []) for call in calls]


def test_all_is_looked_at_when_all_are_done() -> None:
    draw = DrawLooked(random.Random(1), "x", WHOLE)
    history = draw.history(3)
    *_, first = history.phases(0)
    *_, last = history.phases(2)
    assert [name for name, *_ in first] == ["transact", *(name for name, *_ in last)]
    assert {call[1] for call in last} == {*draw.keys, draw.queue}


def test_a_task_that_is_cancelled_goes_on_with_the_next_call(tmp_path: Path) -> None:
    inside, done = threading.Event(), threading.Event()

    def hold() -> None:
        with cache.transact():
            inside.set()
            assert done.wait(PATIENCE)

    async def main() -> list[object]:
        task = asyncio.current_task()
        assert task is not None
        waited = await answer_of_task(cache.aio, ("set", "k", 1, ()), [0.0, 0.0])
        done.set()
        return [waited, task.cancelling(), await answer_of_task(cache.aio, ("add", "k", 2, ()), [PATIENCE])]

    with Cache(tmp_path) as cache:
        holder = threading.Thread(target=hold)
        holder.start()
        try:
            assert inside.wait(PATIENCE)
            assert asyncio.run(main()) == [Cancelled(), 0, True]
        finally:
            done.set()
            holder.join()


def test_a_call_that_swallows_its_cancellation_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def swallow(face: object) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()

    monkeypatch.setitem(RUN, "swallow", swallow)
    with Cache(tmp_path) as cache:
        answer = asyncio.run(answer_of_task(cache.aio, ("swallow",), [0.0]))
    assert isinstance(answer, Raised)
