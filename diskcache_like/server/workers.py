"""Workers: processes that serve one cache at the same addresses, and how they begin and end.

The first process binds the addresses and forks the workers, each of which opens the cache. A pair of sockets joins it
to each worker. The worker writes to its end when it listens; the end of that connection tells it to stop. So workers
stop also when the first process is killed. A worker that ends by itself is replaced.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import signal
import socket
import ssl
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from ..cache import Cache
from ..errors import CacheError
from .access import Access
from .connection import RespDoor
from .sockets import GOODBYE, Place

STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
BACK_OFF = 1.0  # seconds between two beginnings of a worker
BEGINNING = 60.0  # seconds for a worker to listen


class Service(NamedTuple):
    """What is served, where, and to whom."""

    opened: Callable[[], Cache]
    access: Access
    resp: Place | None
    http: Place | None
    tls: ssl.SSLContext | None
    grace: float  # seconds for what is under way when the server stops


class Worker(NamedTuple):
    """A worker as the first process sees it."""

    pid: int
    joined: socket.socket
    begun: float  # by the monotonic clock


def serve(service: Service, workers: int, ready: Callable[[], object]) -> None:
    """Serve until a signal of STOPS; call `ready` once, when all workers listen.

    Raises CacheError if a worker cannot begin.
    """
    _allow_many_files()
    stops = [number for number in STOPS if signal.getsignal(number) != signal.SIG_IGN]  # nohup ignores one
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {*stops, signal.SIGCHLD})
    crew: list[Worker] = []
    try:
        for _ in range(workers):
            crew.append(_begin(service, crew))
        for worker in crew:
            if not worker.joined.recv(1):
                raise CacheError("a worker ended before it listened; its message says why")
        ready()
        _keep(service, crew, stops)
    finally:
        _end(crew, service.grace)
        while signal.sigtimedwait(stops, 0) is not None:  # it has been told to stop again meanwhile
            pass
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def _allow_many_files() -> None:
    """Raise the limit of open files, mostly 1024, as far as it may be: there is one for each connection."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _begin(service: Service, others: Sequence[Worker]) -> Worker:
    """Fork a worker."""
    ours, its = socket.socketpair()
    ours.settimeout(BEGINNING)
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        its.close()
        return Worker(pid, ours, time.monotonic())
    code = 1
    try:
        for joined in (ours, *(worker.joined for worker in others)):
            joined.close()  # or the end of these connections would never come
        code = _work(service, its)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)  # nothing of the first process may run here: no `finally`, no exit handler


def _keep(service: Service, crew: list[Worker], stops: Sequence[int]) -> None:
    """Replace workers that end, until a signal says to stop."""
    while signal.sigwaitinfo({*stops, signal.SIGCHLD}).si_signo == signal.SIGCHLD:
        for index, worker in enumerate(crew):
            if _has_ended(worker):
                worker.joined.close()
                _say(f"worker {worker.pid} ended; another one begins")
                # No more than one a second, if each of them fails.
                if signal.sigtimedwait(stops, max(0.0, worker.begun + BACK_OFF - time.monotonic())) is not None:
                    return
                crew[index] = _begin(service, [other for other in crew if other is not worker])


def _has_ended(worker: Worker) -> bool:
    try:
        return os.waitpid(worker.pid, os.WNOHANG) != (0, 0)
    except ChildProcessError:
        return True


def _end(crew: Sequence[Worker], grace: float) -> None:
    """Have the workers stop; kill those that have not ended a little later than `grace`."""
    for worker in crew:
        worker.joined.close()
    until = time.monotonic() + grace + BACK_OFF
    left = [worker for worker in crew if not _has_ended(worker)]
    while left and (seconds := until - time.monotonic()) > 0:
        signal.sigtimedwait({signal.SIGCHLD}, seconds)
        left = [worker for worker in left if not _has_ended(worker)]
    for worker in left:
        os.kill(worker.pid, signal.SIGKILL)
        os.waitpid(worker.pid, 0)


def _work(service: Service, joined: socket.socket) -> int:
    """Serve in this process until the other end of `joined` is closed; return the exit code."""
    for number in STOPS:
        signal.signal(number, signal.SIG_IGN)  # Ctrl-C reaches every process of a terminal; the first one decides
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {*STOPS, signal.SIGCHLD})
    try:
        with service.opened() as cache, asyncio.Runner(loop_factory=_loop_factory()) as runner:
            runner.run(_serve(service, cache, joined))
    except (CacheError, OSError) as error:
        _say(str(error))
        return 2
    return 0


def _say(text: str) -> None:
    sys.stderr.write(f"diskcache-like: {text}\n")


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop
    return uvloop.new_event_loop


async def _serve(service: Service, cache: Cache, joined: socket.socket) -> None:
    """Open the doors, say so, and close them when the other end of `joined` is closed."""
    loop = asyncio.get_running_loop()
    async with contextlib.AsyncExitStack() as doors:
        if service.resp is not None:
            await doors.enter_async_context(_resp(service, cache, service.resp))
        if service.http is not None:
            from .http_server import http_server  # late: it needs the extra `serve`

            served = http_server(cache, service.access, service.http, service.tls, service.grace)
            await doors.enter_async_context(served)
        joined.setblocking(False)
        with contextlib.suppress(ConnectionError):  # the first process may end the connection with that unread
            await loop.sock_sendall(joined, b"1")
            await loop.sock_recv(joined, 1)


@contextlib.asynccontextmanager
async def _resp(service: Service, cache: Cache, place: Place) -> Any:
    door = RespDoor(cache, service.access)
    loop = asyncio.get_running_loop()
    options: dict[str, Any] = {"sock": place.listener()}
    if service.tls is not None and not place.address.path:
        # An idle client does not answer that the connection ends, and stopping would wait for it.
        patience = {"ssl_handshake_timeout": service.access.limits.patience, "ssl_shutdown_timeout": GOODBYE}
        options |= {"ssl": service.tls, **patience}
    listening = await loop.create_server(door.protocol, **options)
    try:
        yield
    finally:
        listening.close()
        await door.stop(service.grace)
