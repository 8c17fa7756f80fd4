"""Prometheus: a collector for a registry of `prometheus_client`, which reads what all processes have counted.

Any process tells the numbers of all, so nothing of that library's multiprocess mode is needed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Self

from ..errors import missing_dependency
from .reading import FAMILIES, Source, refuse_name

if TYPE_CHECKING:
    from prometheus_client.core import Metric

SECONDS = "cache_operation_seconds"


class Collector:
    """Report caches to Prometheus, as `registry.register(Collector(cache))`.

    `cache`: a Cache, FanoutCache, namespace or AsyncCache, or a backend of Django. `name`: the value of the label
    `cache`, instead of the directory's own name, and in a namespace also that.

    The numbers are those of all processes of the machine since the cache was made, whatever `metrics(reset=True)` did
    to them. A scrape opens a closed cache again, as any operation does. A cache that cannot be read is left out, and a
    line is logged when that begins; the rest of the page is there. Where `metrics_level` is "off", only
    `cache_entries`, `cache_bytes` and `cache_limit_bytes` are there.

    Raises MissingDependency without `prometheus_client`.
    """

    def __init__(self, cache: Any, name: str | None = None) -> None:
        _library()
        self._sources: dict[str, Source] = {}
        self.add(cache, name)

    def add(self, cache: Any, name: str | None = None) -> Self:
        """Report one more cache, and return this collector: a registry takes one, and refuses a second one.

        Raises SettingError if another one has that name already.
        """
        source = Source(cache, name)
        refuse_name(source.name, self._sources)
        self._sources = {**self._sources, source.name: source}  # anew, since another thread may be collecting
        return self

    def describe(self) -> Iterable[Metric]:
        """Return what `collect` returns, without a number."""
        return _families().values()

    def collect(self) -> Iterable[Metric]:
        """Return what is counted now."""
        families = _families()
        for name, source in self._sources.items():
            reading = source.read()
            if reading is None:
                continue
            for kind, labels, number in reading.numbers():
                families[f"cache_{kind}"].add_metric((name, *labels), number)
            for operation, found in reading.histograms():
                families[SECONDS].add_metric((name, operation), found.buckets, found.seconds)
        return families.values()


def exposition(cache: Any) -> tuple[bytes, str]:
    """Return what a scrape of one cache gets, and its media type; raise MissingDependency as `Collector` does."""
    collector: Any = Collector(cache)  # has all of a registry that is asked for
    from prometheus_client import exposition as format

    return format.generate_latest(collector), format.CONTENT_TYPE_LATEST


def _library() -> Any:
    try:
        from prometheus_client import core
    except ImportError as error:
        raise missing_dependency("prometheus_client", "prometheus", "Collector") from error
    return core


def _families() -> dict[str, Any]:
    core = _library()
    families = {
        f"cache_{kind}": (core.CounterMetricFamily if family.grows else core.GaugeMetricFamily)(
            f"cache_{kind}", family.told, labels=("cache", *family.labels)
        )
        for kind, family in FAMILIES.items()
    }
    told = 'How long calls took, where metrics_level is "full"; of "hot", one in 61 is measured.'
    return {**families, SECONDS: core.HistogramMetricFamily(SECONDS, told, labels=("cache", "operation"))}


__all__ = ["Collector"]
