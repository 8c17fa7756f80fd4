"""Which subjects there are, in the order in which tables show them, and which of them can be measured here."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from benchmarks.peers import servers
from benchmarks.peers.adapters import adapted
from benchmarks.peers.servers import Running, running
from benchmarks.peers.spec import DISKCACHE, OURS, BenchmarkError, MissingSubject, Spec, named
from benchmarks.report.record import Absence, SubjectFacts
from benchmarks.workspace import Workspace

PROBE = "probe"


@dataclass(frozen=True)
class Candidate:
    """A subject of the benchmark: how it is opened, and what has to be known to measure it and to read its numbers.

    `shared`: other processes see its entries. `server`: the one that it needs. `fixed`: nothing in it can be changed.
    """

    spec: Spec
    title: str
    note: str = ""
    distribution: str = ""
    shared: bool = True
    server: str | None = None
    fixed: bool = False

    @property
    def label(self) -> str:
        """Name the subject and its version, that of the server if there is one, as tables and plots show it."""
        version = servers.version(self.server) if self.server else ""
        if self.distribution:
            with suppress(importlib.metadata.PackageNotFoundError):
                version = importlib.metadata.version(self.distribution)
        name, comma, detail = self.title.partition(",")
        return f"{name} {version}".strip() + comma + detail

    @property
    def facts(self) -> SubjectFacts:
        """Return what a record keeps of it."""
        return SubjectFacts(self.label, self.note)


def _fanout(spec: Spec, title: str, shards: int, seconds: float, also: str = "", distribution: str = "") -> Candidate:
    """Return a FanoutCache, in which a call that waits too long for its shard is given up."""
    limit = f"{seconds:g} s" if seconds >= 1 else f"{seconds * 1e3:g} ms"
    told = f"a {'call' if also else 'write'} that waits longer than {limit} for its shard is given up{also}"
    made = spec.having("FanoutCache", shards=shards, timeout=seconds)
    return Candidate(made, f"{title}, FanoutCache {shards} shards, {limit}", told, distribution)


def _peer(kind: str, title: str, note: str, distribution: str = "", objects: bool = False, **more: Any) -> Candidate:
    """Return an adapter's subject; `objects`: it has to be told that values are not bytes."""
    return Candidate(adapted(title, kind, **({"objects": True} if objects else {})), title, note, distribution, **more)


_READS_TOO = ", reads included; no checksum"
_IN_MEMORY = "one process only, the caller's own objects"
SUBJECTS = {
    "cache": Candidate(OURS, "diskcache_like"),
    "cache-cold": Candidate(OURS.having(hot_size_limit=0), "diskcache_like, no hot layer", "every read goes to SQLite"),
    "fanout-4-1s": _fanout(OURS, "diskcache_like", 4, 1.0),
    "fanout-8-10ms": _fanout(OURS, "diskcache_like", 8, 0.010),
    "diskcache": Candidate(DISKCACHE, "DiskCache", "no checksum", "diskcache"),
    "diskcache-fanout-8": _fanout(DISKCACHE, "DiskCache", 8, 0.010, _READS_TOO, "diskcache"),
    "diskcache-fanout-4-1s": _fanout(DISKCACHE, "DiskCache", 4, 1.0, _READS_TOO, "diskcache"),
    "diskcache-rs": _peer(
        "DiskCacheRs",
        "diskcache_rs",
        "counters and queues are not atomic, and tags are known to one process only",
        "diskcache_rs",
    ),
    "pysciqlop": _peer("SciQLop", "pysciqlop_cache", "pickles bytes too", "pysciqlop-cache"),
    "cachekit": _peer(
        "CacheKit",
        "cachekit, files",
        "a file and a sync per write; meant for one process; holds 900,000 entries at most",
        "cachekit",
        objects=True,
    ),
    "memcached": _peer(
        "Memcached", "Memcached", "a server's memory, nothing on disk; pylibmc over a Unix socket", server="memcached"
    ),
    "redis": _peer(
        "Redis",
        "Redis",
        "a server's memory, nothing on disk; redis-py with hiredis over a Unix socket",
        objects=True,
        server="redis",
    ),
    "lmdb": _peer("Lmdb", "LMDB", "no checksum, no sync; no expiry or size limit", "lmdb", objects=True),
    "sqlitedict": _peer(
        "SqliteDict",
        "sqlitedict",
        "answers before its thread has written; no expiry or size limit",
        "sqlitedict",
        objects=True,
    ),
    "django-file": _peer(
        "DjangoFile", "Django, files", "lists its whole directory at each write; counters are not atomic", "django"
    ),
    "django-memory": _peer("DjangoMemory", "Django, memory", "one process only; pickles", "django", shared=False),
    "lru-cache": _peer(
        "LruCache",
        "functools.lru_cache",
        f"{_IN_MEMORY}; nothing can be changed, so hits are all there is to measure",
        shared=False,
        fixed=True,
    ),
    "cachebox": _peer("CacheBox", "cachebox", _IN_MEMORY, "cachebox", shared=False),
}


@dataclass
class Available:
    """The subjects that can be measured, the servers that run for them by name, and the subjects that were left out."""

    specs: dict[str, Spec] = field(default_factory=dict)
    servers: dict[str, Running] = field(default_factory=dict)
    absences: list[Absence] = field(default_factory=list)


@contextmanager
def available(
    names: Iterable[str],
    space: Workspace,
    megabytes: int | None = None,
    catalogue: Mapping[str, Candidate] = SUBJECTS,
) -> Iterator[Available]:
    """Give the subjects that can be measured here, each server started once and, if asked, with a limit on memory.

    A subject that breaks down on its first entry is left out like one that is not installed, but as failed.
    """
    found = Available()
    with ExitStack() as stack:
        for name, candidate in named("subject", names, catalogue).items():
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
            if not candidate.fixed:
                subject.set(PROBE, PROBE.encode())
                if (value := subject.get(PROBE)) != PROBE.encode():
                    raise BenchmarkError(f"{spec.name} returned {value!r} for what was just stored")
                subject.delete(PROBE)
            else:
                subject.get(PROBE)
    finally:
        space.discard(directory)
