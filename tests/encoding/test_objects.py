"""Objects as data: every kind comes back, nothing else does, and a name in an entry chooses no class by itself."""

from __future__ import annotations

import dataclasses
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from diskcache_like import Cache, FanoutCache, SettingError, ValueEncodeError, register
from diskcache_like.disk.serializers import Msgpack
from diskcache_like.encoding.classes import PROCESS_REGISTRY, Registry, registry_of
from diskcache_like.encoding.values import NotSerializable
from diskcache_like.errors import DecodeError

from ..support.sample_objects import CALLS, CLASSES, FLAGS, OBJECTS, Color, Frozen, Open, Plain, Point


@pytest.fixture
def codec() -> Msgpack:
    return Msgpack([registry_of(CLASSES)])


def same(one: Any, other: Any) -> bool:
    return bool(one == other) and type(one) is type(other)


@pytest.mark.parametrize("value", OBJECTS, ids=repr)
def test_objects_come_back_equal_and_of_the_same_type(codec: Msgpack, value: Any) -> None:
    payload = codec.encode(value)
    CALLS.clear()
    back = codec.decode(payload)
    assert same(back, value)
    assert CALLS == []  # neither __post_init__ nor converters nor validators
    assert codec.encode(back) == payload


def test_what_lies_in_the_fields_has_its_type_too(codec: Msgpack) -> None:
    back = codec.decode(codec.encode(Frozen(1, [bytearray(b"x"), (1, {2})])))
    assert [type(member) for member in back.b] == [bytearray, tuple]
    model = codec.decode(codec.encode(Open.model_validate({"a": 2, "b": 3})))
    assert (model.model_extra, model.model_fields_set, model._hidden) == ({"b": 3}, {"a", "b"}, 5)


def test_an_object_that_carries_more_than_its_fields_is_not_data(codec: Msgpack) -> None:
    value = Plain("x")
    codec.encode(value)
    assert value.size == 0  # now cached in its __dict__
    with pytest.raises(NotSerializable, match=r"Plain carries more than its fields"):
        codec.encode(value)
    unset = object.__new__(Frozen)
    with pytest.raises(NotSerializable, match="without a value"):
        codec.encode(unset)
    with pytest.raises(NotSerializable, match="memoryview"):
        codec.encode(Point(1, memoryview(b"x")))


def test_objects_that_hold_themselves_or_are_too_deep_are_not_data(codec: Msgpack) -> None:
    endless = Plain("x")
    endless.members.append(endless)
    with pytest.raises(NotSerializable):
        codec.encode(endless)
    deep: Any = None
    for _ in range(500):
        deep = Point(1, deep)
    with pytest.raises(NotSerializable):
        codec.encode(deep)


def test_only_known_classes_are_rebuilt() -> None:
    payload = Msgpack([registry_of([Point, Frozen])]).encode([Point(1, Frozen(1))])
    with pytest.raises(DecodeError, match=r"Frozen.*allow="):
        Msgpack([registry_of([Point])]).decode(payload)
    with pytest.raises(NotSerializable):
        Msgpack([Registry()]).encode(Point(1, 2))


HOSTILE = [
    ["os.system", {}],
    ["os.system", "true"],
    [b"os.system", {}],
    [None, {}],
    [["a"], {}],
    [],
    ["tests.support.sample_objects.Point"],
    ["tests.support.sample_objects.Point", {"x": 1}],
    ["tests.support.sample_objects.Point", {"x": 1, "y": 2, "z": 3}],
    ["tests.support.sample_objects.Point", [1, 2]],
    ["tests.support.sample_objects.Color", "BLUE"],
    ["tests.support.sample_objects.Color", "__class__"],
    ["tests.support.sample_objects.Color", []],
    ["tests.support.sample_objects.Rights", "READ"],
    *([f"tests.support.sample_objects.{flag.__name__}", 64] for flag in FLAGS),
    ["tests.support.sample_objects.Rights", [1]],
    ["tests.support.sample_objects.Frozen", {"__class__": 1, "a": 1}],
    ["tests.support.sample_objects.Model", {}],
    ["tests.support.sample_objects.Model", [{"number": 1}, [], None, None]],
    ["tests.support.sample_objects.Model", [{"number": 1, "nested": 1}, [[]], None, None]],
    ["tests.support.sample_objects.Model", [{"number": 1, "nested": 1}, [], [], None]],
]


@pytest.mark.parametrize("items", HOSTILE, ids=repr)
def test_a_forged_object_is_a_decode_error(codec: Msgpack, items: list[Any]) -> None:
    import msgpack

    payload = msgpack.packb([msgpack.ExtType(6, b""), *items])
    with pytest.raises(DecodeError):
        codec.decode(payload)


