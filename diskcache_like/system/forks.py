"""Notice cheaply that this process is not the one that opened a resource but was forked from it."""

from __future__ import annotations

import mmap
import os
import sys
import threading
import weakref
from collections.abc import Callable
from typing import TypeVar

from .signals import reraise_signal

# On Linux such a page reads as zeros in a forked child, whoever calls fork. `os.register_at_fork` alone misses forks
# made from C (by application servers), and `os.getpid` is a system call of about 140 ns.
_MADV_WIPEONFORK = 18

_NOBODY = 2**64 - 1


class ForkGuard:
    """Hold a token that differs from the tokens of all ancestors of this process.

    `word[0]` is the token, in a page that fork wipes. Where the kernel cannot wipe pages, it is a number that no
    process has: code that compares the word always goes on to call `token`, which compares the process id.
    """

    __slots__ = ("_lock", "_pid", "_token", "wiped_by_kernel", "word")

    def __init__(self) -> None:
        page = mmap.mmap(-1, mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.wiped_by_kernel = _wipe_on_fork(page)
        self.word = memoryview(page).cast("Q")
        self._token = 0
        self.forked()

    def token(self) -> int:
        """Return this process's token; compare it with the token of the time when a resource was opened."""
        if self.word[0] != self._token and self._is_stale():
            self._renew()
        return self._token

    def forked(self) -> None:
        """Renew the token in a child of `os.fork`, while the child has only one thread."""
        self._lock = threading.Lock()
        self._pid = self.word[0] = 0
        self._renew()

    def _is_stale(self) -> bool:
        return not self.word[0] if self.wiped_by_kernel else os.getpid() != self._pid

    def _renew(self) -> None:
        # Only the first threads of a process forked from C can meet here; the lock makes them agree on one token. The
        # fork may have copied it locked, hence the timeout: two tokens in one process only cost a reopening.
        got = self._lock.acquire(timeout=1.0)
        try:
            if self._is_stale():
                self._token += 1  # before the words that say that it is valid
                self._pid = os.getpid()
                self.word[0] = self._token if self.wiped_by_kernel else _NOBODY
        finally:
            if got:
                self._lock.release()


def _wipe_on_fork(page: mmap.mmap) -> bool:
    if not sys.platform.startswith("linux"):
        return False
    try:
        page.madvise(_MADV_WIPEONFORK)
    except OSError as error:
        reraise_signal(error)
        return False
    return True


T = TypeVar("T")


def told_of_forks(tell: Callable[[T], object]) -> weakref.WeakSet[T]:
    """Return a set of objects, for each of which `tell` is called in a forked child while it is alive."""
    told: weakref.WeakSet[T] = weakref.WeakSet()

    def after_fork() -> None:
        for each in list(told):
            tell(each)

    os.register_at_fork(after_in_child=after_fork)
    return told


_guard = ForkGuard()
os.register_at_fork(after_in_child=_guard.forked)

process_token = _guard.token

# The token itself, for hot paths where a call costs too much: `token_word[0] != mine` means "call process_token".
token_word = _guard.word
