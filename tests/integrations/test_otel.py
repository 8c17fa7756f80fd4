"""What OpenTelemetry gets of a cache: instruments and spans, as its SDK's readers and exporters in memory see them."""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, Sum
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from diskcache_like import Cache, FanoutCache, SettingError
from diskcache_like.integrations.otel import INSTRUMENTS, instrument

from ..support.cache_kinds import QUICK, Clock
from ..support.contention import finish_renewals
from .test_prometheus import HOSTILE

Points = dict[frozenset[tuple[str, Any]], float]


class Telemetry:
    """A meter and a tracer, and what they are told."""

    def __init__(self) -> None:
        self.reader, self.exporter = InMemoryMetricReader(), InMemorySpanExporter()
        self.meters, self.tracers = MeterProvider([self.reader]), TracerProvider()
        self.tracers.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.meter, self.tracer = self.meters.get_meter("tests"), self.tracers.get_tracer("tests")

    def points(self) -> dict[str, Points]:
        """Return the points of each metric; no point is there twice."""
        found: dict[str, Points] = {}
        data = self.reader.get_metrics_data()
        for resource in data.resource_metrics if data else ():
            for metric in (metric for scope in resource.scope_metrics for metric in scope.metrics):
                assert isinstance(metric.data, Sum)
                assert metric.name not in found
                points = found.setdefault(metric.name, {})
                for point in metric.data.data_points:
                    place = frozenset((point.attributes or {}).items())
                    assert place not in points
                    points[place] = point.value
        return found

    def spans(self) -> list[str]:
        return [span.name for span in self.exporter.get_finished_spans()]


@pytest.fixture
def telemetry() -> Iterator[Telemetry]:
    made = Telemetry()
    yield made
    made.meters.shutdown()
    made.tracers.shutdown()


def point(found: dict[str, Points], metric: str, **labels: str) -> float:
    wanted = {(f"cache.{key}", value) for key, value in labels.items()}
    chosen = [value for each, value in found[f"diskcache_like.{metric}"].items() if wanted <= each]
    assert chosen, (metric, labels)
    return sum(chosen)


def test_every_number_is_in_its_instrument(tmp_path: Path, telemetry: Telemetry) -> None:
    with Cache(tmp_path / "pages", size_limit=2**30, metrics_level="full", **QUICK) as cache:
        with instrument(cache, telemetry.meter):
            cache.set("user:1", 1)
            for _ in range(3):
                cache.get("user:1")
            cache.get("user:2")
            cache.delete("user:1")
            cache.metrics(reset=True)
            found = telemetry.points()
            assert point(found, "requests", name="pages", space="user", result="hit", tier="hot") == 3
            (missed,) = (dict(each) for each in found["diskcache_like.requests"] if ("cache.result", "miss") in each)
            assert missed == {"cache.name": "pages", "cache.space": "user", "cache.result": "miss"}
            assert point(found, "requests", result="miss") == 1
            assert (point(found, "puts"), point(found, "deletes"), point(found, "items")) == (1, 1, 0)
            assert (point(found, "limit"), point(found, "size")) == (2**30, cache.metrics().bytes)
            assert point(found, "evictions", reason="room") == point(found, "events", event="timeouts") == 0
            assert point(found, "duration.count", operation="set") == 1
            assert point(found, "duration.sum", operation="set") > 0
            ends = {
                dict(each)["le"]: value
                for each, value in found["diskcache_like.duration.bucket"].items()
                if ("cache.operation", "set") in each
            }
            assert (len(ends), ends["+Inf"], min(ends.values())) == (31, 1, 0)
            assert set(found) == {f"diskcache_like.{name}" for name in INSTRUMENTS}
        assert not telemetry.points(), "it has ended"
        with instrument(cache, telemetry.meter, "again"):
            assert point(telemetry.points(), "puts", name="again") == 1


def test_one_meter_reports_several_caches(tmp_path: Path, telemetry: Telemetry) -> None:
    with FanoutCache(tmp_path / "one", **QUICK) as one, Cache(tmp_path / "two", **QUICK) as two:
        one.set("a:1", 1)
        two.namespace("n").set("a", 1)
        with instrument(one.aio, telemetry.meter), instrument(two.namespace("n"), telemetry.meter):
            with pytest.raises(SettingError, match="name 'one' is that of two caches"):
                instrument(one, telemetry.meter)
            found = telemetry.points()
            assert point(found, "puts", name="one", space="a") == point(found, "puts", name="two/n", space="n/") == 1
            other = Telemetry()
            with instrument(one, other.meter):
                assert point(other.points(), "puts") == 1
            other.meters.shutdown()
            assert point(telemetry.points(), "puts") == 2


def test_without_a_meter_the_global_one_is_used(tmp_path: Path) -> None:
    with Cache(tmp_path, **QUICK) as cache, instrument(cache), pytest.raises(SettingError):
        instrument(cache)


def test_hostile_names_of_spaces(tmp_path: Path, telemetry: Telemetry) -> None:
    with Cache(tmp_path, **QUICK) as cache, instrument(cache, telemetry.meter):
        for name in HOSTILE:
            cache.set(f"{name}:key", 1)
        found = telemetry.points()["diskcache_like.puts"]
        assert {dict(each)["cache.space"] for each in found} == set(HOSTILE)


