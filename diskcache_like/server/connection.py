"""Connections: clients that speak RESP, each with its own order of commands, on one event loop.

What has arrived is carried out at once, and answered by one write. A command that would block the loop goes to a thread
with all that have arrived behind it. Meanwhile, and while a client does not read its replies, nothing more is read.
"""

from __future__ import annotations

import asyncio
from collections import deque
from functools import partial
from typing import Any, Final, cast

from ..cache import Cache
from ..system.blocking import WouldBlock
from .access import Access
from .commands import Client, carry_out, is_write
from .resp import Failed, NotRedis, Parser, ProtocolError, encode
from .tracking import Tracking

CALLS_ON_LOOPS = True  # for `may_block`

BATCH: Final = 256  # commands, and
ENOUGH: Final = 256 << 10  # bytes of replies, after which other connections have their turn
STRANGERS_VALUE: Final = 16 << 10  # bytes of an argument, and
STRANGERS_ARGUMENTS: Final = 10  # arguments of a client that has not authenticated


class RespDoor:
    """A cache for clients that speak RESP, of any number of listening sockets; to be made on the event loop."""

    def __init__(self, cache: Cache, access: Access) -> None:
        self.cache = cache
        self.access = access
        self.clients: set[Connection] = set()
        self.tracking = Tracking(cache)
        self.is_ending = False
        # Clients take turns to wait for the write lock: once one has it, the others mostly need no thread any more.
        self.writing = asyncio.Lock()
        self.is_empty = asyncio.Event()
        self.is_empty.set()

    def protocol(self) -> Connection:
        """Return what serves one connection."""
        return Connection(self)

    async def stop(self, grace: float) -> None:
        """Answer the commands that have arrived and close the connections; drop what is left after `grace` seconds."""
        self.is_ending = True
        for client in list(self.clients):
            client.finish()
        try:
            await asyncio.wait_for(self.is_empty.wait(), grace)
        except TimeoutError:
            for client in list(self.clients):
                client.drop()
            await self.is_empty.wait()
        await self.tracking.end()


