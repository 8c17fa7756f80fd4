"""A TCP proxy that does to connections what networks do: delays, freezes and cuts them, and lets no new ones in.

It runs in a thread of its own, and is told what to do by method calls, each of which has taken effect when it returns.
The bytes of a connection are never reordered, and none is left out in front of one that arrives.
"""

from __future__ import annotations

import asyncio
import functools
import random
import socket
import struct
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar

from .redis_servers import ATTEMPTS, free_port

PATIENCE = 60.0  # seconds for the thread to do what it was told
PIECE = 1 << 16  # bytes
HELD = 64  # pieces on their way in each direction, after which nothing more is read
RESET = struct.pack("ii", 1, 0)  # linger for no time: closing sends RST

Address = tuple[str, int]  # of the loopback interface
Direction = Literal["to_server", "to_client"]
DIRECTIONS: tuple[Direction, ...] = ("to_server", "to_client")
Found = TypeVar("Found")
P = ParamSpec("P")


def done_there(
    what: Callable[Concatenate[FlakyProxy, P], Coroutine[Any, Any, Found]],
) -> Callable[Concatenate[FlakyProxy, P], Found]:
    """Return what has the proxy's thread do something, and returns when that has been done."""

    @functools.wraps(what)
    def call(proxy: FlakyProxy, /, *args: P.args, **kwargs: P.kwargs) -> Found:
        return asyncio.run_coroutine_threadsafe(what(proxy, *args, **kwargs), proxy._loop).result(PATIENCE)

    return call


@dataclass
class _Way:
    """What happens at present to all that goes in one direction."""

    delay: float = 0.0
    uneven: float = 0.0
    turn: int = 0  # how often it was changed
    open: asyncio.Event = field(default_factory=asyncio.Event)

    def delay_of(self, connection: int) -> float:
        """Return the delay of a connection, by the luck that it has at present, between 0 and 1."""
        if not self.uneven:
            return self.delay
        luck = random.Random(f"{connection} {self.turn}")
        return self.delay * (1.0 - self.uneven * luck.choice((0.0, 1.0, luck.random())))


