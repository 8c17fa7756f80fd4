"""Options: the arguments of a cache, checked before anything is made."""

from __future__ import annotations

import errno
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from ..coherence.generations import MAX_SLOTS, MIN_SLOTS
from ..disk.contract import Disk
from ..errors import DirectoryError, SettingError
from ..settings.definitions import MAX_SHARDS, Settings, checked_all, is_setting, unknown
from ..system.callers import warn

if TYPE_CHECKING:
    from ..settings.remote import Remote

_ignored: set[str] = set()  # names of unknown settings that were warned about


def present() -> float:
    """Return the seconds since 1970 by `time.time`, looked up each time, for tests that replace it."""
    return time.time()


class Arguments(Settings, total=False):
    """The keyword arguments of a cache: its options, and its settings."""

    pickle: str | None
    secret: bytes | str | None
    encrypt: bool | None
    key_context: str
    hot_encoded: bool
    strict: bool
    shared: bool
    generation_slots: int | None
    serializer: str | None
    compressor: str | None
    allow: Iterable[type | str]
    mmap: bool
    allow_filesystem: bool
    clock: Callable[[], float]
    remote: Remote | None


@dataclass
class Options:
    """The arguments of a cache that are not settings."""

    pickle: str | None = None
    secret: bytes | str | None = None
    encrypt: bool | None = None
    key_context: str = ""
    hot_encoded: bool = False
    strict: bool = False
    shared: bool = False
    generation_slots: int | None = None
    serializer: str | None = None
    compressor: str | None = None
    allow: Iterable[type | str] = ()
    mmap: bool = False
    allow_filesystem: bool = False
    clock: Callable[[], float] = present
    remote: Remote | None = None

    @classmethod
    def split(cls, arguments: dict[str, Any], lenient: bool = False) -> tuple[Options, dict[str, Any]]:
        """Return the options among keyword arguments, and the settings, validated.

        Unknown ones raise SettingError or, with `lenient`, are left out with a warning.
        """
        names = [field.name for field in fields(cls)]
        arguments = _without_unknown(arguments, names, lenient)
        options = cls(**{name: value for name, value in arguments.items() if name in names})
        slots = options.generation_slots
        if slots is not None and (type(slots) is not int or not MIN_SLOTS <= slots <= MAX_SLOTS or slots & (slots - 1)):
            wanted = f"a power of two from {MIN_SLOTS} to {MAX_SLOTS}"
            raise SettingError(f"generation_slots is {slots!r}, expected {wanted}")
        if not isinstance(options.key_context, str):
            raise SettingError(f"key_context is {options.key_context!r}, expected text")
        if options.encrypt is not None and type(options.encrypt) is not bool:
            raise SettingError(f"encrypt is {options.encrypt!r}, expected True or False")
        for name in ("mmap", "allow_filesystem"):
            if not isinstance(given := getattr(options, name), bool):
                raise SettingError(f"{name} is {given!r}, expected True or False")
        if not callable(options.clock):
            raise SettingError(f"clock is {options.clock!r}, expected a function that returns seconds since 1970")
        if isinstance(options.allow, Iterator | list):
            options.allow = tuple(options.allow)  # other handles read it again
        return options, checked_all({name: value for name, value in arguments.items() if name not in names})

    def to_pass_on(self) -> dict[str, Any]:
        """Return the options that another handle on the same data needs, except the secret: no pickle may hold that."""
        left_out = ("secret", "clock") if self.clock is present else ("secret",)
        return {field.name: getattr(self, field.name) for field in fields(self) if field.name not in left_out}


def _without_unknown(arguments: dict[str, Any], options: list[str], lenient: bool) -> dict[str, Any]:
    known = {name: value for name, value in arguments.items() if name in options or is_setting(name)}
    for name in arguments:
        if name not in known and not lenient:
            raise SettingError(unknown(name, options))
        if name not in known and name not in _ignored:
            _ignored.add(name)
            warn(f"{unknown(name, options)}; it is ignored", UserWarning)
    return known


def check_arguments(timeout: object, disk: object, shards: object) -> None:
    """Raise SettingError for an invalid timeout, disk or number of shards."""
    if not (isinstance(disk, type) and issubclass(disk, Disk)):
        raise SettingError(f"disk is {disk!r}, expected Disk or a subclass of it")
    if not isinstance(timeout, int | float) or not timeout >= 0:
        raise SettingError(f"timeout is {timeout!r}, expected seconds, 0 or more")
    if type(shards) is not int or not 1 <= shards <= MAX_SHARDS:
        raise SettingError(f"shards is {shards!r}, expected an integer from 1 to {MAX_SHARDS}")


def resolved(directory: str | os.PathLike[str] | None) -> str:
    """Return the absolute path of the directory; a new temporary one for None."""
    if directory is None:
        return tempfile.mkdtemp(prefix="diskcache-")
    if not isinstance(directory, str | bytes | os.PathLike):
        raise SettingError(f"directory is {directory!r:.80}, expected a path, or None for a temporary directory")
    path = os.fsdecode(directory)
    if "\0" in path:
        raise DirectoryError(errno.EINVAL, "the name of the cache directory contains a NUL", path)
    expanded = os.path.expandvars(os.path.expanduser(path))
    if not expanded:
        wanted = "expected a path: '.' for the current directory, None for a temporary one"
        raise DirectoryError(errno.EINVAL, f"the name of the cache directory is empty, {wanted}", path)
    return os.path.abspath(expanded)