class Connection(Client, asyncio.Protocol):
    """One client."""

    _transport: asyncio.Transport

    def __init__(self, door: RespDoor) -> None:
        self._door = door
        self._threads = door.cache._handle.threads
        self._parser = Parser(0, 0)
        self._commands: deque[list[bytes]] = deque()  # that were taken from the parser
        self._task: asyncio.Task[None] | None = None  # while a thread carries them out
        self._turn: asyncio.Handle | None = None  # while other connections have theirs
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._written = 0  # bytes, at all
        self._is_full = False  # whether the client has to read first
        self._is_reading = True
        self._is_finishing = False
        super().__init__(door.cache, door.access, door.clients, door.tracking)

    def start_over(self) -> None:
        """Be as after connecting."""
        super().start_over()
        limits = self.access.limits
        self._parser.value = limits.value if self.is_admitted else min(limits.value, STRANGERS_VALUE)
        self._parser.arguments = limits.arguments if self.is_admitted else STRANGERS_ARGUMENTS

    def admit(self) -> None:
        """Let the client use commands, as large as they may be."""
        super().admit()
        self._parser.value, self._parser.arguments = self.access.limits.value, self.access.limits.arguments

    # -- what the loop calls ------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin with a client, unless there are too many."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is of no such class
        transport = self._transport
        self._loop = asyncio.get_running_loop()
        door, limits = self._door, self.access.limits
        if door.is_ending or len(door.clients) >= limits.clients:
            self._end(Failed("ERR max number of clients reached"))
            return
        self.peer, self.local = (_address(transport.get_extra_info(name)) for name in ("peername", "sockname"))
        door.clients.add(self)
        door.is_empty.clear()
        # Half of it, or a client that sends a long pipeline before it reads would wait for us, and we for it.
        transport.set_write_buffer_limits(limits.output // 2)
        if not self.access.is_open:
            self._after_patience("stranger", self._drop_stranger)

    def connection_lost(self, _: Exception | None) -> None:
        """Forget the client."""
        self.ends = True
        self._commands.clear()
        self.tracking.stop(self)
        for timer in self._timers.values():
            timer.cancel()
        self._door.clients.discard(self)
        self._leave_if_idle()

    def data_received(self, data: bytes) -> None:
        """Carry out what has arrived, if nothing has to be waited for."""
        self._parser.feed(data)
        if self._task is None and self._turn is None and not self._is_full:
            self._work()

    def eof_received(self) -> bool:
        """Answer what has arrived, then close."""
        self.finish()
        return self._transport.get_extra_info("sslcontext") is None  # under TLS the transport closes by itself

    def pause_writing(self) -> None:
        """Wait until the client has read its replies."""
        self._is_full = True

    def resume_writing(self) -> None:
        """Go on."""
        self._is_full = False
        if self._task is None and self._turn is None:
            self._work()

    # -- commands -----------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        """Carry out what has arrived, and write the replies, until something has to be waited for."""
        self._turn = None
        if self.ends:
            return
        replies: list[bytes] = []
        error: ProtocolError | None = None
        most = BATCH if self.is_admitted else 1  # the limits of the next one depend on how that goes
        is_all = False
        try:
            if not self._commands:
                taken = self._parser.take(most)
                self._commands.extend(taken)
                is_all = len(taken) < most and not self._parser.is_broken
            if self._door.writing.locked() and self._commands and is_write(self._commands[0]):
                raise WouldBlock
            self._carry_out(replies)
        except WouldBlock:
            self._task = self._loop.create_task(self._work_in_thread(replies))
            self._read(False)
            return
        except ProtocolError as problem:
            error = problem
        self._answer(replies, is_all, error)

    async def _work_in_thread(self, replies: list[bytes]) -> None:
        try:
            if not any(map(is_write, self._commands)):
                await self._threads.call(partial(self._carry_out, replies), False)
            else:
                async with self._door.writing:
                    await self._threads.attempt(partial(self._carry_out, replies))
        finally:
            self._task = None
            self._leave_if_idle()
        if not self._transport.is_closing():
            self._answer(replies, False, None)

    def _carry_out(self, replies: list[bytes]) -> None:
        commands, size = self._commands, 0
        while commands and size < ENOUGH and not self.ends:
            reply = carry_out(self, commands[0])
            commands.popleft()
            replies.append(reply)
            size += len(reply)

    def _answer(self, replies: list[bytes], is_all: bool, error: ProtocolError | None) -> None:
        """Write replies, and go on with what is left."""
        if replies:
            if self.is_tracking:  # in one piece, so that a client which has read its reply has read this, too
                replies.append(self.tracking.message(self))
            self._write(b"".join(replies))
            self.tracking.deliver()
        if isinstance(error, NotRedis):
            self.drop()
        elif error is not None:
            self._end(Failed(f"ERR Protocol error: {error}"))
        elif self.ends:
            self._transport.close()
        elif is_all and not self._commands:
            if self._is_finishing:
                self._transport.close()
            else:
                self._read(True)
        else:
            self._read(False)
            if not self._is_full:
                self._turn = self._loop.call_soon(self._work)

    def _read(self, wanted: bool) -> None:
        wanted = wanted and not self._is_full
        if wanted != self._is_reading and not self._transport.is_closing():
            self._is_reading = wanted
            (self._transport.resume_reading if wanted else self._transport.pause_reading)()

    # -- the end ------------------------------------------------------------------------------------------------------

    def finish(self) -> None:
        """Answer what has arrived, then close."""
        self._is_finishing = True
        self._read(False)
        if self._task is None and self._turn is None and not self._is_full:
            self._work()

    def drop(self) -> None:
        """Close at once; a command in a thread goes on to its end, unless it waits for a lock."""
        self.ends = True
        self._transport.abort()
        if self._task is not None:
            self._task.cancel()

    def push(self, message: bytes) -> None:
        """Send what the client has not asked for just now; one that does not read is dropped."""
        if not self._transport.is_closing():
            self._write(message)
            if self._transport.get_write_buffer_size() > self.access.limits.output:
                self.drop()

    def _end(self, error: Failed) -> None:
        self.ends = True
        self._write(encode(error, self.version))
        self._transport.close()

    def _leave_if_idle(self) -> None:
        if self._task is None and not self._door.clients:
            self._door.is_empty.set()

    def _after_patience(self, name: str, then: Any) -> None:
        self._timers[name] = self._loop.call_later(self.access.limits.patience, then)

    def _drop_stranger(self) -> None:
        if self.is_admitted:
            self._after_patience("stranger", self._drop_stranger)  # it may say RESET
        else:
            self.drop()

    def _write(self, data: bytes) -> None:
        self._written += len(data)
        self._transport.write(data)
        if "reader" not in self._timers and self._transport.get_write_buffer_size():
            self._after_patience("reader", partial(self._drop_idle_reader, self._sent()))

    def _sent(self) -> int:
        """Return how much of what was written is not waiting for the client any more."""
        return self._written - self._transport.get_write_buffer_size()

    def _drop_idle_reader(self, before: int) -> None:
        """Drop a client that has read nothing of what waits for it."""
        sent = self._sent()
        if sent == self._written:
            del self._timers["reader"]
        elif sent > before:
            self._after_patience("reader", partial(self._drop_idle_reader, sent))
        else:
            self.drop()


def _address(name: Any) -> str:
    return ":".join(map(str, name[:2])) if isinstance(name, tuple) else f"{name or ''}:0"
