"""Clients that are killed: what they had called and were answered is known, and when they are killed is as drawn."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from diskcache_like.coherence import _native
from prove.linearizability.calls import WHOLE, Cancelled, Draw
from prove.linearizability.clients import (
    CLIENTS,
    Around,
    Diary,
    End,
    Fuse,
    Handle,
    Role,
    Service,
    diary_of,
    in_threads,
    recorded,
)
from prove.linearizability.histories import PENDING, Call, Recorded
from prove.linearizability.proofs import FRESH, MORTAL, Crowd, Death, Linearizability, drawn_deaths, looked

CALLS: list[Call] = [("get", "k"), ("set", "k", 1, ()), ("delete", "k")]
GONE = 99


def diary_with(path: Path, *notes: object) -> bytes:
    diary = Diary(path)
    for note in notes:
        diary.note(note)
    diary.close()
    return path.read_bytes()


def test_the_last_call_of_a_diary_is_pending_unless_it_was_answered(tmp_path: Path) -> None:
    path = tmp_path / "diary"
    diary_with(path, 1, (None, 2), 3)
    first, second = recorded(path, 7, CALLS, GONE)
    assert first == Recorded(7, CALLS[0], 1, None, 2)
    assert second == Recorded(7, CALLS[1], 3, PENDING, GONE)
    diary_with(path, 1, (None, 2), 3, (True, 4))
    assert [one.answer for one in recorded(path, 7, CALLS, GONE)] == [None, True]


def test_a_call_whose_task_was_cancelled_is_told_from_one_that_was_killed(tmp_path: Path) -> None:
    diary_with(tmp_path / "diary", 1, (Cancelled(), 2))
    assert [*recorded(tmp_path / "diary", 7, CALLS, GONE)] == [Recorded(7, CALLS[0], 1, PENDING, 2, cancelled=True)]


def test_a_note_that_was_cut_off_was_not_made(tmp_path: Path) -> None:
    path = tmp_path / "diary"
    called = len(diary_with(path, 1 << 40))
    whole = diary_with(path, 1 << 40, (True, 1 << 41))
    for length in range(len(whole) + 1):
        path.write_bytes(whole[:length])
        found = [one.answer for one in recorded(path, 7, CALLS, GONE)]
        assert found == ([] if length < called else [PENDING] if length < len(whole) else [True])


@pytest.mark.parametrize(("step", "told"), [(0, 0), (1, 0), (2, 1), (3, 2), (4, 3), (9, 4)])
def test_a_fuse_tells_once_at_its_step_or_when_there_are_no_more(step: int, told: int) -> None:
    seen: list[list[int]] = []
    words = _native.Words(bytearray(16), 0, 2)
    fuse = Fuse(lambda: seen.append([*words]), lambda: None)
    stepped = Around(words, fuse.step)
    stepped[0] = 5
    assert not seen, "it was not lit"
    fuse.light(step)
    stepped[0], stepped[1] = 1, 2
    fuse.out()
    stepped[0] = 3
    assert seen == [[[5, 0], [1, 0], [1, 0], [1, 2], [1, 2]][told]]


def test_what_a_pending_transaction_concerns_is_read_as_one() -> None:
    calls: list[Call] = [("get", "k"), ("get", "l"), ("get", "m")]
    answers = [(1, 7, 2), (3, 8, 4), (5, 9, 6)]
    separate = [Recorded(FRESH, call, *answer) for call, answer in zip(calls, answers, strict=True)]
    assert looked(answers, calls, []) == separate
    assert looked(answers, calls, [Recorded(0, ("set", "k", 1, ()), 0, PENDING, 9)]) == separate
    transaction = ("transact", (("set", "k", 1, ()), ("pop", "m")), False)
    assert looked(answers, calls, [Recorded(0, transaction, 0, PENDING, 9)]) == [
        separate[1],
        Recorded(FRESH, ("transact", (calls[0], calls[2]), False), 1, (7, 9), 6),
    ]


def test_one_or_two_of_those_who_take_part_are_killed_in_calls_of_theirs() -> None:
    source = random.Random(3)
    seen = set()
    for number in range(200):
        cast = Linearizability(WHOLE, kills=True).drawn_cast(source)
        assert MORTAL[0] <= len(cast.handles) <= MORTAL[1]
        history = Draw(source, str(number), WHOLE).history(len(cast.clients))
        deaths = drawn_deaths(source, cast, history)
        victims = [process for death in deaths for process in death.processes]
        assert len({*victims}) == len(victims) in (1, 2)
        assert cast.handles.keys() >= {*victims}
        for death in deaths:
            position = cast.clients.index(death.end.client)
            assert position in cast.own(death.processes[0])
            before, calls = history.phases(position)
            name = calls[death.end.call - len(before)][0]
            seen.add((len(deaths), len(victims), name, death.end.step))
    assert {(one, two) for one, two, _, _ in seen} == {(1, 1), (1, 2), (2, 2)}
    assert {("transact", 5), ("transact", 6), ("set", 3), ("get", 0)} <= {(name, step) for _, _, name, step in seen}


@pytest.mark.parametrize("step", [1, 2, 3, 4])
def test_a_client_is_killed_at_a_change_of_a_generation_and_the_others_go_on(tmp_path: Path, step: int) -> None:
    handle = Handle("slots", hot=True, slow=True)
    calls: list[Call] = [("set", "k", 1, ()), ("set", "l", 2, ()), ("set", "m", 3, ())]
    parts: dict[int, list[list[Call]]] = {0: [[("set", "k", 0, ())], calls], CLIENTS: [[], [("add", "n", 4, ())]]}
    end = End(0, 2, step)
    roles = {
        process: Role(handle, 1, (0, CLIENTS), (CLIENTS * process,), [(False, parts)], None if process else end)
        for process in (0, 1)
    }
    service = Service(tmp_path, 1, lambda cache: None, in_threads, mortal=True)
    with Crowd([service] * 2) as crowd:
        gone = crowd.play(roles, [Death((0,), end, 0)])
        assert gone.keys() == {0}
        found = [*recorded(diary_of(tmp_path, 0), 0, [("set", "k", 0, ()), *calls], gone[0])]
        assert [one.answer for one in found] == [True, True, PENDING], "it was in its second call, after the first"
        crowd.replace(gone)
        seen = [one.answer for one in crowd.look({0: handle}, [("get", key) for key in "klmn"])]
        assert seen == [1, None if step < 3 else 2, None, 4]
