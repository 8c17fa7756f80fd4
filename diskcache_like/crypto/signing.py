"""Find the secret of a cache, and authenticate bytes with it.

A tag is keyed BLAKE2b over the number of its parts, their lengths and the parts themselves, so no byte can move from
one part to the next. The secret comes from the argument, from the environment, or from a file of the user, which is
made when it is first needed and never lies in a cache directory. Whoever knows the secret can make the cache run any
code; whoever does not can still put back an older entry of the same key.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
import struct
from collections.abc import Callable, Iterator, Mapping
from hashlib import blake2b
from hmac import compare_digest
from pathlib import Path
from typing import Final

from ..errors import SecretError, SettingError
from ..system import paths
from ..system.signals import reraise_signal

TAG_SIZE: Final = 16
SECRET_VARIABLE: Final = "DISKCACHE_LIKE_SECRET"  # noqa: S105 - the name of a variable
MIN_SECRET: Final = 16
"""The least number of bytes in a secret that is passed."""
MIN_FILE_SECRET: Final = 32
"""The least number of bytes in the secret of the per-user file."""

_MAX_FILE_SECRET: Final = 4096
_KEY_SIZE: Final = 64  # the most that BLAKE2b takes
_TAG: Final = b"dcl tag"
_CHECK: Final = b"dcl key check"
_LENGTHS: Final = tuple(struct.Struct(f">B{count}Q") for count in range(8))


def keyed(prepared: blake2b) -> Callable[[bytes], bytes]:
    """Return a function that returns the digest of bytes behind what a hash has been given, such as a key."""
    new = prepared.copy

    def digest(data: bytes) -> bytes:
        state = new()
        state.update(data)
        return state.digest()

    return digest


class Signer:
    """Make and verify tags with one secret; it keeps only prepared hashes, not the secret."""

    __slots__ = ("_check", "_tag")

    def __init__(self, secret: bytes) -> None:
        if len(secret) < MIN_SECRET:
            raise SettingError(f"a secret needs at least {MIN_SECRET} bytes; this one has {len(secret)}")
        key = secret if len(secret) <= _KEY_SIZE else blake2b(secret, person=b"dcl long secret").digest()
        self._tag = blake2b(key=key, person=_TAG, digest_size=TAG_SIZE)
        self._check = blake2b(key=key, person=_CHECK, digest_size=TAG_SIZE).digest()

    def tag(self, *parts: bytes | memoryview) -> bytes:
        """Return the 16-byte tag over at most seven parts."""
        count = len(parts)
        state = self._tag.copy()
        state.update(_LENGTHS[count].pack(count, *map(len, parts)))
        for part in parts:
            state.update(part)
        return state.digest()

    def verify(self, tag: bytes | memoryview, *parts: bytes | memoryview) -> bool:
        """Tell in constant time whether `tag` belongs to `parts`."""
        return compare_digest(tag, self.tag(*parts))

    def key_check(self) -> bytes:
        """Return 16 bytes that identify the secret without revealing it."""
        return self._check


class Secret:
    """The secret of a cache: `explicit` if it was passed, otherwise the user's own, which is read when first needed."""

    __slots__ = ("_environ", "_signer", "explicit")

    def __init__(self, signer: Signer | None, environ: Mapping[str, str]) -> None:
        self.explicit = signer is not None
        self._signer = signer
        self._environ = environ

    @property
    def signer(self) -> Signer:
        """Return the signer; make the per-user secret if there is none."""
        if self._signer is None:  # threads may do this at once; all get the same secret
            self._signer = Signer(_user_secret(self._environ))
        return self._signer

    @property
    def verifier(self) -> Signer | None:
        """Return the signer if the secret exists, else None; without a secret this user has signed nothing.

        It is for reading, which must not create a file because of what a directory holds.
        """
        try:
            if self._signer is None and not paths.mode_of(secret_path(self._environ), follow=False):
                return None
            return self.signer
        except SecretError:
            return None


def load_secret(argument: bytes | str | None, environ: Mapping[str, str]) -> Secret:
    """Choose the secret: the argument, else the environment, else the per-user file, which is read only when needed."""
    given = given_secret(argument, environ)
    return Secret(None if given is None else Signer(given), environ)


