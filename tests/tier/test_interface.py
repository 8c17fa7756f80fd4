"""What a store with `remote=` answers: all that an operation on a key asks, and an error for anything else."""

from __future__ import annotations

import ast
import inspect
from typing import Any

import pytest

from diskcache_like import Cache
from diskcache_like.storage.interface import Slots
from diskcache_like.storage.store import Store

from ..support.project import ROOT
from .machines import Machines

PACKAGE = ROOT / "diskcache_like"
# What this machine's shard answers for both, since value files are never on the server.
PASSED_ON = frozenset({"disk", "directory", "refers_to", "make_room"})


def names_of(made: object) -> set[str]:
    """Return the public names of an object."""
    return {name for name in dir(made) if not name.startswith("_")}


@pytest.fixture
def stores(machines: Machines) -> tuple[Store, Any]:
    """Return a shard of this machine, and what stands for it in a cache with `remote=`."""
    cache = machines.open("a")
    (local,) = cache._shards.stores
    (tiered,) = cache._rows.stores
    return local, tiered


def test_every_name_of_a_store_is_of_the_tier_or_raises(stores: tuple[Store, Any]) -> None:
    local, tiered = stores
    assert names_of(local) >= names_of(tiered)
    for name in names_of(local) - names_of(tiered):
        with pytest.raises(AttributeError, match=name):
            getattr(tiered, name)


def test_only_what_is_about_value_files_is_passed_on(stores: tuple[Store, Any]) -> None:
    local, tiered = stores
    same = {name for name in names_of(tiered) if getattr(local, name) == getattr(tiered, name)}
    assert same - {"displaced"} == PASSED_ON


def test_both_take_the_same_arguments(stores: tuple[Store, Any]) -> None:
    _, tiered = stores
    for name in names_of(tiered) - PASSED_ON:
        if callable(getattr(tiered, name)):
            ours, theirs = (inspect.signature(getattr(store, name)).parameters.values() for store in stores)
            assert [each.default for each in ours] == [each.default for each in theirs], name


def test_an_operation_that_the_tier_does_not_know_changes_nothing_here(
    machines: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    def rename(store: Store, home: int, stored_key: bytes) -> int:
        return store.remove(home, stored_key, None)

    monkeypatch.setattr(Store, "rename", rename, raising=False)
    here, there = machines.pair()
    here["k"] = 1
    stored_key, home, store = here._rows.locate("k")
    with pytest.raises(AttributeError, match="rename"):
        store.rename(home, stored_key)
    assert (len(here), here["k"], there["k"]) == (1, 1, 1)
    with Cache(machines.place("c")) as plain:
        plain["k"] = 1
        stored_key, home, local = plain._rows.locate("k")
        assert local.rename(home, stored_key)  # type: ignore[attr-defined]
        assert "k" not in plain


def test_what_an_open_shard_is_asked_is_there(stores: tuple[Store, Any]) -> None:
    _, tiered = stores
    assert names_of(tiered.shard) == names_of(Slots) | {*Slots.__annotations__}


def test_nothing_answers_by_looking_elsewhere() -> None:
    for path in (PACKAGE / "tier").glob("*.py"):
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree):
            assert not (isinstance(node, ast.FunctionDef) and node.name.startswith("__getattr")), path
            assert not (isinstance(node, ast.Name) and node.id == "SimpleNamespace"), path
