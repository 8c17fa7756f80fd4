"""What a test may leave behind: descriptors, threads and child processes."""

from __future__ import annotations

import multiprocessing.forkserver as forkserver
import multiprocessing.resource_tracker as resource_tracker
from collections.abc import Iterator
from pathlib import Path


def open_descriptors(pid: int | str = "self") -> dict[int, str]:
    """Return the open file descriptors of a process with what each refers to."""
    found = {}
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        try:
            found[int(entry.name)] = str(entry.readlink())
        except FileNotFoundError:  # the descriptor that listed the directory
            continue
    return found


def leaked_descriptors(before: dict[int, str]) -> dict[int, str]:
    """Return the descriptors opened since `before`, but for those multiprocessing keeps for the life of the process."""
    kept = set(standing_descriptors())
    return {fd: name for fd, name in open_descriptors().items() if before.get(fd) != name and fd not in kept}


def standing_descriptors() -> Iterator[int]:
    """Yield the descriptors of multiprocessing's resource tracker and fork server."""
    for owner, names in (
        (resource_tracker._resource_tracker, ("_fd",)),
        (forkserver._forkserver, ("_forkserver_alive_fd", "_forkserver_fd")),
    ):
        for name in names:
            fd = getattr(owner, name, None)
            if fd is not None:
                yield fd


def child_processes() -> set[int]:
    """Return the live children of this process, but for multiprocessing's own helpers."""
    found: set[int] = set()
    for task in Path("/proc/self/task").iterdir():
        try:
            found.update(map(int, (task / "children").read_text().split()))
        except FileNotFoundError:  # the thread has just ended
            continue
    helpers = {
        getattr(resource_tracker._resource_tracker, "_pid", None),
        getattr(forkserver._forkserver, "_forkserver_pid", None),
    }
    return found - helpers
