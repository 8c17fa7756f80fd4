"""RESP, the protocol of Redis, as bytes: requests are parsed, and replies encoded.

The parser is our own, because no client may make it reserve memory by an announcement: it refuses a length that is too
large when it reads it, and keeps nothing but what has arrived.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

LINE: Final = 64 << 10  # bytes of an inline command, as in Redis
_HEADER: Final = 32  # bytes of a line that announces a length
_SHORT: Final = 100  # bytes of what was said that an error repeats
_NUMBER: Final = re.compile(rb"-?[0-9]{1,19}\Z")
_WORD: Final = re.compile(rb"""\s*(?:"((?:\\.|[^"\\])*)"|'((?:\\'|[^'])*)'|([^\s"']+))(?:\s+|\Z)""", re.DOTALL)
_ESCAPE: Final = re.compile(rb"\\(?:x([0-9a-fA-F]{2})|(.))", re.DOTALL)
_ESCAPED: Final = {b"n": b"\n", b"r": b"\r", b"t": b"\t", b"b": b"\b", b"a": b"\a"}
_LENGTHS: Final = {b"%c%d" % (kind, number): number for kind in b"*$" for number in range(1000)}  # the usual headers


class ProtocolError(Exception):
    """What a client has sent is no request, or announces one that is too large; nothing after it can be understood."""


class NotRedis(ProtocolError):
    """The client speaks HTTP: it may be a browser, whose page somebody else has written."""


