"""Lives of processes: forked in every state, started and ended in every way, and handles that travel to them."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import pickle
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

from diskcache_like import Cache, Deque, FanoutCache, Index, Lock, RLock, TransactionError, memoize_stampede
from diskcache_like.coherence import write_lock
from diskcache_like.storage.shard import forking
from diskcache_like.storage.shard.open_shard import OpenShard
from diskcache_like.system import forks
from tests.support.inspection import posix_locks, problems
from tests.support.interpreter_exits import ABRUPT, ENDINGS, end
from tests.support.workers import PATIENCE, Gone, Link, forked

from ..proof import Trial, proof
from .interpreters import share_a_process
from .scenes import LARGE, UNDONE, Account, Lives, Scene, joined, live_all, run_threads

PARENT, CHILD, OTHER = range(3)  # who counts up what
MANY = 200
LOOKS = 5  # the kernel's list of locks may leave one out while others come and go
STARTED = 2  # processes
LIVES = Lives()

# -- states in which a process is forked: what each returns is gone on with by parent and child -----------------------

GoOn = Callable[[], object]


def idle() -> None:
    """Do nothing."""


def hot(cache: Cache, stack: ExitStack) -> GoOn:
    keys = list(range(MANY))
    cache.set_many({key: key for key in keys}, retry=True)
    assert cache.get_many(keys) == {key: key for key in keys}
    return lambda: [cache.get(key) for key in keys] == keys or sys.exit("hot entries are wrong")


def in_an_iterator(cache: Cache, stack: ExitStack) -> GoOn:
    keys = set(range(MANY))
    cache.set_many(dict.fromkeys(keys, 1), retry=True)
    iterator = iter(cache)
    seen = {next(iterator) for _ in range(5)}

    def go_on() -> None:
        missing = keys - seen - set(iterator)
        assert not missing, f"the iteration left out {missing}"

    return go_on


def with_a_file_open(cache: Cache, stack: ExitStack) -> GoOn:
    value = os.urandom(LARGE)
    cache.set("file", value, retry=True)
    file = stack.enter_context(cache.read("file"))
    file.read(10)

    def go_on() -> None:  # each reads at places of its own: the descriptor's place is shared by fork
        assert os.pread(file.fileno(), LARGE, 0) == value

    return go_on


def with_a_lock(cache: Cache, stack: ExitStack) -> GoOn:
    """Hold a recipe's lock: the child is not its owner."""
    stack.enter_context(Lock(cache, ("lock", "plain")))
    stack.enter_context(RLock(cache, ("lock", "again")))
    parent = os.getpid()

    def go_on() -> None:
        is_owner = os.getpid() == parent  # who waits for those who write just now
        free = RLock(cache, ("lock", "again")).try_acquire(PATIENCE if is_owner else 0)
        assert free == is_owner
        if free:
            RLock(cache, ("lock", "again")).release()

    return go_on


def in_a_computation(cache: Cache, stack: ExitStack) -> GoOn:
    """Compute what is missing, in a child that takes over from its parent too."""

    @memoize_stampede(cache, expire=60, name="work")
    def work(number: int) -> int:
        return number

    assert work(1) == 1
    return lambda: work(2) == work(1) + 1 or sys.exit("a result is wrong")


def closed(cache: Cache, stack: ExitStack) -> GoOn:
    cache.close()
    return idle


def beside_threads(work: Callable[[Cache], object], number: int, cache: Cache, stack: ExitStack) -> GoOn:
    """Have threads work until the end."""
    ended = threading.Event()

    def run() -> None:
        while not ended.is_set():
            work(cache)

    threads = [threading.Thread(target=run) for _ in range(number)]
    for thread in threads:
        thread.start()
    stack.callback(joined, *threads)
    stack.callback(ended.set)
    return idle


def write_much(cache: Cache) -> None:
    cache.set(("busy", threading.get_ident()), b"x" * LARGE, retry=True)
    with cache.transact(retry=True):
        cache.incr("busy left", retry=True)
        cache.incr("busy right", retry=True)
    assert cache.get("busy left") is not None


def read_much(cache: Cache) -> None:
    cache._hot.clear()
    assert cache.get("of the parent") == "value"
    assert len(list(cache)) > 0


def open_and_close(cache: Cache) -> None:
    cache.close()
    assert cache.get("of the parent") == "value"


