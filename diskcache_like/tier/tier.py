"""Tier: what a cache with `remote=` has beside its shards."""

from __future__ import annotations

import os
import re
import threading
import weakref
from collections.abc import Iterable
from hashlib import blake2b
from typing import Any, Final, NamedTuple

from ..crypto import signing
from ..entries.session import Session
from ..errors import CacheError, RemoteWarning, SettingError
from ..remote import Remote
from ..system.callers import warn
from ..system.forks import process_token
from ..system.signals import suppress
from .behind import Behind, Sender
from .link import Link
from .listener import Listener
from .server import RedisServer, Server, Unreachable, address_of
from .state import TierState, Word, boot_seconds, boottime
from .store import TieredRows, TierHotLayer
from .wire import Wire, index_of

_STATE: Final = re.compile(r"cache\.remote-[0-9a-f]{12}")


class RemoteStats(NamedTuple):
    """What `cache.remote.stats()` returns; the counts are those of all processes of this machine."""

    namespace: str
    state: str  # 'up'; 'down' while requests are refused after errors; 'silent' if nothing was heard in time
    heard: float | None  # seconds ago, when the last probe was sent that the server has answered
    counts: dict[str, int]


def stats_of(state: TierState) -> RemoteStats:
    """Return what is known of a server, by its state on this machine."""
    sent, now = state.header[Word.LEASE], boottime()
    heard = None if not sent or sent > now else (now - sent) / 1e9
    return RemoteStats(state.namespace, "down" if state.is_open() else "up", heard, state.counts())


def stats_in(directory: str) -> list[RemoteStats]:
    """Return what is known of each server that the cache in a directory has been opened with, if it can be read."""
    found = []
    for name in sorted(name for name in os.listdir(directory) if _STATE.fullmatch(name)):
        with suppress(CacheError):
            found.append(stats_of(TierState(os.path.join(directory, name), shared=False)))
    return found


def state_path(directory: str, remote: Remote) -> str:
    """Return where the state of a namespace on a server lies."""
    named = "\0".join((remote.namespace, address_of(remote.server)))
    return os.path.join(
        directory, f"cache.remote-{blake2b(named.encode('utf-8', 'surrogatepass'), digest_size=6).hexdigest()}"
    )


