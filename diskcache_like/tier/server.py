"""Redis and Valkey, by redis-py: requests in one round trip, and the connection that hears of changes."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import chain
from queue import Empty, SimpleQueue
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from ..errors import CacheError, RemoteError, SettingError, missing_dependency
from ..settings.remote import Remote
from ..system.forks import process_token
from ..system.signals import reraise_signal, suppress
from .scripts import Script

GATHERED: Final = 1000  # messages that are read before those are applied
PIECE: Final = 200  # calls of a script in one round trip
PIECE_SIZE: Final = 1 << 18  # bytes after which another one begins
_PUSHED: Final = object()  # stands for a message that has been read where an answer was looked for

Call = tuple[bytes, tuple[bytes, ...]]  # of a script: the name of a key, and arguments


def nothing() -> None:
    """Do nothing while the server is at it."""


class Unreachable(RemoteError):
    """The server cannot be had now: no connection, no answer in time, or one that says so.

    `sent`: a request may have been sent, so what became of it is not known.
    """

    def __init__(self, message: str, sent: bool = True) -> None:
        super().__init__(message)
        self.sent = sent


class _Connections(NamedTuple):
    """The connections of one process: those that are idle, and places for requests."""

    process: int
    idle: list[Any]  # single steps on a list are atomic
    places: SimpleQueue[None]


class Server:
    """Ask Redis 6 or newer, or Valkey. What makes no sense to ask again raises RemoteError, the rest Unreachable.

    Connections belong to the process that made them: a forked child begins with none. The number of places bounds the
    requests in flight; a request that gets none within its timeout counts as one without an answer.
    """

    def __init__(self, remote: Remote) -> None:
        try:
            import redis
        except ImportError as error:
            raise missing_dependency("redis", "redis", "remote=") from error
        self._errors: Any = redis.exceptions
        self._timeout = remote.timeout
        self._most = remote.max_requests
        self._source = _source(redis, remote.server)
        self._options = {
            **self._source.connection_kwargs,
            "socket_timeout": remote.timeout,
            "socket_connect_timeout": remote.connect_timeout,
            "retry": None,
            "decode_responses": False,
        }
        self._made = _Connections(-1, [], SimpleQueue())

    def run(self, script: Script, calls: Sequence[Call], meanwhile: Callable[[], None] = nothing) -> list[Any]:
        """Run a script for each call and return the results; one that the server has forgotten is sent whole.

        `meanwhile` is called once, while the server is at it.
        """
        answers: list[Any] = []
        for piece in _pieces(calls):
            commands = [(b"EVALSHA", script.digest, b"1", name, *arguments) for name, arguments in piece]
            found, meanwhile = self._ask(commands, meanwhile), nothing
            missed = [at for at, answer in enumerate(found) if isinstance(answer, self._errors.NoScriptError)]
            if missed:
                commands = [(b"EVAL", script.text, b"1", piece[at][0], *piece[at][1]) for at in missed]
                for at, answer in zip(missed, self._ask(commands), strict=True):
                    found[at] = answer
            answers += found
        return [self._checked(answer) for answer in answers]

    def ask(self, *command: bytes) -> Any:
        """Return the answer to one command."""
        (answer,) = self._ask([command])
        return self._checked(answer)

    def subscribe(self, prefix: bytes) -> Subscription:
        """Hear of every change of names with a prefix, from when this returns."""
        # By RESP3 messages and answers come on one connection, and keep their order.
        return Subscription(self._source.connection_class(**{**self._options, "protocol": 3}), prefix)

    def close(self) -> None:
        """Close the idle connections; one in use is closed when it is given back to nobody."""
        made, self._made = self._made, _Connections(-1, [], SimpleQueue())
        if made.process == process_token():
            for connection in made.idle:
                connection.disconnect()

    # -- connections --------------------------------------------------------------------------------------------------

    def _connections(self) -> _Connections:
        """Return the connections of this process."""
        found = self._made
        if found.process != process_token():
            found = _Connections(process_token(), [], SimpleQueue())
            for _ in range(self._most):
                found.places.put(None)
            self._made = found
        return found

    def _ask(self, commands: Sequence[Sequence[bytes]], meanwhile: Callable[[], None] = nothing) -> list[Any]:
        """Send commands in one round trip and return their answers; an error stands in the place of one."""
        connections = self._connections()
        try:
            connections.places.get(timeout=self._timeout)
        except Empty:
            raise Unreachable(f"{self._most} requests are under way, which is max_requests", sent=False) from None
        connection = None
        try:
            connection = self._connected(connections.idle)
            connection.send_packed_command((_packed(commands),), check_health=False)
            meanwhile()
            answers = [self._answer(connection, alone=len(commands) == 1) for _ in commands]
            connections.idle.append(connection)
            connection = None
            return answers
        except Exception as error:
            reraise_signal(error)
            raise self._as_ours(error, sent=connection is not None) from error
        finally:
            if connection is not None:  # an answer may be under way that nobody will read
                connection.disconnect()
            connections.places.put(None)

    def _connected(self, idle: list[Any]) -> Any:
        """Return an idle connection that the server has not closed, or a new one."""
        while idle:
            try:
                connection = idle.pop()
            except IndexError:  # another thread has taken it
                break
            with contextlib.suppress(self._errors.ConnectionError, self._errors.TimeoutError):
                if not connection.can_read(0):
                    return connection
            connection.disconnect()
        connection = self._source.connection_class(**self._options)
        try:
            connection.connect()
        except BaseException:
            connection.disconnect()
            raise
        return connection

    def _answer(self, connection: Any, alone: bool) -> Any:
        try:
            return connection.read_response(disable_decoding=True)
        except self._errors.ResponseError as error:
            if "READONLY" in str(error):  # a replica now, perhaps said from within a script: find the primary anew
                raise Unreachable(str(error), sent=not alone) from error
            return error

    def _checked(self, answer: Any) -> Any:
        if isinstance(answer, Exception):
            raise self._as_ours(answer, sent=True) from answer
        return answer

    def _as_ours(self, error: Exception, sent: bool) -> Exception:
        """Return the error of ours for one of redis-py's, and any other as it is."""
        errors = self._errors
        if isinstance(error, CacheError):  # of what was done meanwhile, among others
            return error
        if isinstance(error, errors.ConnectionError | errors.TimeoutError | errors.ReadOnlyError | OSError):
            return Unreachable(str(error), sent)
        return RemoteError(f"the server refused a request: {error}") if isinstance(error, errors.RedisError) else error