STATES: dict[str, Callable[[Cache, ExitStack], GoOn]] = {
    "idle": lambda cache, stack: idle,
    "with hot entries": hot,
    "in an iterator": in_an_iterator,
    "with a value file open": with_a_file_open,
    "with locks held": with_a_lock,
    "in a computation": in_a_computation,
    "closed": closed,
    "beside threads that write": partial(beside_threads, write_much, 3),
    "beside threads that read": partial(beside_threads, read_much, 3),
    "beside threads that open and close": partial(beside_threads, open_and_close, 1),
}


# -- forks ------------------------------------------------------------------------------------------------------------


def fork_in(state: Callable[[Cache, ExitStack], GoOn], scene: Scene, cache: Cache) -> None:
    """Fork in a state; then both sides go on, and use the cache at the same time."""
    with ExitStack() as stack:
        go_on = state(cache, stack)

        def be_the_child(link: Link) -> None:
            go_on()
            scene.accounts[CHILD].use(cache)
            has_locks_of_its_own(cache)

        with forked(be_the_child) as child:
            scene.accounts[PARENT].use(cache)
            child.result()
        go_on()
        scene.accounts[PARENT].use(cache)
    assert cache.get("busy left") == cache.get("busy right")


for _name, _state in STATES.items():
    LIVES.add(f"forked {_name}")(partial(fork_in, _state))


def has_locks_of_its_own(cache: Cache) -> None:
    """Assert that SQLite has locks in this process: with a connection that came by fork it only believes so."""
    for store in cache._shards.stores:
        store.volume()
        looks = (posix_locks(os.getpid(), Path(store.path)) for _ in range(LOOKS))
        assert any(looks), f"{store.path} is used without a lock"


def fork_in_a_transaction(depth: int, scene: Scene, cache: Cache) -> None:
    """Fork within a transaction: the child is refused, the transaction goes on."""
    with cache.transact(retry=True):
        for _ in range(depth - 1):
            cache.transact().__enter__()
        scene.accounts[PARENT].count(cache)
        with forked(lambda link: be_refused(scene, cache)) as child:
            child.result()
        scene.accounts[PARENT].pair(cache)


LIVES.add("forked in a transaction")(partial(fork_in_a_transaction, 1))
LIVES.add("forked in a nested transaction")(partial(fork_in_a_transaction, 2))


def be_refused(scene: Scene, cache: Cache) -> None:
    """Assert that a cache cannot be used, and that the error says of which it speaks."""
    for attempt in (lambda: cache.incr(("count", CHILD)), lambda: cache.get("missing"), scene.open):
        told = ""
        try:
            attempt()
        except TransactionError as error:
            told = str(error)
        assert str(scene.directory) in told, f"the child of a transaction is not refused, but told {told!r}"


@LIVES.add("forked beside a transaction")
def fork_beside_a_transaction(scene: Scene, cache: Cache) -> None:
    """Fork while another thread is within a transaction that outlasts all patience."""
    inside, may_end = threading.Event(), threading.Event()

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


@LIVES.add("forked from C")
def fork_from_c(scene: Scene, cache: Cache) -> None:
    """Fork as a server written in C does, so that no hook of Python's runs."""
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


@LIVES.add("forked by a forked child")
def fork_generations(scene: Scene, cache: Cache, left: int = 3) -> None:
    """Fork children of children, each of which ends before its parent."""
    scene.accounts[left].use(cache)
    if left:
        with forked(lambda link: fork_generations(scene, cache, left - 1)) as child:
            child.result()
    scene.accounts[left].use(cache)


@LIVES.add("killed within a transaction, with a child that lives on", abrupt=True, opens=False)
def fork_and_be_killed(scene: Scene, _: Cache) -> None:
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


def child_that_ends(how: Callable[[], object], status: int, scene: Scene, cache: Cache) -> None:
    """Have a child end in some way, while it writes, and go on without it."""

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
    while True:
        account.pair(cache)
        cache.set("endless", b"x" * LARGE, retry=True)


for _name, _how, _status in (
    ("ends by os._exit", lambda: os._exit(7), 7),
    ("is killed", lambda: os.kill(os.getpid(), signal.SIGKILL), -signal.SIGKILL),
    ("becomes another program", lambda: os.execlp("sh", "sh", "-c", "exit 8"), 8),
):
    LIVES.add(f"a child {_name}", abrupt=True)(partial(child_that_ends, _how, _status))


# -- handles that travel ----------------------------------------------------------------------------------------------


class Handles(NamedTuple):
    """One of each kind of handle."""

    cache: Cache
    lock: Lock
    deque: Deque
    mapping: Index
    within: Cache | None  # a fanout cache


