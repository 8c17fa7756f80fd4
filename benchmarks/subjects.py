"""What is measured: one spec per subject, each opening an object with the few methods that the sections call.

DiskCache and diskcache_like share an API, so their caches are subjects as they are: a wrapper would add a Python call
to every operation, which is a third of a hot `get`. A subject with another API joins with a small adapter class.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, Protocol, cast

LOAD_BATCH = 10_000


class BenchmarkError(Exception):
    """Stand above every failure that the benchmark explains in one sentence."""


class MissingSubject(BenchmarkError):
    """A subject cannot be imported."""


class MissingFeature(BenchmarkError):
    """A subject lacks a method that a section measures."""


class Subject(Protocol):
    """What every subject offers; `get` returns None for a missing key.

    With `Spec.open` these are the five methods that a subject needs. What only some subjects can do is asked for by
    name (`feature`), under the names and signatures of DiskCache's API: `incr(key)`, `push(value)`, `pull()` (which
    gives a pair of key and value), `evict(tag)` with `set(key, value, tag=...)`, `memoize()`, and beyond it
    `get_many(keys)` (a dictionary), `set_many(mapping)` and `clear()`.
    """

    def get(self, key: Any, /) -> Any: ...

    def set(self, key: Any, value: Any, /) -> Any: ...

    def delete(self, key: Any, /) -> Any: ...

    def close(self) -> Any: ...


@dataclass(frozen=True)
class Spec:
    """Say how a subject is imported, built and installed; plain data, so that it travels to worker processes."""

    name: str
    module: str
    install: str
    kind: str = "Cache"
    settings: tuple[tuple[str, Any], ...] = ()

    @property
    def label(self) -> str:
        """Name the subject and its version, as tables show them."""
        version = getattr(self.load(), "__version__", "")
        return f"{self.name} {version}".strip()

    def load(self) -> Any:
        """Import the subject's module."""
        try:
            return importlib.import_module(self.module)
        except ImportError as error:
            raise MissingSubject(f"cannot import {self.module} ({error}); install it with: {self.install}") from error

    def having(self, kind: str | None = None, **settings: Any) -> Spec:
        """Return the same subject with more settings, or as another class of its module."""
        merged = {**dict(self.settings), **settings}
        return replace(self, kind=kind or self.kind, settings=tuple(merged.items()))

    def open(self, directory: Path) -> Subject:
        """Open the subject on `directory`."""
        module = self.load()
        if not hasattr(module, self.kind):
            raise MissingFeature(f"{self.name} has no {self.kind}")
        return cast(Subject, getattr(module, self.kind)(str(directory), **dict(self.settings)))

    @contextmanager
    def opened(self, directory: Path) -> Iterator[Subject]:
        """Open the subject for a `with` block and close it after."""
        subject = self.open(directory)
        try:
            yield subject
        finally:
            subject.close()


OURS = Spec("diskcache_like", "diskcache_like", f"{sys.executable} -m pip install -e .")
DISKCACHE = Spec("DiskCache", "diskcache", f"{sys.executable} -m pip install diskcache==5.6.3")
SPECS = {"diskcache_like": OURS, "diskcache": DISKCACHE}


def feature(subject: Subject, name: str) -> Callable[..., Any]:
    """Return a method beyond the protocol, or say that the subject lacks it."""
    method = getattr(subject, name, None)
    if method is None:
        kind = type(subject)
        raise MissingFeature(f"{kind.__module__}.{kind.__qualname__} has no {name}()")
    return cast(Callable[..., Any], method)


def load_items(subject: Subject, items: Iterable[tuple[Any, Any]]) -> None:
    """Store `items`, in transactions of 10,000 where the subject has them."""
    transact = getattr(subject, "transact", nullcontext)
    iterator = iter(items)
    while batch := list(islice(iterator, LOAD_BATCH)):
        with transact():
            for key, value in batch:
                subject.set(key, value)
