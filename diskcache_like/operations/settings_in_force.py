"""Settings as attributes of a cache: what is in force in this handle, and changed there by an assignment."""

from __future__ import annotations

from typing import Any, Generic, Protocol, Self, TypeVar, overload

from ..entries.session import Session
from ..errors import SettingError
from ..misuse import Spelled
from ..settings import DEFAULT_SETTINGS

T = TypeVar("T")

# Settings that decide how a cache is made, and what changes it later.
_FIXED = {
    "deque_maxlen": "assign the maxlen of the Deque, which drops what is too much",
    "sqlite_auto_vacuum": "it is decided when the cache is made",
    "sqlite_journal_mode": "it is decided when the cache is made",
    "tag_index": "call create_tag_index() or drop_tag_index()",
}


class _Configured(Protocol):
    _session: Session

    def reset(self, key: str, value: Any = ..., update: bool = ...) -> Any: ...


class InForce(Generic[T]):
    """A setting as an attribute; to assign it is `reset` with `update=False`."""

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
            value: T = cache._session.settings[self._name]
        except KeyError:  # one that only some caches have
            raise AttributeError(f"{cache!r} has no setting {self._name!r}", name=self._name, obj=cache) from None
        return value

    def __set__(self, cache: _Configured, value: T) -> None:
        if self._name in _FIXED:
            raise SettingError(f"{self._name} of {cache!r} cannot be assigned: {_FIXED[self._name]}")
        cache.reset(self._name, value, update=False)


class SettingsInForce(Spelled):
    """The settings in force in a handle, which are read and assigned as its attributes.

    An assigned setting is checked, takes effect in this handle at once, and lasts as long as the handle; only `reset`
    stores one. Raises SettingError for a value that the setting cannot have, and for a setting that decides how a
    cache is made. Waits for the write lock without limit.
    """

    statistics = InForce[int]()
    tag_index = InForce[int]()
    eviction_policy = InForce[str]()
    size_limit = InForce[int]()
    cull_limit = InForce[int]()
    durability = InForce[str]()
    hot_size_limit = InForce[int]()
    write_buffer = InForce[int]()
    sqlite_auto_vacuum = InForce[int]()
    sqlite_cache_size = InForce[int]()
    sqlite_journal_mode = InForce[str]()
    sqlite_mmap_size = InForce[int]()
    sqlite_synchronous = InForce[int]()
    compress_level = InForce[int | None]()
    compress_min_size = InForce[int]()
    disk_min_file_size = InForce[int]()
    disk_pickle_protocol = InForce[int]()
    disk_compress_level = InForce[int]()  # of JSONDisk
    deque_maxlen = InForce[int | None]()

    _ASSIGNED = dict.fromkeys(DEFAULT_SETTINGS, "did you mean the setting {name!r}?")
