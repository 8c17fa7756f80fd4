"""Where it is measured: one temporary directory per run, removed unless the run is killed outright."""

from __future__ import annotations

import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PREFIX = "diskcache_like-bench-"
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
    with signals_held():
        root = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
    try:
        yield Workspace(root)
    finally:
        with signals_held():
            shutil.rmtree(root, ignore_errors=True)
