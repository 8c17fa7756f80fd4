"""OpenTelemetry: what all processes have counted, as observable instruments; and spans around computations.

An instrument cannot be removed from its meter, and a second one of that name would be dropped by the SDK. So each meter
gets one of each name, which reports all caches that are instrumented with it.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Coroutine, Iterator
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from ..errors import missing_dependency
from .reading import FAMILIES, Family, Source, refuse_name

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, Meter, Observation
    from opentelemetry.trace import Span, Tracer

NAME: Final = "diskcache_like"
_UNITS: Final = {"requests": "{request}", "events": "{event}", "size": "By", "limit": "By", "duration.sum": "s"}
_NAMES: Final = {"gets": "requests", "entries": "items", "bytes": "size", "limit_bytes": "limit"}
_HISTOGRAM: Final = Family(True, (), "A part of a histogram of how long calls took, in seconds.")
INSTRUMENTS: Final = {
    **{_NAMES.get(kind, kind): family for kind, family in FAMILIES.items()},
    **dict.fromkeys(("duration.bucket", "duration.count", "duration.sum"), _HISTOGRAM),
}

Sources = dict[str, Source]
_reported: WeakKeyDictionary[Any, Sources] = WeakKeyDictionary()  # by meter


def instrument(
    cache: Any, meter: Meter | None = None, name: str | None = None, tracer: Tracer | None = None
) -> contextlib.ExitStack:
    """Report a cache to OpenTelemetry, until `close()` of what this returns, or the end of a `with` block of it.

    `cache`, `name`: as for `Collector`. `meter`: None for that of the global provider which is called diskcache_like.
    `tracer`: with one, each computation of `get_or_set` and `memoize` in this handle is a span; of two tracers, the
    last is used. Each process that does this reports what all processes have counted. A cache that cannot be read is
    left out, as `Collector` does.

    The names will change when OpenTelemetry has a convention for caches. Raises MissingDependency without
    `opentelemetry-api`, and SettingError if the meter reports another cache of that name.
    """
    library, source, ends = _library(), Source(cache, name), contextlib.ExitStack()
    meter = _default_meter() if meter is None else meter
    if meter not in _reported:
        _reported[meter] = {}
        _create(meter, _reported[meter], library.metrics.Observation)
    sources = _reported[meter]
    refuse_name(source.name, sources)
    sources[source.name] = source
    ends.callback(sources.pop, source.name)
    if tracer is not None:
        handle = source.cache()._handle
        handle.watch = watch = _spans(tracer, source.name, library.trace.use_span)
        ends.callback(lambda: setattr(handle, "watch", None if handle.watch is watch else handle.watch))
    return ends


def _library() -> Any:
    try:
        import opentelemetry.metrics
        import opentelemetry.trace
    except ImportError as error:
        raise missing_dependency("opentelemetry-api", "otel", "instrument") from error
    return opentelemetry


@functools.cache
def _default_meter() -> Meter:
    found: Meter = _library().metrics.get_meter(NAME)
    return found


def _create(meter: Meter, sources: Sources, observation: type[Observation]) -> None:
    def observe(wanted: str, _: CallbackOptions) -> Iterator[Observation]:
        for source in tuple(sources.values()):
            for name, labels, number in _numbers(source):
                if name == wanted:
                    yield observation(number, {"cache.name": source.name, **labels})

    for name, family in INSTRUMENTS.items():
        create = meter.create_observable_counter if family.grows else meter.create_observable_up_down_counter
        unit = _UNITS.get(name, "{call}" if family is _HISTOGRAM else "{item}")
        create(f"{NAME}.{name}", [functools.partial(observe, name)], unit, family.told)


def _numbers(source: Source) -> Iterator[tuple[str, dict[str, str], float]]:
    """Yield each number of a cache with the name of its instrument and its attributes, without those that are empty."""
    reading = source.read()
    if reading is None:
        return
    for kind, values, number in reading.numbers():
        pairs = zip(FAMILIES[kind].labels, values, strict=True)
        yield _NAMES.get(kind, kind), {f"cache.{label}": value for label, value in pairs if value}, number
    for operation, found in reading.histograms():
        labels = {"cache.operation": operation}
        yield "duration.sum", labels, found.seconds
        yield "duration.count", labels, found.buckets[-1][1]
        yield from (("duration.bucket", {**labels, "le": end}, number) for end, number in found.buckets)


def _spans(tracer: Tracer, name: str, use_span: Any) -> Callable[[str, Callable[..., Any]], Callable[..., Any]]:
    """Return what makes a function one that is called within a span, or awaited within one."""

    async def awaited(span: Span, coroutine: Coroutine[Any, Any, Any]) -> Any:
        with use_span(span, end_on_exit=True):
            return await coroutine

    def watch(scope: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def traced(*args: Any) -> Any:
            span = tracer.start_span(f"compute {scope}", attributes={"cache.name": name, "code.function.name": scope})
            with contextlib.ExitStack() as ends:
                ends.callback(span.end)
                with use_span(span):
                    found = call(*args)
                if inspect.iscoroutine(found):  # nothing of it has run yet
                    ends.pop_all()
                    return awaited(span, found)
            return found

        return traced

    return watch


__all__ = ["INSTRUMENTS", "instrument"]
