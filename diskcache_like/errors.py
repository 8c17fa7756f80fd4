"""Every error and warning that the package raises, each with one meaning.

`Timeout` means only that a lock could not be taken in time. Everything else that can go wrong has its own class, a
message that names the key or path concerned, and, where one fits, a base class from the standard library, so that
`except ValueError` or `except OSError` keeps working.
"""

from __future__ import annotations

import errno
import os
import pickle
import resource  # now, since importing it opens a file, and it tells why none can be opened

from .system.signals import reraise_signal


class CacheError(Exception):
    """The base class of all errors of this package."""


class Timeout(CacheError):
    """A lock could not be taken within `timeout` seconds; the step that waited wrote nothing."""


class TransactionError(CacheError, RuntimeError):
    """A transaction was used by a task that does not own it, or in a way that could never finish."""


class NotOwner(CacheError, RuntimeError, AssertionError):
    """A lock was released or extended by someone who does not hold it; DiskCache raises AssertionError here."""


class LeaseLost(NotOwner):
    """A lock's lease ran out, or its entry was removed, while its owner believed that it held the lock."""


class SettingError(CacheError, ValueError):
    """A setting has an unknown name or a value of the wrong type or range."""


class MissingDependency(CacheError, ImportError):
    """A serializer, a compressor or encryption needs a package that is not installed."""


def missing_dependency(package: str, extra: str, wanted_by: str) -> MissingDependency:
    """Return the error for an optional dependency that is not installed, with the command that installs it."""
    return MissingDependency(
        f"{wanted_by} needs {package!r}, which is not installed: pip install 'diskcache-like[{extra}]'", name=package
    )


class KeyEncodeError(CacheError, TypeError):
    """A key cannot be encoded under the configured policies."""


class ValueEncodeError(CacheError, TypeError, pickle.PicklingError):
    """A value cannot be encoded under the configured policies; callers of DiskCache expect PicklingError."""


class KeyTooLarge(CacheError, ValueError):
    """A key is longer than a stored key may be."""


class TagError(CacheError, ValueError):
    """Tags are too many, one of them is too long, or they are given in two ways at once."""


class ValueTooLarge(CacheError, ValueError):
    """A value would not fit into the cache even if everything else were evicted."""


class ExpiryError(CacheError, ValueError):
    """An expiry is negative or NaN, a `datetime` without a time zone, or nothing that says when or for how long."""


class ComputeTimeout(CacheError, TimeoutError):
    """A computation took longer than `hard_timeout`; it goes on, and its result is kept."""


class Overloaded(CacheError):
    """`max_concurrent` computations are under way already, and there is no old value to serve."""


class BreakerOpen(CacheError):
    """What computes has failed too often of late, is not called for now, and there is no old value to serve."""


class RemoteError(CacheError):
    """The server that several machines share gave no answer, or refused; what became of a write is not known."""


def refused_with_remote(what: str) -> CacheError:
    """Return the error for what a cache with a server of several machines does not offer."""
    return CacheError(
        f"{what} is not offered with remote=, because it would hold on this machine alone; use a cache without it"
    )


class DecodeError(CacheError, ValueError):
    """Stored bytes are not in the form that the configured codec writes."""


class SignatureError(DecodeError):
    """An entry that must be authenticated is not, or was authenticated with a different secret."""


class SecretError(CacheError, ValueError):
    """The cache was created with a different secret, or it needs one and none was given."""


class KeyringError(CacheError):
    """The keyring of an encrypted cache is damaged or was replaced, so its entries cannot be read."""


class DirectoryError(CacheError, OSError):
    """The cache directory or a file in it cannot be used; `errno` says why."""

    def __init__(self, code: int, message: str, path: str | os.PathLike[str]) -> None:
        super().__init__(code, message, os.fspath(path))


class UnsafeDirectory(DirectoryError):
    """The cache directory belongs to someone else or can be written by others."""

    def __init__(self, message: str, path: str | os.PathLike[str]) -> None:
        super().__init__(errno.EPERM, message, path)


