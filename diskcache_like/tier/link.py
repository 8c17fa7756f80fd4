"""Link: what the tier asks of the server, with retries, and a pause that all processes of the machine keep."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from ..errors import RemoteError
from ..settings.remote import Remote
from ..system.blocking import may_block
from .scripts import READ, TAGS_START, VERSION_START, Script
from .server import Call, Server, Unreachable, nothing
from .state import TierState
from .wire import NAME_SIZE, Wire

ATTEMPTS: Final = 3  # of one request, within its timeout
PAUSE: Final = 0.004  # seconds, at most, before the second attempt; twice as long before each further one
ABSENT: Final = b"absent"  # as the expected version of a write
SCANNED: Final = 1000  # names that one step of a scan looks at

T = TypeVar("T")


class Reply(NamedTuple):
    """What the server says of an entry: `same` version, or its content (None for none) and milliseconds left."""

    same: bool = False
    content: bytes | None = None
    left: int = -1
    asked: float = 0.0  # when, by the cache's clock

    @property
    def version(self) -> bytes:
        """Return the version of the content; empty for none."""
        return b"" if self.content is None else self.content[VERSION_START:TAGS_START]


class Link:
    """Ask the server. Each method raises RemoteError, which is Unreachable if there is no answer."""

    def __init__(self, remote: Remote, wire: Wire, state: TierState, clock: Callable[[], float]) -> None:
        self.remote = remote
        self.server = Server(remote)
        self.wire = wire
        self.state = state
        self._clock = clock

    def ask(self, ask: Callable[[], T], repeats: bool = True) -> T:
        """Ask, again if that may help, and return the answer.

        What does not bear repetition (`repeats` is false) is asked again only if it was not sent: a write whose answer
        was lost may have been done, and read and overwritten by others.
        """
        may_block()
        try:
            return self._attempts(ask, repeats)
        except Unreachable as error:
            reason = f"no answer from the server of namespace {self.remote.namespace!r}: {error}"
            raise Unreachable(reason, error.sent) from error

    def _attempts(self, ask: Callable[[], T], repeats: bool) -> T:
        state = self.state
        if not state.may_ask():
            state.count("refused")
            raise Unreachable("requests have failed of late, and are not made for now", sent=False)
        state.count("requests")
        began = time.monotonic()
        for number in range(ATTEMPTS):
            try:
                answer = ask()
            except Unreachable as error:
                is_over = number + 1 == ATTEMPTS or time.monotonic() - began > self.remote.timeout / 2
                if is_over or (error.sent and not repeats):
                    state.failed()
                    raise
                state.count("retries")
                time.sleep(random.uniform(0, PAUSE * 2**number))
            except RemoteError:
                state.count("errors")
                state.succeeded()  # it has answered
                raise
            else:
                state.succeeded()
                return answer
        raise AssertionError("the last attempt returns or raises")

    def read(self, calls: Sequence[Call]) -> list[Reply]:
        """Return what the server says of each entry, in one round trip."""
        asked = self._clock()
        return [_reply(answer, asked) for answer in self.ask(lambda: self.server.run(READ, calls))]

    def change(
        self, script: Script, calls: Sequence[Call], meanwhile: Callable[[], None] = nothing
    ) -> list[Reply | None]:
        """Write or remove each entry; return None for what is done, else what is there.

        `meanwhile` is called while the server is at it. After a RemoteError it is not known what became of it.
        """
        asked = self._clock()
        answers = self.ask(lambda: self.server.run(script, calls, meanwhile), repeats=False)
        return [None if answer == 1 else _reply(answer, asked) for answer in answers]

    def unlink(self, names: Sequence[bytes]) -> None:
        """Remove names."""
        self.ask(lambda: self.server.ask(b"UNLINK", *names))

    def clear(self) -> None:
        """Remove everything that was there when this began."""
        self.ask(self._clear)

    def _clear(self) -> None:
        """Remove every name of a length that begins with the prefix: other namespaces may begin with it, too."""
        escaped = [b"\\%c" % byte if byte in b"*?[]\\^-" else b"%c" % byte for byte in self.wire.prefix]
        pattern = b"".join(escaped) + b"?" * NAME_SIZE
        self.server.ask(b"UNLINK", self.wire.probe)  # a replica, which may have none of the names, refuses that
        cursor = b"0"
        while True:
            cursor, names = self.server.ask(b"SCAN", cursor, b"MATCH", pattern, b"COUNT", b"%d" % SCANNED)
            if names:
                self.server.ask(b"UNLINK", *names)
            if int(cursor) == 0:
                return


def _reply(answer: Any, asked: float) -> Reply:
    if isinstance(answer, int):
        return Reply(same=answer == 1)
    if isinstance(answer, list) and len(answer) == 2 and isinstance(answer[0], bytes | None):
        content, left = answer
        return Reply(content=content, left=left if isinstance(left, int) else -1, asked=asked)
    raise RemoteError(f"the server has answered {answer!r:.80}, expected a value and its lifetime")
