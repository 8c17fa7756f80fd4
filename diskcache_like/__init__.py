"""diskcache_like: a persistent, disk-backed cache on SQLite with coherent hot reads."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

if sys.platform == "win32":
    raise ImportError(
        "diskcache_like needs flock and shared memory as Linux has them, and does not run on Windows: use it in WSL 2, "
        "with the cache in a directory of Linux's own",
        name=__name__,
    )

from .cache import Cache, Entry
from .disk.contract import UNKNOWN, Disk
from .encoding.classes import register
from .entries.loading import ENOVAL
from .entries.row_codec import KEEP
from .errors import (
    AlreadyImported,
    BreakerOpen,
    CacheError,
    ComputeTimeout,
    CorruptDatabase,
    CorruptDatabaseWarning,
    DecodeError,
    DirectoryError,
    DiskCacheDirectory,
    DiskFull,
    EmptyDirWarning,
    ExpiryError,
    FileSystemWarning,
    ForeignDatabase,
    KeyEncodeError,
    KeyringError,
    KeyTooLarge,
    LeaseLost,
    MissingDependency,
    NewerFormat,
    NotKeptWarning,
    NotOwner,
    OlderFormat,
    Overloaded,
    RemoteError,
    RemoteWarning,
    SecretError,
    SettingError,
    SignatureError,
    SignatureWarning,
    StorageError,
    TagError,
    Timeout,
    TransactionError,
    UnknownFileWarning,
    UnreadableFileWarning,
    UnsafeDirectory,
    ValueEncodeError,
    ValueTooLarge,
)
from .memoizing.rules import Breaker, Computing, StoredError
from .settings.definitions import DEFAULT_SETTINGS
from .settings.policies import EVICTION_POLICY
from .structures.fanout import FanoutCache

if TYPE_CHECKING:
    from .aio import AsyncCache, AsyncDeque, AsyncFanoutCache, AsyncIndex
    from .disk.json_disk import JSONDisk
    from .djangocache import DjangoCache as DjangoCache
    from .entries.metrics import Metrics, SpaceMetrics, Times
    from .recipes import Averager, BoundedSemaphore, Lock, RLock, barrier, memoize_stampede, throttle
    from .settings.remote import Remote
    from .structures.deque import Deque
    from .structures.index import Index

__version__ = "0.1.0"

__all__ = [
    "DEFAULT_SETTINGS",
    "ENOVAL",
    "EVICTION_POLICY",
    "KEEP",
    "UNKNOWN",
    "AlreadyImported",
    "AsyncCache",
    "AsyncDeque",
    "AsyncFanoutCache",
    "AsyncIndex",
    "Averager",
    "BoundedSemaphore",
    "Breaker",
    "BreakerOpen",
    "Cache",
    "CacheError",
    "ComputeTimeout",
    "Computing",
    "CorruptDatabase",
    "CorruptDatabaseWarning",
    "DecodeError",
    "Deque",
    "DirectoryError",
    "Disk",
    "DiskCacheDirectory",
    "DiskFull",
    "EmptyDirWarning",
    "Entry",
    "ExpiryError",
    "FanoutCache",
    "FileSystemWarning",
    "ForeignDatabase",
    "Index",
    "JSONDisk",
    "KeyEncodeError",
    "KeyTooLarge",
    "KeyringError",
    "LeaseLost",
    "Lock",
    "Metrics",
    "MissingDependency",
    "NewerFormat",
    "NotKeptWarning",
    "NotOwner",
    "OlderFormat",
    "Overloaded",
    "RLock",
    "Remote",
    "RemoteError",
    "RemoteWarning",
    "SecretError",
    "SettingError",
    "SignatureError",
    "SignatureWarning",
    "SpaceMetrics",
    "StorageError",
    "StoredError",
    "TagError",
    "Timeout",
    "Times",
    "TransactionError",
    "UnknownFileWarning",
    "UnreadableFileWarning",
    "UnsafeDirectory",
    "ValueEncodeError",
    "ValueTooLarge",
    "__version__",
    "barrier",
    "memoize_stampede",
    "register",
    "throttle",
]


# What not every program needs, and is imported when it is asked for.
_LATE = {
    **dict.fromkeys(("AsyncCache", "AsyncDeque", "AsyncFanoutCache", "AsyncIndex"), "aio"),
    **dict.fromkeys(("Metrics", "SpaceMetrics", "Times"), "entries.metrics"),
    **dict.fromkeys(
        ("Averager", "BoundedSemaphore", "Lock", "RLock", "barrier", "memoize_stampede", "throttle"), "recipes"
    ),
    "Deque": "structures.deque",
    "DjangoCache": "djangocache",
    "Index": "structures.index",
    "JSONDisk": "disk.json_disk",
    "Remote": "settings.remote",
}

if not TYPE_CHECKING:  # or else checkers would accept any name of this module

    def __getattr__(name: str) -> Any:
        if name not in _LATE:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        try:
            module = importlib.import_module(f".{_LATE[name]}", __name__)
        except ModuleNotFoundError as error:
            if name != "DjangoCache" or (error.name or "").partition(".")[0] not in ("asgiref", "django"):
                raise
            message = "DjangoCache needs Django; install it: pip install 'diskcache-like[django]'"
            raise ImportError(message, name=error.name) from error
        globals()[name] = found = getattr(module, name)
        return found

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
