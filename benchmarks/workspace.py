"""Where it is measured: one temporary directory per run, removed whatever ends the run.

The owner holds a lock on a file inside. A run that was killed outright cannot clean up; the next run removes every
such directory whose lock nobody holds.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PREFIX = "diskcache_like-bench-"
LOCK = "owner.lock"
GRACE = 60.0  # seconds that a directory without a lock gets to take one
SIGNALS = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}


class Workspace:
    """Hand out fresh directories below one root."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._handed_out = 0

    def fresh(self, name: str) -> Path:
        """Return a path that does not exist yet."""
        self._handed_out += 1
        return self.root / f"{self._handed_out:03d}-{name}"

    def discard(self, *paths: Path) -> None:
        """Remove directories that are no longer needed."""
        for path in paths:
            shutil.rmtree(path, ignore_errors=True)


@contextmanager
def signals_held() -> Iterator[None]:
    """Put off Ctrl-C and termination until the block has ended."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def workspace(parent: Path) -> Iterator[Workspace]:
    """Create a workspace below `parent` and remove it in the end."""
    sweep(parent)
    with signals_held():
        root = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
        lock = os.open(root / LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)
    try:
        yield Workspace(root)
    finally:
        with signals_held():
            shutil.rmtree(root, ignore_errors=True)
            os.close(lock)


def sweep(parent: Path) -> None:
    """Remove the workspaces of runs that were killed."""
    for root in parent.glob(f"{PREFIX}*"):
        with suppress(OSError):
            found = root.lstat()
            is_young = time.time() - found.st_mtime < GRACE
            if found.st_uid != os.getuid() or root.is_symlink() or is_young:
                continue
            with suppress(FileNotFoundError):
                lock = os.open(root / LOCK, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails where a run still owns it
                finally:
                    os.close(lock)
            shutil.rmtree(root, ignore_errors=True)
