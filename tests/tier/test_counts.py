"""What is done with keys of several machines is counted once, by the machine that does it."""

from __future__ import annotations

from diskcache_like.entries.metrics import SpaceMetrics

from .machines import Machines, counted, is_up, until


def test_a_machine_counts_what_it_does_once(machines: Machines) -> None:
    here, there = machines.pair(max_staleness=30.0)  # a busy machine shall not let the lease run out
    until(lambda: is_up(there), "the machine hears from the server")
    here["a:1"] = 1
    here.set_many({"a:2": 2, "a:3": 3})
    here.incr("a:4")
    assert here.delete("a:3")
    assert not here.delete("a:3")
    assert here.metrics().total == SpaceMetrics(sets=4, deletes=1)
    until(lambda: counted(there, "invalidations") >= 5, "the machine hears of all that")  # else a read is not kept
    assert there["a:1"] == there["a:1"] == 1
    assert there.get("a:3") is None
    assert there.get_many(["a:1", "a:2"]) == {"a:1": 1, "a:2": 2}
    assert there.metrics().spaces == {"a": SpaceMetrics(hot=2, remote=2, misses=1)}
    assert here.metrics().total == SpaceMetrics(sets=4, deletes=1)