class DiskFull(CacheError, OSError):
    """The disk is full; everything stored before is still readable."""

    def __init__(self, message: str, path: str | os.PathLike[str]) -> None:
        super().__init__(errno.ENOSPC, message, os.fspath(path))


_ADVICE = {
    errno.ENFILE: "close files, or raise the system's limit on how many may be open (fs.file-max)",
    **dict.fromkeys(
        (errno.EACCES, errno.EPERM, errno.EROFS), "a file of the cache must be one that this user can read and write"
    ),
    errno.ENOENT: "the directory was removed while it was in use; open the cache again",
}


def file_error(error: OSError, path: str | os.PathLike[str]) -> DirectoryError | DiskFull:
    """Return the package's error for an error that the system raised about a file of the cache."""
    reraise_signal(error)
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskFull("no room for the file", path)
    code = error.errno or errno.EIO
    if code == errno.EMFILE:
        return DirectoryError(code, f"{os.strerror(code)}: {_file_limit()}; close files, or raise it (ulimit -n)", path)
    advice = _ADVICE.get(code, "the system could not do what the cache asked of it")
    return DirectoryError(code, f"{os.strerror(code)}; {advice}", path)


def too_few_descriptors(path: str, shards: int, least: int, most: int) -> DirectoryError:
    """Return the error for a cache that finds too few descriptors, of which it needs `least` to `most`."""
    made = f"a cache of {shards} shards" if shards > 1 else "a cache"
    need = f"{made} needs {least}, and up to {most} with many threads"
    remedy = "raise the limit (ulimit -n), or use fewer shards" if shards > 1 else "raise the limit (ulimit -n)"
    return DirectoryError(errno.EMFILE, f"{os.strerror(errno.EMFILE)}: {_file_limit()}; {need}: {remedy}", path)


def _file_limit() -> str:
    return f"this process may have {resource.getrlimit(resource.RLIMIT_NOFILE)[0]} open (RLIMIT_NOFILE)"


class AlreadyImported(CacheError, ImportError):
    """The real `diskcache` was imported before this package could take its place."""


class StorageError(CacheError):
    """The database could not be read or written, for a reason other than a lock, a full disk or corruption."""


class ForeignDatabase(StorageError):
    """The database was not made by this package, or somebody tampered with its schema."""


class DiskCacheDirectory(ForeignDatabase):
    """The directory was written by DiskCache 5, which this package migrates but never modifies."""


class NewerFormat(ForeignDatabase):
    """The database was written by a newer version of this package."""


class OlderFormat(ForeignDatabase):
    """The database was written by a version of this package from before the present format, which is not converted."""


class CorruptDatabase(StorageError):
    """The database file is damaged."""

    path: str | None = None  # of the database, if it was in use when the damage was found


class CorruptDatabaseWarning(UserWarning):
    """A damaged database was quarantined and a new, empty one started, or a transaction could not be rolled forward."""


class SignatureWarning(UserWarning):
    """Entries that should be authenticated are not; reading them is a miss."""


class UnreadableFileWarning(UserWarning):
    """A value file cannot be read by this user; reading its entry is a miss."""


class NotKeptWarning(UserWarning):
    """A computed value could not be stored, or looked up, and its callers got it all the same."""


class RemoteWarning(UserWarning):
    """The server that several machines share cannot be reached, and the cache is opened without it."""


class FileSystemWarning(UserWarning):
    """The cache directory is on a FUSE mount, beside which others may reach the same files unseen."""


class UnknownFileWarning(UserWarning):
    """`check` found a file in the cache directory that the cache does not know."""


class EmptyDirWarning(UserWarning):
    """`check` found an empty subdirectory in the cache directory."""


def named(value: object) -> str:
    """Return the `repr` of a key or value, for a message; that it cannot be shown, if a number in it is too long."""
    try:
        return repr(value)
    except ValueError:  # Python spells integers of 4,300 digits at most
        return f"<{type(value).__name__} with an integer too long to show>"


def foreign(noun: str, key: object, found: object) -> TypeError:
    """Return the error for a key under which another kind of value lies than the one that a `noun` keeps there."""
    return TypeError(
        f"value of key {named(key)} is {named(found)}, expected the state of a {noun}; use another key for one of the"
        " two"
    )
