"""Lives of processes: forked in every state, ended in every way."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

from diskcache_like import Cache, Lock, RLock, TransactionError, memoize_stampede
from diskcache_like.coherence import write_lock
from diskcache_like.storage.shard import forking
from diskcache_like.storage.shard.session import ShardSession
from diskcache_like.system import forks
from tests.support.inspection import posix_locks
from tests.support.interpreter_exits import ABRUPT, ENDINGS, end
from tests.support.workers import PATIENCE, Gone, Link, forked

from ..proof import Proof, Trial
from . import passed_handles
from .scenes import LARGE, UNDONE, Account, Life, Scene, joined, live_all

PARENT, CHILD, OTHER = range(3)  # who counts up what
MANY = 200
LOOKS = 5  # the kernel's list of locks may leave one out while others come and go

GoOn = Callable[[], object]
State = Callable[[Scene, Cache], AbstractContextManager[GoOn]]


def idle() -> None:
    """Do nothing."""


# -- states in which a process is forked: what each yields is gone on with by parent and child ------------------------


@contextmanager
def nothing_done(scene: Scene, cache: Cache) -> Iterator[GoOn]:
    yield idle


@contextmanager
def hot(scene: Scene, cache: Cache) -> Iterator[GoOn]:
    keys = list(range(MANY))
    cache.set_many({key: key for key in keys}, retry=True)
    assert cache.get_many(keys) == {key: key for key in keys}
    yield lambda: [cache.get(key) for key in keys] == keys or sys.exit("hot entries are wrong")


@contextmanager
def in_an_iterator(scene: Scene, cache: Cache) -> Iterator[GoOn]:
    keys = set(range(MANY))
    cache.set_many(dict.fromkeys(keys, 1), retry=True)
    iterator, seen = iter(cache), set[Any]()
    seen.update(next(iterator) for _ in range(5))

    def go_on() -> None:
        missing = keys - seen - set(iterator)
        assert not missing, f"the iteration left out {missing}"

    yield go_on


@contextmanager
def with_a_file_open(scene: Scene, cache: Cache) -> Iterator[GoOn]:
    value = os.urandom(LARGE)
    cache.set("file", value, retry=True)
    with cache.read("file") as file:
        file.read(10)

        def go_on() -> None:  # each reads at places of its own: the descriptor's place is shared by fork
            assert os.pread(file.fileno(), LARGE, 0) == value

        yield go_on


@contextmanager
def with_a_lock(scene: Scene, cache: Cache) -> Iterator[GoOn]:
    """Hold a recipe's lock: the child is not its owner."""
    with Lock(cache, ("lock", "plain")), RLock(cache, ("lock", "again")) as _:
        parent = os.getpid()

        def go_on() -> None:
            is_owner = os.getpid() == parent  # who waits for those who write just now
            free = RLock(cache, ("lock", "again")).try_acquire(PATIENCE if is_owner else 0)
            assert free == is_owner
            if free:
                RLock(cache, ("lock", "again")).release()

        yield go_on


@contextmanager
def in_a_computation(scene: Scene, cache: Cache) -> Iterator[GoOn]:
    """Compute what is missing, in a child that takes over from its parent too."""
    calls: list[int] = []

    @memoize_stampede(cache, expire=60, name="work")
    def work(number: int) -> int:
        calls.append(number)
        return number

    assert work(1) == 1
    yield lambda: work(2) == work(1) + 1 or sys.exit("a result is wrong")


@contextmanager
def closed(scene: Scene, cache: Cache) -> Iterator[GoOn]:
    cache.close()
    yield idle


@contextmanager
def beside_threads(work: Callable[[Cache, threading.Event], object], cache: Cache, number: int = 3) -> Iterator[GoOn]:
    """Have threads work until the end."""
    ended = threading.Event()

    def run() -> None:
        while not ended.is_set():
            work(cache, ended)

    threads = [threading.Thread(target=run) for _ in range(number)]
    for thread in threads:
        thread.start()
    try:
        yield idle
    finally:
        ended.set()
        joined(*threads)


def write_much(cache: Cache, ended: threading.Event) -> None:
    cache.set(("busy", threading.get_ident()), b"x" * LARGE, retry=True)
    with cache.transact(retry=True):
        cache.incr("busy left", retry=True)
        cache.incr("busy right", retry=True)
    assert cache.get("busy left") is not None


def read_much(cache: Cache, ended: threading.Event) -> None:
    cache._hot.clear()
    assert cache.get("of the parent") == "value"
    assert len(list(cache)) > 0


def open_and_close(cache: Cache, ended: threading.Event) -> None:
    cache.close()
    assert cache.get("of the parent") == "value"


@contextmanager
def beside_writers(scene: Scene, cache: Cache) -> Iterator[GoOn]:
    with beside_threads(write_much, cache) as go_on:
        yield go_on
    assert cache.get("busy left") == cache.get("busy right")


