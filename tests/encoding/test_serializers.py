"""Serializers and compressors: what each takes, that pairs of them give it back, and what is chosen when."""

from __future__ import annotations

import dataclasses
import datetime as dt
import enum
import json
import math
import os
import subprocess
import sys
import uuid
from collections import OrderedDict
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diskcache_like import (
    Cache,
    Deque,
    FanoutCache,
    Index,
    JSONDisk,
    MissingDependency,
    SettingError,
    ValueEncodeError,
)
from diskcache_like.disk.codec import Codec, new_codec
from diskcache_like.encoding import json as json_module
from diskcache_like.encoding.compressors import COMPRESSORS
from diskcache_like.encoding.json import JSON_DEPTH, Json
from diskcache_like.encoding.values import NotSerializable
from diskcache_like.errors import DecodeError

from ..support.sample_values import DATA, JSON, MIXED, RECORDS, same

OPTIONS = {"compress_level": None, "compress_min_size": 16}
CODECS = {
    (serializer, compressor): new_codec(serializer, compressor, OPTIONS, "signed")
    for serializer in ("msgpack", "json")
    for compressor in COMPRESSORS
}
PAIRS = [(serializer, compressor) for serializer in ("msgpack", "json", "pickle") for compressor in COMPRESSORS]


@pytest.fixture(params=CODECS, ids="-".join)
def codec(request: pytest.FixtureRequest) -> Codec:
    return CODECS[request.param]


@settings(deadline=None, max_examples=60)
@given(data=st.data())
@pytest.mark.parametrize("pair", CODECS, ids="-".join)
def test_what_a_pair_takes_comes_back(pair: tuple[str, str], data: st.DataObject) -> None:
    value = data.draw(DATA if pair[0] == "msgpack" else JSON)
    codec = CODECS[pair]
    payload = codec.encode(value)
    assert same(codec.decode(payload), value)


@settings(deadline=None, max_examples=60)
@given(content=st.binary(max_size=600) | st.binary(max_size=20).map(lambda piece: piece * 50))
@pytest.mark.parametrize("compressor", COMPRESSORS)
def test_bytes_come_back_through_every_compressor(compressor: str, content: bytes) -> None:
    codec = CODECS["msgpack", compressor]
    assert codec.unpack(codec.pack(content)) == content


@pytest.mark.parametrize(("serializer", "compressor"), PAIRS)
def test_a_cache_of_every_pair_gives_back_what_it_took(tmp_path: Path, serializer: str, compressor: str) -> None:
    values = [*MIXED, *RECORDS[:5], os.urandom(100_000), bytes(100_000), "text" * 30_000, list(range(30_000))]
    options: dict[str, Any] = {"serializer": serializer, "compressor": compressor}
    with Cache(tmp_path / "cache", **options) as cache:
        for number, value in enumerate(values):
            cache.set(number, value, tag="tag")
            assert same(cache[number], value)
    with Cache(tmp_path / "cache") as cache:  # without saying how: the cache knows
        for number, value in enumerate(values):
            assert same(cache[number], value)
            assert same(cache[number], value)  # from the hot layer
        for number in (4, 11, 12):  # in the row, and in files with and without compression
            with cache.read(number) as handle:
                assert handle.read() == values[number]
        assert cache.incr("count") == 1
        assert cache.incr("count", 41) == 42
        assert cache.check() == []
        assert cache.metrics().damaged == cache.metrics().unauthenticated == 0


@pytest.mark.parametrize("compressor", COMPRESSORS[1:])
def test_compressing_saves_room_where_it_pays_and_only_there(tmp_path: Path, compressor: str) -> None:
    with Cache(tmp_path / "cache", compressor=compressor) as cache:
        cache["short"], cache["random"], cache["long"] = "a" * 60, os.urandom(5_000), "a" * 5_000
        assert cache.get_entry("short").size == 63
        assert cache.get_entry("random").size == 5_004
        assert cache.get_entry("long").size < 200
        cache["file"], cache["noise"] = bytes(1 << 20), os.urandom(1 << 20)
        assert cache.get_entry("file").size < 32_000
        assert cache.get_entry("noise").size == 1 << 20  # as it is, and so without a mark before it
        cache.reset("compress_min_size", 10_000)
        cache["long"] = "a" * 5_000
        assert cache.get_entry("long").size > 5_000
    with Cache(tmp_path / "cache") as cache:
        assert cache.reset("compress_min_size") == 10_000
        assert cache["file"] == bytes(1 << 20)


