"""The parser of requests, and the encoding of replies."""

from __future__ import annotations

import itertools
import re
import time
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diskcache_like.server.resp import LINE, OK, Failed, NotRedis, Parser, Push, encode

VALUE, ARGUMENTS = 1000, 20

commands = st.lists(
    st.lists(st.one_of(st.binary(max_size=40), st.binary(min_size=300, max_size=400)), min_size=1, max_size=4),
    max_size=6,
)


def packed(words: list[bytes]) -> bytes:
    """Return a request."""
    return b"".join([b"*%d\r\n" % len(words), *(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)])


def everything(parser: Parser, pieces: list[bytes], most: int = 3) -> list[list[bytes]]:
    """Return all commands that arrive in pieces."""
    found = []
    for piece in pieces:
        parser.feed(piece)
        while taken := parser.take(most):
            found += taken
    return found


def split(data: bytes, places: list[int]) -> list[bytes]:
    """Cut data at places."""
    bounds = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[start:end] for start, end in itertools.pairwise(bounds)]


@given(commands, st.lists(st.integers(0, 10_000), max_size=8))
def test_a_stream_may_arrive_in_any_pieces(wanted: list[list[bytes]], places: list[int]) -> None:
    data = b"".join(map(packed, wanted))
    assert everything(Parser(VALUE, ARGUMENTS), split(data, places)) == wanted


@given(commands)
def test_a_stream_may_arrive_byte_by_byte(wanted: list[list[bytes]]) -> None:
    data = b"".join(map(packed, wanted))
    assert everything(Parser(VALUE, ARGUMENTS), [data[at : at + 1] for at in range(len(data))]) == wanted


frames = st.lists(
    st.one_of(
        st.binary(max_size=30),
        st.sampled_from([b"*", b"$", b"\r\n", b"-1", b"0", b"3", b"900000000", b"99999999999999999999", b'"', b"\\"]),
        st.lists(st.binary(max_size=5), min_size=1, max_size=3).map(packed),
    ),
    max_size=30,
)


@given(frames, st.integers(1, 4))
def test_nothing_else_is_raised_and_little_is_kept(pieces: list[bytes], most: int) -> None:
    parser = Parser(VALUE, ARGUMENTS)
    for words in everything(parser, pieces, most):
        assert words
        assert sum(map(len, words)) <= max(2 * VALUE, LINE)
    if parser.error:
        parser.feed(packed([b"PING"]))
        assert parser.take(1) == []  # nothing after it is understood


@pytest.mark.parametrize(
    ("request_", "problem"),
    [
        (b"*900000000\r\n", "invalid multibulk length"),
        (b"*21\r\n", "invalid multibulk length"),
        (b"*x\r\n", "invalid multibulk length"),
        (b"*" + b"1" * 40, "invalid multibulk length"),
        (b"*1\r\n$1001\r\n", "invalid bulk length"),
        (b"*1\r\n$-1\r\n", "invalid bulk length"),
        (b"*1\r\n$+1\r\n", "invalid bulk length"),
        (b"*1\r\n$" + b"1" * 40, "invalid bulk length"),
        (b"*1\r\n:3\r\n", r"expected '\$', got ':'"),
        (b"*1\r\nx", r"expected '\$', got 'x'"),
        (b"*1\r\n$1\r\nabc", "invalid bulk length"),
        (b"*1\r\n$1\r\nab\n", "invalid bulk length"),
        (b"x" * LINE, "too big inline request"),
        (b'PING "\r\n', "unbalanced quotes"),
        (b'PING "a"b\r\n', "unbalanced quotes"),
    ],
)
def test_what_is_no_request_is_refused_at_once(request_: bytes, problem: str) -> None:
    parser = Parser(VALUE, ARGUMENTS)
    parser.feed(packed([b"PING"]) + request_)
    assert parser.take(10) == [[b"PING"]]  # what came before counts
    assert re.match(problem, str(parser.error))


