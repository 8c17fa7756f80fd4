"""What Prometheus gets of a cache, as the library's own parsers read its pages; and the dashboard that shows it."""

from __future__ import annotations

import itertools
import json
import logging
import os
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.openmetrics.exposition import generate_latest as openmetrics_page
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics_families
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import DuplicateTimeseries

from diskcache_like import Cache, FanoutCache, SettingError
from diskcache_like.coherence.counts import BUCKETS, INCIDENTS
from diskcache_like.entries.metrics import SpaceMetrics, Times
from diskcache_like.integrations.prometheus import Collector
from diskcache_like.integrations.reading import Reading

from ..support.cache_kinds import QUICK, Clock
from ..support.project import ROOT
from ..support.workers import Crew, Link

Numbers = dict[tuple[str, frozenset[tuple[str, str]]], float]


def page_of(collector: Collector) -> str:
    registry = CollectorRegistry()
    registry.register(collector)
    return generate_latest(registry).decode()


def parsed(page: str) -> Numbers:
    """Return the numbers of a page; no series is there twice."""
    found: Numbers = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            series = sample.name, frozenset(sample.labels.items())
            assert series not in found
            found[series] = sample.value
    return found


def open_families(collector: Collector) -> list[Metric]:
    """Return what the stricter parser, that of OpenMetrics, reads."""
    registry: Any = CollectorRegistry()
    registry.register(collector)
    page: Any = openmetrics_page  # as the library types it, neither has a result
    parse: Any = openmetrics_families
    return list(parse(page(registry).decode()))


def number(found: Numbers, name: str, **labels: str) -> float:
    """Return the sum of the series with these labels."""
    wanted = set(labels.items())
    chosen = [value for (named, each), value in found.items() if named == name and wanted <= each]
    assert chosen, (name, labels)
    return sum(chosen)


def series(found: Numbers, name: str) -> set[frozenset[tuple[str, str]]]:
    return {labels for named, labels in found if named == name}


def test_every_number_is_in_its_family(tmp_path: Path, clock: Clock) -> None:
    with Cache(tmp_path / "pages", clock=clock, size_limit=2**30, **QUICK) as cache:
        cache.set("user:1", "Ada", expire=10)
        cache.set("user:2", "Bob", tag="team")
        cache.set("page:1", "x")
        cache.namespace("shop").set("basket", 1)
        for _ in range(3):
            cache.get("user:1")
        cache.get("user:9")
        clock.advance(10)
        cache.get("user:1")
        cache.delete("page:1")
        cache.evict("team")
        cache.expire()
        found = parsed(page_of(Collector(cache)))

        def gets(**labels: str) -> float:
            return number(found, "cache_gets_total", cache="pages", **labels)

        assert gets(space="user", result="hit") == gets(space="user", result="hit", tier="hot") == 3
        assert (gets(space="user", result="miss"), gets(space="user", result="expired")) == (1, 1)
        assert gets(space="user") == 5, "no read is counted twice"
        assert {dict(each)["tier"] for each in series(found, "cache_gets_total")} == {"hot", "disk", "remote", ""}
        puts = {dict(each)["space"]: found["cache_puts_total", each] for each in series(found, "cache_puts_total")}
        assert puts == {"user": 2, "page": 1, "shop/": 1}
        assert number(found, "cache_deletes_total", space="page") == number(found, "cache_deletes_total") == 1
        evicted = {
            reason: number(found, "cache_evictions_total", reason=reason) for reason in ("tag", "expiry", "room")
        }
        assert evicted == {"tag": 1, "expiry": 1, "room": 0}
        assert (number(found, "cache_entries"), number(found, "cache_limit_bytes")) == (1, 2**30)
        assert number(found, "cache_bytes") == cache.metrics().bytes > 0
        assert {dict(each)["event"] for each in series(found, "cache_events_total")} == set(INCIDENTS)
        assert not series(found, "cache_operation_seconds_bucket"), "times are not measured"


