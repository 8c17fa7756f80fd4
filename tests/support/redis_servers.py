"""Real Redis servers for tests: alone, with TLS or users, with a replica, or watched by a sentinel.

Each has a directory of its own, a port on the loopback interface and a Unix socket, and keeps nothing on disk. It is
gone, and its directory with it, when its with-block ends, and also if this process is killed. Start it from a thread
that outlives it: the system ends it with the thread that started it.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import redis

from benchmarks.peers.servers import SERVERS, dying_with_us
from benchmarks.workspace import signals_held

PATIENCE = 60.0  # seconds after which a test gives up on a server; no test waits for it to pass
POLL = 0.005  # seconds between looks at what nobody can be told of
ATTEMPTS = 20  # ports that are tried
PORTS = range(20_000, 32_000)  # below those that the system gives to outgoing connections
SERVICE = "primary"  # what the sentinel calls its primary
ADMIN = "admin"  # the user, and the password, as which a server with users is asked

Options = Mapping[str, str]  # directives of redis.conf; several of one name are lines of one value
Found = TypeVar("Found")

_UNSAVED: Options = {
    "bind": "127.0.0.1",
    "unixsocket": "socket",
    "save": '""',
    "appendonly": "no",
    "logfile": "log",
    "enable-debug-command": "yes",
    "repl-diskless-sync": "yes",
    "repl-diskless-sync-delay": "0",
    "repl-ping-replica-period": "1",
}


class MissingServer(Exception):
    """There is no redis-server here; the text says how to install it."""


class Unready(AssertionError):
    """A server did not come to what was waited for."""


def server_program() -> str:
    """Return the path of redis-server."""
    known = SERVERS["redis"]
    program = shutil.which(known.program)
    if program is None:
        raise MissingServer(f"no {known.program} server here; install it with: apt-get install {known.package}")
    return program


def awaited(look: Callable[[], Found | None], what: str) -> Found:
    """Return what `look()` finds as soon as that is something true; connection errors count as nothing."""
    deadline = time.monotonic() + PATIENCE
    last: object = None
    while time.monotonic() < deadline:
        try:
            if found := look():
                return found
            last = found
        except (redis.RedisError, OSError) as error:
            last = error
        time.sleep(POLL)
    raise Unready(f"{what}: not within {PATIENCE:.0f} s; last: {last!r}")


def free_port() -> int:
    """Return a port that nobody listens on; somebody else may take it before it is used."""
    for port in random.sample(PORTS, ATTEMPTS):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise Unready(f"none of {ATTEMPTS} ports was free")


@dataclass
class Certificates:
    """A certificate for 127.0.0.1, made for one test, which is its own authority."""

    certificate: Path
    key: Path

    @property
    def options(self) -> dict[str, str]:
        """What a server needs to use them; clients need not show a certificate of their own."""
        files = {"ca-cert-file": self.certificate, "cert-file": self.certificate, "key-file": self.key}
        return {"tls-auth-clients": "no", **{f"tls-{name}": str(path) for name, path in files.items()}}


@dataclass
class RedisServer:
    """A server process that can be stopped, killed and started again on the same port."""

    directory: Path
    options: dict[str, str] = field(default_factory=dict)
    certificates: Certificates | None = None
    arguments: tuple[str, ...] = ()
    port: int = 0
    process: subprocess.Popen[bytes] | None = None

    # -- where it is ------------------------------------------------------------------------------------------------

    @property
    def address(self) -> tuple[str, int]:
        """Return where it listens."""
        return "127.0.0.1", self.port

    @property
    def socket(self) -> Path:
        """Return the path of its Unix socket, which has no TLS."""
        return self.directory / "socket"

    @property
    def unix_url(self) -> str:
        """Return the URL of its Unix socket."""
        return f"unix://{self.socket}"

    @property
    def url(self) -> str:
        """Return its URL on the loopback interface."""
        return self.url_for()

    def url_for(self, user: str = "", password: str = "") -> str:
        """Return the URL for a user."""
        who = f"{quote(user)}:{quote(password)}@" if user or password else ""
        scheme, query = "redis", ""
        if self.certificates:
            scheme, query = "rediss", f"?ssl_ca_certs={quote(str(self.certificates.certificate))}"
        return f"{scheme}://{who}127.0.0.1:{self.port}/0{query}"

    @property
    def pid(self) -> int:
        """Return the process id of the server that runs."""
        assert self.process is not None, "the server is not running"
        return self.process.pid

    @property
    def log(self) -> str:
        """Return what the server has written down."""
        path = self.directory / "log"
        return path.read_text(errors="replace") if path.exists() else ""

    # -- what it is asked -------------------------------------------------------------------------------------------

    def client(self, **options: Any) -> redis.Redis:
        """Return a client that speaks to it through the Unix socket; close it, or use it in a with-statement."""
        known = {"username": ADMIN, "password": ADMIN} if "user" in self.options else {}
        return redis.Redis.from_url(self.unix_url, **{"protocol": 3, "socket_timeout": PATIENCE, **known, **options})

    def ask(self, *command: str | bytes | int) -> Any:
        """Send one command on a connection of its own, and return the answer, texts being bytes."""
        with self.client() as client:
            return client.execute_command(*command)

    def info(self, section: str = "default") -> dict[str, Any]:
        """Return what INFO tells."""
        with self.client() as client:
            return dict(client.info(section))

    def drop_clients(self) -> int:
        """Cut the connections of all ordinary clients but the one that asks; return how many those were."""
        return int(self.ask("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"))

    # -- its life ---------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start it, on its port if it had one, and wait until it answers."""
        assert self.process is None, "the server is running"
        fixed, self.port = self.port, self.port or free_port()
        for _ in range(ATTEMPTS):
            if self._answers():
                return
            self.kill()
            if "already in use" not in self.log:
                raise Unready(f"the server ended at once:\n{self.log[-2000:]}")
            self.port = fixed or free_port()
        raise Unready(f"port {self.port} is in use")

    def _answers(self) -> bool:
        """Start the process; tell whether it comes to answer rather than to end."""
        self.socket.unlink(missing_ok=True)
        (self.directory / "log").unlink(missing_ok=True)
        (self.directory / "dump.rdb").unlink(missing_ok=True)  # the copy that a replica was sent, which a start loads
        port = {"tls-port": str(self.port), "port": "0"} if self.certificates else {"port": str(self.port)}
        lines = [(name, value) for name, text in {**port, **self.options}.items() for value in text.splitlines()]
        configuration = self.directory / "redis.conf"
        if not configuration.exists() or not self.arguments:  # a sentinel keeps its own
            configuration.write_text("".join(f"{name} {value}\n" for name, value in lines))
        command = [*dying_with_us(), server_program(), str(configuration), *self.arguments]
        with signals_held():  # Ctrl-C is for the tests, which then end the server
            self.process = subprocess.Popen(
                command, cwd=self.directory, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
        process = self.process
        return awaited(lambda: "ended" if process.poll() is not None else self._ping(), "a server's answer") != "ended"

    def _ping(self) -> str:
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(PATIENCE)
            probe.connect(str(self.socket))
            probe.sendall(b"PING\r\n")
            answer = probe.recv(64)
        return "answers" if answer.startswith((b"+PONG", b"-NOAUTH")) else ""

    def kill(self) -> None:
        """Kill it as `kill -9` does, and wait until it is gone; what it held is lost."""
        if self.process is None:
            return
        with signals_held():
            self.process.kill()
            self.process.wait()
            self.process = None

    def restart(self) -> None:
        """Kill it, and start it on the same port with nothing in it."""
        self.kill()
        self.start()

    def stop(self) -> None:
        """Freeze it, and return when it stands still; `go_on` thaws it. Its connections stay."""
        os.kill(self.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOWAIT)

    def go_on(self) -> None:
        """Thaw it."""
        os.kill(self.pid, signal.SIGCONT)

    # -- primaries and replicas -------------------------------------------------------------------------------------

    def follow(self, primary: RedisServer) -> None:
        """Become a replica, and return when it has all that the primary has."""
        self.ask("REPLICAOF", *primary.address)
        awaited(lambda: self.has_caught_up(primary), "a replica's first copy")

    def follow_nobody_there(self) -> None:
        """Become a replica of a primary that cannot be reached: a demoted node that is cut off, and answers PING."""
        self.ask("REPLICAOF", "127.0.0.1", 1)

    def promote(self) -> None:
        """Become a primary with what it has."""
        self.ask("REPLICAOF", "NO", "ONE")

    def has_caught_up(self, primary: RedisServer) -> bool:
        """Tell whether this replica has all that its primary was told by now."""
        theirs, mine = primary.info("replication"), self.info("replication")
        # The link may not have been noticed yet to have ended with a primary of the same address that was restarted.
        if mine.get("master_link_status") != "up" or mine["master_replid"] != theirs["master_replid"]:
            return False
        return int(mine["slave_repl_offset"]) >= int(theirs["master_repl_offset"])


@contextmanager
def redis_server(
    options: Options | None = None, *, tls: bool = False, users: Mapping[str, str] | None = None
) -> Iterator[RedisServer]:
    """Run a server for a with-block.

    `options` are directives of redis.conf, such as {"maxmemory": "10mb"}. `users` are rules of ACL by name, such as
    {"app": "on >secret ~dl:* +@all"}; without one for "default" that user may do everything, without a password.
    """
    with _directory() as directory:
        made = RedisServer(directory, {**_UNSAVED, **(options or {})})
        if users:
            known = {ADMIN: f"on >{ADMIN} ~* &* +@all", **users}
            made.options["user"] = "\n".join(f"{name} {rules}" for name, rules in known.items())
        if tls:
            made.certificates = make_certificates(directory)
            made.options |= made.certificates.options
        with _run(made):
            yield made


@contextmanager
def redis_pair(options: Options | None = None) -> Iterator[tuple[RedisServer, RedisServer]]:
    """Run a primary and a replica that has caught up."""
    with redis_server(options) as primary, redis_server(options) as replica:
        replica.follow(primary)
        yield primary, replica


@contextmanager
def _directory() -> Iterator[Path]:
    """Make a directory whose path is short enough for a Unix socket."""
    with tempfile.TemporaryDirectory(prefix="redis-", ignore_cleanup_errors=True) as made:
        yield Path(made)


@contextmanager
def _run(server: RedisServer) -> Iterator[None]:
    try:
        server.start()
        yield
    finally:
        server.kill()


# -- sentinel ---------------------------------------------------------------------------------------------------------


@dataclass
class Watched:
    """A primary and a replica that a sentinel watches; either may be the primary by now."""

    sentinel: RedisServer
    servers: tuple[RedisServer, RedisServer]

    def client(self) -> redis.Redis:
        """Return a client that asks the sentinel for the primary."""
        sentinel: Any = redis.Sentinel([("127.0.0.1", self.sentinel.port)])  # type: ignore[no-untyped-call]
        client: redis.Redis = sentinel.master_for(SERVICE)
        return client

    @property
    def primary(self) -> RedisServer:
        """Return the server that the sentinel calls the primary."""
        # Not GET-MASTER-ADDR-BY-NAME, which tells the new one before the failover is over.
        port = int(self.sentinel.ask("SENTINEL", "MASTER", SERVICE)[b"port"])
        (found,) = [server for server in self.servers if server.port == port]
        return found

    def is_ready(self) -> bool:
        """Tell whether the sentinel knows a replica that could take over."""
        replicas = self.sentinel.ask("SENTINEL", "REPLICAS", SERVICE)
        return [each.get(b"master-link-status") for each in replicas] == [b"ok"]

    def fail_over(self) -> RedisServer:
        """Have the sentinel promote the replica, and return it as soon as it takes writes."""
        old = self.primary
        awaited(self._has_begun, "a failover's begin")
        return self.successor_of(old)

    def _has_begun(self) -> bool:
        try:
            self.sentinel.ask("SENTINEL", "FAILOVER", SERVICE)
        except redis.ResponseError as error:
            return "INPROG" in str(error)  # else it knows no good replica yet
        return True

    def successor_of(self, old: RedisServer) -> RedisServer:
        """Wait until the other server is the primary, to the sentinel and to itself, and return it."""
        awaited(lambda: self.primary is not old, "the sentinel's new primary")
        found = self.primary
        awaited(lambda: found.info("replication")["role"] == "master", "a promotion")
        return found


@contextmanager
def redis_sentinel(options: Options | None = None, down_after: int = 300) -> Iterator[Watched]:
    """Run a primary, a replica and a sentinel that takes the primary for dead after `down_after` milliseconds."""
    with ExitStack() as stack:
        pair = stack.enter_context(redis_pair(options))
        watch = {
            "bind": "127.0.0.1",
            "unixsocket": "socket",
            "logfile": "log",
            "sentinel": f"monitor {SERVICE} 127.0.0.1 {pair[0].port} 1\n"
            f"down-after-milliseconds {SERVICE} {down_after}\n"
            f"failover-timeout {SERVICE} 5000",
        }
        sentinel = RedisServer(stack.enter_context(_directory()), watch, arguments=("--sentinel",))
        stack.enter_context(_run(sentinel))
        watched = Watched(sentinel, pair)
        awaited(watched.is_ready, "a sentinel that knows the replica")
        yield watched


# -- certificates -----------------------------------------------------------------------------------------------------


def make_certificates(directory: Path) -> Certificates:
    """Make a certificate for 127.0.0.1 that is good for two days, and is its own authority."""
    import datetime
    import ipaddress

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "tests")])
    day, now = datetime.timedelta(days=1), datetime.datetime.now(datetime.UTC)
    loopback = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number(), now - day, now + day)
    builder = builder.add_extension(x509.BasicConstraints(True, None), True).add_extension(loopback, False)
    made = Certificates(directory / "server.pem", directory / "server.key")
    pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    made.certificate.write_bytes(builder.sign(key, hashes.SHA256()).public_bytes(pem))
    made.key.write_bytes(key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain))
    return made