def test_all_arguments_together_have_a_limit() -> None:
    for more in (b"$1000\r\n", b"$1\r\nx\r\n"):
        parser = Parser(VALUE, ARGUMENTS)
        parser.feed(b"*3\r\n" + b"$1000\r\n%b\r\n" % (b"x" * 1000) * 2)
        assert parser.take(1) == []
        assert parser.error is None
        parser.feed(more)
        assert parser.take(1) == []
        assert parser.error


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"PING\r\n", [b"PING"]),
        (b"  SET  a\tb \n", [b"SET", b"a", b"b"]),
        (rb'SET "a b" "\x41\n\"\\"' + b"\r\n", [b"SET", b"a b", b'A\n"\\']),
        (b"SET 'a \"b' 'it\\'s' \"\"\r\n", [b"SET", b'a "b', b"it's", b""]),
    ],
)
def test_a_command_may_be_a_line(line: bytes, words: list[bytes]) -> None:
    assert everything(Parser(VALUE, ARGUMENTS), [b"\r\n*0\r\n*-1\r\n" + line]) == [words]


@pytest.mark.parametrize(
    "line", [b"POST /x HTTP/1.1\r\n", b"host: a\r\n", b"GET / HTTP/1.1\r\n", b"DELETE /k HTTP/1.0\n"]
)
def test_http_is_known(line: bytes) -> None:
    parser = Parser(VALUE, ARGUMENTS)
    parser.feed(line)
    assert parser.take(1) == []
    assert isinstance(parser.error, NotRedis)


def test_a_large_value_is_not_looked_at_again_with_each_piece() -> None:
    """A parser that begins anew with each piece, or copies what it has, takes a hundred times as long."""
    size, piece = 32 << 20, bytes(1 << 12)
    parser = Parser(size, 10)
    began = time.process_time()
    whole = b"".join(bytes(piece) for _ in range(size // len(piece)))
    once = time.process_time() - began
    began = time.process_time()
    parser.feed(b"*2\r\n$3\r\nSET\r\n$%d\r\n" % size)
    for _ in range(size // len(piece)):
        assert parser.take(1) == []
        parser.feed(piece)
    parser.feed(b"\r\n")
    ((_, value),) = parser.take(1)
    assert value == whole
    assert time.process_time() - began < 100 * once + 1  # some 5 times `once`, where the other takes 1000 times


def test_an_announcement_reserves_nothing() -> None:
    tracemalloc.start()
    try:
        parser = Parser(1 << 40, 1 << 40)
        parser.feed(b"*%d\r\n$%d\r\nx" % (1 << 39, 1 << 39))
        assert parser.take(1) == []
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("rest", [b"", b"*", b"*1\r\n", b"*1\r\n$900000\r\nx"])
def test_nothing_is_kept_of_what_was_taken_or_of_a_client_that_left(rest: bytes) -> None:
    tracemalloc.start()
    try:
        parser = Parser(1 << 20, 10)
        parser.feed(packed([b"SET", bytes(1 << 20)]) + rest)
        assert len(parser.take(2)) == 1
        assert parser.take(1) == []
        assert tracemalloc.get_traced_memory()[0] < 100_000
        parser.feed(rest[:1] and b"x" * (1 << 19))
        parser.take(1)
        parser.close()
        assert tracemalloc.get_traced_memory()[0] < 100_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("reply", "second", "third"),
    [
        (b"a\r\nb", b"$4\r\na\r\nb\r\n", None),
        ("å", b"$2\r\n\xc3\xa5\r\n", None),
        (OK, b"+OK\r\n", None),
        (-5, b":-5\r\n", None),
        (None, b"$-1\r\n", b"_\r\n"),
        (Failed("ERR a\r\nb"), b"-ERR a  b\r\n", None),
        (True, b":1\r\n", None),
        ([1, [None]], b"*2\r\n:1\r\n*1\r\n$-1\r\n", b"*2\r\n:1\r\n*1\r\n_\r\n"),
        ({"a": 1}, b"*2\r\n$1\r\na\r\n:1\r\n", b"%1\r\n$1\r\na\r\n:1\r\n"),
        (Push(["x", None]), b"*2\r\n$1\r\nx\r\n$-1\r\n", b">2\r\n$1\r\nx\r\n_\r\n"),
    ],
)
def test_replies(reply: object, second: bytes, third: bytes | None) -> None:
    assert (encode(reply, 2), encode(reply, 3)) == (second, third or second)