def test_registering_makes_every_cache_take_a_class(tmp_path: Path) -> None:
    with Cache(tmp_path / "a", pickle="never") as cache:
        with pytest.raises(ValueEncodeError):
            cache["key"] = Registered(1)
        register(Registered)
        try:
            cache["key"] = [Registered(1)]
            assert same(cache["key"][0], Registered(1))
        finally:
            del PROCESS_REGISTRY._by_name["tests.encoding.test_objects.Registered"]
        cache.close()  # and with it the hot layer
        assert cache.get("key") is None
        assert cache.metrics().damaged == 1


@dataclasses.dataclass
class Registered:
    value: int


def test_allow_takes_classes_and_names(tmp_path: Path) -> None:
    name = f"{Point.__module__}.Point"
    with Cache(tmp_path / "a", pickle="never", allow=[name, Color]) as cache:
        cache["key"] = {Color.RED: Point(1, 2)}
    with Cache(tmp_path / "a", pickle="never", allow=[Point, Color]) as cache:
        assert cache["key"] == {Color.RED: Point(1, 2)}
    with Cache(tmp_path / "a", pickle="never", allow=[Color]) as cache:
        assert cache.get("key", "missing") == "missing"
    with Cache(tmp_path / "a", allow=(one for one in [Point, Color])) as cache:
        assert cache["key"] == {Color.RED: Point(1, 2)}


def test_handles_made_from_a_handle_allow_the_same(tmp_path: Path) -> None:
    with FanoutCache(tmp_path / "a", shards=2, pickle="never", allow=(one for one in [Point])) as fanout:
        fanout.cache("child")["key"] = Point(1, 2)
        assert fanout.cache("child")["key"] == Point(1, 2)
        with pickle.loads(pickle.dumps(fanout)) as copy:
            copy["key"] = Point(1, 2)
            assert copy["key"] == Point(1, 2)


@pytest.mark.parametrize(
    "allow",
    [
        "tests.support.sample_objects.Point",
        ["nowhere.Class"],
        ["os.nothing"],
        ["os.sep"],
        [int],
        [3],
        5,
        ["Point"],
        [""],
    ],
)
def test_what_allow_does_not_take(tmp_path: Path, allow: Any) -> None:
    with pytest.raises(SettingError):
        Cache(tmp_path / "a", allow=allow)
    assert not (tmp_path / "a").exists()


def test_a_class_that_derives_from_a_builtin_one_is_refused() -> None:
    @dataclasses.dataclass
    class Mapped(dict[str, int]):
        a: int = 0

    with pytest.raises(SettingError, match=r"derives from builtins\.dict"):
        registry_of([Mapped])


def test_a_class_with_other_fields_reads_as_missing(tmp_path: Path) -> None:
    def version(fields: list[str]) -> type:
        return dataclasses.make_dataclass("Changing", fields, namespace={"__module__": __name__})

    old, new = version(["a", "b"]), version(["a", "c"])
    with Cache(tmp_path / "a", allow=[old]) as cache:
        cache["key"] = old(1, 2)
        assert type(cache["key"]) is old
    with Cache(tmp_path / "a", allow=[new]) as cache:
        assert cache.get("key") is None


def test_of_two_classes_of_one_name_the_later_is_meant() -> None:
    """As when a module is loaded again; objects of the earlier class would come back as another type."""
    first, second = (dataclasses.make_dataclass("Twice", ["a"], namespace={"__module__": __name__}) for _ in range(2))
    codec = Msgpack([registry_of([first, second])])
    assert type(codec.decode(codec.encode(second(1)))) is second
    with pytest.raises(NotSerializable):
        codec.encode(first(1))


def test_a_name_in_an_entry_imports_nothing(tmp_path: Path) -> None:
    with Cache(tmp_path / "a", allow=[Point], pickle="never") as cache:
        cache["key"] = Point(1, 2)
    script = (
        "import sys; from diskcache_like import Cache\n"
        f"cache = Cache({str(tmp_path / 'a')!r})\n"
        "assert cache.get('key') is None and cache.metrics().damaged == 1\n"
        "assert not any(name.startswith('tests') for name in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


@pytest.mark.parametrize("value", [Open(a=1), [Open(a=1)]], ids=["alone", "in a list"])
def test_a_class_that_is_not_registered_is_refused_with_the_way_to_do_that(value: Any, tmp_path: Path) -> None:
    with Cache(tmp_path, pickle="never") as cache:
        with pytest.raises(ValueEncodeError, match=r"Open.*register\(\) or allow="):
            cache["key"] = value
        assert "key" not in cache