def given_secret(argument: bytes | str | None, environ: Mapping[str, str]) -> bytes | None:
    """Return the secret from the argument, else from the environment, else None."""
    given = environ.get(SECRET_VARIABLE) if argument is None else argument
    if given is None:
        return None
    name = SECRET_VARIABLE if argument is None else "secret"
    if not isinstance(given, bytes | str):
        raise SettingError(f"{name} must be bytes or text, not {type(given).__name__}")
    secret = given.encode("utf-8", "surrogateescape") if isinstance(given, str) else given
    if len(secret) < MIN_SECRET:
        raise SettingError(f"{name} needs at least {MIN_SECRET} bytes; it has {len(secret)}")
    return secret


# The per-user file.


def secret_path(environ: Mapping[str, str]) -> Path:
    """Return the path of the per-user file."""
    config = Path(environ.get("XDG_CONFIG_HOME", ""))
    if not config.is_absolute():  # the XDG specification says to ignore relative paths
        try:
            config = Path(environ.get("HOME") or Path.home(), ".config")
        except RuntimeError as exc:
            raise SecretError(f"no home directory to keep a secret in; set {SECRET_VARIABLE}") from exc
    return config / "diskcache_like" / "secret"


def _user_secret(environ: Mapping[str, str]) -> bytes:
    path = secret_path(environ)
    try:
        with _directory(path.parent) as directory:
            try:
                return _read(directory, path)
            except FileNotFoundError:
                _create(directory, path)
                return _read(directory, path)
    except OSError as exc:
        reraise_signal(exc)
        raise SecretError(
            f"the secret in {path} can be neither read nor created ({exc.strerror or exc}); pass the cache a secret or"
            f" set {SECRET_VARIABLE}"
        ) from exc


@contextlib.contextmanager
def _directory(path: Path) -> Iterator[int]:
    """Open the directory of the secret, creating it if necessary; all further steps use this descriptor."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    with paths.opened_directory(path) as descriptor:
        status = os.fstat(descriptor)
        if status.st_uid != os.geteuid() or status.st_mode & 0o022:
            raise SecretError(f"{path} belongs to another user or can be written by others; no secret is kept there")
        yield descriptor


def _read(directory: int, path: Path) -> bytes:
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(path.name, flags, dir_fd=directory)
    except OSError as exc:
        if exc.errno == errno.ELOOP:
            raise SecretError(f"{path} is a symbolic link; the secret must be a file of its own") from exc
        raise
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise SecretError(f"{path} is not a regular file")
        if status.st_uid != os.geteuid():
            raise SecretError(f"{path} belongs to user {status.st_uid}, not to user {os.geteuid()}")
        if status.st_mode & 0o077:
            raise SecretError(f"{path} has mode {status.st_mode & 0o777:04o}; nobody but its owner may have access")
        secret = os.read(descriptor, _MAX_FILE_SECRET + 1).removesuffix(b"\n")
    finally:
        os.close(descriptor)
    if not MIN_FILE_SECRET <= len(secret) <= _MAX_FILE_SECRET:
        raise SecretError(
            f"{path} holds {len(secret)} bytes instead of {MIN_FILE_SECRET} to {_MAX_FILE_SECRET}; remove the file to"
            " have a new one created (entries signed with the old one become misses)"
        )
    return secret


def _create(directory: int, path: Path) -> None:
    """Create the file with a new secret in one atomic step, unless another process has just done so."""
    temporary = f".{path.name}.{secrets.token_hex(8)}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(temporary, flags, 0o600, dir_fd=directory)
    try:
        try:
            os.fchmod(descriptor, 0o600)  # whatever the umask is
            os.write(descriptor, secrets.token_hex(32).encode())  # text, so that it can be copied to the environment
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        with contextlib.suppress(FileExistsError):
            os.link(temporary, path.name, src_dir_fd=directory, dst_dir_fd=directory, follow_symlinks=False)
    finally:
        os.unlink(temporary, dir_fd=directory)
    os.fsync(directory)
