"""Forked children that fork in their turn: for them a fork is what it was for their parent."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import pytest

from diskcache_like import Cache, FanoutCache

from ..support.workers import PATIENCE, Link, forked


@pytest.mark.parametrize("kind", [Cache, FanoutCache])
def test_a_fork_of_a_forked_child_waits_for_another_threads_transaction(tmp_path: Path, kind: type[Cache]) -> None:
    with kind(tmp_path / "cache", durability="process") as cache:
        cache.set("key", 0)

        def be_the_child(link: Link) -> None:
            complaints: list[object] = []
            sys.unraisablehook = complaints.append
            inside = threading.Event()

            def transact() -> None:
                with cache.transact(retry=True):
                    inside.set()
                    threading.Event().wait(0.3)

            thread = threading.Thread(target=transact)
            thread.start()
            assert inside.wait(PATIENCE)
            with forked(lambda link: cache.incr("key")) as child:
                assert child.result() == 1
            thread.join(PATIENCE)
            assert complaints == []

        with forked(be_the_child) as child:
            child.result()
        assert cache["key"] == 1
