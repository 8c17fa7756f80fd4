"""Do something in another thread, as if it were a function call."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from .processes import PATIENCE

Found = TypeVar("Found")


def in_thread(work: Callable[[], Found]) -> Found:
    """Run `work()` in a thread that ends with it; return what it returns, raise what it raises."""
    found: list[Found] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            found.append(work())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(PATIENCE)
    assert not thread.is_alive(), "a thread does not end"
    if errors:
        raise errors[0]
    return found[0]