@pytest.mark.parametrize(("compressor", "level"), [("zlib", 9), ("zstd", 19), ("zstd", -5), ("lz4", 12), ("lz4", -9)])
def test_levels_are_stored_and_change_the_result(tmp_path: Path, compressor: str, level: int) -> None:
    text = json.dumps(RECORDS[:200])
    with Cache(tmp_path / "cache", compressor=compressor) as cache:
        cache["key"] = text
        before = cache.get_entry("key").size
        assert cache.reset("compress_level", level) == level
        cache["key"] = text
        after = cache.get_entry("key").size
        assert (after < before) if level > 0 else (after > before)
    with Cache(tmp_path / "cache") as cache:
        assert cache.reset("compress_level") == level
        assert cache["key"] == text
        for wrong in (99, 20, -65, "high", 1.5):
            with pytest.raises(SettingError):
                cache.reset("compress_level", wrong)
    beyond = {"zlib": 10, "zstd": -6, "lz4": 13}[compressor]
    with pytest.raises(SettingError, match=rf"compress_level is {beyond}, expected .* for compressor='{compressor}'"):
        Cache(tmp_path / "cache", compress_level=beyond)


CONFLICTS = [
    ({}, {"serializer": "json"}),
    ({}, {"compressor": "zlib"}),
    ({"serializer": "json"}, {"serializer": "msgpack"}),
    ({"compressor": "zlib"}, {"compressor": "none"}),
    ({"compressor": "zlib", "serializer": "pickle"}, {"compressor": "zstd", "serializer": "pickle"}),
]


@pytest.mark.parametrize("kind", [Cache, FanoutCache])
@pytest.mark.parametrize(("made", "opened"), CONFLICTS)
def test_another_codec_than_the_cache_has_is_refused(
    tmp_path: Path, kind: type[Cache], made: dict[str, Any], opened: dict[str, Any]
) -> None:
    with kind(tmp_path / "cache", **made) as cache:
        cache["key"] = RECORDS[0]
    name = next(name for name, value in opened.items() if value != made.get(name))
    stored = made.get(name, {"serializer": "msgpack", "compressor": "none"}[name])
    with pytest.raises(
        SettingError, match=rf"made with {name}='{stored}' and opened with {name}='{opened[name]}'.*leave"
    ):
        kind(tmp_path / "cache", **opened)
    with kind(tmp_path / "cache", **made) as cache:
        assert cache["key"] == RECORDS[0]


@pytest.mark.parametrize(
    "wrong",
    [
        {"serializer": "yaml"},
        {"serializer": 3},
        {"compressor": "gzip"},
        {"compressor": b"zlib"},
        {"compressor": "zlib", "compress_level": 10},
        {"compress_min_size": -1},
        {"serializer": "pickle", "pickle": "never"},
        {"disk": JSONDisk, "serializer": "json"},
        {"disk": JSONDisk, "compressor": "zlib"},
    ],
    ids=str,
)
def test_what_does_not_exist_or_go_together_makes_no_cache(tmp_path: Path, wrong: dict[str, Any]) -> None:
    with pytest.raises(SettingError):
        Cache(tmp_path / "cache", **wrong)
    assert not (tmp_path / "cache").exists()


def test_a_cache_made_before_there_was_a_choice_opens(tmp_path: Path) -> None:
    import sqlite3

    with Cache(tmp_path / "cache") as cache:
        cache["key"] = [1, (2,)]
    connection = sqlite3.connect(tmp_path / "cache/cache.db")
    with connection:
        connection.execute("DELETE FROM setting WHERE name LIKE 'compress%' OR name = 'serializer'")
    connection.close()
    with Cache(tmp_path / "cache", serializer="msgpack", compressor="none") as cache:
        assert cache["key"] == [1, (2,)]


@pytest.mark.parametrize("name", ["serializer", "compressor"])
@pytest.mark.parametrize("value", ["none of these", b"msgpack", 3, ""])
def test_a_stored_codec_that_nobody_wrote_is_refused(tmp_path: Path, name: str, value: object) -> None:
    import sqlite3

    Cache(tmp_path / "cache", serializer="json", compressor="zlib").close()
    connection = sqlite3.connect(tmp_path / "cache/cache.db")
    with connection:
        connection.execute("UPDATE setting SET value = ? WHERE name = ?", (value, name))
    connection.close()
    from diskcache_like import ForeignDatabase

    with pytest.raises((SettingError, ForeignDatabase), match=name):
        Cache(tmp_path / "cache")


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_a_shard_that_is_made_anew_is_like_the_others(tmp_path: Path, lost: int) -> None:
    options: dict[str, Any] = {"serializer": "json", "compressor": "zlib"}
    with FanoutCache(tmp_path / "cache", shards=3, **options) as cache:
        cache["key"] = RECORDS[0]
    (tmp_path / f"cache/00{lost}/cache.db").write_bytes(b"not a database" * 1000)
    with pytest.warns(match="goes on empty"):
        cache = FanoutCache(tmp_path / "cache")
    with cache:
        found = {
            (store.shard.identity["serializer"], store.shard.identity["compressor"]) for store in cache._shards.stores
        }
    assert found == {("json", "zlib")}


