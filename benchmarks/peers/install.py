"""Install what the benchmarks compare with, as far as it goes: `python -m benchmarks.peers.install`.

Servers, and the browser in which the server's page is tested, come from Debian's packages if this is root on Debian,
clients from the `peers` extra into this environment.
What could not be installed is printed with the command that would do it, and is no failure: it is skipped later.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.peers.servers import SERVERS

BROWSERS = ("chromium", "google-chrome", "chromium-browser")  # any of these programs will do
PACKAGES = {**{server.package: (server.program,) for server in SERVERS.values()}, "chromium": BROWSERS}
PROJECT = Path(__file__).parents[2] / "pyproject.toml"
POLICY = Path("/usr/sbin/policy-rc.d")
FORBIDDEN = "#!/bin/sh\nexit 101\n"  # what Debian takes as "start no service"
APT = ("apt-get", "-qq", "-y", "--no-install-recommends", "install")
PIP = (sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check")


def ran(command: Sequence[str]) -> bool:
    """Run a command quietly and tell whether it succeeded."""
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    return subprocess.run(command, env=quiet, capture_output=True, check=False).returncode == 0


@contextmanager
def services_held_back(policy: Path = POLICY) -> Iterator[None]:
    """Keep a package from starting its service, unless the machine has its own rule about that."""
    if policy.exists():
        yield
        return
    policy.write_text(FORBIDDEN, encoding="ascii")
    try:
        policy.chmod(0o755)
        yield
    finally:
        policy.unlink()


def missing() -> list[str]:
    """Return the packages none of whose programs are here."""
    return [package for package, programs in PACKAGES.items() if not any(map(shutil.which, programs))]


def install_programs() -> list[str]:
    """Install the servers and the browser that are missing and return a line for each that still is."""
    wanted = missing()
    if wanted and os.geteuid() == 0 and shutil.which("apt-get"):
        with services_held_back():
            if not ran([*APT, *wanted]):
                ran(["apt-get", "-qq", "update"])  # a fresh machine knows no packages
                ran([*APT, *wanted])
    return [f"no {package}; install it with: sudo apt-get install {package}" for package in missing()]


def clients() -> list[str]:
    """Return the requirements of the `peers` extra."""
    project = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]
    return [str(requirement) for requirement in project["optional-dependencies"]["peers"]]


def install_clients() -> list[str]:
    """Install all clients at once, or else one by one, and return a line for each that could not be."""
    if ran([*PIP, *clients()]):
        return []
    failed = [requirement for requirement in clients() if not ran([*PIP, requirement])]
    return [f"no {one}; install it with: {sys.executable} -m pip install '{one}'" for one in failed]


if __name__ == "__main__":
    for line in (*install_programs(), *install_clients()):
        print(f"benchmarks.peers.install: {line}", file=sys.stderr)
