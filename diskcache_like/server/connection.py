"""Connections: clients that speak RESP, each with its own order of commands, on one event loop.

What has arrived is carried out at once, and answered by one write. A command that would block the loop goes to a thread
with those behind it that are writes if it is one, and reads if it is none. Meanwhile, and while a client does not read
its replies, nothing more is read.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import os
import time
from collections import deque
from functools import partial
from typing import Final, cast

from ..cache import Cache
from ..system.blocking import WouldBlock
from .access import Access
from .commands import Client, carry_out, is_write
from .resp import Failed, NotRedis, Parser, encode
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
        self.loop = asyncio.get_running_loop()
        self.clients: set[Connection] = set()  # and those that are gone, while a thread works for them
        self.threads = cache._handle.threads  # from here on, what would block the loop raises WouldBlock
        self.tracking = Tracking(cache)
        self.is_ending = False
        # Only one client at a time has a thread that waits for the write lock. Once that thread has had it, most others
        # need none.
        self.is_writing = False
        self.waiting: list[Connection] = []  # for their turn
        self.is_empty = asyncio.Event()
        self.is_empty.set()

    def protocol(self) -> Connection:
        """Return what serves one connection."""
        return Connection(self)

    def next_turn(self) -> None:
        """Let the clients that wait for their turn to write go on; those behind one that needs a thread wait again."""
        self.is_writing = False
        waiting, self.waiting = self.waiting, []
        for client in waiting:
            self.loop.call_soon(client.go_on)

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


_numbers: Final = itertools.count(1)


class Connection(Client, asyncio.Protocol):
    """One client."""

    _transport: asyncio.Transport
    _timer: asyncio.TimerHandle

    def __init__(self, door: RespDoor) -> None:
        super().__init__(door.cache, door.access, door.tracking, door.clients)
        self.door = door
        self.number = os.getpid() << 32 | next(_numbers)  # workers of a server have different ones
        self._loop = door.loop
        self._parser = Parser(0, 0)
        self._commands: deque[list[bytes]] = deque()  # that were taken from the parser,
        self._is_dry = True  # which has no more,
        self._task: asyncio.Task[None] | None = None  # and are carried out by a thread meanwhile
        self._waits = False  # for its turn to write,
        self._deadline = math.inf  # which is to come before this moment
        self._is_lost = False
        self._written = 0  # bytes, at all
        self._stuck: int | None = None  # bytes that the client had got at the last look, if others waited for it
        self._is_full = False  # whether the client has to read first
        self._is_finishing = False

    # -- what the loop calls ------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin with a client, unless there are too many."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is of no such class
        door, limits = self.door, self.access.limits
        self._timer = self._loop.call_later(limits.patience, self._look_after)
        if door.is_ending or len(door.clients) >= limits.clients:
            self._end(Failed("ERR max number of clients reached"))
            return
        self.peer = transport.get_extra_info("peername")
        door.clients.add(self)
        door.is_empty.clear()
        # Half of it, or a client that sends a long pipeline before it reads would wait for us, and we for it.
        self._transport.set_write_buffer_limits(limits.output // 2)

    def connection_lost(self, _: Exception | None) -> None:
        """Forget the client."""
        self.ends = self._is_lost = True
        self._parser.close()
        self.tracking.stop(self)
        self._timer.cancel()
        self._leave_if_idle()

    def data_received(self, data: bytes) -> None:
        """Carry out what has arrived, if nothing has to be waited for."""
        self._parser.feed(data)
        self._is_dry = False  # TLS may bring data after `pause_reading`, too
        self._work()

    def eof_received(self) -> bool:
        """Answer what has arrived, then close."""
        self.finish()
        return self._transport.get_extra_info("sslcontext") is None  # under TLS the transport closes by itself

    def pause_writing(self) -> None:
        """Wait until the client has read its replies."""
        self._is_full = True
        self._transport.pause_reading()

    def resume_writing(self) -> None:
        """Go on."""
        self._is_full = False
        self._work()

    # -- commands -----------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        """Carry out what has arrived, and write the replies, until something has to be waited for."""
        if self._task is not None or self._waits or self._is_full or self.ends:
            return
        replies: list[bytes] = []
        door, commands = self.door, self._commands
        if not commands:
            self._take()
        try:
            if door.is_writing and commands and is_write(commands[0]):
                raise WouldBlock
            self._carry_out(replies)
        except WouldBlock:
            self._transport.pause_reading()
            writes = is_write(commands[0])
            if writes and door.is_writing:
                self._wait_for_turn(replies)
            else:
                door.is_writing |= writes
                self._task = self._loop.create_task(
                    door.threads.call(partial(self._carry_out, replies, writes), writes)
                )
                self._task.add_done_callback(partial(self._done, replies, writes))
        else:
            self._answer(replies)

    def _wait_for_turn(self, replies: list[bytes]) -> None:
        """Wait until another client's thread is done; answer with a timeout if that takes too long."""
        now, timeout = self._loop.time(), self.cache.timeout
        if not replies and now < self._deadline:
            self._waits = True
            self._deadline = min(self._deadline, now + timeout)
            self.door.waiting.append(self)
            return
        if not replies:
            self._commands.popleft()
            replies.append(encode(Failed(f"ERR Timeout: others held the write lock for {timeout} s"), self.version))
        self._answer(replies)

    def go_on(self) -> None:
        """Go on after waiting for the turn to write."""
        self._waits = False
        self._work()

    def _take(self) -> None:
        limits, most = self.access.limits, BATCH
        self._parser.value, self._parser.arguments = limits.value, limits.arguments
        if not self.is_admitted:
            self._parser.value, self._parser.arguments = min(limits.value, STRANGERS_VALUE), STRANGERS_ARGUMENTS
            most = 1  # the limits of the next one depend on how that goes
        self._commands.extend(self._parser.take(most))
        self._is_dry = len(self._commands) < most

    def _done(self, replies: list[bytes], writes: bool, task: asyncio.Task[None]) -> None:
        """Go on after a thread; a callback, since a task that is cancelled at once never begins."""
        self._task = None
        self._leave_if_idle()
        if writes:
            self._loop.call_soon(self.door.next_turn)  # behind this client's replies
        if not task.cancelled():
            task.result()
            if not self._transport.is_closing():
                self._answer(replies)

    def _carry_out(self, replies: list[bytes], writes: bool | None = None) -> None:
        """Carry out the commands that have arrived: all of them, only writes, or only reads, until another one comes.

        A thread that writes ends its turn once it has taken as long as one command may wait.
        """
        commands, size = self._commands, 0
        end = time.monotonic() + self.cache.timeout
        while commands and size < ENOUGH and not self.ends and writes in (None, is_write(commands[0])):
            reply = carry_out(self, commands[0])
            commands.popleft()
            replies.append(reply)
            size += len(reply)
            if writes and time.monotonic() >= end:
                break

    def _answer(self, replies: list[bytes]) -> None:
        """Write replies, and go on with what is left."""
        if replies:
            self._deadline = math.inf
            if self.is_tracking:  # in one piece, so that a client which has read its reply has read this, too
                replies.append(self.tracking.message(self))
            self._write(b"".join(replies))
            self.tracking.deliver()
        transport, is_done = self._transport, self._is_dry and not self._commands
        if self.ends or (is_done and self._is_finishing):
            transport.close()
        elif not is_done:
            transport.pause_reading()
            self._loop.call_soon(self._work)  # other connections have their turn before
        elif isinstance(self._parser.error, NotRedis):
            self.drop()
        elif self._parser.error is not None:
            self._end(Failed(f"ERR Protocol error: {self._parser.error}"))
        elif not self._is_full:
            transport.resume_reading()

    # -- the end ------------------------------------------------------------------------------------------------------

    def finish(self) -> None:
        """Answer what has arrived, then close."""
        self._is_finishing = True
        self._work()

    def drop(self) -> None:
        """Close at once; a command in a thread goes on to its end, unless it waits for a lock."""
        self.ends = True
        self._transport.abort()
        if self._task is not None:
            self._task.cancel()

    def is_busy(self) -> bool:
        """Tell whether a thread carries out commands, whose replies are written later."""
        return self._task is not None

    def push(self, message: bytes) -> None:
        """Send a message that answers no command; a client that does not read is dropped."""
        if not self._transport.is_closing():
            self._write(message)
            if self._transport.get_write_buffer_size() > self.access.limits.output:
                self.drop()

    def _write(self, data: bytes) -> None:
        self._written += len(data)
        self._transport.write(data)

    def _end(self, error: Failed) -> None:
        self.ends = True
        self._write(encode(error, self.version))
        self._transport.close()

    def _leave_if_idle(self) -> None:
        if self._is_lost and self._task is None:
            self.door.clients.discard(self)
            if not self.door.clients:
                self.door.is_empty.set()

    def _look_after(self) -> None:
        """Drop a client that has not authenticated, or has read nothing of what waited for it at the last look."""
        waits = self._transport.get_write_buffer_size()
        stuck = self._written - waits if waits else None
        if not self.is_admitted or (stuck is not None and stuck == self._stuck):
            self.drop()
        else:
            self._stuck = stuck
            self._timer = self._loop.call_later(self.access.limits.patience, self._look_after)
