"""The tier of this package, put to the test over machines that share a server, and the same spoiled on purpose."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from diskcache_like import Cache, Remote, RemoteError, RemoteWarning, Timeout
from diskcache_like.tier import link, state
from diskcache_like.tier.copies import Copies
from diskcache_like.tier.listener import Listener
from diskcache_like.tier.scripts import READ, script
from diskcache_like.tier.server import Subscription
from diskcache_like.tier.state import TierState, Word, boottime
from diskcache_like.tier.tier import Tier as Link

from ..proof import Proof
from .clients import Place, Product, Tier
from .history import Outcome
from .machines import SharedServer, flawed

PROMISE = 8  # of docs/reliability.md
NAMESPACE = "prove"
SECRET = "a secret of several machines"
PAUSE = 200_000_000  # nanoseconds; with the default, a case would end before its requests go on
LISTENER_LOCK = "cache.remote-*"  # the files in a cache's directory whose lock makes a process the one that listens


@contextmanager
def opened(place: Place) -> Iterator[Tier]:
    """Open a cache with the tier."""
    vars(state)["PAUSE"] = PAUSE
    settings = place.settings._asdict()  # named as the arguments are
    remote = Remote(place.url, namespace=NAMESPACE, secret=SECRET, **settings)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RemoteWarning)  # the server may be away just now
        cache = Cache(place.directory, durability="process", remote=remote)
    with cache:
        yield cache


def outcome(error: Exception) -> Outcome | None:
    """Tell what became of a call that raised: refused if it says that nothing was sent."""
    if isinstance(error, RemoteError):
        return "unknown"
    return "unknown" if isinstance(error, Timeout) else None


def listener(directory: Path) -> int | None:
    """Return the process that has the lock of the one that listens, as the system knows it."""
    files = {path.stat().st_ino for path in directory.glob(LISTENER_LOCK)}
    for line in Path("/proc/locks").read_text().splitlines():
        words = line.split()  # who waits has an arrow behind the number
        if words[1] == "FLOCK" and int(words[5].split(":")[2]) in files:
            return int(words[4])
    return None


TIER = Product(opened, outcome, listener)


# By the names in FLAWS: what spoils the tier in a process before it opens anything.
def note_late() -> None:
    """Note the words of an entry when the server has answered."""
    note = Copies.note

    def late(self: Copies, place: Any, record: Any, word: int, tags: int) -> None:
        note(self, place, record, self._state.words[place.index], self._state.header[Word.TAGS])

    Copies.note = late  # type: ignore[method-assign]


def vouch_late() -> None:
    """Give a lease from when the probe is answered."""
    vouch = Listener._vouch
    Listener._vouch = lambda self, sent: vouch(self, boottime())  # type: ignore[method-assign]


def need_no_lease() -> None:
    """Believe what is here without a lease."""
    Link.lease_ends = lambda self: float("inf")  # type: ignore[method-assign]


def ping() -> None:
    """Ask for a sign of life only, which any node gives, and read from any node."""

    def probe(self: Subscription) -> None:
        self._connection.send_command("PING", check_health=False)

    Subscription.probe = probe  # type: ignore[method-assign]
    vars(link)["READ"] = script(READ.text.decode().replace("redis.call('DEL', prefix .. 'probe')", ""))


def apply_nothing() -> None:
    """Let what the server says change nothing."""
    Listener._apply = lambda *_: None  # type: ignore[method-assign]


def keep_words() -> None:
    """Let what is here count after a connection was lost."""
    TierState.change_all = lambda self: None  # type: ignore[method-assign]


SPOILS: dict[str, Callable[[], None]] = {
    "word-noted-late": note_late,
    "lease-stamped-late": vouch_late,
    "no-lease": need_no_lease,
    "probe-by-ping": ping,
    "no-invalidations": apply_nothing,
    "old-epoch": keep_words,
}

_WHO = "processes of 2 or 3 machines, their connections and the server failing"
PROOFS: dict[str, Proof] = {
    "remote-staleness": Proof(
        PROMISE, f"{_WHO}: no read is older than the bound", SharedServer(TIER), share=3, bulk=20, parallel=True
    ),
    "remote-three-machines": Proof(
        PROMISE, f"{_WHO}: the same with three machines", SharedServer(TIER, 3, 2), share=1, bulk=10, parallel=True
    ),
    **flawed(TIER, SPOILS, PROMISE),
}