STATES: dict[str, State] = {
    "idle": nothing_done,
    "with hot entries": hot,
    "in an iterator": in_an_iterator,
    "with a value file open": with_a_file_open,
    "with locks held": with_a_lock,
    "in a computation": in_a_computation,
    "closed": closed,
    "beside threads that write": beside_writers,
    "beside threads that read": lambda scene, cache: beside_threads(read_much, cache),
    "beside threads that open and close": lambda scene, cache: beside_threads(open_and_close, cache, 1),
}


# -- forks ------------------------------------------------------------------------------------------------------------


def fork_in(state: State, scene: Scene) -> None:
    """Fork in a state; then both sides go on, and use the cache at the same time."""
    with scene.open() as cache, state(scene, cache) as go_on:

        def be_the_child(link: Link) -> None:
            go_on()
            scene.accounts[CHILD].use(cache)
            has_locks_of_its_own(cache)

        with forked(be_the_child) as child:
            scene.accounts[PARENT].use(cache)
            child.result()
        go_on()
        scene.accounts[PARENT].use(cache)


def has_locks_of_its_own(cache: Cache) -> None:
    """Assert that SQLite has locks in this process: with a connection that came by fork it only believes so."""
    for store in cache._shards.stores:
        store.volume()
        looks = (posix_locks(os.getpid(), Path(store.path)) for _ in range(LOOKS))
        assert any(looks), f"{store.path} is used without a lock"


def fork_in_a_transaction(scene: Scene, depth: int = 1) -> None:
    """Fork within a transaction: the child is refused, the transaction goes on."""
    with scene.open() as cache, cache.transact(retry=True):
        for _ in range(depth - 1):
            cache.transact().__enter__()
        scene.accounts[PARENT].count(cache)
        with forked(lambda link: be_refused(scene, cache)) as child:
            child.result()
        scene.accounts[PARENT].pair(cache)


def be_refused(scene: Scene, cache: Cache) -> None:
    """Assert that a cache cannot be used, and that the error says of which it speaks."""
    for attempt in (lambda: cache.incr(("count", CHILD)), lambda: cache.get("missing"), scene.open):
        told = ""
        try:
            attempt()
        except TransactionError as error:
            told = str(error)
        assert str(scene.directory) in told, f"the child of a transaction is not refused, but told {told!r}"


def fork_beside_a_transaction(scene: Scene) -> None:
    """Fork while another thread is within a transaction that outlasts all patience."""
    inside, may_end = threading.Event(), threading.Event()
    with scene.open() as cache:

        def transact() -> None:
            with cache.transact(retry=True):
                scene.accounts[OTHER].count(cache)
                inside.set()
                assert may_end.wait(PATIENCE)
                scene.accounts[OTHER].count(cache)

        thread = threading.Thread(target=transact)
        thread.start()
        assert inside.wait(PATIENCE)
        with mock.patch.object(forking, "PATIENCE", 0.05), forked(lambda link: be_refused(scene, cache)) as child:
            child.result()
        may_end.set()
        joined(thread)
        scene.accounts[PARENT].use(cache)


def fork_from_c(scene: Scene) -> None:
    """Fork as a server written in C does, so that no hook of Python's runs."""
    with scene.open() as cache:
        scene.accounts[PARENT].use(cache)
        reading, writing = os.pipe()
        pid = ctypes.PyDLL(None).fork()
        if pid == 0:
            told = b"nothing"
            try:
                scene.accounts[CHILD].use(cache)
                has_locks_of_its_own(cache)
                told = b"ok"
            except BaseException as error:
                told = repr(error).encode()
            finally:
                os.write(writing, told)
                os._exit(0)
        os.close(writing)
        scene.accounts[PARENT].use(cache)
        _, status = os.waitpid(pid, 0)
        with open(reading, "rb") as pipe:
            told = pipe.read()
        assert (told, os.waitstatus_to_exitcode(status)) == (b"ok", 0), f"the child ended with {status}: {told!r}"
        scene.accounts[PARENT].use(cache)


def fork_generations(scene: Scene, depth: int = 3) -> None:
    """Fork children of children, each of which ends before its parent."""
    with scene.open() as cache:

        def descend(link: Link | None, left: int) -> None:
            scene.accounts[left].use(cache)
            if left:
                with forked(lambda link: descend(link, left - 1)) as child:
                    child.result()
            scene.accounts[left].use(cache)

        descend(None, depth)


def fork_and_be_killed(scene: Scene) -> None:
    """Be killed within a transaction after a fork: the child, who lives on, does not keep the lock."""
    child_reading, told_child = os.pipe()

    def be_the_parent(link: Link) -> None:
        cache = scene.open()
        scene.accounts[PARENT].use(cache)
        if os.fork() == 0:
            link.connection.close()
            os.read(child_reading, 1)  # holds what it inherited until the end of the scene
            os._exit(0)
        with cache.transact(retry=True):
            cache.set(UNDONE, 1, retry=True)
            link.tell("inside")
            link.hear()

    try:
        with forked(be_the_parent) as parent:
            parent.hear()
            parent.kill()
        with scene.open(timeout=5) as cache:
            scene.accounts[OTHER].use(cache)
    finally:
        os.write(told_child, b"x")