class Parser:
    """Take requests apart as they arrive.

    `value`, `arguments`: bytes of an argument, and arguments of a command, that are allowed; all of them together may
    have twice `value`. Both may be changed between two commands. Each byte is looked at, and copied, a few times at
    most, however it arrives.
    """

    __slots__ = ("_at", "_bulk", "_data", "_error", "_have", "_left", "_partial", "_words", "arguments", "value")

    def __init__(self, value: int, arguments: int) -> None:
        self.value = value
        self.arguments = arguments
        self._data = b""  # what has arrived, from
        self._at = 0  # here on not yet taken apart
        self._words: list[bytes] = []  # of the command that has begun,
        self._left = 0  # the arguments that it lacks,
        self._have = 0  # the bytes of those that are announced,
        self._bulk = -1  # and those of the next one, -1 if that is not announced yet
        self._partial: bytearray | None = None  # what has arrived of it, and `_at` is how many bytes are missing
        self._error: ProtocolError | None = None

    @property
    def is_broken(self) -> bool:
        """Tell whether `take` raises an error now."""
        return self._error is not None

    def feed(self, data: bytes) -> None:
        """Take what has arrived."""
        if self._partial is not None:
            self._partial += data
            self._at -= len(data)
            if self._at <= 0:
                self._data, self._at, self._partial = bytes(self._partial), 0, None
        else:
            self._data, self._at = self._data[self._at :] + data if self._at < len(self._data) else data, 0

    def take(self, most: int) -> list[list[bytes]]:
        """Return the next complete commands, `most` at the most; raise ProtocolError if there is something else."""
        found: list[list[bytes]] = []
        try:
            while len(found) < most and self._error is None:
                words = self._next()
                if words is None:
                    break
                if words:  # Redis ignores empty ones, too
                    found.append(words)
        except ProtocolError as error:
            self._error = error
        if self._error is not None and not found:
            raise self._error
        return found

    def _next(self) -> list[bytes] | None:
        """Return the next command, an empty one to be ignored, or None if it is not complete."""
        if self._partial is not None:
            return None
        left = self._left
        if not left:
            data, at = self._data, self._at
            if at >= len(data):
                return None
            if data[at] != 42:  # "*"
                return self._inline()
            end = data.find(b"\r\n", at, at + _HEADER)
            if end < 0:
                self._wait_for_line("invalid multibulk length")
                return None
            known = _LENGTHS.get(data[at:end])
            left = self._length(data[at + 1 : end], "invalid multibulk length") if known is None else known
            if left > self.arguments:
                raise ProtocolError("invalid multibulk length")
            self._at = end + 2
            if left <= 0:
                return []
            self._words, self._have = [], 0
        return self._arguments(left)

    def _arguments(self, left: int) -> list[bytes] | None:
        """Return the command that has begun and lacks `left` arguments, or None if it is not complete."""
        data, at, words, length = self._data, self._at, self._words, self._bulk
        while left:
            if length < 0:
                end = data.find(b"\r\n", at, at + _HEADER)
                if end < 0:
                    self._left, self._at, self._bulk = left, at, -1
                    self._wait_for_line("invalid bulk length")
                    return None
                known = _LENGTHS.get(data[at:end]) if data[at] == 36 else None
                length = self._announced(data, at, end) if known is None else known
                self._have += length
                if length > self.value or self._have > 2 * self.value:
                    raise ProtocolError("invalid bulk length")
                at = end + 2
            end = at + length
            if end + 2 > len(data):
                self._left, self._bulk, self._at = left, length, end + 2 - len(data)
                self._partial, self._data = bytearray(data[at:]), b""
                return None
            if data[end] != 13 or data[end + 1] != 10:
                raise ProtocolError("invalid bulk length")
            words.append(data[at:end])
            at, left, length = end + 2, left - 1, -1
        self._at, self._left, self._bulk = at, 0, -1
        return words

    def _announced(self, data: bytes, at: int, end: int) -> int:
        if data[at] != 36:  # "$"
            raise ProtocolError(f"expected '$', got '{chr(data[at])}'")
        length = self._length(data[at + 1 : end], "invalid bulk length")
        if length < 0:
            raise ProtocolError("invalid bulk length")
        return length

    @staticmethod
    def _length(digits: bytes, problem: str) -> int:
        if not _NUMBER.match(digits):
            raise ProtocolError(problem)
        return int(digits)

    def _wait_for_line(self, problem: str) -> None:
        """Go on when more of a line has arrived, if it may be longer."""
        data, at = self._data, self._at
        if len(data) - at >= _HEADER:
            raise ProtocolError(problem)
        if self._left and at < len(data) and data[at] != 36:
            raise ProtocolError(f"expected '$', got '{chr(data[at])}'")

    def _inline(self) -> list[bytes] | None:
        data, at = self._data, self._at
        end = data.find(b"\n", at, at + LINE)
        if end < 0:
            if len(data) - at >= LINE:
                raise ProtocolError("too big inline request")
            return None
        line = data[at:end]
        words = _words_of(line) if b'"' in line or b"'" in line else line.split()
        if words and (words[0].upper() in (b"POST", b"HOST:") or words[-1].startswith(b"HTTP/")):
            raise NotRedis("HTTP")
        self._at = end + 1
        return words


def _words_of(line: bytes) -> list[bytes]:
    """Split an inline command some of whose words are in quotes."""
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
    if kind is int:
        return b":%d\r\n" % reply
    if reply is None:
        return b"_\r\n" if version > 2 else b"$-1\r\n"
    if kind is str:
        return encode(reply.encode(), version)
    if isinstance(reply, Failed):
        return b"-%b\r\n" % str(reply).replace("\r", " ").replace("\n", " ").encode(errors="replace")
    return _encode_other(reply, version)


def _encode_other(reply: Any, version: int) -> bytes:
    if isinstance(reply, bool):
        return (b"#t\r\n" if reply else b"#f\r\n") if version > 2 else b":%d\r\n" % reply
    if isinstance(reply, float):
        text = repr(reply).encode()
        return b",%b\r\n" % text if version > 2 else encode(text, version)
    if isinstance(reply, Mapping):
        members = [encode(member, version) for pair in reply.items() for member in pair]
        head = b"%%%d\r\n" % len(reply) if version > 2 else b"*%d\r\n" % len(members)
        return head + b"".join(members)
    head = b">%d\r\n" if isinstance(reply, Push) and version > 2 else b"*%d\r\n"
    return head % len(reply) + b"".join([encode(member, version) for member in reply])