def test_a_cache_that_fails_is_left_out(tmp_path: Path, telemetry: Telemetry, caplog: pytest.LogCaptureFixture) -> None:
    with Cache(tmp_path / "good", **QUICK) as good, Cache(tmp_path / "bad", **QUICK) as bad:
        with instrument(bad, telemetry.meter), instrument(good, telemetry.meter):
            bad.close()
            shutil.rmtree(tmp_path / "bad")
            (tmp_path / "bad").write_text("in the way")
            with caplog.at_level(logging.WARNING):
                for _ in range(2):
                    items = telemetry.points()["diskcache_like.items"]
                    assert {dict(each)["cache.name"] for each in items} == {"good"}
            assert [record.name for record in caplog.records] == ["diskcache_like.integrations"]
        (tmp_path / "bad").unlink()


# -- spans -------------------------------------------------------------------------------------------------------------


def test_computations_are_spans(tmp_path: Path, telemetry: Telemetry) -> None:
    with Cache(tmp_path / "pages", **QUICK) as cache:

        @cache.memoize(name="square")
        def square(number: int) -> int:
            with telemetry.tracer.start_as_current_span("within"):
                return number * number

        with instrument(cache, telemetry.meter, tracer=telemetry.tracer):
            with telemetry.tracer.start_as_current_span("request"):
                assert [square(3), square(3)] == [9, 9]
            assert telemetry.spans() == ["within", "compute square", "request"], "a hit is none"
            within, computed, request = telemetry.exporter.get_finished_spans()
            assert within.parent is not None
            assert computed.parent is not None
            assert request.context is not None
            assert (within.parent.span_id, computed.parent.span_id) == (
                computed.context.span_id,
                request.context.span_id,
            )
            assert dict(computed.attributes or {}) == {"cache.name": "pages", "code.function.name": "square"}
            telemetry.exporter.clear()
            square.refresh(3)
            cache.namespace("n").get_or_set("key", lambda: 1, stale_if_error=5)
            assert [name for name in telemetry.spans() if name != "within"] == [
                "compute square",
                f"compute {__name__}.test_computations_are_spans.<locals>.<lambda>",
            ]
            telemetry.exporter.clear()
            cache.get_or_set_many([1, 2], lambda keys: dict.fromkeys(keys, 0))
            assert telemetry.spans() == [f"compute {__name__}.test_computations_are_spans.<locals>.<lambda>"]
        telemetry.exporter.clear()
        square(4)
        assert telemetry.spans() == ["within"], "it has ended"


def test_an_error_is_told_in_the_span_and_raised(tmp_path: Path, telemetry: Telemetry) -> None:
    with Cache(tmp_path, **QUICK) as cache, instrument(cache, telemetry.meter, tracer=telemetry.tracer):
        for options in ({}, {"stale_if_error": 5}):
            for error in (ZeroDivisionError("of course"), StopIteration(1), KeyboardInterrupt()):

                def fail(error: BaseException = error) -> None:
                    raise error

                with pytest.raises(type(error)) as raised:
                    cache.get_or_set("key", fail, **options)  # type: ignore[call-overload]
                assert raised.value is error
                (span,) = telemetry.exporter.get_finished_spans()
                assert (span.status.status_code is StatusCode.ERROR) == isinstance(error, Exception)
                assert span.end_time is not None
                telemetry.exporter.clear()


def test_coroutines_are_spans_until_they_end(tmp_path: Path, telemetry: Telemetry) -> None:
    async def slow(number: int) -> int:
        with telemetry.tracer.start_as_current_span(f"before {number}"):
            await asyncio.sleep(0)
        with telemetry.tracer.start_as_current_span(f"after {number}"):
            return number

    async def run(cache: Any) -> None:
        memoized = cache.memoize(name="slow")(slow)
        with telemetry.tracer.start_as_current_span("request"):
            assert [*await asyncio.gather(memoized(1), memoized(2), memoized(1))] == [1, 2, 1]

    with Cache(tmp_path, **QUICK) as cache, instrument(cache, telemetry.meter, tracer=telemetry.tracer):
        asyncio.run(run(cache))
        spans = {span.name: span for span in telemetry.exporter.get_finished_spans()}
        assert telemetry.spans().count("compute slow") == 2
        last = [each for each in telemetry.spans() if each != "request"][-1]
        assert last == "compute slow", "each ends after what it awaited"
        computed = {
            each.context.span_id for each in telemetry.exporter.get_finished_spans() if each.name == "compute slow"
        }
        parents = {name: span.parent.span_id for name, span in spans.items() if span.parent and name != "compute slow"}
        assert parents["before 1"] == parents["after 1"] != parents["before 2"] == parents["after 2"]
        assert set(parents.values()) == computed


def test_a_renewal_in_the_background_is_a_span_of_its_caller(
    tmp_path: Path, clock: Clock, telemetry: Telemetry
) -> None:
    with Cache(tmp_path, clock=clock, **QUICK) as cache, instrument(cache, telemetry.meter, tracer=telemetry.tracer):

        def get() -> Any:
            return cache.get_or_set("key", lambda: "value", expire=10, stale_while_revalidate=60)

        get()
        clock.advance(11)
        telemetry.exporter.clear()
        with telemetry.tracer.start_as_current_span("request"):
            get()
        finish_renewals()
        spans = {span.name: span for span in telemetry.exporter.get_finished_spans()}
        (computed,) = (span for name, span in spans.items() if name != "request")
        assert computed.parent is not None
        assert computed.parent.span_id == spans["request"].context.span_id
