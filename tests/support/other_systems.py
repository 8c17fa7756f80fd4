"""Make this Python look like one of another system: a plugin that takes names away before anything is imported.

`python -m pytest -p tests.support.other_systems` with `PRETENDED_SYSTEM` naming one of `SYSTEMS`. What the other system
does differently beside its names and files is not shown.
"""

from __future__ import annotations

import fcntl
import importlib
import os
import sys
import sysconfig
import tempfile
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

VARIABLE = "PRETENDED_SYSTEM"

_LINUX_ONLY = (
    *("O_TMPFILE", "copy_file_range", "eventfd", "fdatasync", "getrandom", "memfd_create"),
    *("posix_fadvise", "posix_fallocate", "sched_getaffinity", "sched_setaffinity", "splice"),
)
_OF_TESTS = "pidfd_open", "sched_yield"  # which macOS lacks too, but tests use


def macos() -> None:
    """Pretend that there are no files of the kernel's, no names of Linux's own, and another call that syncs."""
    _remove(os, _LINUX_ONLY)
    kept = {name: getattr(os, name) for name in _OF_TESTS}
    _remove(os, _OF_TESTS)
    fcntl.F_FULLFSYNC = 51  # type: ignore[attr-defined]  # Linux refuses it, as macOS does on a network file system
    sysconfig.get_config_vars()  # would be looked for under the other name
    before, sys.platform = sys.platform, "darwin"
    try:
        boot = importlib.import_module("diskcache_like.system.boot")
        mounts = importlib.import_module("diskcache_like.system.mounts")
        importlib.import_module("diskcache_like")
    finally:
        sys.platform = before
        vars(os).update(kept)
    uuid = "0F5A3C52-7D5B-4A11-9B0E-5E8E1A1F7C21"
    vars(boot).update(sys=SimpleNamespace(platform="darwin"), _session_uuid=lambda: uuid)
    vars(mounts).update(MOUNTS="/nowhere", DESCRIPTORS="/nowhere")


SYSTEMS: dict[str, Callable[[], None]] = {"macos": macos}


def _remove(module: ModuleType, names: object) -> None:
    assert isinstance(names, (tuple, list))
    for name in names:
        if hasattr(module, name):
            delattr(module, name)
    tempfile._O_TMPFILE_WORKS = False  # type: ignore[attr-defined]  # it looked when it was imported


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep the kinds of cache that differ most: a system differs in the same for all."""
    from .cache_kinds import FEW, Kind  # imports the package, which may not be before names are gone

    def is_few(item: pytest.Item) -> bool:
        kind = item.callspec.params.get("kind") if hasattr(item, "callspec") else None
        return not isinstance(kind, Kind) or kind.name in FEW

    items[:] = filter(is_few, items)


if VARIABLE in os.environ:
    SYSTEMS[os.environ[VARIABLE]]()
