"""What is measured: one spec per subject, each opening an object with the few methods that the workloads call.

DiskCache and diskcache_like share an API, so their caches are subjects as they are: a wrapper would add a Python call
to every operation, which is a third of a hot `get`. A subject with another API joins with a small adapter class.
"""

from __future__ import annotations

import difflib
import importlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, Protocol, TypeVar, cast

Thing = TypeVar("Thing")
LOAD_BATCH = 10_000  # per transaction
LOAD_MANY = 1_000  # per `set_many`


class BenchmarkError(Exception):
    """Stand above every failure that the benchmark explains in one sentence."""


class MissingSubject(BenchmarkError):
    """A subject cannot be imported."""


class MissingFeature(BenchmarkError):
    """A subject lacks a method that a workload calls."""


class Subject(Protocol):
    """What every subject offers; `get` returns None for a missing key.

    What only some subjects can do is asked for by name (`feature`), under the names and signatures of DiskCache's API:
    `incr(key)`, `push(value)`, `pull()` (which gives a pair of key and value), `evict(tag)` with
    `set(key, value, tag=...)`, `memoize()`, and beyond it `get_many(keys)` (a dictionary), `set_many(mapping)` and
    `clear()`.
    """

    def get(self, key: Any, /) -> Any: ...

    def set(self, key: Any, value: Any, /) -> Any: ...

    def delete(self, key: Any, /) -> Any: ...

    def close(self) -> Any: ...


@dataclass(frozen=True)
class Spec:
    """Say how a subject is imported, built and installed; plain data, so that it travels to worker processes.

    `for_objects` are the settings that make it take any value, where its client by itself takes bytes only.
    """

    name: str
    module: str
    install: str
    kind: str = "Cache"
    settings: tuple[tuple[str, Any], ...] = ()
    for_objects: tuple[tuple[str, Any], ...] = ()

    @property
    def label(self) -> str:
        """Name the subject and its version, as tables show them."""
        return f"{self.name} {getattr(self.load(), '__version__', '')}".strip()

    def load(self) -> Any:
        """Import the subject's module."""
        try:
            return importlib.import_module(self.module)
        except ImportError as error:
            raise MissingSubject(f"cannot import {self.module} ({error}); install it with: {self.install}") from error

    def having(self, kind: str | None = None, *, objects: bool = False, **settings: Any) -> Spec:
        """Return the same subject with more settings, as another class of its module, or for objects beside bytes."""
        merged = {**dict(self.settings), **(dict(self.for_objects) if objects else {}), **settings}
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


def named(kind: str, names: Iterable[str], known: Mapping[str, Thing]) -> dict[str, Thing]:
    """Return what is named, each once and in the order of `known`; raise BenchmarkError for an unknown name."""
    wanted = list(names)
    for name in wanted:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f"; did you mean {near[0]!r}?" if near else "."
            raise BenchmarkError(f"there is no {kind} {name!r}{hint} Known are: {', '.join(known)}")
    return {name: thing for name, thing in known.items() if name in wanted}


def feature_or_none(subject: Subject, name: str) -> Callable[..., Any] | None:
    """Return a method beyond the protocol, or None if the subject lacks it."""
    try:
        return cast("Callable[..., Any] | None", getattr(subject, name, None))
    except AssertionError:  # DiskCache's FanoutCache, for any name that it does not know
        return None


def feature(subject: Subject, name: str) -> Callable[..., Any]:
    """Return a method beyond the protocol, or say that the subject lacks it."""
    method = feature_or_none(subject, name)
    if method is None:
        kind = type(subject)
        raise MissingFeature(f"{kind.__module__}.{kind.__qualname__} has no {name}()")
    return method


def bulk(subject: Subject, name: str) -> Callable[..., Any]:
    """Return the subject's own `get_many` or `set_many`, or one transaction around a loop, as its users write it."""
    own = feature_or_none(subject, name)
    if own:
        return own
    transact = feature(subject, "transact")

    def get_many(keys: Sequence[Any]) -> dict[Any, Any]:
        with transact():
            return {key: value for key in keys if (value := subject.get(key)) is not None}

    def set_many(items: Mapping[Any, Any]) -> None:
        with transact():
            for key, value in items.items():
                subject.set(key, value)

    return get_many if name == "get_many" else set_many


def load_items(subject: Subject, items: Iterable[tuple[Any, Any]]) -> None:
    """Store `items` by `set_many` in batches of 1,000, or else in transactions of 10,000, or else one by one."""
    many = feature_or_none(subject, "set_many")
    transact = feature_or_none(subject, "transact") or nullcontext
    iterator = iter(items)
    while batch := list(islice(iterator, LOAD_MANY if many else LOAD_BATCH)):
        if many:
            many(dict(batch))
            continue
        with transact():
            for key, value in batch:
                subject.set(key, value)
