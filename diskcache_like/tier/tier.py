"""Tier: what a cache with `remote=` has beside its shards: the server's names, the machine's state, and a listener."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from hashlib import blake2b
from typing import Final, NamedTuple

from ..crypto import signing
from ..entries.handle import Handle
from ..errors import CacheError, RemoteWarning, SettingError
from ..settings.remote import Remote
from ..system.callers import warn
from ..system.signals import suppress
from .link import Link
from .listener import Listener
from .server import Unreachable, address_of
from .state import TierState, Word, boot_seconds, boottime
from .wire import Wire, index_of

_STATE: Final = re.compile(r"cache\.remote-[0-9a-f]{12}")


class RemoteStats(NamedTuple):
    """What `cache.remote.stats()` returns; the counts are those of all processes of this machine."""

    namespace: str
    state: str  # 'up'; 'down' while nobody asks after failures; 'silent' if nothing was heard in time
    heard: float | None  # seconds ago, when the last probe was sent that the server has answered
    counts: dict[str, int]


def stats_of(state: TierState) -> RemoteStats:
    """Return what is known of a server, by its state on this machine."""
    sent, now = state.header[Word.LEASE], boottime()
    heard = None if not sent or sent > now else (now - sent) / 1e9
    return RemoteStats(state.namespace, "down" if state.is_pausing() else "up", heard, state.counts())


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
    """The server behind one handle."""

    def __init__(self, remote: Remote, handle: Handle) -> None:
        if handle.options.hot_encoded:
            raise SettingError("hot_encoded=True is not offered with remote=")
        self.remote = remote
        self.clock = handle.clock
        self.timeout = handle.timeout  # seconds that a write waits for the lock of this machine's database
        self.wire = _wire(remote, handle)
        self.state = TierState(state_path(handle.directory, remote), handle.options.shared)
        self.state.namespace = remote.namespace
        self.link = Link(remote, self.wire, self.state, handle.clock)
        self.listener = Listener(self.link, handle.options.shared)
        self._max_staleness = None if remote.max_staleness is None else int(remote.max_staleness * 1e9)
        try:  # once; if there is no answer, the cache works without, and goes on trying
            self.link.unlink([self.wire.probe])
        except Unreachable as error:
            warn(f"{error}; going on without it", RemoteWarning)
        self.listener.start()

    def lease_ends(self) -> float:
        """Return until when, by `boot_seconds`, what counts may be believed without asking."""
        if self._max_staleness == 0:
            return 0.0
        self.listener.start()
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
        digests = [self.wire.tag_digest(within + tag) for tag in tags]
        try:
            self.link.unlink([self.wire.tags + digest for digest in digests])
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
        self.listener.close()
        self.link.server.close()
        self.state.close()


def _wire(remote: Remote, handle: Handle) -> Wire:
    given = remote.secret if remote.secret is not None else handle.options.secret
    secret = signing.given_secret(given, os.environ)
    if secret is None and handle.pickle_policy != "never":
        raise SettingError(
            "remote= needs a secret, which authenticates what the server has: Remote(..., secret=...). Without one, "
            "open the cache with pickle='never', so that nothing from the server can run code"
        )
    identity = handle.shards.stores[0].shard.identity
    names = [str(identity.get(name, "")) for name in ("codec", "serializer", "compressor")]
    return Wire(remote.namespace, "\0".join(names), secret, handle.sealer is not None)
