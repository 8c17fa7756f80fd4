"""Settings: their names, defaults, types and ranges, and which of them a cache stores.

Settings passed when a cache is opened apply to that handle. Creating a cache stores all of them; later only `reset`
changes the stored ones. What is read from a database is validated like what a caller passes.
"""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypedDict

from .errors import SettingError
from .misuse import hint, place
from .policies import policy_named

KIB, MIB = 1 << 10, 1 << 20
MAX_SHARDS = 999

DEFAULT_SETTINGS: dict[str, Any] = {
    "statistics": 0,
    "tag_index": 0,
    "eviction_policy": "least-recently-stored",
    "size_limit": 1 << 30,
    "cull_limit": 10,
    "durability": "system",
    "hot_size_limit": 64 * MIB,
    "write_buffer": 1 << 20,
    "sqlite_auto_vacuum": 2,  # incremental; full makes deletes 2.7 times slower
    "sqlite_cache_size": 1 << 13,  # pages of 2 KiB
    "sqlite_journal_mode": "wal",
    "sqlite_mmap_size": 0,  # memory-mapped reads turn a transient I/O error into a signal, and were no faster
    "sqlite_synchronous": 1,
    "compress_level": None,  # the compressor's own
    "compress_min_size": 128,
    "disk_min_file_size": 32 * KIB,
    "disk_pickle_protocol": pickle.HIGHEST_PROTOCOL,
}


class Settings(TypedDict, total=False):
    """The settings as keyword arguments; integers may be given as floats without a fraction."""

    statistics: int
    tag_index: int
    eviction_policy: str
    size_limit: float
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


OPTIONAL_SETTINGS = frozenset({"deque_maxlen"})  # stored only by the classes that need them
HANDLE_ONLY = frozenset({"hot_size_limit"})  # never stored, because they concern this process's memory
DURABILITY = {"process": 0, "system": 1, "power": 2}  # value of PRAGMA synchronous
DURABILITY_NAMES = {number: name for name, number in DURABILITY.items()}


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


def _policy(name: str, value: object) -> str:
    return policy_named(value).name


def _length(name: str, value: object) -> int | None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= 1 << 62):
        raise SettingError(f"{name} is {value!r}, expected None for no limit, or an integer from 0 to {1 << 62}")
    return value


def _level(name: str, value: object) -> int | None:
    return None if value is None else _integer(-64, 19)(name, value)


_CHECKS: dict[str, Callable[[str, object], Any]] = {
    "statistics": _integer(0, 1),
    "tag_index": _integer(0, 1),
    "eviction_policy": _policy,
    "size_limit": _integer(0, 1 << 62),
    "cull_limit": _integer(0, 1 << 31),
    "durability": _choice(*DURABILITY),
    "hot_size_limit": _integer(0, 1 << 50),
    "write_buffer": _integer(0, 1 << 30),
    "sqlite_auto_vacuum": _integer(0, 2),
    "sqlite_cache_size": _integer(-(1 << 31), 1 << 31),
    "sqlite_journal_mode": _choice("wal", "delete"),
    "sqlite_mmap_size": _integer(0, 1 << 46),
    "sqlite_synchronous": _integer(0, 2),
    "compress_level": _level,
    "compress_min_size": _integer(0, 1 << 30),
    "disk_min_file_size": _integer(0, 1 << 40),
    "disk_pickle_protocol": _integer(0, pickle.HIGHEST_PROTOCOL),
    "deque_maxlen": _length,
}


def checked(name: str, value: object) -> Any:
    """Return the setting's value in its stored form, or raise a SettingError that says what was expected."""
    check = _CHECKS.get(name)
    if check is not None:
        return check(name, value)
    if name.startswith("disk_"):
        return _disk_setting(name, value)
    raise SettingError(unknown(name))


def is_setting(name: object) -> bool:
    """Tell whether there is a setting of this name; one of a Disk may have any name that begins with ``disk_``."""
    return isinstance(name, str) and (name in _CHECKS or name.startswith("disk_"))


def unknown(name: object, others: Iterable[str] = ()) -> str:
    """Say that no setting is called `name`, nor any of the `others` that are accepted; name the nearest, and all."""
    names = [*others, *_CHECKS]
    belongs = f": {where};" if (where := place(name)) else hint(name, ["directory", "timeout", *names]) or ","
    return f"unknown setting {name!r}{belongs} expected one of {', '.join(names)} or, for arguments of the disk, disk_*"


def _disk_setting(name: str, value: object) -> object:
    """Accept the plain values that an argument of a Disk subclass may have."""
    plain = value is None or isinstance(value, bool | int | float | str)
    if not plain or (isinstance(value, float) and math.isnan(value)):
        raise SettingError(f"{name} is {value!r}, expected None, a number or a string")
    return value


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
