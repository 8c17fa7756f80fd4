"""Owners of locks: the threads and asyncio tasks of this process."""

from __future__ import annotations

import secrets
import threading
import weakref

from ..system.forks import process_token
from ..system.tasks import current_task


class Owner:
    """Represent a thread or an asyncio task of this process as the owner of locks."""

    __slots__ = ("__weakref__", "name", "process")

    def __init__(self) -> None:
        self.name = secrets.token_hex(16)
        self.process = process_token()


_of_thread = threading.local()
_of_tasks: weakref.WeakKeyDictionary[object, Owner] = weakref.WeakKeyDictionary()


def current_owner() -> Owner:
    """Return the owner for the calling asyncio task, or thread; a forked child never shares its parent's."""
    task = current_task()
    owner: Owner | None = getattr(_of_thread, "owner", None) if task is None else _of_tasks.get(task)
    if owner is None or owner.process != process_token():
        owner = Owner()
        if task is None:
            _of_thread.owner = owner
        else:
            _of_tasks[task] = owner
    return owner