class Tier:
    """The server behind one handle: its names, the state that the machine shares, and a listener."""

    def __init__(self, remote: Remote, session: Session) -> None:
        if session.options.hot_encoded:
            raise SettingError("hot_encoded=True is not offered with remote=")
        self.remote = remote
        self.clock = session.clock
        self.timeout = session.timeout
        self._shared = session.options.shared
        self.wire = _wire(remote, session)
        path = state_path(session.directory, remote)
        self.state = TierState(path, self._shared)
        self.state.namespace = remote.namespace
        server: Server = remote.server if hasattr(remote.server, "subscribe") else RedisServer(remote)
        self.link = Link(remote, server, self.wire, self.state, session.clock)
        self._max_staleness = None if remote.max_staleness is None else int(remote.max_staleness * 1e9)
        self._lock = threading.Lock()  # guards that one listener is made
        self._process = -1
        self._listener: Listener | None = None
        self.threads: list[Listener | Sender] = []  # emptied by `close`, so that then nothing keeps this alive
        self._shards: list[Behind] = []
        self._look()
        _tiers.add(self)

    def send_for(self, shards: list[Behind]) -> None:
        """Send what waits in these shards, now and later."""
        self._shards = shards
        self._begin()

    def _look(self) -> None:
        """Ask once, and warn if there is no answer: the cache works without, and goes on trying."""
        try:
            self.link.server.unlink([self.wire.prefix + b"probe"])
        except Unreachable as error:
            message = f"no answer from the server of namespace {self.remote.namespace!r}: {error}; going on without it"
            warn(message, RemoteWarning)

    def _begin(self) -> None:
        """Start the threads of this process, once; after a fork or `close`, again."""
        with self._lock:
            if self._process != process_token():
                self._listener = Listener(self.link, self._shared)
                self.threads[:] = [self._listener]
                if self._shards:
                    self.threads.append(Sender(self, self._shards, f"{self.state.path}.send", self._shared))
                self._process = process_token()
                for thread in self.threads:
                    thread.start()

    @property
    def listener(self) -> Listener:
        """Return the listener of this process."""
        listener = self._listener
        while listener is None or self._process != process_token():
            self._begin()
            listener = self._listener
        return listener

    def flush(self) -> None:
        """Send all writes that wait to be sent; raise RemoteError if the server does not answer.

        If another process is sending now, this returns at once.
        """
        self.listener  # noqa: B018 - begins to send
        for thread in list(self.threads):
            if isinstance(thread, Sender):
                thread.flush()

    def lease_ends(self) -> float:
        """Return until when, by `boot_seconds`, what counts may be believed without asking."""
        if self._max_staleness == 0:
            return 0.0
        self.listener  # noqa: B018 - after a fork or `close`, this begins to listen
        return self.state.lease_ends(self._max_staleness)

    def may_be_stale(self) -> bool:
        """Tell whether a copy that cannot be confirmed may be served: for `stale_if_error` beyond `max_staleness`."""
        if self._max_staleness is None:
            return True
        sent = self.state.header[Word.LEASE]
        allowed = self._max_staleness + int(self.remote.stale_if_error * 1e9)
        return bool(sent) and 0 <= boottime() - sent <= allowed

    def evict(self, tags: Iterable[bytes], within: bytes = b"") -> None:
        """Remove everything with one of some encoded tags, of a namespace if `within` is its tag, on every machine."""
        digests = self.wire.evicted_digests(tags, within)
        try:
            self.link.evict(digests)
        finally:
            self.state.change_tags([index_of(digest) for digest in digests])

    def clear(self) -> None:
        """Remove everything from the server."""
        try:
            self.link.clear()
        finally:
            self.state.change_all()

    def stats(self) -> RemoteStats:
        """Return what is known of the server, and how often what has happened."""
        found = stats_of(self.state)
        is_silent = self._max_staleness and self.state.lease_ends(self._max_staleness) < boot_seconds()
        return found._replace(state="silent") if found.state == "up" and is_silent else found

    def close(self) -> None:
        """Stop listening, and close every connection; the next use begins anew."""
        with self._lock:
            threads, self.threads[:] = self.threads[:], []
            self._listener, self._process = None, -1
        for thread in threads:
            thread.stop(wait=True)
        self.link.server.close()
        self.state.close()


def stop_soon(threads: list[Listener | Sender]) -> None:
    """Stop the threads of a cache that was dropped."""
    while threads:
        threads.pop().stop(wait=False)


_tiers: weakref.WeakSet[Tier] = weakref.WeakSet()


def _after_fork() -> None:
    for tier in list(_tiers):
        tier._lock = threading.Lock()  # the thread that may hold the old one does not exist in the child


os.register_at_fork(after_in_child=_after_fork)


def _wire(remote: Remote, session: Session) -> Wire:
    given = remote.secret if remote.secret is not None else session.options.secret
    secret = signing.given_secret(given, os.environ)
    if secret is None and session.pickle_policy != "never":
        raise SettingError(
            "remote= needs a secret, which authenticates what the server has: Remote(..., secret=...). Without one, "
            "open the cache with pickle='never', so that nothing from the server can run code"
        )
    identity = session.shards.stores[0].session.identity
    names = [str(identity.get(name, "")) for name in ("codec", "serializer", "compressor")]
    return Wire(remote.namespace, "\0".join(names), secret, session.sealer is not None)


def parts_of(remote: Any, session: Session) -> tuple[Tier, TieredRows, TierHotLayer]:
    """Return the tier of a cache, its row codec and its hot layer."""
    if not isinstance(remote, Remote):
        raise SettingError(f"remote is {remote!r}, expected a Remote")
    tier = Tier(remote, session)
    try:
        rows = TieredRows(session, tier)
        tier.send_for(rows.behind())
        return tier, rows, TierHotLayer(tier, session.hot_limit, boot_seconds, session.metrics.counters)
    except BaseException:
        tier.close()
        raise
