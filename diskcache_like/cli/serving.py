"""The command `serve`: a cache for programs that are not Python."""

from __future__ import annotations

import argparse
import os
import socket
import sys
from contextlib import suppress
from functools import partial
from typing import Any

from ..cache import Cache
from ..errors import SettingError
from .arguments import interval, positive
from .opening import add_opening, is_shared, opened

TIMEOUT = 5.0  # seconds that a command waits for the write lock
MOST_WORKERS = 4  # unless more are asked for
GRACE = 10.0  # seconds
PRIVATE, GROUP = 0o600, 0o660  # modes of a Unix socket


def add(commands: Any) -> None:
    """Add the command of this module."""
    command = commands.add_parser(
        "serve",
        help="serve a cache to programs that are not Python, over the protocol of Redis and HTTP",
        description="Serve a cache, which is made if it is missing, until SIGTERM or Ctrl-C. Python programs may use"
        " the directory meanwhile. ADDRESS is the path of a Unix socket, with a slash in it, or PORT, HOST:PORT or"
        " [HOST]:PORT. A host that other machines reach needs --password-file and --certificate.",
        epilog="exit status: 0 stopped by a signal, 2 failed",
    )
    command.add_argument("directory", metavar="DIRECTORY", help="the directory of the cache")
    add_opening(command)
    command.add_argument("--resp", metavar="ADDRESS", help="for Redis' protocol (default: DIRECTORY.sock; '' for none)")
    command.add_argument("--http", metavar="ADDRESS", help="for HTTP (default: none)")
    count = min(MOST_WORKERS, os.cpu_count() or 1)
    command.add_argument("--workers", type=positive, default=count, metavar="N", help=f"processes (default: {count})")
    command.add_argument("--password-file", metavar="FILE", help="its first line is what clients have to give")
    command.add_argument("--certificate", metavar="FILE", help="of TLS, in PEM, for addresses of TCP")
    command.add_argument("--private-key", metavar="FILE", help="of the certificate, unless that file has it")
    text = f"time for what is under way when the server stops (default: {GRACE:.0f})"
    command.add_argument("--grace", type=interval, default=GRACE, metavar="SECONDS", help=text)
    command.set_defaults(command=serve)


def serve(options: argparse.Namespace) -> int:
    """Serve until a signal says to stop."""
    from ..server import sockets, workers  # late: no other command listens
    from ..server.access import Access

    resp = os.path.abspath(options.directory) + ".sock" if options.resp is None else options.resp
    asked = {name: sockets.Address.of(text) for name, text in (("resp", resp), ("http", options.http)) if text}
    if not asked:
        raise SettingError("nothing to serve: give --resp or --http an address")
    for name, address in asked.items():
        if not address.is_local and not (options.password_file and options.certificate):
            raise SettingError(f"--{name} {address}: other machines reach it; give --password-file and --certificate")
    password = sockets.password_in(options.password_file) if options.password_file else None
    open_cache = partial(opened, options, options.directory, partial(Cache, pickle="never", timeout=TIMEOUT))
    open_cache().close()  # makes it, the directory of the usual socket included, or raises what is wrong with it
    mode = GROUP if is_shared(options, options.directory) else PRIVATE
    places = dict[str, sockets.Place]()
    try:
        for name, address in asked.items():
            places[name] = sockets.Place(address, mode)
        service = workers.Service(
            open_cache,
            Access(password),
            places.get("resp"),
            places.get("http"),
            sockets.tls(options.certificate, options.private_key),
            options.grace,
        )
        workers.serve(service, options.workers, partial(_tell, options.directory, places))
    finally:
        for place in places.values():
            place.close()
    return 0


def _tell(directory: str, places: dict[str, Any]) -> None:
    """Say where it listens, to a person and to systemd (sd_notify(3))."""
    where = ", ".join(f"{name} at {place.address}" for name, place in places.items())
    print(f"serving {directory}: {where}", file=sys.stderr, flush=True)
    target = os.environ.get("NOTIFY_SOCKET")
    if target:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notifying, suppress(OSError):  # as sd_notify does
            notifying.sendto(b"READY=1", "\0" + target[1:] if target.startswith("@") else target)