class Subscription:
    """One connection with client tracking in broadcasting mode; what goes wrong with it raises errors of redis-py."""

    def __init__(self, connection: Any, prefix: bytes) -> None:
        self._connection = connection
        self._probe = prefix + b"probe"  # a name that is never there
        self._news: list[Any] = []
        try:
            connection.connect()
            # The parser swallows what a handler raises, so this one only notes the message.
            connection._get_parser().set_invalidation_push_handler(self._pushed)
            connection.send_command("CLIENT", "TRACKING", "ON", "BCAST", "PREFIX", prefix, check_health=False)
            while connection.read_response(push_request=True) is _PUSHED:
                pass
        except BaseException:
            connection.disconnect()
            raise

    def _pushed(self, message: Any) -> object:
        self._news.append(message[1])
        return _PUSHED

    def probe(self) -> None:
        """Remove a name that is not there; the answer comes behind every change that was acknowledged before.

        A replica, and a server that is busy with a script, refuse that.
        """
        self._connection.send_command("DEL", self._probe, check_health=False)

    def heard(self, seconds: float) -> tuple[list[bytes], bool, bool]:
        """Wait for news: names that have changed, whether all may have, and whether a probe was answered.

        What has come is read in order; a message behind the answer to a probe waits for the next call.
        """
        deadline = time.monotonic() + seconds
        answered = False
        while (
            not answered
            and len(self._news) < GATHERED
            and self._connection.can_read(max(deadline - time.monotonic(), 0.0))
        ):
            # An integer, and nothing else, answers a probe: other messages than changes may come in between.
            answered = type(self._connection.read_response(push_request=True, disable_decoding=True)) is int
            deadline = 0.0
        news, self._news = self._news, []
        names = [name for message in news if isinstance(message, list) for name in message if isinstance(name, bytes)]
        return names, None in news, answered

    def interrupt(self) -> None:
        """Shut the connection down, from another thread, which ends a wait for what it brings."""
        with suppress(OSError, AttributeError):  # it is closed
            self._connection._sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection."""
        self._connection.disconnect()


def address_of(server: Any) -> str:
    """Return what tells one server from another, without a password."""
    if isinstance(server, str):
        parts = urlsplit(server)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
    pool = getattr(server, "connection_pool", None)
    options = getattr(pool, "connection_kwargs", {})
    service = getattr(pool, "service_name", None)  # of a client that asks sentinels
    return repr([options.get(name) for name in ("host", "port", "path", "db")] + ([service] if service else []))


def _source(redis: Any, server: Any) -> Any:
    """Return the pool whose class and arguments of connections are used; the connections themselves are kept here."""
    if not isinstance(server, str):
        pool = getattr(server, "connection_pool", None)
        if not hasattr(pool, "connection_class") or not hasattr(pool, "connection_kwargs"):
            raise SettingError(f"server is {server!r}, expected an address or a client of redis-py")
        return pool
    try:
        return redis.ConnectionPool.from_url(server)
    except ValueError as error:
        raise SettingError(
            f"the server's address is none of redis://, rediss://, unix:// ({error}); where sentinels know it, give a "
            "client of redis-py: Remote(server=redis.Sentinel([(host, 26379), ...]).master_for(service), ...)"
        ) from None


def _packed(commands: Sequence[Sequence[bytes]]) -> bytes:
    """Return commands as they are sent; what redis-py does for arguments of any type takes several times as long."""
    return b"".join(
        [
            _form(len(command)) % tuple(chain.from_iterable(zip(map(len, command), command, strict=True)))
            for command in commands
        ]
    )


@lru_cache
def _form(words: int) -> bytes:
    return b"*%d\r\n" % words + b"$%d\r\n%b\r\n" * words


def _pieces(calls: Sequence[Call]) -> Iterator[Sequence[Call]]:
    """Yield calls in pieces that one round trip can carry within the timeout of a request."""
    start = size = 0
    for at, (_, arguments) in enumerate(calls):
        if at - start == PIECE or (size > PIECE_SIZE and at > start):
            yield calls[start:at]
            start, size = at, 0
        size += sum(map(len, arguments))
    if start < len(calls):
        yield calls[start:]
