"""Which subjects there are, in the order in which tables show them, and which of them can be measured here."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from benchmarks import servers
from benchmarks.adapters import adapted
from benchmarks.record import Absence, SubjectFacts
from benchmarks.servers import Running, running
from benchmarks.subjects import DISKCACHE, OURS, BenchmarkError, MissingSubject, Spec, named
from benchmarks.workspace import Workspace

# What a scenario may ask for; `push` stands for the queue, `evict` for tags, `get_many` and `set_many` for `bulk`.
FEATURES = frozenset({"set", "delete", "incr", "push", "get_many", "set_many", "clear", "evict", "memoize"})
PROBE = "probe"


@dataclass(frozen=True)
class Candidate:
    """A subject of the benchmark: how it is opened, and what has to be known to measure it and to read its numbers.

    `shared`: other processes see its entries. `server`: the one that it needs. `lacks`: what it cannot do at all.
    """

    spec: Spec
    title: str
    note: str = ""
    distribution: str = ""
    shared: bool = True
    on_disk: bool = True
    server: str | None = None
    lacks: frozenset[str] = frozenset()

    @property
    def offers(self) -> frozenset[str]:
        """Return what a scenario can ask of it."""
        return FEATURES - self.lacks

    @property
    def version(self) -> str:
        """Return the version that is installed, of the server if there is one, or nothing."""
        if self.server:
            return servers.version(self.server)
        with suppress(importlib.metadata.PackageNotFoundError):
            return importlib.metadata.version(self.distribution) if self.distribution else ""
        return ""

    @property
    def label(self) -> str:
        """Name the subject and its version, as tables and plots show it."""
        name, comma, detail = self.title.partition(",")
        return f"{name} {self.version}".strip() + comma + detail

    @property
    def facts(self) -> SubjectFacts:
        """Return what a record keeps of it."""
        return SubjectFacts(self.label, self.note)


@dataclass
class Available:
    """The subjects that can be measured, the servers that run for them by name, and the subjects that were left out."""

    specs: dict[str, Spec] = field(default_factory=dict)
    servers: dict[str, Running] = field(default_factory=dict)
    absences: list[Absence] = field(default_factory=list)


def _lacking(*names: str) -> frozenset[str]:
    return frozenset(names)


_LAYERS: tuple[tuple[str, str, str, dict[str, Any]], ...] = (
    ("", "", "", {}),
    ("-cold", ", no hot layer", "every read goes to SQLite", {"hot_size_limit": 0}),
)
_SHARDINGS = ((4, "1 s"), (8, "10 ms"))
_SECONDS = {"1 s": 1.0, "10 ms": 0.010}


def _ours() -> Iterator[tuple[str, Candidate]]:
    """Yield the kinds of our cache."""
    for suffix, detail, note, settings in _LAYERS:
        yield f"cache{suffix}", Candidate(OURS.having(**settings), f"diskcache_like{detail}", note)
    for shards, timeout in _SHARDINGS:
        spec = OURS.having("FanoutCache", shards=shards, timeout=_SECONDS[timeout])
        title = f"diskcache_like, FanoutCache {shards} shards, {timeout}"
        told = f"a write that waits longer than {timeout} for its shard is given up"
        yield f"fanout-{shards}-{timeout.replace(' ', '')}", Candidate(spec, title, told)


_TAGS = _lacking("evict", "memoize")
_NO_QUEUE = _lacking("push")
SUBJECTS = {
    **dict(_ours()),
    "diskcache": Candidate(DISKCACHE, "DiskCache", "no checksum", "diskcache"),
    "diskcache-fanout-8": Candidate(
        DISKCACHE.having("FanoutCache", shards=8),
        "DiskCache, FanoutCache 8 shards",
        "a call that waits longer than 10 ms for its shard is given up, reads included; no checksum",
        "diskcache",
        lacks=_NO_QUEUE,
    ),
    "diskcache-fanout-4-1s": Candidate(
        DISKCACHE.having("FanoutCache", shards=4, timeout=1.0),
        "DiskCache, FanoutCache 4 shards, 1 s",
        "a call that waits longer than 1 s for its shard is given up, reads included; no checksum",
        "diskcache",
        lacks=_NO_QUEUE,
    ),
    "diskcache-rs": Candidate(
        adapted("diskcache_rs", "DiskCacheRs"),
        "diskcache_rs",
        "counters and queues are not atomic, and tags are known to one process only",
        "diskcache_rs",
    ),
    "pysciqlop": Candidate(
        adapted("pysciqlop_cache", "SciQLop"),
        "pysciqlop_cache",
        "pickles bytes too",
        "pysciqlop-cache",
        lacks=_NO_QUEUE,
    ),
    "cachekit": Candidate(
        adapted("cachekit", "CacheKit", objects=True),
        "cachekit, files",
        "a file and a sync per write; meant for one process; holds 900,000 entries at most",
        "cachekit",
        lacks=_lacking("incr", "push", "get_many", "set_many", "clear", "evict"),
    ),
    "memcached": Candidate(
        adapted("Memcached", "Memcached"),
        "Memcached",
        "a server's memory, nothing on disk; pylibmc over a Unix socket",
        on_disk=False,
        server="memcached",
        lacks=_TAGS | _NO_QUEUE,
    ),
    "redis": Candidate(
        adapted("Redis", "Redis", objects=True),
        "Redis",
        "a server's memory, nothing on disk; redis-py with hiredis over a Unix socket",
        on_disk=False,
        server="redis",
        lacks=_TAGS,
    ),
    "lmdb": Candidate(
        adapted("LMDB", "Lmdb", objects=True),
        "LMDB",
        "no checksum, no sync; no expiry or size limit",
        "lmdb",
        lacks=_TAGS | _NO_QUEUE,
    ),
    "sqlitedict": Candidate(
        adapted("sqlitedict", "SqliteDict", objects=True),
        "sqlitedict",
        "answers before its thread has written; no expiry or size limit",
        "sqlitedict",
        lacks=_TAGS | _lacking("incr", "push", "get_many"),
    ),
    "django-file": Candidate(
        adapted("Django, files", "DjangoFile"),
        "Django, files",
        "lists its whole directory at each write; counters are not atomic",
        "django",
        lacks=_TAGS | _NO_QUEUE,
    ),
    "django-memory": Candidate(
        adapted("Django, memory", "DjangoMemory"),
        "Django, memory",
        "one process only; pickles",
        "django",
        shared=False,
        on_disk=False,
        lacks=_TAGS | _NO_QUEUE,
    ),
    "lru-cache": Candidate(
        adapted("functools.lru_cache", "LruCache"),
        "functools.lru_cache",
        "one process only, the caller's own objects; nothing can be changed, so hits are all there is to measure",
        shared=False,
        on_disk=False,
        lacks=_lacking("set", "delete", "incr", "push", "get_many", "evict"),
    ),
    "cachebox": Candidate(
        adapted("cachebox", "CacheBox"),
        "cachebox",
        "one process only, the caller's own objects",
        "cachebox",
        shared=False,
        on_disk=False,
        lacks=_lacking("incr", "push", "get_many", "evict"),
    ),
}


def known(names: Iterable[str]) -> list[str]:
    """Return the names in the catalogue's order, each once; raise for one that it does not have."""
    return list(named("subject", names, SUBJECTS))


