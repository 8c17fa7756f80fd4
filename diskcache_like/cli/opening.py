"""Open a cache that is there: a command never makes one by mistake, and one that only looks needs no right to write."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..cache import Cache
from ..entries.session import Opening
from ..storage.opening.identity import is_database
from .terminal import shown


class WithoutRecovery(Cache):
    """A cache that keeps using a damaged database: quarantining it would leave a `Deque` or `Index` empty."""

    _OPENING = Opening(recover=False)


def existing(directory: str, kind: type[Cache] = Cache) -> Cache:
    """Open the cache in `directory`; raise FileNotFoundError rather than create one."""
    path = Path(directory)
    if not path.exists():
        raise FileNotFoundError(2, "no such directory", directory)
    # Not just any database: beside another program's database, or above a cache, opening would create a new cache.
    databases = (name for each in (path, *path.glob("[0-9][0-9][0-9]")) for name in each.glob("cache*.db"))
    if path.is_dir() and not any(is_database(name.name) for name in databases):
        raise FileNotFoundError(2, "no cache in this directory", directory)
    return kind(directory)


@contextmanager
def to_look_at(directory: str) -> Iterator[Cache]:
    """Open a cache that the body only reads; where it cannot be written, a temporary copy of its directory.

    SQLite writes beside a database in order to read it, and so do the generations, so a copy is the way to read a
    volume that is mounted read-only, or somebody else's cache.
    """
    if not os.path.isdir(directory) or os.access(directory, os.W_OK):
        with existing(directory, WithoutRecovery) as cache:
            yield cache
        return
    with tempfile.TemporaryDirectory(prefix="diskcache-") as folder:
        print(shown(f"{directory}: cannot be written, so this looks at a temporary copy"), file=sys.stderr)
        copy = os.path.join(folder, "cache")
        shutil.copytree(directory, copy, symlinks=True, copy_function=shutil.copyfile)
        for path, _, names in os.walk(copy):
            os.chmod(path, 0o700)
            for name in names:
                os.chmod(os.path.join(path, name), 0o600, follow_symlinks=os.path.islink(os.path.join(path, name)))
        with existing(copy, WithoutRecovery) as cache:
            yield cache
