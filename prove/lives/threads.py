"""Lives of threads and generators: they end, or are left, in the middle of things, and somebody else tidies up."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

from diskcache_like import Cache, Lock, Timeout, TransactionError
from tests.support.inspection import cache_descriptors
from tests.support.workers import PATIENCE, in_thread

from ..children import BRIEF
from ..proof import proof
from .scenes import LARGE, SHORTLY, UNDONE, Lives, Scene, joined, live_all

MAIN, OTHER = range(2)  # who counts up what
MANY = 300
LIVES = Lives()


def transacting(cache: Cache) -> Iterator[None]:
    """Be within a transaction between two steps."""
    with cache.transact(retry=True):
        cache.set(UNDONE, b"x" * LARGE, retry=True)
        yield


def begun(cache: Cache) -> Iterator[None]:
    """Return a generator that was left in the middle of its transaction."""
    generator = transacting(cache)
    next(generator)
    return generator


def fill(cache: Cache) -> set[int]:
    """Store many entries and a file; return the keys."""
    cache.set_many(dict.fromkeys(range(MANY), 1), retry=True)
    cache.set("file", b"x" * LARGE, retry=True)
    return set(range(MANY))


def go_on(scene: Scene, cache: Cache) -> None:
    """Use the cache here, in a thread, and through another handle."""
    scene.accounts[MAIN].use(cache)
    in_thread(lambda: scene.accounts[OTHER].use(cache))
    with scene.open(timeout=BRIEF) as other:
        assert other.get(UNDONE) is None
        scene.accounts[MAIN].use(other)


@LIVES.add("a thread dies of an error within a transaction")
def die_by_an_error(scene: Scene, cache: Cache) -> None:
    def fail() -> None:
        with cache.transact(retry=True):
            cache.set(UNDONE, b"x" * LARGE, retry=True)
            raise ZeroDivisionError

    with suppress(ZeroDivisionError):
        in_thread(fail)
    go_on(scene, cache)


@LIVES.add("a thread ends within a transaction that is forgotten")
def die_and_forget(scene: Scene, cache: Cache) -> None:
    in_thread(lambda: [begun(cache)].clear())
    gc.collect()
    go_on(scene, cache)


@LIVES.add("a thread ends within a transaction that is kept", opens=False)
def die_and_leave(scene: Scene, _: Cache) -> None:
    """End a thread within a transaction that another thread has in its hands.

    Threads that come later may have the number of the one that ended; none of them is within its transaction.
    """
    with scene.open(timeout=SHORTLY) as cache:
        generator: Any = in_thread(lambda: begun(cache))
        try:
            for _attempt in range(5):
                assert in_thread(lambda: is_kept_out(cache)), "a thread wrote within the transaction of another"
        finally:
            generator.close()
        with scene.open(timeout=BRIEF) as patient:
            go_on(scene, patient)
        go_on(scene, cache)


def is_kept_out(cache: Cache) -> bool:
    """Tell whether the calling thread can neither write nor see what was written."""
    try:
        with cache.transact(retry=False):
            cache.set("intruder", 1)
    except (Timeout, TransactionError):
        return cache.get(UNDONE) is None
    return False


@LIVES.add("a thread ends with a lease")
def die_with_a_lease(scene: Scene, cache: Cache) -> None:
    """End a thread that holds a lock with a lease; whoever waits gets it after that."""
    lock = Lock(cache, ("lock", 1), expire=SHORTLY)
    in_thread(lock.acquire)
    assert in_thread(lambda: lock.try_acquire(PATIENCE))
    cache.delete(("lock", 1), retry=True)
    go_on(scene, cache)


@LIVES.add("threads end within iterations")
def die_within_an_iteration(scene: Scene, cache: Cache) -> None:
    """End threads that have begun to iterate, and go on with their iterators elsewhere."""
    keys = fill(cache)

    def begin() -> tuple[Any, Iterator[Any]]:
        iterator = iter(cache)
        return next(iterator), iterator

    iterators = [in_thread(begin) for _ in range(5)]
    go_on(scene, cache)
    for first, iterator in iterators:
        assert keys <= {first, *in_thread(partial(list, iterator))}
    go_on(scene, cache)


class Cycle:
    """Something that only the garbage collector takes apart, in whatever thread that runs."""

    def __init__(self, *kept: object) -> None:
        self.kept, self.me = kept, self


def collected_elsewhere(what: Callable[[Cache], object], scene: Scene, cache: Cache) -> None:
    """Leave something unfinished, and have another thread collect it, while a third one writes."""
    fill(cache)
    go_on(scene, cache)
    before = len(cache_descriptors(scene.directory))
    gc.disable()
    Cycle(what(cache))
    writer = threading.Thread(target=lambda: scene.accounts[OTHER].use(cache))
    writer.start()
    in_thread(gc.collect)
    gc.enable()
    joined(writer)
    go_on(scene, cache)
    with scene.open() as other:
        go_on(scene, other)
    after = len(cache_descriptors(scene.directory))
    assert after <= before + 2 * 3 * len(cache._shards.stores), f"{before} descriptors became {after}"


UNFINISHED: dict[str, Callable[[Cache], object]] = {
    "iterators": lambda cache: [(iterator, next(iterator)) for iterator in (iter(cache) for _ in range(50))],
    "sorted iterators": lambda cache: [
        (iterator, next(iterator)) for iterator in (cache.iterkeys() for _ in range(20))
    ],
    "a generator within a transaction": begun,
    "open value files": lambda cache: [cache.read("file") for _ in range(20)],
}
for _name, _what in UNFINISHED.items():
    LIVES.add(f"{_name} collected by another thread")(partial(collected_elsewhere, _what))


@LIVES.add("a generator within a transaction goes on in another thread")
def handed_on(scene: Scene, cache: Cache) -> None:
    """Begin a transaction in one thread and end it in another, as a framework that moves generators does."""
    assert in_thread(partial(list, begun(cache))) == []
    with scene.open(timeout=BRIEF) as other:
        assert other.pop(UNDONE) is not None, "what was committed by another thread is not there"
    go_on(scene, cache)


@LIVES.add("iterators and files outlive a closing")
def outlive_a_closing(scene: Scene, cache: Cache) -> None:
    keys = fill(cache)
    iterators = [iter(cache), reversed(cache), cache.iterkeys()]
    seen = [{next(iterator)} for iterator in iterators]
    with cache.read("file") as file:
        cache.close()
        assert file.read() == b"x" * LARGE
    for one, iterator in zip(seen, iterators, strict=True):
        assert keys <= one | set(iterator)
    go_on(scene, cache)


proof("lives-threads", 2, "threads end and generators are abandoned at any point")(partial(live_all, lives=LIVES))
