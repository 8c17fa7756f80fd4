"""Listener: the one thread on a machine that hears from the server what has changed, and vouches for the rest.

A lock on a file decides which handle's thread it is; the others try again until it ends. A new listener first has the
server track the namespace, then renews every word, and only then gives a lease: nothing from before it was listening
counts any more. A lease is the moment at which a probe was *sent*. Its answer comes on the same connection as the
changes, behind those of every write that was acknowledged before that moment, and they have been applied by then.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import threading
import time
import weakref
from pathlib import Path
from typing import Final

from ..coherence import futex
from ..coherence.control_files import open_control_file
from ..errors import CacheError
from ..system.forks import process_token, told_of_forks
from ..system.signals import reraise_signal
from .link import Link
from .scripts import DROP, RENEW, TAKE
from .server import Subscription, Unreachable
from .state import Word, boottime

LONGEST_PERIOD: Final = 1.0  # seconds between two probes, or two tries to become the listener
SHORTEST_PERIOD: Final = 0.005
GATHERED: Final = 0.001  # seconds for which messages are gathered behind one that came alone
FIRST_PAUSE: Final = 0.1  # seconds before the second try to connect, at most; then twice as long, up to the longest
LONGEST_PAUSE: Final = 10.0


class Listener:
    """Listen if no other handle on this machine does, and renew the leases that this one holds."""

    def __init__(self, link: Link, shared: bool) -> None:
        self._link = link
        self._shared = shared
        self._begins = threading.Lock()  # guards that one thread is made
        self._process = -1  # in which the thread runs
        self._thread: threading.Thread | None = None
        self._stopped = threading.Event()
        self._descriptor: int | None = None
        self._subscription: Subscription | None = None
        self._leases: dict[bytes, bytes] = {}  # name and owner; single steps on a dictionary are atomic
        staleness = link.remote.max_staleness
        self.period = LONGEST_PERIOD if not staleness else min(max(staleness / 3, SHORTEST_PERIOD), LONGEST_PERIOD)
        _listeners.add(self)

    def start(self) -> None:
        """Let the thread run in this process, if it does not yet: after a fork and after `stop` it begins anew."""
        if self._process == process_token():
            return
        with self._begins:
            if self._process != process_token():
                self._join()  # the lock on the file is one thread's
                self._stopped = threading.Event()
                thread = threading.Thread(
                    target=self._run, args=(self._stopped,), name="diskcache_like listener", daemon=True
                )
                self._thread, self._process = thread, process_token()
                thread.start()

    def stop(self) -> None:
        """Listen no more; another handle takes over. This takes no lock, since the garbage collector may call it."""
        self._process = -1
        self._stopped.set()  # before the look at the subscription: one that is made later is not followed
        subscription = self._subscription
        if subscription is not None:
            subscription.interrupt()

    def close(self) -> None:
        """Do what `stop` does, and wait for the end."""
        with self._begins:
            self.stop()
            self._join()

    def _join(self) -> None:
        thread, remote = self._thread, self._link.remote
        if thread is not None and thread.is_alive() and thread is not threading.current_thread():
            thread.join(remote.timeout + remote.connect_timeout + 1)

    def abandon(self) -> None:
        """In a forked child: leave the thread's things, and close the copy of the lock, which would live on with it."""
        self._begins, self._stopped = threading.Lock(), threading.Event()  # others may have held them
        self._subscription = None
        self._leases.clear()
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    # -- leases on keys -----------------------------------------------------------------------------------------------

    def take(self, name: bytes, owner: bytes) -> bool:
        """Take the lease of a name, which is renewed until it is dropped; True as well if the server cannot say."""
        self.start()
        link = self._link
        try:
            if link.ask(lambda: link.server.run(TAKE, [(name, (owner, self._lease_time))])) != [1]:
                return False
        except CacheError:
            return True
        self._leases[name] = owner
        return True

    def drop(self, name: bytes) -> None:
        """Give a lease back."""
        owner = self._leases.pop(name, None)
        if owner is not None:
            with contextlib.suppress(CacheError):
                self._link.ask(lambda: self._link.server.run(DROP, [(name, (owner,))]))

    @property
    def _lease_time(self) -> bytes:
        return b"%d" % max(int(self._link.remote.lease * 1000), 1)

    def _renew_leases(self) -> None:
        calls = [(name, (owner, self._lease_time)) for name, owner in list(self._leases.items())]
        if calls:
            with contextlib.suppress(CacheError):
                self._link.server.run(RENEW, calls)

    # -- the thread ---------------------------------------------------------------------------------------------------

    def _run(self, stopped: threading.Event) -> None:
        pause = FIRST_PAUSE
        lease = self._link.remote.lease
        try:
            while not stopped.is_set():
                self._renew_leases()
                if self._link.remote.max_staleness is None or not self._is_elected():
                    stopped.wait(min(self.period, lease / 3))
                    continue
                began = boottime()
                try:
                    self._listen(stopped)
                except Exception as error:  # whatever the server has sent: a listener does not end by it
                    reraise_signal(error)
                    if not stopped.is_set():
                        self._link.state.count("errors")
                if boottime() - began > LONGEST_PAUSE * 1e9:
                    pause = FIRST_PAUSE
                stopped.wait(random.uniform(0, pause))  # full jitter
                pause = min(2 * pause, LONGEST_PAUSE, lease / 3)
        finally:
            descriptor, self._descriptor = self._descriptor, None
            if descriptor is not None:
                os.close(descriptor)

    def _is_elected(self) -> bool:
        """Tell whether this is the listener; become it if there is none. The kernel frees the lock with its process."""
        if self._descriptor is not None:
            return True
        try:
            descriptor = open_control_file(Path(self._link.state.path), create=False, shared=self._shared)
        except CacheError:  # the directory is gone
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            reraise_signal(error)
            return False
        self._descriptor = descriptor
        return True

    def _listen(self, stopped: threading.Event) -> None:
        link, state = self._link, self._link.state
        subscription = self._subscription = link.server.subscribe(link.wire.prefix)
        try:
            state.change_all()  # after tracking is on, and before the first lease
            state.count("connections")
            state.succeeded()
            self._follow(subscription, stopped)
        finally:
            self._subscription = None
            subscription.close()

    def _follow(self, subscription: Subscription, stopped: threading.Event) -> None:
        """Apply changes and probe until this is stopped; raise Unreachable if an answer does not come in time."""
        state, period = self._link.state, int(self.period * 1e9)
        patience = int(self._link.remote.timeout * 1e9)
        sent, due, renew = 0, 0, 0
        while not stopped.is_set():
            now = boottime()
            if not sent and now >= due:
                sent = now  # before it is sent: the answer vouches for this moment
                subscription.probe()
                state.count("probes")
            elif sent and now - sent > patience:
                raise Unreachable("a probe was not answered in time")
            names, everything, answered = subscription.heard(max(((sent + patience) if sent else due) - now, 0) / 1e9)
            self._apply(names, everything)
            if names:
                time.sleep(GATHERED)  # or this thread would take the interpreter from the callers for each message
            if answered:  # and everything that came before has been applied
                self._vouch(sent)
                sent, due = 0, sent + period
            if boottime() >= renew:
                self._renew_leases()
                renew = boottime() + int(self._link.remote.lease / 3 * 1e9)

    def _vouch(self, sent: int) -> None:
        """Give a lease: every write that was acknowledged before this moment has been heard of."""
        self._link.state.header[Word.LEASE] = sent

    def _apply(self, names: list[bytes], everything: bool) -> None:
        state = self._link.state
        if everything:  # FLUSHALL
            state.change_all()
        for name in names:
            found = self._link.wire.slot_of(name)
            if found is None:
                continue
            is_tag, index = found
            if is_tag:
                state.change_tags([index])
            else:
                state.change(index)
                futex.wake(state.words, index)
        if names:
            state.count("invalidations", len(names))


_listeners: weakref.WeakSet[Listener] = told_of_forks(lambda listener: listener.abandon())