ENDS: tuple[tuple[str, Callable[[], object], int], ...] = (  # and the status that each is known by
    ("ends by os._exit", lambda: os._exit(7), 7),
    ("is killed", lambda: os.kill(os.getpid(), signal.SIGKILL), -signal.SIGKILL),
    ("becomes another program", lambda: os.execlp("sh", "sh", "-c", "exit 8"), 8),
)


def children_that_end(how: Callable[[], object], status: int, scene: Scene) -> None:
    """Have a child end in some way, while it writes, and go on without it."""
    with scene.open() as cache:

        def be_the_child(link: Link) -> None:
            scene.accounts[CHILD].use(cache)
            threading.Thread(target=write_for_ever, args=(scene.accounts[CHILD], cache), daemon=True).start()
            scene.accounts[OTHER].use(cache)
            how()

        with forked(be_the_child) as child:
            while not child.link.asked():
                scene.accounts[PARENT].use(cache)
            with suppress(Gone):  # unless it failed, it says nothing
                child.hear()
            child.join()
            assert child.status == status, f"a child ended with {child.status}, not with {status}"
        scene.accounts[PARENT].use(cache)


def write_for_ever(account: Account, cache: Cache) -> None:
    """Write until the process ends."""
    while True:
        account.pair(cache)
        cache.set("endless", b"x" * LARGE, retry=True)


# -- endings ----------------------------------------------------------------------------------------------------------


def end_interpreter(name: str, scene: Scene) -> None:
    """Run a whole interpreter that ends in some way; it is to do so quietly."""
    done = end(name, scene.directory, "one" if scene.kind == "Cache" else "fanout", PATIENCE)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", ""), done
    with scene.open() as cache:
        acknowledged = ACKNOWLEDGED.get(name, {})
        assert cache.get_many(acknowledged) == acknowledged, "what the program had written is not there"
        assert len(cache) >= SEEN.get(name, 1), f"the program saw {SEEN[name]} entries, now there are {len(cache)}"
        assert cache.get(UNDONE) is None
        for number in range(4):
            left, right = cache.get(("left", number), 0), cache.get(("right", number), 0)
            assert left == right, f"half of a transaction: {left} and {right}"
            for name in ("left", "right", "large", "count"):
                cache.delete((name, number), retry=True)  # the program's numbers, not those of the scene


ACKNOWLEDGED: dict[str, dict[Any, Any]] = {  # before the end of the program
    "with an open handle": {"key": 1},
    "in the middle of an iteration": dict.fromkeys(range(500), 1),
    "with an open value file": {"key": b"x" * LARGE},
    "with threads still writing": {(number, count): count for number in range(4) for count in range(200)},
    "by an exception": {"key": 1},
    "in a forked child": {"key": 2, "child": 1},
    "in a forked child that did nothing": {"key": 2},
    "using the cache at exit": {"key": 1, "at exit": 1, "count": 2},
    "using the cache in a finalizer": {"key": 1, "count": 1},
    "with a pool of threads at work": {number: number for number in range(300)},
}
SEEN = {  # how many entries there were when the program came to its end
    "with daemon threads writing": 4,
    "with daemon threads in transactions": 12,
    "at once, in the middle of writes": 8,
}


LIVES = [
    *(Life(f"forked {name}", partial(fork_in, state)) for name, state in STATES.items()),
    Life("forked in a transaction", fork_in_a_transaction),
    Life("forked in a nested transaction", partial(fork_in_a_transaction, depth=2)),
    Life("forked beside a transaction", fork_beside_a_transaction),
    Life("forked from C", fork_from_c),
    Life("forked by a forked child", fork_generations),
    Life("killed within a transaction, with a child that lives on", fork_and_be_killed, abrupt=True),
    *(Life(f"a child {name}", partial(children_that_end, how, status), abrupt=True) for name, how, status in ENDS),
    *passed_handles.LIVES,
    *(Life(f"ended {name}", partial(end_interpreter, name), abrupt=name in ABRUPT) for name in ENDINGS),
]


# -- the proofs -------------------------------------------------------------------------------------------------------


def live_on(trial: Trial) -> None:
    """Live every life."""
    live_all(trial, LIVES)


def keep(inherited: ShardSession, complete: bool) -> None:
    """Take an inherited shard for one's own, as if there had been no fork."""
    forking._resume()
    inherited.token = forks.process_token()


def share_connections(trial: Trial) -> None:
    """Fork without any guard: the child goes on with its parent's connections and lock."""
    with (
        mock.patch.object(ShardSession, "after_fork", keep),
        mock.patch.object(write_lock.WriteLock, "abandon"),
    ):
        live_all(trial, [each for each in LIVES if each.name in ("forked idle", "forked with hot entries")])


PROOFS: dict[str, Proof] = {
    "lives-processes": Proof(
        2, "processes forked in every state, started and ended in every way", live_on, share=2, bulk=1.5
    ),
    "lives-shared-connections": Proof(
        2,
        "a forked child uses its parent's connections",
        share_connections,
        share=0.5,
        finds=r"AssertionError: .* is used without a lock",
    ),
}
