"""Settings: their names, defaults, types and ranges, and which of them a cache stores.

Settings passed when a cache is opened apply to that handle. Creating a cache stores all of them; later only `reset`
changes the stored ones. What is read from a database is validated like what a caller passes.
"""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, Generic, Protocol, Self, TypedDict, TypeVar, overload

from ..errors import ExpiryError, SettingError
from .lifetimes import Expiry, seconds_of
from .misuse import Spelled, hint, place
from .policies import policy_named

T = TypeVar("T")

MAX_SHARDS = 999
_NONE: Any = object()  # the default of a setting that only some caches have
_AT_FIRST = "it is decided when the cache is made"
OPTIONAL_SETTINGS = frozenset({"deque_maxlen"})  # stored only by the classes that need them
HANDLE_ONLY = frozenset({"hot_size_limit"})  # never stored, because they concern this process's memory
DURABILITY = {"process": 0, "system": 1, "power": 2}  # value of PRAGMA synchronous
DURABILITY_NAMES = {number: name for name, number in DURABILITY.items()}


class Settings(TypedDict, total=False):
    """The settings as keyword arguments; integers may be given as floats without a fraction."""

    statistics: int
    metrics_level: str
    tag_index: int
    eviction_policy: str
    size_limit: float
    max_entries: float | None
    default_expire: Expiry | None
    max_age: Expiry | None
    cull_limit: float
    durability: str
    hot_size_limit: float
    write_buffer: float
    sqlite_auto_vacuum: int
    sqlite_cache_size: float
    sqlite_journal_mode: str
    sqlite_mmap_size: float
    sqlite_synchronous: int
    compress_level: int | None
    compress_min_size: float
    disk_min_file_size: float
    disk_pickle_protocol: int
    disk_compress_level: int  # of JSONDisk
    deque_maxlen: int | None


def _integer(low: int, high: int) -> Callable[[str, object], int]:
    def check(name: str, value: object) -> int:
        number = int(value) if isinstance(value, float) and value.is_integer() else value
        if isinstance(number, str) or not hasattr(number, "__index__") or not low <= int(number) <= high:
            raise SettingError(f"{name} is {value!r}, expected an integer from {low} to {high}")
        return int(number)

    return check


def _choice(*choices: object) -> Callable[[str, object], object]:
    def check(name: str, value: object) -> object:
        folded = value.lower() if isinstance(value, str) else value
        if folded not in choices:
            raise SettingError(f"{name} is {value!r}, expected one of {', '.join(map(repr, choices))}")
        return folded

    return check


def _length(name: str, value: object) -> int | None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= 1 << 62):
        raise SettingError(f"{name} is {value!r}, expected None for no limit, or an integer from 0 to {1 << 62}")
    return value


def _entries(name: str, value: object) -> int | None:
    return None if value is None else _integer(1, 1 << 62)(name, value)


def _seconds(name: str, value: object) -> float | None:
    with suppress(ExpiryError):
        if value is None or 0 < seconds_of(value) < math.inf:
            return None if value is None else seconds_of(value)
    raise SettingError(f"{name} is {value!r}, expected seconds, more than 0, a timedelta, text such as '2h5m', or None")


def _level(name: str, value: object) -> int | None:
    return None if value is None else _integer(-64, 19)(name, value)


def _disk_setting(name: str, value: object) -> object:
    """Accept the plain values that an argument of a Disk subclass may have."""
    plain = value is None or isinstance(value, bool | int | float | str)
    if not plain or (isinstance(value, float) and math.isnan(value)):
        raise SettingError(f"{name} is {value!r}, expected None, a number or a string")
    return value


class _Configured(Protocol):
    @property
    def _handle(self) -> Any: ...

    def reset(self, key: str, value: Any = ..., update: bool = ...) -> Any: ...


class Setting(Generic[T]):
    """A setting with its default and its check; as an attribute of a cache it is what is in force in that handle.

    To assign it is `reset` with `update=False`. `fixed`: why it cannot be assigned.
    """

    def __init__(self, check: Callable[[str, object], Any], default: Any = _NONE, fixed: str = "") -> None:
        self.check, self.default, self._fixed = check, default, fixed

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, cache: None, owner: type) -> Self: ...
    @overload
    def __get__(self, cache: _Configured, owner: type) -> T: ...
    def __get__(self, cache: _Configured | None, owner: type) -> Self | T:
        if cache is None:
            return self
        try:
            value: T = cache._handle.settings[self._name]
        except KeyError:  # one that only some caches have
            raise AttributeError(f"{cache!r} has no setting {self._name!r}", name=self._name, obj=cache) from None
        return value

    def __set__(self, cache: _Configured, value: T) -> None:
        if self._fixed:
            raise SettingError(f"{self._name} of {cache!r} cannot be assigned: {self._fixed}")
        cache.reset(self._name, value, update=False)


