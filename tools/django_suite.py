"""Run Django's own cache tests with DjangoCache in the place of Django's backends: `make django`.

Of each release, Django's cache tests and their runner are taken out of its source distribution on PyPI, whose SHA-256
is checked, and Django itself is installed into a directory of its own; both are kept in `.cache/django`. Without a
network, what is not there yet is skipped, which is a failure where CI is set. A release that no Python here is new
enough for is skipped in any case. `--list` names each test left out.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import urllib.parse
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
KEPT = ROOT / ".cache" / "django"
INDEX = "https://pypi.org/pypi/django/json"
WANTED = ("cache", "templates", "runtests.py", "urls.py")  # of Django's folder `tests`
PATIENCE = 60.0  # seconds that the network gets to answer


class Release(NamedTuple):
    """A release of Django, with the number of its tests that apply: another number has to be looked at."""

    version: str
    python: tuple[int, int]  # the oldest that it runs on
    applicable: int


RELEASES = (
    Release("4.2.30", (3, 11), 218),  # Python: not older than this package's
    Release("5.2.19", (3, 11), 228),
    Release("6.1.3", (3, 12), 266),
)


class Unavailable(Exception):
    """Something that a run needs is not there and could not be fetched."""


class TooOld(Unavailable):
    """No Python here is new enough, which is no reason to fail a run on the Pythons that are."""


class Outcome(NamedTuple):
    """What came of one release."""

    good: bool
    text: str
    left_out: dict[str, str] = {}  # noqa: RUF012 - never changed


def run(release: Release) -> Outcome:
    """Run the tests of one release, fetching first what is not there yet."""
    try:
        python = find_python(release)
        tests = fetch_tests(release)
        site = install(release, python)
    except Unavailable as reason:
        return Outcome(isinstance(reason, TooOld) or "CI" not in os.environ, f"skipped: {reason}")
    with tempfile.TemporaryDirectory(prefix="django-suite-") as scratch:
        return run_in(release, tests, python, site, Path(scratch))


def run_in(release: Release, tests: Path, python: str, site: Path, scratch: Path) -> Outcome:
    """Run the tests, with everything they write in `scratch`."""
    report = scratch / "report.json"
    (scratch / "home").mkdir()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("DISKCACHE_LIKE_")} | {
        "DJANGO_SUITE_CACHES": str(scratch / "caches"),
        "DJANGO_SUITE_REPORT": str(report),
        "HOME": str(scratch / "home"),
        "PYTHONPATH": os.pathsep.join(map(str, (site, ROOT))),
        "TMPDIR": str(scratch),
    }
    environment.pop("XDG_CONFIG_HOME", None)
    command = [python, "runtests.py", "--settings=tools.django_settings", "--parallel=1", "cache"]
    began = time.monotonic()
    done = subprocess.run(command, cwd=tests, env=environment, check=False, capture_output=True, text=True)
    if not report.exists():
        return Outcome(False, f"the tests did not run\n{done.stdout}{done.stderr}")
    told = json.loads(report.read_text())
    left_out = {**told["not_applicable"], **told["skipped"]}
    failed = len(told["failed"])
    good = done.returncode == failed == 0 and told["run"] == release.applicable
    text = f"{told['run']} run, {failed} failed, {len(left_out)} not applicable"
    text += f" ({time.monotonic() - began:.0f} s, {python})"
    if told["run"] != release.applicable:
        text += f"; expected {release.applicable} to apply"
    return Outcome(good, text if good else f"{text}\n{done.stdout}{done.stderr}", left_out)


def fetch_tests(release: Release) -> Path:
    """Return the directory of Django's tests, out of its source distribution."""
    target = KEPT / release.version / "tests"
    if not target.exists():
        archive = fetch_archive(release.version)
        with arriving(target) as directory, tarfile.open(fileobj=io.BytesIO(archive)) as members:
            for member in members:
                parts = PurePosixPath(member.name).parts[1:]
                if member.isfile() and parts[:1] == ("tests",) and parts[1] in WANTED and ".." not in parts:
                    path = directory.joinpath(*parts[1:])
                    path.parent.mkdir(parents=True, exist_ok=True)
                    content = members.extractfile(member)
                    assert content is not None
                    path.write_bytes(content.read())
    return target


