"""Link: requests to the server, with retries and a breaker that all processes of the machine share."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

from ..coherence.generations import MAX_WORD
from ..errors import RemoteError
from ..remote import Remote
from ..system.blocking import may_block
from .scripts import DELETE, ELSEWHERE, READ, RECORD, WRITE
from .server import Reply, Server, Unreachable
from .state import TierState, Word, boottime
from .wire import NAME_SIZE, Wire

ATTEMPTS: Final = 3  # of one request, within its timeout
PAUSE: Final = 0.004  # seconds, at most, before the second attempt; twice as long before each further one
ABSENT: Final = b"absent"  # as the expected version of a write

T = TypeVar("T")


class Link:
    """Ask the server.

    The breaker is two words of the shared state. Processes that count a failure at the same instant may count it as
    one, so it may open an error later; two that both find it half open both ask.
    """

    def __init__(
        self, remote: Remote, server: Server, wire: Wire, state: TierState, clock: Callable[[], float]
    ) -> None:
        self.remote = remote
        self.server = server
        self.wire = wire
        self.state = state
        self._clock = clock
        self._open_for = int(remote.breaker_open * 1e9)

    def attempt(self, ask: Callable[[], T], repeats: bool = True) -> T:
        """Ask, again if that may help, and return the answer; raise Unreachable if there is none in time.

        What does not bear repetition (`repeats` is false) is asked again only if it was not sent: a write whose answer
        was lost may have been done, and read and overwritten by others.
        """
        may_block()
        self._pass_breaker()
        self.state.count("requests")
        began = time.monotonic()
        for number in range(ATTEMPTS):
            try:
                answer = ask()
            except Unreachable as error:
                is_over = number + 1 == ATTEMPTS or time.monotonic() - began > self.remote.timeout / 2
                if is_over or (error.sent and not repeats):
                    self._failed()
                    raise
                self.state.count("retries")
                time.sleep(random.uniform(0, PAUSE * 2**number))
            except RemoteError:
                self.state.count("errors")
                self.succeeded()  # it has answered
                raise
            else:
                self.succeeded()
                return answer
        raise AssertionError("the last attempt returns or raises")

    def _pass_breaker(self) -> None:
        header = self.state.header
        until = header[Word.OPEN_UNTIL]
        if until:
            now = boottime()
            if until - self._open_for <= now < until:
                self.state.count("refused")
                raise Unreachable("requests have failed of late, and are not made for now", sent=False)
            header[Word.OPEN_UNTIL] = now + self._open_for  # half open: the others wait for what this one finds

    def _failed(self) -> None:
        header = self.state.header
        self.state.count("errors")
        failures = header[Word.FAILURES] = min(header[Word.FAILURES], MAX_WORD - 1) + 1
        if failures >= self.remote.breaker_errors:
            if not header[Word.OPEN_UNTIL]:
                self.state.count("breaker_opened")
            header[Word.OPEN_UNTIL] = boottime() + self._open_for

    def succeeded(self) -> None:
        """Close the breaker."""
        header = self.state.header
        if header[Word.FAILURES] or header[Word.OPEN_UNTIL]:
            header[Word.FAILURES] = header[Word.OPEN_UNTIL] = 0

    # -- requests -----------------------------------------------------------------------------------------------------

    def read(self, wanted: Sequence[tuple[bytes, bytes]]) -> list[Reply]:
        """Return what the server says of each (digest, version that is here or nothing), in one round trip."""
        calls = [(self.wire.entry_name(digest), (version, self.wire.tags)) for digest, version in wanted]
        asked = self._clock()
        return [_reply(answer, asked) for answer in self.attempt(lambda: self.server.run(READ, calls))]

    def write(
        self, writes: Sequence[tuple[bytes, tuple[bytes, ...]]], meanwhile: Callable[[], None] = lambda: None
    ) -> list[Reply | None]:
        """Write each (digest, arguments of `write_arguments`); None for what is done, the present entry for a conflict.

        `meanwhile` is called while the server is at it, once for each attempt. Raises RemoteError if there is no
        answer: what became of the writes is not known then.
        """
        calls = [(self.wire.entry_name(digest), arguments) for digest, arguments in writes]
        asked = self._clock()
        answers = self.surely(lambda: self.server.run(WRITE, calls, meanwhile), repeats=False)
        return [None if answer == 1 else _reply(answer, asked) for answer in answers]

    def write_arguments(
        self, expected: bytes, version: bytes, left: float | None, record: bytes | None, tags: list[bytes]
    ) -> tuple[bytes, ...]:
        """Return the arguments of one write; `left`: seconds that the entry lives; `record`: None if it stays here."""
        milliseconds = b"" if left is None or left > 1e12 else b"%d" % max(int(left * 1000), 1)
        kind = ELSEWHERE if record is None else RECORD
        return expected, version, milliseconds, kind, record or b"", self.wire.tags, version[:8], *tags

    def delete(self, removals: Sequence[tuple[bytes, bytes]]) -> list[tuple[bool, Reply | None]]:
        """Remove each (digest, expected version or nothing); return whether there was an entry.

        A reply comes with it if the entry does not have the expected version, and is still there.
        """
        calls = [(self.wire.entry_name(digest), (expected, self.wire.tags)) for digest, expected in removals]
        asked = self._clock()
        answers = self.surely(lambda: self.server.run(DELETE, calls), repeats=False)
        return [
            (answer == 1, None) if isinstance(answer, int) else (False, _reply(answer, asked)) for answer in answers
        ]

    def evict(self, digests: list[bytes]) -> None:
        """Remove everything that has one of some tags."""
        self.surely(lambda: self.server.unlink(self.wire.tag_names(digests)))

    def clear(self) -> None:
        """Remove everything that was there when this began."""
        self.surely(lambda: self.server.clear(self.wire.prefix, NAME_SIZE))

    def surely(self, ask: Callable[[], T], repeats: bool = True) -> T:
        """Do what `attempt` does, but raise RemoteError."""
        try:
            return self.attempt(ask, repeats)
        except Unreachable as error:
            raise RemoteError(f"no answer from the server of namespace {self.remote.namespace!r}: {error}") from error


def _reply(answer: Any, asked: float) -> Reply:
    if isinstance(answer, int):
        return Reply(same=answer == 1)
    if isinstance(answer, list) and len(answer) == 2 and isinstance(answer[0], bytes | None):
        content, left = answer
        return Reply(content=content, left=left if isinstance(left, int) else -1, asked=asked)
    raise RemoteError(f"the server has answered {answer!r:.80}, expected a value and its lifetime")
