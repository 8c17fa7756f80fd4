"""Objects as data: dataclasses, enums, named tuples, attrs classes and pydantic models that were registered.

An object is stored as the full name of its class and its fields as data. It is rebuilt only if a class was registered
under that name in this process, or allowed for this cache: the name in an entry chooses among those and never imports
anything. Rebuilding puts the fields back where they were. No `__init__`, `__new__`, `__post_init__`, converter or
validator of the class runs, only a data descriptor that is a field, and `_missing_` of a flag for a value that it does
not have; so an object is as valid as it was when it was stored.

    kind          what is stored beside the name
    ------------  ---------------------------------------------------------------
    enum          the member's name; of a flag its value
    named tuple   its fields by name
    dataclass     its fields by name
    attrs         its attributes by name
    pydantic      its fields by name, then which were set, the extra and the private ones

An object that carries more than its fields, such as a cached property, is not data. One whose class has other fields
than were stored cannot be rebuilt and reads as missing, which is right for a cache when a program is changed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from enum import Enum, Flag
from importlib import import_module
from typing import Any, Final, NamedTuple, TypeVar

from msgpack import ExtType

from .codecs import NotData, without_slips
from .errors import DecodeError, SettingError
from .structure import Mark, Marks, Scalars

OBJECT: Final = 6
"""The code of the mark that opens ``[mark, name of the class, state]``."""
_HEAP_TYPE: Final = 1 << 9  # a class that Python code defined, in `__flags__`
_MARK: Final = ExtType(OBJECT, b"")
T = TypeVar("T", bound=type)


class Kind(NamedTuple):
    """How objects of one class become data and come back."""

    cls: type
    name: str
    take: Callable[[Any], Any]
    build: Callable[[Any], Any]


class Registry:
    """The classes that may be rebuilt from data; a registry knows those of its parent too."""

    def __init__(self, parent: Registry | None = None) -> None:
        self._parent = parent
        self._by_name: dict[str, Kind] = {}
        self.scalars: Scalars = {}
        self.marks: Marks = {OBJECT: Mark(self._build)}

    def add(self, cls: type) -> None:
        """Take a class in; another one of the same name, as when a module is loaded again, gives way."""
        kind = _kind_of(cls)
        self._by_name[kind.name] = kind

    def writer(self, cls: type) -> Callable[[Any], Any] | None:
        """Return the function that turns an object of exactly this class into a marked array."""
        kind = self.find(full_name(cls))
        if kind is None or kind.cls is not cls:
            return None

        def write(value: Any) -> list[Any]:
            return [_MARK, kind.name, without_slips(kind.take(value))]

        return write

    def find(self, name: str) -> Kind | None:
        """Return the class of that name, if it was taken in."""
        kind = self._by_name.get(name)
        return kind if kind is not None or self._parent is None else self._parent.find(name)

    def _build(self, items: list[Any]) -> Any:
        _, name, state = items
        kind = self.find(name) if type(name) is str else None
        if kind is None:
            raise DecodeError(f"an object of {name!r}: no such class is registered here or listed in allow=")
        return kind.build(state)


PROCESS: Final = Registry()
"""What `register` was given in this process."""


def register(cls: T) -> T:
    """Let objects of a class be stored as data by every cache of this process; use it as a decorator if you like.

    Takes dataclasses, enums, named tuples, attrs classes and pydantic models. A subclass is a class of its own.
    Raises SettingError for any other class.
    """
    PROCESS.add(cls)
    return cls


def allowed(classes: Iterable[type | str]) -> Registry:
    """Return a registry of the classes in `allow=`, given as such or by full name, and of the registered ones."""
    if isinstance(classes, str | bytes) or not isinstance(classes, Iterable):
        raise SettingError(f"allow is {classes!r}, expected a list of classes or of names such as 'module.Class'")
    registry = Registry(PROCESS)
    for one in classes:
        registry.add(_imported(one) if isinstance(one, str) else one)
    return registry


def full_name(cls: type) -> str:
    """Return the name under which objects of a class are stored."""
    return f"{cls.__module__}.{cls.__qualname__}"


def _imported(name: str) -> type:
    """Return the class that a name in `allow=` stands for; the caller chose it, so its module is imported."""
    parts = name.split(".")
    for count in range(len(parts) - 1, 0, -1):
        try:
            found: Any = import_module(".".join(parts[:count]))
        except ModuleNotFoundError as error:
            if error.name is not None and ".".join(parts[:count]).startswith(error.name):
                continue  # the rest may be the name of a class within a class
            raise
        for part in parts[count:]:
            found = getattr(found, part, None)
        if isinstance(found, type):
            return found
    raise SettingError(f"allow names {name!r}, and there is no such class; expected 'module.Class'")


def _kind_of(cls: Any) -> Kind:
    if not isinstance(cls, type):
        raise SettingError(f"{cls!r} is not a class")
    for is_one, make in _KINDS:
        if is_one(cls):
            take, build = make(cls)
            return Kind(cls, full_name(cls), take, build)
    raise SettingError(
        f"{full_name(cls)} is not a dataclass, enum, named tuple, attrs class or pydantic model: its objects have no "
        "declared fields, so make plain data of them, or let them be pickled"
    )


Ways = tuple[Callable[[Any], Any], Callable[[Any], Any]]


def _enum_ways(cls: type[Enum]) -> Ways:
    if issubclass(cls, Flag):
        return lambda member: member.value, cls

    def build(name: Any) -> Enum:
        return cls.__members__[name]

    return lambda member: member.name, build


def _named_tuple_ways(cls: Any) -> Ways:
    names: tuple[str, ...] = cls._fields

    def take(value: Any) -> dict[str, Any]:
        if getattr(value, "__dict__", None) or len(value) != len(names):
            raise _carries_more(cls)
        return dict(zip(names, tuple(value), strict=True))

    def build(state: Any) -> Any:
        _compare(cls, state, names)
        return tuple.__new__(cls, [state[name] for name in names])

    return take, build


def _field_ways(cls: type, names: tuple[str, ...]) -> Ways:
    """Return how objects that are nothing but their attributes are taken apart and put together."""
    _check_layout(cls)
    own = frozenset(names)
    others = [slot for slot in _slots(cls) if slot not in own and slot not in ("__dict__", "__weakref__")]

    def take(value: Any) -> dict[str, Any]:
        if not own.issuperset(getattr(value, "__dict__", ())) or any(hasattr(value, slot) for slot in others):
            raise _carries_more(cls)
        try:
            return {name: getattr(value, name) for name in names}
        except AttributeError as error:
            raise NotData(f"an object of {full_name(cls)} has a field without a value ({error})") from error

    def build(state: Any) -> Any:
        _compare(cls, state, names)
        value: Any = object.__new__(cls)
        for name in names:
            object.__setattr__(value, name, state[name])
        return value

    return take, build


def _dataclass_ways(cls: Any) -> Ways:
    return _field_ways(cls, tuple(field.name for field in dataclasses.fields(cls)))


def _attrs_ways(cls: Any) -> Ways:
    return _field_ways(cls, tuple(attribute.name for attribute in cls.__attrs_attrs__))


def _pydantic_ways(cls: Any) -> Ways:
    _check_layout(cls)
    names = tuple(cls.model_fields)

    def take(model: Any) -> list[Any]:
        fields = dict(vars(model))
        if fields.keys() != set(names):
            raise _carries_more(cls)
        extra, private = model.__pydantic_extra__, model.__pydantic_private__
        return [fields, sorted(model.__pydantic_fields_set__), extra, private]

    def build(state: Any) -> Any:
        fields, given, extra, private = state
        _compare(cls, fields, names)
        if not all(part is None or type(part) is dict for part in (extra, private)):
            raise DecodeError(f"an object of {full_name(cls)} is not as pydantic models are")
        model = object.__new__(cls)
        object.__setattr__(model, "__dict__", {name: fields[name] for name in names})
        object.__setattr__(model, "__pydantic_fields_set__", set(given))
        object.__setattr__(model, "__pydantic_extra__", extra)
        object.__setattr__(model, "__pydantic_private__", private)
        return model

    return take, build


_KINDS: Final[tuple[tuple[Callable[[type], bool], Callable[[Any], Ways]], ...]] = (
    (lambda cls: issubclass(cls, Enum), _enum_ways),
    (lambda cls: issubclass(cls, tuple) and isinstance(getattr(cls, "_fields", None), tuple), _named_tuple_ways),
    (dataclasses.is_dataclass, _dataclass_ways),
    (lambda cls: isinstance(cls.__dict__.get("__attrs_attrs__"), tuple), _attrs_ways),
    (lambda cls: "__pydantic_fields__" in cls.__dict__ or "__pydantic_validator__" in cls.__dict__, _pydantic_ways),
)


def _check_layout(cls: type) -> None:
    """Refuse a class that derives from a built-in one, whose objects hold more than attributes."""
    base: Any = cls
    while base.__flags__ & _HEAP_TYPE:
        base = base.__base__
    if base is not object:
        raise SettingError(
            f"{full_name(cls)} derives from {full_name(base)}, so its objects are more than their fields"
        )


def _slots(cls: type) -> list[str]:
    slots: list[str] = []
    for base in cls.__mro__:
        given = base.__dict__.get("__slots__", ())
        names = [given] if isinstance(given, str) else given
        slots.extend(name if _is_public(name) else f"_{base.__name__.lstrip('_')}{name}" for name in names)
    return slots


def _is_public(name: str) -> bool:
    """Tell whether Python leaves an attribute's name as it is written in the class."""
    return not name.startswith("__") or name.endswith("__")


def _compare(cls: type, state: Any, names: tuple[str, ...]) -> None:
    if type(state) is not dict or state.keys() != set(names):
        raise DecodeError(f"an object of {full_name(cls)} was stored with other fields than the class has now")


def _carries_more(cls: type) -> NotData:
    return NotData(f"an object of {full_name(cls)} carries more than its fields")
