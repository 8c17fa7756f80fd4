"""The tier of this package, put to the test over machines that share a server, and the same spoiled on purpose."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from diskcache_like import Cache, Timeout

from ..proof import Proof
from .clients import Place, Product, Tier
from .history import Outcome
from .machines import SharedServer, flawed

PROMISE = 8  # of docs/reliability.md
NAMESPACE = "prove"
LISTENER_LOCK = "*listen*"  # the files in a cache's directory whose lock makes a process the one that listens


@contextmanager
def opened(place: Place) -> Iterator[Tier]:
    """Open a cache with the tier."""
    from diskcache_like import Remote  # type: ignore[attr-defined]  # not there yet

    settings = place.settings._asdict()  # named as the arguments are
    options: dict[str, Any] = {"remote": Remote(place.url, namespace=NAMESPACE, **settings)}
    with Cache(place.directory, durability="process", **options) as cache:
        yield cache


def outcome(error: Exception) -> Outcome | None:
    """Tell what became of a call that raised: refused if it says that nothing was sent."""
    from diskcache_like import RemoteError  # type: ignore[attr-defined]  # not there yet

    if isinstance(error, RemoteError):
        return "unknown" if getattr(error, "sent", True) else "refused"
    return "unknown" if isinstance(error, Timeout) else None


def listener(directory: Path) -> int | None:
    """Return the process that has the lock of the one that listens, as the system knows it."""
    files = {path.stat().st_ino for path in directory.rglob(LISTENER_LOCK)}
    for line in Path("/proc/locks").read_text().splitlines():
        words = line.split()  # who waits has an arrow behind the number
        if words[1] == "FLOCK" and int(words[5].split(":")[2]) in files:
            return int(words[4])
    return None


TIER = Product(opened, outcome, listener)

# By the names in FLAWS: what spoils the tier in a process before it opens anything.
SPOILS: dict[str, Callable[[], None]] = {}

_WHO = "processes of 2 or 3 machines, their connections and the server failing"
PROOFS: dict[str, Proof] = {
    "remote-staleness": Proof(
        PROMISE, f"{_WHO}: no read is older than the bound", SharedServer(TIER), share=3, bulk=20
    ),
    "remote-three-machines": Proof(
        PROMISE, f"{_WHO}: the same with three machines", SharedServer(TIER, 3, 2), share=1, bulk=10
    ),
    **flawed(TIER, SPOILS, PROMISE),
}
