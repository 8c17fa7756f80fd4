"""RESP, the protocol of Redis, as bytes: requests are parsed, and replies encoded.

The parser is our own, because no client may make it reserve memory by an announcement: it refuses a length that is too
large when it reads it, and keeps nothing but what has arrived.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Mapping
from typing import Any, Final

LINE: Final = 64 << 10  # bytes of an inline command, as in Redis
_HEADER: Final = 32  # bytes of a line that announces a length
_NUMBER: Final = re.compile(rb"-?[0-9]{1,19}\Z")
_WORD: Final = re.compile(rb"""\s*(?:"((?:\\.|[^"\\])*)"|'((?:\\'|[^'])*)'|([^\s"']+))(?:\s+|\Z)""", re.DOTALL)
_ESCAPE: Final = re.compile(rb"\\(?:x([0-9a-fA-F]{2})|(.))", re.DOTALL)
_ESCAPED: Final = {b"n": b"\n", b"r": b"\r", b"t": b"\t", b"b": b"\b", b"a": b"\a"}
_COUNTS: Final = {b"*%d" % number: number for number in range(1, 10)}  # the usual headers, which are always allowed
_LENGTHS: Final = {b"$%d" % number: number for number in range(1, 1000)}
_LINES: Final = {  # by what they begin with: how they end, how long they may be, and what is wrong with others
    b"": (b"\n", LINE, "too big inline request"),
    b"*": (b"\r\n", _HEADER, "invalid multibulk length"),
    b"$": (b"\r\n", _HEADER, "invalid bulk length"),
}


class ProtocolError(Exception):
    """What a client has sent is no request, or announces one that is too large; nothing after it can be understood."""


class NotRedis(ProtocolError):
    """The client speaks HTTP or TLS: it may be a browser, whose page somebody else has written."""


class Parser:
    """Take requests apart as they arrive.

    `value`, `arguments`: bytes of an argument, and arguments of a command, that are allowed; all of them together may
    have twice `value`. Both may be changed between two commands. `error`: why nothing more is understood. Each byte is
    looked at, and copied, a few times at most, however it arrives.
    """

    __slots__ = ("_arrived", "_requests", "arguments", "error", "value")

    def __init__(self, value: int, arguments: int) -> None:
        self.value = value
        self.arguments = arguments
        self.error: ProtocolError | None = None
        self._arrived = b""  # and not looked at yet
        self._requests = self._taken_apart()

    def feed(self, data: bytes) -> None:
        """Take what has arrived."""
        self._arrived += data

    def take(self, most: int) -> list[list[bytes]]:
        """Return the next complete commands, `most` at the most; fewer if there are no more, or is an error."""
        found: list[list[bytes]] = []
        try:
            for words in self._requests:
                if words is None:
                    break
                if words:  # Redis ignores empty ones, too
                    found.append(words)
                if len(found) == most:
                    break
        except ProtocolError as error:
            self.error = error.with_traceback(None)
        return found

    def close(self) -> None:
        """Forget what has arrived, now rather than when garbage is collected."""
        self._requests.close()
        self._arrived = b""

    def _taken_apart(self) -> Generator[list[bytes] | None, None, None]:
        """Yield each request that is complete, and None when more has to arrive.

        The data before `at` is cut off while more has to arrive, so that nothing is kept of requests that are done.
        """
        data, at = b"", 0
        while True:
            words: list[bytes] = []
            if at == len(data):
                data, at = b"", 0
                while not self._arrived:
                    yield None
                data, self._arrived = self._arrived, b""
            if data[at] != 42:  # "*"
                data = data[at:]
                data, at, end = yield from self._line(data, b"")
                words, at = _inline(data[:end]), end + 1
                yield words
                continue
            end = data.find(b"\r\n", at, at + _HEADER)
            if end < 0:
                data = data[at:]
                data, at, end = yield from self._line(data, b"*")
            count = _COUNTS.get(data[at:end]) or _length(data[at:end], b"*", self.arguments)
            at, room = end + 2, 2 * self.value
            for _ in range(count):
                end = data.find(b"\r\n", at, at + _HEADER)
                if end < 0:
                    data = data[at:]
                    data, at, end = yield from self._line(data, b"$")
                length = _LENGTHS.get(data[at:end]) or _length(data[at:end], b"$", min(self.value, room))
                room -= length
                at, end = end + 2, end + 2 + length
                if end + 2 > len(data):
                    data = data[at:]
                    data, at, end = (yield from self._more(data, length + 2)), 0, length
                if room < 0 or data[end] != 13 or data[end + 1] != 10:
                    raise ProtocolError("invalid bulk length")
                words.append(data[at:end])
                at = end + 2
            yield words

    def _line(self, data: bytes, kind: bytes) -> Generator[None, None, tuple[bytes, int, int]]:
        """Return the data that begins with a line, and the bounds of that, once it is complete."""
        mark, most, problem = _LINES[kind]
        while (end := data.find(mark, 0, most)) < 0:
            if not data.startswith(kind[: len(data)]):
                _length(data, kind, 0)
            if len(data) >= most:
                raise ProtocolError(problem)
            data = yield from self._more(data)
        return data, 0, end

    def _more(self, data: bytes, size: int = 0) -> Generator[None, None, bytes]:
        """Return this and what follows it, once something does, and they are so many bytes."""
        rest, size = bytearray(data), max(size, len(data) + 1)
        while len(rest) < size:
            if not self._arrived:
                yield None
            rest += self._arrived
            self._arrived = b""
        return bytes(rest)