class SettingsInForce(Spelled):
    """The settings in force in a handle, which are read and assigned as its attributes.

    An assigned setting is checked, takes effect in this handle at once, and lasts as long as the handle; only `reset`
    stores one. Raises SettingError for a value that the setting cannot have, and for a setting that decides how a
    cache is made. Waits for the write lock without limit.
    """

    statistics = Setting[int](_integer(0, 1), 0)
    metrics_level = Setting[str](_choice("off", "counts", "full"), "counts")
    tag_index = Setting[int](_integer(0, 1), 0, "call create_tag_index() or drop_tag_index()")
    eviction_policy = Setting[str](lambda _, value: policy_named(value).name, "second-chance")
    size_limit = Setting[int](_integer(0, 1 << 62), 1 << 30)
    max_entries = Setting[int | None](_entries, None)
    default_expire = Setting[float | None](_seconds, None)
    max_age = Setting[float | None](_seconds, None)
    cull_limit = Setting[int](_integer(0, 1 << 31), 10)
    durability = Setting[str](_choice(*DURABILITY), "system")
    hot_size_limit = Setting[int](_integer(0, 1 << 50), 64 << 20)
    write_buffer = Setting[int](_integer(0, 1 << 30), 1 << 20)
    # Incremental; full makes deletes 2.7 times slower.
    sqlite_auto_vacuum = Setting[int](_integer(0, 2), 2, _AT_FIRST)
    sqlite_cache_size = Setting[int](_integer(-(1 << 31), 1 << 31), 1 << 13)  # pages of 4 KiB
    sqlite_journal_mode = Setting[str](_choice("wal", "delete"), "wal", _AT_FIRST)
    # Memory-mapped reads turn a transient I/O error into a signal, and were no faster.
    sqlite_mmap_size = Setting[int](_integer(0, 1 << 46), 0)
    sqlite_synchronous = Setting[int](_integer(0, 2), 1)
    compress_level = Setting[int | None](_level, None)  # the compressor's own
    compress_min_size = Setting[int](_integer(0, 1 << 30), 128)
    disk_min_file_size = Setting[int](_integer(0, 1 << 40), 32 << 10)
    disk_pickle_protocol = Setting[int](_integer(0, pickle.HIGHEST_PROTOCOL), pickle.HIGHEST_PROTOCOL)
    disk_compress_level = Setting[int](_disk_setting)  # of JSONDisk
    deque_maxlen = Setting[int | None](_length, fixed="assign the maxlen of the Deque, which drops what is too much")


_SETTINGS = {name: each for name, each in vars(SettingsInForce).items() if isinstance(each, Setting)}
DEFAULT_SETTINGS: dict[str, Any] = {name: each.default for name, each in _SETTINGS.items() if each.default is not _NONE}
SettingsInForce._ASSIGNED = dict.fromkeys(DEFAULT_SETTINGS, "did you mean the setting {name!r}?")


def checked(name: str, value: object) -> Any:
    """Return the setting's value in its stored form, or raise a SettingError that says what was expected."""
    if name in _SETTINGS:
        return _SETTINGS[name].check(name, value)
    if name.startswith("disk_"):
        return _disk_setting(name, value)
    raise SettingError(unknown(name))


def is_setting(name: object) -> bool:
    """Tell whether there is a setting of this name; one of a Disk may have any name that begins with ``disk_``."""
    return isinstance(name, str) and (name in _SETTINGS or name.startswith("disk_"))


def unknown(name: object, others: Iterable[str] = ()) -> str:
    """Say that no setting is called `name`, nor any of the `others` that are accepted; name the nearest, and all."""
    names = [*others, *_SETTINGS]
    belongs = f": {where};" if (where := place(name)) else hint(name, ["directory", "timeout", *names]) or ","
    return f"unknown setting {name!r}{belongs} expected one of {', '.join(names)} or, for arguments of the disk, disk_*"


def checked_all(settings: Mapping[str, object]) -> dict[str, Any]:
    """Return all settings validated, with `sqlite_synchronous` and `durability` made to agree."""
    result = {name: checked(name, value) for name, value in settings.items()}
    if "durability" in result:
        result["sqlite_synchronous"] = DURABILITY[result["durability"]]
    elif "sqlite_synchronous" in result:
        result["durability"] = DURABILITY_NAMES[result["sqlite_synchronous"]]
    if result.get("sqlite_mmap_size"):
        result["sqlite_mmap_size"] = 0
    return result
