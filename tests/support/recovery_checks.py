"""What has to be so after a death, seen by handles that looked on and by one that is opened then."""

from __future__ import annotations

from typing import Any

from diskcache_like import Cache

from .crash_scenarios import MARKING_ALL
from .integrity import mend
from .sample_writes import LARGE, MISSING, Write

BYSTANDERS: dict[Any, Any] = {
    **{("small", number): number for number in range(8)},
    ("large", 1): LARGE,
    ("large", 2): LARGE,
}


def prepare(hot: Cache, write: Write) -> None:
    """Have all as it is before the write, in the hot layer as well."""
    hot.delete(write.key)
    write.prepare(hot)
    for _ in range(2):
        assert hot.get(write.key, MISSING) == write.old
        assert hot.get_many(BYSTANDERS) == BYSTANDERS


def look_after(hot: Cache, cold: Cache, write: Write, name: str) -> None:
    """See that nothing is stale, torn, locked or left over after a death at the deed of that name.

    `hot` has looked on, `cold` has no hot layer.
    """
    spares_nobody = name.startswith(("clear", "cull"))
    value = cold.get(write.key, MISSING)
    assert value in (write.old, write.new)
    for cache in (hot, hot, cold):
        assert cache.get(write.key, MISSING) == value
        found = cache.get_many(BYSTANDERS)
        assert found.items() <= BYSTANDERS.items() if spares_nobody else found == BYSTANDERS
    hot.set("k", "next")  # the slot settles
    assert cold.get("k") == hot.get("k") == "next"
    store = hot._shards.of(hot._rows.locate("k")[1])
    assert not store.shard.slots[hot._rows.locate("k")[1] % store.shard.slot_prime] & 1
    if name.endswith(MARKING_ALL):
        assert odd_slots(hot) <= 2, "slots stay odd that nobody is writing"  # delete_many marks two keys on their own
    hot.set_many(BYSTANDERS)
    mend(hot)


def look_after_opening(cache: Cache, other: Cache, keeps: bool) -> None:
    """See that a directory whose opening was cut short serves two handles; `keeps`: with what was in it."""
    assert cache.get("k") in ((1,) if keeps else (None, 1))
    cache.set("k", 2)
    assert other.get("k") == cache.get("k") == 2
    assert other.incr("k") == 3 == cache.get("k")
    for store in cache._shards.stores:
        ((mode,),) = store.select("PRAGMA journal_mode")
        ((vacuum,),) = store.select("PRAGMA auto_vacuum")
        assert (mode, vacuum) == ("wal", 2)
    mend(cache)
    assert odd_slots(cache) <= len(cache._shards.stores), "slots stay odd that nobody is writing"


def look_after_making_room(hot: Cache, cold: Cache, written: dict[Any, Any]) -> None:
    """See that any entry may be evicted, but none is torn or stale, and what is left is what the count says."""
    for key, whole in written.items():
        value = cold.get(key)
        assert hot.get(key) == value == hot.get(key)
        assert value in (None, whole)
    assert hot.set("after", 1)
    mend(hot)


def odd_slots(cache: Cache) -> int:
    """Return the number of slots that say they are being written."""
    return sum(store.shard.slots[slot] & 1 for store in cache._shards.stores for slot in range(len(store.shard.slots)))
