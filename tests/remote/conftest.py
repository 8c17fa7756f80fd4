"""Servers for the tests of the remote tier; where there is none, they are skipped, which in CI is a failure."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ..support.flaky_proxy import FlakyProxy, flaky_proxy
from ..support.redis_servers import MissingServer, RedisServer, redis_server, server_program


@pytest.fixture(autouse=True)
def there_is_a_server() -> None:
    """Skip a test where no server can be started."""
    try:
        server_program()
    except MissingServer as reason:
        pytest.skip(str(reason))


@pytest.fixture
def server() -> Iterator[RedisServer]:
    """Return a server of the test's own."""
    with redis_server() as made:
        yield made


@pytest.fixture
def proxy(server: RedisServer) -> Iterator[FlakyProxy]:
    """Return a proxy in front of that server."""
    with flaky_proxy(server.address) as made:
        yield made