def test_a_read_of_what_had_expired_is_no_other_miss(tmp_path: Path) -> None:
    with Cache(tmp_path, **QUICK) as cache:
        spaces = {"user": SpaceMetrics(hot=5, misses=4, expired=3)}
        reading = Reading(replace(cache.metrics(), spaces=spaces), "counts")
        found = {labels: number for name, labels, number in reading.numbers() if name == "gets"}
        assert (found["user", "", "miss"], found["user", "", "expired"], sum(found.values())) == (1, 3, 9)


def test_events_are_counted(tmp_path: Path, clock: Clock) -> None:
    with Cache(tmp_path, clock=clock, **QUICK) as cache:
        cache.get_or_set("key", lambda: 1, expire=10, stale_if_error=60)
        clock.advance(11)
        assert cache.get_or_set("key", lambda: 1 // 0, expire=10, stale_if_error=60) == 1
        found = parsed(page_of(Collector(cache)))
        assert number(found, "cache_events_total", event="stale_served") == cache.metrics().stale_served == 1


def test_histograms_have_an_octave_a_bucket(tmp_path: Path) -> None:
    with Cache(tmp_path, metrics_level="full", **QUICK) as cache:
        for key in range(100):
            cache.set(key, key)
            cache.get(("absent", key))
        len(cache)  # or the first that asks would take the lock to count them
        metrics, found = cache.metrics(), parsed(page_of(Collector(cache)))
        for operation, times in metrics.times.items():
            assert number(found, "cache_operation_seconds_count", operation=operation) == times.count
            bounds = {
                float(dict(labels)["le"]): found["cache_operation_seconds_bucket", labels]
                for labels in series(found, "cache_operation_seconds_bucket")
                if ("operation", operation) in labels
            }
            ordered = sorted(bounds)
            assert (ordered[0], ordered[-2], ordered[-1]) == (1.28e-07, 2**36 / 1e9, float("inf"))
            assert all(second == 2 * first for first, second in itertools.pairwise(ordered[:-1]))
            assert [bounds[bound] for bound in ordered] == sorted(bounds.values())
            assert bounds[float("inf")] == times.count
        median = metrics.times["set"].percentile(50)
        below = {float(dict(each)["le"]) for each in series(found, "cache_operation_seconds_bucket")}
        bound = min(bound for bound in below if bound >= median)
        assert number(found, "cache_operation_seconds_bucket", operation="set", le=repr(bound)) >= 50


def test_the_sum_is_made_from_the_middles_of_buckets(tmp_path: Path) -> None:
    buckets = [0] * BUCKETS
    buckets[16 * 4], buckets[16 * 4 + 1] = 2, 1  # from 1,024 ns, each 64 ns wide
    with Cache(tmp_path, **QUICK) as cache:
        reading = Reading(replace(cache.metrics(), times={"get": Times(buckets)}), "full")
        ((operation, found),) = reading.histograms()
        assert (operation, found.seconds) == ("get", (2 * 1056 + 1120) / 1e9)
        assert [(end, number) for end, number in found.buckets if float(end) < 3e-6][-2:] == [
            ("1.024e-06", 0),
            ("2.048e-06", 3),
        ]


def test_counters_never_go_back(tmp_path: Path) -> None:
    with Cache(tmp_path, **QUICK) as cache:
        collector = Collector(cache)
        cache.set("a:1", 1)
        before = parsed(page_of(collector))
        cache.metrics(reset=True)
        cache.stats(reset=True)
        assert cache.metrics().total.sets == 0
        assert parsed(page_of(collector)) == before
        cache.close()
        assert parsed(page_of(collector)) == before, "closed, and opened again by the scrape"


# -- what is written on the page ---------------------------------------------------------------------------------------

HOSTILE = (
    "new\nline",
    'qu"ote',
    "back\\slash",
    "\r",
    "\0\x01\x1b[31m",
    "\x85\u2028",
    "}",
    "ü",
    'a="b"} 1\ncache_gets_total{',
    " ",
    "#",
)


@pytest.mark.parametrize("is_open", [False, True], ids=["text", "openmetrics"])
def test_hostile_names_of_spaces_are_told_exactly(tmp_path: Path, is_open: bool) -> None:
    with Cache(tmp_path / 'ca"che\n', **QUICK) as cache:
        for name in HOSTILE:
            cache.set(f"{name}:key", 1)
            cache.namespace(name).set("key", 1)
        cache.set(b"\xff\xfe:key", 1)
        collector = Collector(cache)
        families = open_families(collector) if is_open else text_string_to_metric_families(page_of(collector))
        puts = [sample for family in families for sample in family.samples if sample.name == "cache_puts_total"]
        assert {sample.labels["space"] for sample in puts} >= {*HOSTILE, *(f"{name}/" for name in HOSTILE)}
        assert {sample.labels["cache"] for sample in puts} == {'ca"che\n'}
        assert sum(sample.value for sample in puts) == 2 * len(HOSTILE) + 1


def test_directories_that_are_no_text_have_a_name(tmp_path: Path) -> None:
    with Cache(os.fsencode(tmp_path) + b"/\xff", **QUICK) as cache:  # type: ignore[arg-type]
        cache.set("key", 1)
        assert number(parsed(page_of(Collector(cache))), "cache_puts_total", cache="?") == 1


def test_openmetrics_reads_the_page(tmp_path: Path) -> None:
    with Cache(tmp_path, metrics_level="full", **QUICK) as cache:
        cache.set("a:1", 1)
        names = {family.name: family.type for family in open_families(Collector(cache))}
        assert names["cache_gets"] == "counter"
        assert names["cache_entries"] == "gauge"
        assert names["cache_operation_seconds"] == "histogram"


# -- which caches ------------------------------------------------------------------------------------------------------


def test_every_kind_of_cache_can_be_collected(tmp_path: Path) -> None:
    with FanoutCache(tmp_path / "shards", shards=3, **QUICK) as cache:
        cache.namespace("a").namespace("b").set("key", 1)
        cache.set("key", 1)
        for each, name, puts in (
            (cache, "shards", 2),
            (cache.aio, "shards", 2),
            (cache.namespace("a"), "shards/a", 1),
            (cache.namespace("c"), "shards/c", 0),
            (cache.namespace("a").namespace("b").aio, "shards/a/b", 1),
        ):
            found = parsed(page_of(Collector(each)))
            assert series(found, "cache_entries") == {frozenset({("cache", name)})}
            assert (number(found, "cache_puts_total") if puts else len(series(found, "cache_puts_total"))) == puts
        with pytest.raises(TypeError, match="cache is 'text'"):
            Collector("text")


def test_djangos_cache_can_be_collected(tmp_path: Path) -> None:
    pytest.importorskip("django")
    from diskcache_like import DjangoCache

    backend = DjangoCache(str(tmp_path / "site"), {"SHARDS": 2, "OPTIONS": QUICK})
    try:
        collector = Collector(backend)
        for _ in range(2):  # after it is closed, the backend has another cache
            backend.set("fragment:1", "x")
            backend.close()
        assert number(parsed(page_of(collector)), "cache_puts_total", cache="site") == 2
    finally:
        backend.close()


def test_one_collector_reports_several_caches(tmp_path: Path) -> None:
    with Cache(tmp_path / "one", **QUICK) as one, Cache(tmp_path / "two", **QUICK) as two:
        one.set("a:1", 1)
        collector = Collector(one).add(two).add(two.namespace("n"), "view")
        assert {sample.labels["cache"] for family in open_families(collector) for sample in family.samples} == {
            "one",
            "two",
            "view",
        }
        with pytest.raises(SettingError, match="name 'two' is that of two caches"):
            collector.add(two)
        registry = CollectorRegistry()
        registry.register(collector)
        with pytest.raises(DuplicateTimeseries):
            registry.register(Collector(two))
        registry.unregister(collector)
        registry.register(Collector(two))


def test_a_cache_that_fails_is_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Other:
        def collect(self) -> list[Metric]:
            metric = Metric("other", "of somebody else", "gauge")
            metric.add_sample("other", {}, 1)
            return [metric]

    with Cache(tmp_path / "good", **QUICK) as good, Cache(tmp_path / "bad", **QUICK) as bad:
        registry = CollectorRegistry()
        registry.register(Collector(good).add(bad))
        registry.register(Other())
        bad.close()
        shutil.move(tmp_path / "bad", tmp_path / "away")
        (tmp_path / "bad").write_text("in the way")
        with caplog.at_level(logging.WARNING):
            for _ in range(3):
                found = parsed(generate_latest(registry).decode())
                assert series(found, "cache_entries") == {frozenset({("cache", "good")})}
                assert number(found, "other") == 1
        assert [record.name for record in caplog.records] == ["diskcache_like.integrations"]
        assert "cache 'bad' is left out" in caplog.text
        (tmp_path / "bad").unlink()
        shutil.move(tmp_path / "away", tmp_path / "bad")
        assert len(series(parsed(generate_latest(registry).decode()), "cache_entries")) == 2


def test_without_counting_there_is_what_needs_none(tmp_path: Path) -> None:
    with Cache(tmp_path, metrics_level="off", **QUICK) as cache:
        cache.set("key", 1)
        found = parsed(page_of(Collector(cache)))
        assert {name for name, _ in found} == {"cache_entries", "cache_bytes", "cache_limit_bytes"}
        assert number(found, "cache_entries") == 1


# -- several processes -------------------------------------------------------------------------------------------------


def work(link: Link, directory: Path, name: str, times: int) -> None:
    with Cache(directory, **QUICK) as cache:
        for turn in range(times):
            cache.set(f"{name}:{turn}", turn)
            cache.get(f"{name}:{turn}")
            cache.get(f"absent:{turn}")
        link.tell("counted")
        link.hear()


def test_any_process_tells_what_all_have_counted_and_those_that_were_killed(tmp_path: Path, crew: Crew) -> None:
    workers = [crew.start(work, tmp_path, f"n{number}", 10 * (number + 1)) for number in range(4)]
    assert [worker.hear() for worker in workers] == ["counted"] * 4
    with Cache(tmp_path, **QUICK) as cache:
        collector = Collector(cache)
        found = parsed(page_of(collector))
        for killed in workers[:2]:
            killed.kill()
        assert parsed(page_of(collector)) == found
        for index in range(4):
            assert number(found, "cache_puts_total", space=f"n{index}") == 10 * (index + 1)
            assert number(found, "cache_gets_total", space=f"n{index}", result="hit") == 10 * (index + 1)
        assert number(found, "cache_gets_total", space="absent", result="miss") == 100
        for worker in workers[2:]:
            worker.tell()
            worker.result()
        assert parsed(page_of(collector)) == found


# -- the dashboard -----------------------------------------------------------------------------------------------------


def test_the_dashboard_asks_for_what_is_exported(tmp_path: Path) -> None:
    dashboard = json.loads((ROOT / "docs" / "static" / "grafana.json").read_text())
    with Cache(tmp_path, metrics_level="full", **QUICK) as cache:
        cache.set("a:1", 1)
        exported: dict[str, set[str]] = {}
        for name, labels in parsed(page_of(Collector(cache))):
            exported.setdefault(name, {"instance"}).update(dict(labels))
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    variables = {each["name"]: each for each in dashboard["templating"]["list"]}
    assert set(variables) == {"datasource", "cache"}
    queries.append(variables["cache"]["definition"].replace("label_values(cache_entries, cache)", "cache_entries"))
    asked = {name for query in queries for name in re.findall(r"\bcache_\w+", query)}
    assert asked
    assert asked <= set(exported)
    for query in queries:
        known = set.union(*(exported[name] for name in re.findall(r"\bcache_\w+", query)))
        used = {label for group in re.findall(r"by \(([^)]*)\)", query) for label in group.split(", ")}
        used |= set(re.findall(r"(\w+)(?:=~|!~|=|!=)\"", query))
        assert used <= known, query
    legends = [target["legendFormat"] for panel in dashboard["panels"] for target in panel["targets"]]
    assert all(re.search(r"\{\{\w+\}\}", legend) for legend in legends)
    places = [tuple(panel["gridPos"][side] for side in "xy") for panel in dashboard["panels"]]
    assert len(set(places)) == len(places)
