"""Access: the password that clients must give, and what limits hold for them."""

from __future__ import annotations

import hmac
from typing import NamedTuple


class Limits(NamedTuple):
    """What one client, or all of a worker's, may take."""

    value: int = 64 << 20  # bytes of an argument of a command, or of the body of a request
    arguments: int = 100_000  # of a command, or keys of a request
    output: int = 64 << 20  # bytes that wait for a client that does not read them; more ends its connection
    clients: int = 1_000  # connections of a worker, of each protocol
    patience: float = 30.0  # seconds for a client to authenticate, or to go on reading what waits for it


class Access:
    """The password, if there is one, and the limits."""

    def __init__(self, password: bytes | None = None, limits: Limits = Limits()) -> None:  # noqa: B008 - immutable
        self._password = password
        self.limits = limits

    @property
    def is_open(self) -> bool:
        """Tell whether clients need no password."""
        return self._password is None

    def admits(self, password: bytes) -> bool:
        """Tell whether this is the password, in a time that does not tell how much of it is right."""
        return self._password is not None and hmac.compare_digest(self._password, password)
