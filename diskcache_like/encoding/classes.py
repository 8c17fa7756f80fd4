"""Store objects of registered classes as data: dataclasses, enums, named tuples, attrs classes and pydantic models.

An object is stored as the full name of its class and its fields. It is rebuilt only if a class of that name was
registered in this process or allowed for this cache: a stored name chooses among those classes and never causes an
import. Rebuilding sets the fields and runs no `__init__`, `__new__`, `__post_init__`, converter or validator, so the
object is as valid as it was when it was stored. The only code of the class that can run is a data descriptor that is a
field, and a flag's `_missing_` for a value that it does not have.

    class         what is stored beside the name
    ------------  ---------------------------------------------------------------
    enum          the member's name; of a flag its value
    named tuple   its fields by name
    dataclass     its fields by name
    attrs         its attributes by name
    pydantic      its fields by name, then which were set, the extra and the private ones

An object that carries more than its fields, such as a cached property, is not serializable. If the fields of its class
have changed since it was stored, an object cannot be rebuilt and reading it is a miss, as it should be for a cache.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from enum import Enum, Flag
from importlib import import_module
from typing import Any, Final, NamedTuple, TypeVar

from msgpack import ExtType

from ..errors import DecodeError, SettingError
from .msgpack_reader import ArrayMark, Marks, Scalars
from .values import NotSerializable, without_misencoded

OBJECT: Final = 6
"""The code of the mark that opens ``[mark, name of the class, state]``."""
_HEAP_TYPE: Final = 1 << 9  # bit of `__flags__` that classes defined by Python code have
_MARK: Final = ExtType(OBJECT, b"")
T = TypeVar("T", bound=type)


class ClassFormat(NamedTuple):
    """How objects of one class are turned into data and rebuilt."""

    cls: type
    name: str
    to_data: Callable[[Any], Any]
    from_data: Callable[[Any], Any]


class Registry:
    """The classes that may be rebuilt from data; a registry includes those of its parent."""

    def __init__(self, parent: Registry | None = None) -> None:
        self._parent = parent
        self._by_name: dict[str, ClassFormat] = {}
        self.scalars: Scalars = {}
        self.marks: Marks = {OBJECT: ArrayMark(self._build)}

    def add(self, cls: type, name: str | None = None) -> None:
        """Register a class; it replaces an earlier one of the same name, as when a module is reloaded.

        `name`: under which its objects are stored, if not under the full name of the class.
        """
        kind = _format_of(cls)
        if name is not None:
            kind = kind._replace(name=name)
        self._by_name[full_name(cls)] = self._by_name[kind.name] = kind

    def writer(self, cls: type) -> Callable[[Any], Any] | None:
        """Return the function that turns an object of exactly this class into a marked array."""
        kind = self.find(full_name(cls))
        if kind is None or kind.cls is not cls:
            return None

        def write(value: Any) -> list[Any]:
            return [_MARK, kind.name, without_misencoded(kind.to_data(value))]

        return write

    def find(self, name: str) -> ClassFormat | None:
        """Return the format of the class with that name, if it was registered."""
        kind = self._by_name.get(name)
        return kind if kind is not None or self._parent is None else self._parent.find(name)

    def _build(self, items: list[Any]) -> Any:
        _, name, state = items
        kind = self.find(name) if type(name) is str else None
        if kind is None:
            raise DecodeError(f"an object of {name!r}: no such class is registered or listed in allow=")
        return kind.from_data(state)


PROCESS_REGISTRY: Final = Registry()
"""The classes that `register` was given in this process."""


def register(cls: T) -> T:
    """Let every cache of this process store objects of a class as data; it can be used as a decorator.

    Accepts dataclasses, enums, named tuples, attrs classes and pydantic models; subclasses must be registered
    themselves. Raises SettingError for any other class.
    """
    PROCESS_REGISTRY.add(cls)
    return cls


def registry_of(classes: Iterable[type | str]) -> Registry:
    """Return a registry of the classes in `allow=`, given as classes or full names, and of all registered ones."""
    if isinstance(classes, str | bytes) or not isinstance(classes, Iterable):
        raise SettingError(f"allow is {classes!r}, expected a list of classes or of names such as 'module.Class'")
    registry = Registry(PROCESS_REGISTRY)
    for one in classes:
        registry.add(_imported(one) if isinstance(one, str) else one)
    return registry


def full_name(cls: type) -> str:
    """Return the name under which objects of a class are stored, unless `Registry.add` was given another."""
    return f"{cls.__module__}.{cls.__qualname__}"


def _imported(name: str) -> type:
    """Return the class that a name in `allow=` stands for; its module may be imported, because the caller named it."""
    parts = name.split(".")
    for count in range(len(parts) - 1, 0, -1):
        try:
            found: Any = import_module(".".join(parts[:count]))
        except ModuleNotFoundError as error:
            if error.name is not None and ".".join(parts[:count]).startswith(error.name):
                continue  # the last parts may name a class within a class
            raise
        for part in parts[count:]:
            found = getattr(found, part, None)
        if isinstance(found, type):
            return found
    raise SettingError(f"allow names {name!r}, and there is no such class; expected 'module.Class'")


def _format_of(cls: Any) -> ClassFormat:
    if not isinstance(cls, type):
        raise SettingError(f"{cls!r} is not a class")
    for is_one, make in _FORMATS:
        if is_one(cls):
            to_data, from_data = make(cls)
            return ClassFormat(cls, full_name(cls), to_data, from_data)
    raise SettingError(
        f"{full_name(cls)} is not a dataclass, enum, named tuple, attrs class or pydantic model: its objects have no "
        "declared fields, so convert them to plain data, or let them be pickled"
    )


Conversions = tuple[Callable[[Any], Any], Callable[[Any], Any]]


def _enum_conversions(cls: type[Enum]) -> Conversions:
    def by_value(value: Any) -> Enum:
        # For a value that it does not have, a flag may give some of the bits, or the bare number. That depends on its
        # boundary, and what that is by default on Python's version: 3.11.2 drops bits where 3.11.7 raises.
        member = cls(value)
        if type(member) is not cls or member.value != value:
            raise DecodeError(f"{full_name(cls)} does not have the value that was stored, {value!r:.50}")
        return member

    if issubclass(cls, Flag):
        return lambda member: member.value, by_value
    return lambda member: member.name, cls.__members__.__getitem__


def _named_tuple_conversions(cls: Any) -> Conversions:
    names: tuple[str, ...] = cls._fields

    def to_data(value: Any) -> dict[str, Any]:
        if getattr(value, "__dict__", None) or len(value) != len(names):
            raise _carries_more(cls)
        return dict(zip(names, tuple(value), strict=True))

    def from_data(state: Any) -> Any:
        _compare(cls, state, names)
        return tuple.__new__(cls, [state[name] for name in names])

    return to_data, from_data


def _field_conversions(cls: type, names: tuple[str, ...]) -> Conversions:
    """Return the conversions for objects that consist of nothing but their attributes."""
    _check_layout(cls)
    own = frozenset(names)
    others = [slot for slot in _slots(cls) if slot not in own and slot not in ("__dict__", "__weakref__")]

    def to_data(value: Any) -> dict[str, Any]:
        if not own.issuperset(getattr(value, "__dict__", ())) or any(hasattr(value, slot) for slot in others):
            raise _carries_more(cls)
        try:
            return {name: getattr(value, name) for name in names}
        except AttributeError as error:
            raise NotSerializable(f"an object of {full_name(cls)} has a field without a value ({error})") from error

    def from_data(state: Any) -> Any:
        _compare(cls, state, names)
        value: Any = object.__new__(cls)
        for name in names:
            object.__setattr__(value, name, state[name])
        return value

    return to_data, from_data


def _pydantic_conversions(cls: Any) -> Conversions:
    _check_layout(cls)
    names = tuple(cls.model_fields)

    def to_data(model: Any) -> list[Any]:
        fields = dict(vars(model))
        if fields.keys() != set(names):
            raise _carries_more(cls)
        extra, private = model.__pydantic_extra__, model.__pydantic_private__
        return [fields, sorted(model.__pydantic_fields_set__), extra, private]

    def from_data(state: Any) -> Any:
        fields, given, extra, private = state
        _compare(cls, fields, names)
        if not all(part is None or type(part) is dict for part in (extra, private)):
            raise DecodeError(f"an object of {full_name(cls)} is not in the form of a pydantic model")
        model = object.__new__(cls)
        object.__setattr__(model, "__dict__", {name: fields[name] for name in names})
        object.__setattr__(model, "__pydantic_fields_set__", set(given))
        object.__setattr__(model, "__pydantic_extra__", extra)
        object.__setattr__(model, "__pydantic_private__", private)
        return model

    return to_data, from_data


_FORMATS: Final[tuple[tuple[Callable[[type], bool], Callable[[Any], Conversions]], ...]] = (
    (lambda cls: issubclass(cls, Enum), _enum_conversions),
    (lambda cls: issubclass(cls, tuple) and isinstance(getattr(cls, "_fields", None), tuple), _named_tuple_conversions),
    (
        dataclasses.is_dataclass,
        lambda cls: _field_conversions(cls, tuple(field.name for field in dataclasses.fields(cls))),
    ),
    (
        lambda cls: isinstance(cls.__dict__.get("__attrs_attrs__"), tuple),
        lambda cls: _field_conversions(cls, tuple(attribute.name for attribute in cls.__attrs_attrs__)),
    ),
    (
        lambda cls: "__pydantic_fields__" in cls.__dict__ or "__pydantic_validator__" in cls.__dict__,
        _pydantic_conversions,
    ),
)


def _check_layout(cls: type) -> None:
    """Refuse a class that derives from a built-in class, because its objects hold more than attributes."""
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
        for name in [given] if isinstance(given, str) else given:
            is_private = name.startswith("__") and not name.endswith("__")  # which Python mangles
            slots.append(f"_{base.__name__.lstrip('_')}{name}" if is_private else name)
    return slots


def _compare(cls: type, state: Any, names: tuple[str, ...]) -> None:
    if type(state) is not dict or state.keys() != set(names):
        raise DecodeError(f"an object of {full_name(cls)} was stored with fields other than the class has now")


def _carries_more(cls: type) -> NotSerializable:
    return NotSerializable(f"an object of {full_name(cls)} carries more than its fields")
