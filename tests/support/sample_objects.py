"""Objects of every kind that can be stored as data, and their classes."""

from __future__ import annotations

import collections
import dataclasses
import enum
import functools
from typing import Any, NamedTuple

import attrs
import pydantic


class Color(enum.Enum):
    RED = 1
    GREEN = "two"


class Level(enum.IntEnum):
    LOW = 1


class Text(enum.StrEnum):
    A = "a"


class Rights(enum.Flag):
    READ = 1
    WRITE = 2


class Conforming(enum.Flag, boundary=enum.CONFORM):
    READ = 1


class Ejecting(enum.IntFlag, boundary=enum.EJECT):
    READ = 1


class Point(NamedTuple):
    x: Any
    y: Any


Pair = collections.namedtuple("Pair", "left right")  # noqa: PYI024 - the older kind
CALLS: list[str] = []


@dataclasses.dataclass
class Plain:
    name: str
    members: list[Any] = dataclasses.field(default_factory=list)

    def __post_init__(self) -> None:
        CALLS.append("post_init")

    @functools.cached_property
    def size(self) -> int:
        return len(self.members)


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    a: int
    b: Any = None


@dataclasses.dataclass
class Derived(Plain):
    more: int = 0
    unset: int = dataclasses.field(init=False, repr=False, default=3)


def converted(value: Any) -> Any:
    CALLS.append("converter")
    return value


@attrs.define
class Slotted:
    a: int
    _b: Any = attrs.field(converter=converted, default=None)


@attrs.frozen(slots=False)
class Old:
    a: int


class Model(pydantic.BaseModel):
    number: int
    nested: Any = None

    @pydantic.field_validator("number")
    @classmethod
    def seen(cls, number: int) -> int:
        CALLS.append("validator")
        return number


class Open(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow")
    a: int = 1
    _hidden: int = 5


FLAGS: list[type] = [Rights, Conforming, Ejecting]
CLASSES: list[type] = [Color, Level, Text, *FLAGS, Point, Pair, Plain, Frozen, Derived, Slotted, Old, Model, Open]
OBJECTS: list[Any] = [
    Color.RED,
    Color.GREEN,
    Level.LOW,
    Text.A,
    Rights.READ | Rights.WRITE,
    Rights(0),
    Conforming.READ,
    Ejecting.READ,
    Point(1, (2, {3})),
    Pair("left", Point(b"1", None)),
    Plain("name", [1, (2,), Color.RED]),
    Frozen(1, Frozen(2, bytearray(b"mended"))),
    Derived("x", [], 5),
    Slotted(1, [Slotted(2)]),
    Old(3),
    Model(number=5, nested={"a": (1, 2)}),
    Open.model_validate({"a": 2, "b": 3}),
    [Point(1, 2)] * 3,
    {Color.RED: Frozen(1), Frozen(1): {Level.LOW}},
    (Plain("in a tuple"), bytearray(b"beside")),
]
