"""diskcache_like: a persistent, disk-backed cache on SQLite with coherent hot reads."""

from __future__ import annotations

from .cache import Cache, Entry
from .disk import UNKNOWN, Disk, JSONDisk
from .entries import ENOVAL
from .errors import (
    CacheError,
    CorruptDatabase,
    CorruptDatabaseWarning,
    DecodeError,
    DirectoryError,
    DiskCacheDirectory,
    DiskFull,
    EmptyDirWarning,
    ExpiryError,
    ForeignDatabase,
    KeyEncodeError,
    KeyTooLarge,
    NewerFormat,
    NotOwner,
    SecretError,
    SettingError,
    SignatureError,
    SignatureWarning,
    StorageError,
    Timeout,
    TransactionError,
    UnknownFileWarning,
    UnsafeDirectory,
    ValueEncodeError,
    ValueTooLarge,
)
from .fanout import FanoutCache
from .policies import EVICTION_POLICY
from .recipes import Averager, Lock
from .settings import DEFAULT_SETTINGS

__version__ = "0.1.0"

__all__ = [
    "DEFAULT_SETTINGS",
    "ENOVAL",
    "EVICTION_POLICY",
    "UNKNOWN",
    "Averager",
    "Cache",
    "CacheError",
    "CorruptDatabase",
    "CorruptDatabaseWarning",
    "DecodeError",
    "DirectoryError",
    "Disk",
    "DiskCacheDirectory",
    "DiskFull",
    "EmptyDirWarning",
    "Entry",
    "ExpiryError",
    "FanoutCache",
    "ForeignDatabase",
    "JSONDisk",
    "KeyEncodeError",
    "KeyTooLarge",
    "Lock",
    "NewerFormat",
    "NotOwner",
    "SecretError",
    "SettingError",
    "SignatureError",
    "SignatureWarning",
    "StorageError",
    "Timeout",
    "TransactionError",
    "UnknownFileWarning",
    "UnsafeDirectory",
    "ValueEncodeError",
    "ValueTooLarge",
    "__version__",
]