def fetch_archive(version: str) -> bytes:
    """Return Django's source distribution, which has the digest that PyPI tells."""
    try:
        with urllib.request.urlopen(INDEX, timeout=PATIENCE) as answer:
            releases: Any = json.load(answer)["releases"]
        (file,) = (file for file in releases[version] if file["packagetype"] == "sdist")
        with urllib.request.urlopen(urllib.parse.urljoin(INDEX, file["url"]), timeout=PATIENCE) as answer:
            archive: bytes = answer.read()
    except (OSError, ValueError, KeyError) as error:
        raise Unavailable(f"cannot fetch Django {version} from {INDEX} ({error})") from error
    digest = hashlib.sha256(archive).hexdigest()
    if digest != file["digests"]["sha256"]:
        raise RuntimeError(f"{file['url']} has SHA-256 {digest}, PyPI tells {file['digests']['sha256']}")
    return archive


def find_python(release: Release) -> str:
    """Return an interpreter that is new enough and can install packages, this one if possible."""
    named = [shutil.which(f"python3.{minor}") for minor in range(14, 10, -1)]
    built = sorted(map(str, Path.home().glob(".pyenv/versions/3.*/bin/python")), reverse=True)
    for python in filter(None, (sys.executable, *named, *built)):
        program = f"import sys, sqlite3, pip; sys.exit(sys.version_info < {release.python})"
        if subprocess.run([python, "-c", program], check=False, capture_output=True).returncode == 0:
            return python
    raise TooOld(f"Django {release.version} needs Python {'.'.join(map(str, release.python))} or newer, with pip")


def install(release: Release, python: str) -> Path:
    """Return the directory that Django and what this package needs are installed into, for that interpreter."""
    program = "import sys; print(sys.implementation.cache_tag)"
    tag = subprocess.run([python, "-c", program], check=True, capture_output=True, text=True).stdout.strip()
    target = KEPT / release.version / tag
    if not target.exists():
        with arriving(target) as directory:
            command = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile"]
            command += ["--target", str(directory), f"django=={release.version}", "msgpack>=1.0.5"]
            done = subprocess.run(command, check=False, capture_output=True, text=True)
            if done.returncode:
                raise Unavailable(f"cannot install Django {release.version}: {done.stderr.strip()}")
    return target


@contextlib.contextmanager
def arriving(target: Path) -> Any:
    """Yield a new directory that becomes `target` when it is complete, unless another run was first."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        directory = Path(scratch) / "new"
        directory.mkdir()
        yield directory
        with contextlib.suppress(FileExistsError):
            directory.rename(target)


def main() -> int:
    """Run every release at the same time and tell the outcomes; return 1 if one is not good."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("releases", nargs="*", help="the beginnings of the versions to run, such as 5.2; default: all")
    parser.add_argument("--list", action="store_true", help="name each test that was left out")
    arguments = parser.parse_args()
    prefixes = tuple(arguments.releases) or ("",)
    chosen = [release for release in RELEASES if release.version.startswith(prefixes)]
    good = bool(chosen)
    with ThreadPoolExecutor(len(chosen) or 1) as pool:
        for release, outcome in zip(chosen, pool.map(run, chosen), strict=True):
            print(f"Django {release.version}: {outcome.text}", flush=True)
            good = good and outcome.good
            reasons = collections.Counter(outcome.left_out.values())
            for reason, number in reasons.items():
                print(f"  not applicable, {number}: {reason}")
                if arguments.list:
                    print(*(f"    {name}" for name, why in outcome.left_out.items() if why == reason), sep="\n")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