@contextmanager
def available(names: Iterable[str], space: Workspace, megabytes: int | None = None) -> Iterator[Available]:
    """Give the subjects that can be measured here, each server started once and, if asked, with a limit on memory.

    A subject that breaks down on its first entry is left out like one that is not installed, but as failed.
    """
    found = Available()
    with ExitStack() as stack:
        for name in known(names):
            candidate = SUBJECTS[name]
            spec, server = candidate.spec, candidate.server
            try:
                if server:
                    if server not in found.servers:
                        started = running(server, space.fresh(server), megabytes)
                        found.servers[server] = stack.enter_context(started)
                    spec = spec.having(socket=str(found.servers[server].socket))
                _probe(candidate, spec, space)
            except MissingSubject as missing:
                found.absences.append(Absence(name, str(missing)))
            except Exception as error:
                found.absences.append(Absence(name, f"{type(error).__name__}: {error}", failed=True))
            else:
                found.specs[name] = spec
        yield found


def _probe(candidate: Candidate, spec: Spec, space: Workspace) -> None:
    """Store one entry, read it and remove it, so that what is broken shows now."""
    directory = space.fresh(PROBE)
    try:
        with spec.opened(directory) as subject:
            if "set" in candidate.offers:
                subject.set(PROBE, PROBE.encode())
                if (value := subject.get(PROBE)) != PROBE.encode():
                    raise BenchmarkError(f"{spec.name} returned {value!r} for what was just stored")
                subject.delete(PROBE)
            else:
                subject.get(PROBE)
    finally:
        space.discard(directory)