def handles_of(cache: Cache) -> Handles:
    """Return handles of a cache and of what is kept beside it or within it."""
    lock, beside = Lock(cache, ("lock", 0)), Path(cache.directory).parent
    if isinstance(cache, FanoutCache):
        return Handles(cache, lock, cache.deque("deque"), cache.index("index"), cache.cache("within"))
    return Handles(cache, lock, Deque(directory=beside / "deque"), Index(str(beside / "index")), None)


def use_handles(handles: Handles, number: int) -> None:
    """Use what came from another process; `number` tells this one from the others."""
    cache, lock, deque, mapping, within = handles
    assert cache.get("of the parent") == "value"
    with lock:
        cache.set("guarded", cache.get("guarded", 0) + 1, retry=True)
    with cache.transact(retry=True):
        cache.incr("travelled", retry=True)
    cache.set(("large", number), b"x" * LARGE, retry=True)
    assert deque[0] == "of the parent" == mapping["first"]
    deque.append(number)
    mapping[number] = number
    with mapping.transact():
        mapping["travelled"] += 1
    if within is not None:
        within.incr("travelled", retry=True)


def start_by(method: str, scene: Scene, cache: Cache) -> None:
    """Send handles to processes that are started by one method; all write to the same places."""
    context: Any = multiprocessing.get_context(method)
    handles = handles_of(cache)
    _, _, deque, mapping, within = handles
    deque.append("of the parent")
    mapping.update({"first": "of the parent", "travelled": 0})
    scene.accounts[PARENT].use(cache)
    started = [context.Process(target=use_handles, args=(handles, each)) for each in range(STARTED)]
    for process in started:
        process.start()
    scene.accounts[PARENT].use(cache)
    for process in started:
        process.join(PATIENCE)
        assert process.exitcode == 0, f"a process started by {method!r} ended with {process.exitcode}"
    assert cache.get("travelled") == cache.get("guarded") == STARTED
    assert [deque.popleft(), *sorted(deque)] == ["of the parent", *range(STARTED)]
    stored: dict[object, object] = {"first": "of the parent", "travelled": STARTED}
    assert mapping == stored | {number: number for number in range(STARTED)}
    for each in (deque.cache, mapping.cache, *([] if within is None else [within])):
        assert problems(each) == []
    assert within is None or within["travelled"] == STARTED


for _method in ("fork", "forkserver", "spawn"):
    LIVES.add(f"started by {_method}")(partial(start_by, _method))


@LIVES.add("handles sent to threads")
def travel_between_threads(scene: Scene, cache: Cache) -> None:
    """Give threads the handle itself, and copies that were pickled: before, and within a transaction of the sender."""
    handles = [cache, cache, *(pickle.loads(pickle.dumps(cache)) for _ in range(2))]
    with cache.transact(retry=True):
        handles.append(pickle.loads(pickle.dumps(cache)))
        scene.accounts[PARENT].count(cache)

    def use(number: int, handle: Cache) -> None:
        for _ in range(5):
            scene.accounts[number].use(handle)
        handle.close()

    run_threads(*(partial(use, number, handle) for number, handle in enumerate(handles, 1)))


if sys.version_info[:2] == (3, 11):  # later versions have interpreters under other names, and with locks of their own
    LIVES.add("two interpreters in one process")(share_a_process)


# -- endings ----------------------------------------------------------------------------------------------------------

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


def end_interpreter(name: str, scene: Scene, _: Cache) -> None:
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
            for what in ("left", "right", "large", "count"):
                cache.delete((what, number), retry=True)  # the program's numbers, not those of the scene


for _name in ENDINGS:
    LIVES.add(f"ended {_name}", abrupt=_name in ABRUPT, opens=False)(partial(end_interpreter, _name))


# -- the proofs -------------------------------------------------------------------------------------------------------

proof("lives-processes", 2, "processes forked in every state, started and ended in every way", share=2, bulk=1.5)(
    partial(live_all, lives=LIVES)
)


def keep(inherited: OpenShard, complete: bool) -> None:
    """Take an inherited shard for one's own, as if there had been no fork."""
    forking._resume()
    inherited.token = forks.process_token()


@proof(
    "lives-shared-connections",
    2,
    "a forked child uses its parent's connections",
    share=0.5,
    finds=r"AssertionError: .* is used without a lock",
)
def share_connections(trial: Trial) -> None:
    with (
        mock.patch.object(OpenShard, "after_fork", keep),
        mock.patch.object(write_lock.WriteLock, "abandon"),
    ):
        live_all(trial, [each for each in LIVES if each.name in ("forked idle", "forked with hot entries")])