def test_the_others_take_the_codec_too(tmp_path: Path) -> None:
    options: dict[str, Any] = {"serializer": "json", "compressor": "zlib"}
    with FanoutCache(tmp_path / "fanout", shards=2, **options) as fanout:
        child = fanout.cache("child")
        for cache in (fanout, child):
            cache["key"] = RECORDS[:50]
            assert cache.get_entry("key").size < 3_000
            assert cache["key"] == RECORDS[:50]
        fanout.reset("compress_level", 9)
        assert [store.disk.value_codec.compresses for store in fanout._shards.stores] == [True, True]
    Deque.fromcache(Cache(tmp_path / "deque", **options), RECORDS[:3]).cache.close()
    Index.fromcache(Cache(tmp_path / "index", **options), {"a": RECORDS[0]}).cache.close()
    deque, index = Deque(directory=tmp_path / "deque"), Index(str(tmp_path / "index"))
    assert list(deque) == RECORDS[:3]
    assert dict(index) == {"a": RECORDS[0]}
    assert deque.cache.disk.value_codec.compresses
    assert index.cache.disk.value_codec.compresses
    deque.cache.close()
    index.cache.close()


# -- JSON ---------------------------------------------------------------------------------------------------------


@pytest.fixture(params=["orjson", "standard library"])
def text(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Json:
    if request.param != "orjson":
        monkeypatch.setattr(json_module, "_orjson", lambda: None)
    return Json()


class Word(str):
    pass


class Shade(enum.Enum):
    DARK = 1


class Whole(enum.IntEnum):
    ONE = 1


@dataclasses.dataclass
class Plain:
    a: int


class Pair(NamedTuple):
    a: int


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


ENDLESS: list[Any] = []
ENDLESS.append(ENDLESS)
NOT_JSON = [
    (1,),
    {1},
    b"bytes",
    bytearray(b"bytes"),
    math.nan,
    [1.5, math.inf],
    {"a": [None, -math.inf]},
    1 << 64,
    -(1 << 63) - 1,
    {"a": [1 << 70]},
    {1: 2},
    {None: 2},
    {True: 1},
    {Word("a"): 1},
    {(1,): 1},
    Word("text"),
    [Word("text")],
    Shade.DARK,
    Whole.ONE,
    {"a": Shade.DARK},
    Plain(1),
    [Pair(1)],
    OrderedDict(a=1),
    dt.datetime(2024, 1, 1),
    [dt.date(2024, 1, 1)],
    uuid.UUID(int=1),
    "\ud800",
    {"\udfff": 1},
    nested(JSON_DEPTH + 1),
    nested(2000),
    ENDLESS,
    object(),
    ...,
]


@pytest.mark.parametrize("value", NOT_JSON, ids=lambda value: type(value).__name__)
def test_what_json_cannot_say_exactly_is_not_data(text: Json, value: Any) -> None:
    with pytest.raises(NotSerializable):
        text.encode(value)


@settings(deadline=None, max_examples=100)
@given(value=JSON)
def test_with_orjson_and_without_the_text_means_the_same(value: Any) -> None:
    fast, slow = Json(), Json()
    slow._dumps, slow._loads, slow._bounds_integers = json_module._dumps, json_module._loads, False
    assert same(fast.decode(slow.encode(value)), value)
    assert same(slow.decode(fast.encode(value)), value)
    assert same(json.loads(fast.encode(value)), value)


NO_JSON = [
    b"",
    b"{",
    b"[1,]",
    b"nul",
    b"NaN",
    b"[Infinity]",
    b"1e999",
    b'"\xff"',
    b'"\\ud800"',
    b"\xef\xbb\xbf1",
    b"01",
    b"1 2",
    b"{'a': 1}",
    b"[" * 100_000,
    b'{"a":' * 5_000 + b"1" + b"}" * 5_000,
]


@pytest.mark.parametrize("payload", NO_JSON, ids=lambda payload: repr(payload)[:30])
def test_what_is_not_json_is_a_decode_error(text: Json, payload: bytes) -> None:
    with pytest.raises(DecodeError):
        text.decode(payload)


def test_what_json_cannot_say_follows_the_pickle_policy(tmp_path: Path) -> None:
    with Cache(tmp_path / "signed", serializer="json") as cache:
        cache["tuple"] = (1, 2)
        assert same(cache["tuple"], (1, 2))
        cache.close()
        assert same(cache["tuple"], (1, 2))
    with Cache(tmp_path / "never", serializer="json", pickle="never") as cache:
        with pytest.raises(ValueEncodeError, match="tuple"):
            cache["tuple"] = (1, 2)
        cache["bytes"] = b"bytes stay bytes"
        assert cache["bytes"] == b"bytes stay bytes"


def test_entries_of_a_json_cache_are_json(tmp_path: Path) -> None:
    import sqlite3

    with Cache(tmp_path / "cache", serializer="json") as cache:
        cache["key"] = RECORDS[0]
    connection = sqlite3.connect(tmp_path / "cache/cache.db")
    ((blob,),) = connection.execute("SELECT v FROM entry").fetchall()
    connection.close()
    assert json.loads(blob[1:-4]) == RECORDS[0]


# -- pickle -------------------------------------------------------------------------------------------------------


def test_a_pickling_cache_keeps_what_only_pickle_does(tmp_path: Path) -> None:
    shared = [1]
    with Cache(tmp_path / "cache", serializer="pickle") as cache:
        cache["key"] = [shared, shared, Word("text"), OrderedDict(a=1)]
        cache.close()
        first, second, word, ordered = cache["key"]
        assert first is second
        assert (type(word), type(ordered)) == (Word, OrderedDict)
    with pytest.raises(SettingError, match="never"):
        Cache(tmp_path / "cache", pickle="never")


# -- optional dependencies -----------------------------------------------------------------------------------------

BLOCKED = """
import sys
sys.modules[{package!r}] = None
from diskcache_like import Cache, FanoutCache, MissingDependency
path = {path!r}
{body}
"""


def run_without(package: str, path: Path, body: str) -> None:
    script = BLOCKED.format(package=package, path=str(path), body=body)
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


@pytest.mark.parametrize(("package", "extra"), [("zstandard", "zstd"), ("lz4", "lz4")])
def test_an_absent_package_is_named_with_its_extra_and_nothing_is_lost(
    tmp_path: Path, package: str, extra: str
) -> None:
    with Cache(tmp_path / "cache", compressor=extra) as cache:
        cache["key"] = RECORDS
    body = f"""
import os
for opening in (lambda: Cache(path), lambda: Cache(path + "2", compressor={extra!r})):
    try:
        opening()
    except MissingDependency as error:
        assert "pip install 'diskcache-like[{extra}]'" in str(error) and {package!r} in str(error), error
    else:
        raise SystemExit("no error")
assert not os.path.exists(path + "2")
with Cache(path + "2") as cache:
    cache["a"] = list(range(100))
    cache.close()
    assert cache["a"] == list(range(100))
"""
    run_without(package, tmp_path / "cache", body)
    with Cache(tmp_path / "cache") as cache:
        assert cache["key"] == RECORDS


def test_json_works_without_orjson(tmp_path: Path) -> None:
    body = """
with Cache(path, serializer="json") as cache:
    cache["key"] = {"a": [1, 2.5, None, "\\u00e9"]}
"""
    run_without("orjson", tmp_path / "cache", body)
    with Cache(tmp_path / "cache") as cache:
        assert cache["key"] == {"a": [1, 2.5, None, "\u00e9"]}


def test_objects_need_neither_attrs_nor_pydantic(tmp_path: Path) -> None:
    body = """
sys.modules["pydantic"] = None
import dataclasses
from diskcache_like import register
@register
@dataclasses.dataclass
class Point:
    x: int
with Cache(path, pickle="never") as cache:
    cache["key"] = [Point(1)]
    cache.close()
    assert cache["key"] == [Point(1)]
"""
    run_without("attrs", tmp_path / "cache", body)


def test_missing_dependency_is_an_import_error() -> None:
    assert issubclass(MissingDependency, ImportError)


def test_the_hot_layer_keeps_what_it_counts(tmp_path: Path) -> None:
    """A value that takes a hundredth of its room on disk must not take a hundred times its room in memory."""
    with Cache(tmp_path / "cache", compressor="zlib") as cache:
        text = "a" * 25_000
        cache["written"] = text
        cache["read"] = text
        cache.close()
        cache["written"] = text
        assert cache["read"] == cache["written"] == text
        for key in ("written", "read"):
            _, _, _, _, kept, decode, *_, cost, _ = cache._hot.entries[key]
            assert len(kept) < cost
            assert decode is not None
            assert decode(kept) == text
        cache["short"] = "text"
        assert cache._hot.entries["short"][4] == "text"