class FlakyProxy:
    """A proxy in front of one server; everything passes until it is told otherwise."""

    def __init__(self, target: Address) -> None:
        self.port = 0
        self.accepted = 0  # connections so far
        self._target = target
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="flaky-proxy", daemon=True)
        self._listener: asyncio.Server | None = None
        self._ways = {direction: _Way() for direction in DIRECTIONS}
        self._connections: dict[asyncio.Task[None], list[asyncio.StreamWriter]] = {}
        self._thread.start()
        self.pass_everything()

    # -- where it is ------------------------------------------------------------------------------------------------

    @property
    def address(self) -> tuple[str, int]:
        """Return where it listens."""
        return "127.0.0.1", self.port

    @property
    def url(self) -> str:
        """Return its URL, for a server without TLS and passwords."""
        return f"redis://127.0.0.1:{self.port}/0"

    # -- what it does -----------------------------------------------------------------------------------------------

    async def _delay(self, to_server: float = 0.0, to_client: float = 0.0, uneven: float = 0.0) -> None:
        """Have everything arrive so many seconds after it was sent, on connections that exist and on new ones.

        `uneven`, from 0 to 1: by how much of that a connection may be quicker than another, each as luck has it now. So
        what is sent later on one may arrive earlier than what is sent on another.
        """
        for way, seconds in zip(self._ways.values(), (to_server, to_client), strict=True):
            way.delay, way.uneven, way.turn = seconds, uneven, way.turn + 1

    async def _freeze(self, *directions: Direction) -> None:
        """Accept connections and bytes, and pass nothing on in these directions, or in either, not even an end."""
        for direction in directions or DIRECTIONS:
            self._ways[direction].open.clear()

    async def _thaw(self) -> None:
        """Pass on what was held back, and all that comes."""
        for way in self._ways.values():
            way.open.set()

    async def _cut(self) -> int:
        """Reset all connections on both sides; return how many there were. New ones are let in."""
        cut = list(self._connections)
        for task in cut:
            for writer in self._connections[task]:
                _reset(writer)
            task.cancel()
        await asyncio.gather(*cut, return_exceptions=True)
        return len(cut)

    async def _refuse(self) -> None:
        """Refuse new connections; those that exist go on."""
        if self._listener is not None:
            for each in self._listener.sockets:
                self._loop.remove_reader(each.fileno())
            await asyncio.sleep(0)  # let in who was accepted in this turn: closing first would leave that socket open
            self._listener.close()  # not wait_closed, which from Python 3.12 on waits for the connections as well
            self._listener = None

    async def _accept(self) -> None:
        """Let new connections in again, on the same port."""
        for attempt in range(ATTEMPTS):
            if self._listener is not None:
                return
            port = self.port or free_port()
            with suppress(OSError):  # somebody was quicker to take the port
                self._listener = await asyncio.start_server(self._serve, "127.0.0.1", port, backlog=1024)
                self.port = port
                return
            await asyncio.sleep(0.01 * attempt)
        raise AssertionError(f"the proxy cannot listen on port {self.port}")

    async def _pass_everything(self) -> None:
        """End all faults: no delay, nothing frozen, new connections welcome."""
        await self._thaw()
        await self._delay()
        await self._accept()

    delay, freeze, thaw = done_there(_delay), done_there(_freeze), done_there(_thaw)
    cut, refuse, accept = done_there(_cut), done_there(_refuse), done_there(_accept)
    pass_everything = done_there(_pass_everything)

    def lead_to(self, target: Address) -> None:
        """Lead new connections to another server; those that exist stay where they are until they are cut."""
        self._target = target

    def close(self) -> None:
        """Cut everything, and end the thread."""
        done_there(FlakyProxy._end)(self)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive(), "the proxy's thread does not end"
        self._loop.close()

    # -- in the thread ----------------------------------------------------------------------------------------------

    async def _end(self) -> None:
        await self._refuse()
        while asyncio.all_tasks() - {asyncio.current_task()}:  # some may be about to serve a connection
            await self._cut()
            await asyncio.sleep(0)
        await self._loop.shutdown_asyncgens()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Connect one client with the server until both have ended, or the connection is cut."""
        task = asyncio.current_task()
        assert task is not None
        self.accepted += 1
        writers = self._connections[task] = [writer]
        try:
            await self._join(reader, writers)
        except* OSError:  # one side is gone without an end, so the other is
            for each in writers:
                _reset(each)
        except* asyncio.CancelledError:  # it was cut
            pass
        finally:
            for each in writers:
                each.close()
            del self._connections[task]

    async def _join(self, reader: asyncio.StreamReader, writers: list[asyncio.StreamWriter]) -> None:
        number = self.accepted
        await self._ways["to_server"].open.wait()  # who comes to a frozen one is let in, and no more
        server_reader, server_writer = await asyncio.open_connection(*self._target)
        writers.append(server_writer)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._carry(reader, server_writer, self._ways["to_server"], number))
            group.create_task(self._carry(server_reader, writers[0], self._ways["to_client"], number))

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: _Way, number: int) -> None:
        """Carry what comes, and in the end the end of it, each piece late by the delay of the moment it came."""
        pieces: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(HELD)

        async def receive() -> None:
            piece = b"-"
            while piece:
                try:
                    piece = await reader.read(PIECE)
                except OSError:
                    await way.open.wait()  # the other side hears as little of a reset as of anything else
                    raise
                await pieces.put((self._loop.time() + way.delay_of(number), piece))

        async def send() -> None:
            piece = b"-"
            while piece:
                due, piece = await pieces.get()
                if (late := due - self._loop.time()) > 0:
                    await asyncio.sleep(late)
                await way.open.wait()
                if piece:
                    writer.write(piece)
                    await writer.drain()
                elif writer.can_write_eof():
                    writer.write_eof()

        async with asyncio.TaskGroup() as group:
            group.create_task(receive())
            group.create_task(send())


def _reset(writer: asyncio.StreamWriter) -> None:
    """Have a connection end by RST, as one does whose other side has crashed."""
    with suppress(OSError, AttributeError):
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    writer.transport.abort()


@contextmanager
def flaky_proxy(target: Address) -> Iterator[FlakyProxy]:
    """Run a proxy for a with-block."""
    made = FlakyProxy(target)
    try:
        yield made
    finally:
        made.close()
