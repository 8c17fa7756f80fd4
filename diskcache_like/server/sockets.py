"""Sockets: where a server listens, and that it is safe to listen there."""

from __future__ import annotations

import errno
import ipaddress
import os
import re
import socket
import ssl
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

from ..errors import DirectoryError, SettingError

BACKLOG = 1024
LEAST_PASSWORD = 16  # bytes
GOODBYE = 1.0  # seconds for a client to answer that TLS ends


class Address(NamedTuple):
    """A path of a Unix socket, or a host and port of TCP."""

    path: str | None
    host: str = ""
    port: int = 0

    @classmethod
    def of(cls, text: str) -> Address:
        """Return the address that a text names: a path with a slash, PORT, HOST:PORT or [HOST]:PORT."""
        if "/" in text:
            return cls(os.path.abspath(text))
        host, _, port = text.rpartition(":")
        if not re.fullmatch("[0-9]{1,5}", port) or int(port) >= 1 << 16:
            raise SettingError(f"address {text!r}: expected PORT, HOST:PORT, or a path with a slash")
        return cls(None, host.removeprefix("[").removesuffix("]") or "127.0.0.1", int(port))

    @property
    def is_local(self) -> bool:
        """Tell whether only this machine can reach it."""
        if self.path is not None or self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    def __str__(self) -> str:
        return self.path or (f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}")


class Place:
    """An address that this process has taken; `listener` gives each worker a socket for it."""

    def __init__(self, address: Address, mode: int = 0o600) -> None:
        """Take the address; a Unix socket gets this mode. Raises DirectoryError if that is not possible."""
        try:
            self._socket = _unix_socket(address.path, mode) if address.path else _tcp_socket(address.host, address.port)
        except OSError as error:
            problem = f"cannot be listened at: {error.strerror or error}"
            raise DirectoryError(error.errno or errno.EIO, problem, str(address)) from error
        self._inode = os.stat(address.path).st_ino if address.path else 0
        self.address = address if address.path else address._replace(port=self._socket.getsockname()[1])

    def listener(self) -> socket.socket:
        """Return a socket that listens here, for one worker.

        Workers share a Unix socket. Each has a TCP socket of its own, between which the kernel spreads the connections:
        those that wait at one of a worker that is killed are reset.
        """
        if self.address.path:
            return self._socket
        own = _tcp_socket(self.address.host, self.address.port, is_shared=True)
        own.listen(BACKLOG)
        return own

    def close(self) -> None:
        """Give the address up; remove the file of a Unix socket unless somebody else has put another one there."""
        self._socket.close()
        if self.address.path:
            with suppress(OSError):
                if os.lstat(self.address.path).st_ino == self._inode:
                    os.unlink(self.address.path)


def _tcp_socket(host: str, port: int, is_shared: bool = False) -> socket.socket:
    """Return a socket with an address, which it shares with those of this server, not with those of other servers."""
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    made = socket.socket(family, kind, protocol)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, is_shared)
        made.bind(address)  # which fails if another server listens there
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    except BaseException:
        made.close()
        raise
    return made


def _unix_socket(path: str, mode: int) -> socket.socket:
    _remove_left_over(path)
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with _umask(0o777 & ~mode):  # a chmod would come too late, and might follow a link
            made.bind(path)
        made.listen(BACKLOG)
    except BaseException:
        made.close()
        raise
    return made


def _remove_left_over(path: str) -> None:
    """Remove a socket that a killed server of this user has left; raise OSError if one listens there."""
    with suppress(FileNotFoundError):
        status = os.lstat(path)
        if stat.S_ISSOCK(status.st_mode) and status.st_uid == os.geteuid():
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
                try:
                    probe.connect(path)
                except ConnectionRefusedError:
                    os.unlink(path)


@contextmanager
def _umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def password_in(path: str) -> bytes:
    """Return the password in a file, its first line; raise DirectoryError for one that others may read."""
    with open(path, "rb") as file:
        status = os.fstat(file.fileno())
        if status.st_uid not in (0, os.geteuid()) or status.st_mode & 0o077:
            raise DirectoryError(errno.EPERM, "others may read or replace it; expected mode 0600, and this user", path)
        password = file.readline(1 << 16).rstrip(b"\r\n")
    if len(password) < LEAST_PASSWORD:
        raise SettingError(f"{path}: the password has {len(password)} bytes, expected {LEAST_PASSWORD} at least")
    return password


def tls(certificate: str | None, private_key: str | None) -> ssl.SSLContext | None:
    """Return what encrypts connections, or None where no certificate is given."""
    if certificate is None:
        if private_key is not None:
            raise SettingError("--private-key needs --certificate")
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(certificate, private_key)
    except (OSError, ValueError) as error:
        files = certificate if private_key is None else f"{certificate}, {private_key}"
        raise SettingError(f"{files}: no certificate and private key that can be used: {error}") from error
    return context