def _length(header: bytes, kind: bytes, most: int) -> int:
    """Return the length that a header of this kind announces, if it is allowed."""
    if not header.startswith(kind):
        raise ProtocolError(f"expected '{kind.decode()}', got '{header[:1].decode('latin-1')}'")
    length = int(header[1:]) if _NUMBER.match(header, 1) else most + 1
    if length > most or (length < 0 and kind == b"$"):
        raise ProtocolError(_LINES[kind][-1])
    return length


def _inline(line: bytes) -> list[bytes]:
    """Return the words of a line."""
    if line[:1] < b" " and not line[:1].isspace() and line:  # as TLS begins
        raise NotRedis
    words = _quoted(line) if b'"' in line or b"'" in line else line.split()
    if words and (words[0].upper() in (b"POST", b"HOST:") or words[-1].startswith(b"HTTP/")):
        raise NotRedis
    return words


def _quoted(line: bytes) -> list[bytes]:
    """Return the words of a line some of which are in quotes."""
    words, at, end = [], 0, len(line.rstrip())
    while at < end:
        match = _WORD.match(line, at, end)
        if match is None:
            raise ProtocolError("unbalanced quotes in request")
        double, single, plain = match.groups()
        if double is not None:
            words.append(_ESCAPE.sub(_unescaped, double))
        else:
            words.append(plain if single is None else single.replace(b"\\'", b"'"))
        at = match.end()
    return words


def _unescaped(match: re.Match[bytes]) -> bytes:
    digits, other = match.groups()
    return bytes((int(digits, 16),)) if other is None else _ESCAPED.get(other, other)


# -- replies ----------------------------------------------------------------------------------------------------------


class Simple(bytes):
    """A status, such as OK."""


class Failed(Exception):
    """What a client is told instead of an answer: a code in capitals, then the reason."""


class Push(list[Any]):
    """What is sent to a client that has asked for nothing just now."""


OK: Final = Simple(b"OK")


def encode(reply: Any, version: int) -> bytes:
    """Return a reply as version 2 or 3 of the protocol has it."""
    kind = type(reply)
    if kind is bytes:
        return b"$%d\r\n%b\r\n" % (len(reply), reply)
    if kind is Simple:
        return b"+%b\r\n" % reply
    if isinstance(reply, int):  # a bool, too
        return b":%d\r\n" % reply
    if reply is None:
        return b"_\r\n" if version > 2 else b"$-1\r\n"
    if kind is str:
        return encode(reply.encode(), version)
    if isinstance(reply, Failed):
        return b"-%b\r\n" % str(reply).replace("\r", " ").replace("\n", " ").encode(errors="replace")
    if isinstance(reply, Mapping):
        members = [encode(member, version) for pair in reply.items() for member in pair]
        head = b"%%%d\r\n" % len(reply) if version > 2 else b"*%d\r\n" % len(members)
        return head + b"".join(members)
    head = b">%d\r\n" if isinstance(reply, Push) and version > 2 else b"*%d\r\n"
    return head % len(reply) + b"".join([encode(member, version) for member in reply])
