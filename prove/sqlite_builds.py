"""Other versions of SQLite, built from source, for processes whose sqlite3 module loads a library that can be preloaded.

The sources are the amalgamations that the crate libsqlite3-sys bundles: cargo fetches them, and they are compared with
the sums below. Sources and libraries stay in `.cache/sqlite/`, so that each is fetched and compiled once.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import NamedTuple

from .proof import CannotRun, Unreachable

CACHE = Path(__file__).parents[1] / ".cache" / "sqlite"
SECONDS = 300  # after which a download or a compilation is given up


class Origin(NamedTuple):
    """The version of the crate that bundles an amalgamation, and the SHA-256 of that."""

    crate: str
    digest: str


ORIGINS = {
    "3.31.1": Origin("0.18.0", "aef6b720ed8bbde30bb4110453239769fe31582b115ef675e66aba79abb04168"),
    "3.35.4": Origin("0.22.2", "fa478000aa0f94312227cc8f2aa1ded4f637b9dbcfc1124426b0edbbc3cf9ebd"),
    "3.41.2": Origin("0.26.0", "efe007ec6f1a4084b87cebba18cc887c316e0baaf4ec2675990726b94cb85470"),
    "3.46.0": Origin("0.30.1", "c01235302fe80da901fb70c7622c39147e29d9f29b7f6eb746b23517f320c90d"),
    "3.50.2": Origin("0.35.0", "c9a0b6829b81d5f1b78392181f09744c818117a725667411d517b98149fcd3be"),
    "3.51.1": Origin("0.36.0", "ff57e8d0a1572b35c17cab9a7dea34616bc12b6fb8b29acf5cb00b6ecf025149"),
    "3.51.3": Origin("0.37.0", "9512509b1bccb7461f79bea8aad6280ae4699e925fa4804381b71f59e7efb0c5"),
    "3.54.1": Origin("0.39.1", "0c657666d819f261cc4007526ad57e1669de9949df7a8ea847aa284a2bf0ee52"),
}
# What the sqlite3 module asks of the library it is linked with, and the tests of a hostile schema of theirs.
OPTIONS = (
    "-DSQLITE_ENABLE_COLUMN_METADATA",
    "-DSQLITE_ENABLE_DBSTAT_VTAB",
    "-DSQLITE_ENABLE_DESERIALIZE",
    "-DSQLITE_ENABLE_FTS5",
    "-DSQLITE_ENABLE_RTREE",
)

# The WAL-reset bug, in every version before 3.51.3. A checkpoint reads the header of the WAL index and then compares it
# with what was copied so far. If all was, and a commit begins the WAL anew between the two, then it copies frames that
# are no more, and notes as copied what comes in their places. The window is as long as one or two system calls.
WINDOW = "\n  if( pInfo->nBackfill<pWal->hdr.mxFrame ){\n"
WIDENED = "\n  { static unsigned nth; if( nth++%3==0 ) sqlite3OsSleep(db->pVfs, 300); }" + WINDOW
SOURCE_ID = '#define SQLITE_SOURCE_ID      "'
MARK = "widened "


def library(version: str, *, widened: bool = False) -> Path:
    """Return a library of that version, which is made if need be; raise CannotRun if that is not possible.

    It is not optimised, which takes a third of the time to compile. With `widened` the window of the WAL-reset bug is,
    and what `sqlite_source_id()` returns says so.
    """
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None:
        raise CannotRun("needs a C compiler: apt-get install gcc libc6-dev")
    text = source(version)
    if widened:
        text = _replaced(_replaced(text, WINDOW, WIDENED), SOURCE_ID, SOURCE_ID + MARK)
    command = [compiler, "-O0", "-w", "-shared", "-fPIC", "-pthread", *OPTIONS]
    command += ["-Wl,-soname,libsqlite3.so.0"]  # by which the loader knows that the module's own need not be loaded
    made = CACHE / hashlib.sha256(repr((text, command)).encode()).hexdigest()[:16] / "libsqlite3.so.0"
    if not made.exists():
        _compile(command, text, made)
    return made


def source(version: str) -> str:
    """Return the amalgamation of a version, which is fetched if need be."""
    path = CACHE / f"sqlite3-{version}.c"
    if not path.exists():
        _fetch(version, path)
    content = path.read_bytes()
    if (digest := hashlib.sha256(content).hexdigest()) != ORIGINS[version].digest:
        raise CannotRun(f"{path} is not sqlite3.c of SQLite {version}: its SHA-256 is {digest}; remove it")
    return content.decode()


def _replaced(text: str, old: str, new: str) -> str:
    if text.count(old) != 1:
        raise CannotRun(f"needs {old.strip()!r} once in sqlite3.c, where it is {text.count(old)} times")
    return text.replace(old, new)


def _fetch(version: str, path: Path) -> None:
    """Have cargo fetch the crate into a home of its own, and keep the amalgamation."""
    cargo = shutil.which("cargo") or shutil.which("cargo", path=str(Path.home() / ".cargo" / "bin"))
    if cargo is None:
        raise Unreachable(f"needs the source of SQLite {version}: install cargo, or put its sqlite3.c at {path}")
    with tempfile.TemporaryDirectory(prefix="sqlite-") as temporary:
        folder = Path(temporary)
        (folder / "src").mkdir()
        (folder / "src" / "lib.rs").touch()
        (folder / "Cargo.toml").write_text(
            '[package]\nname = "fetch"\nversion = "0.0.0"\nedition = "2018"\n[dependencies]\n'
            f'libsqlite3-sys = {{ version = "={ORIGINS[version].crate}", default-features = false }}\n'
        )
        try:
            _run(
                [cargo, "fetch", "--quiet"], f"the source of SQLite {version}", folder, CARGO_HOME=str(folder / "home")
            )
        except CannotRun as reason:
            raise Unreachable(*reason.args) from None
        (found,) = (folder / "home").glob("registry/src/*/libsqlite3-sys-*/sqlite3/sqlite3.c")
        _put(path, found)


def _compile(command: list[str], text: str, made: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="sqlite-") as temporary:
        amalgamation, target = Path(temporary) / "sqlite3.c", Path(temporary) / made.name
        amalgamation.write_text(text)
        _run([*command, "-o", str(target), str(amalgamation), "-lm", "-ldl"], "a C compiler that compiles SQLite")
        _put(made, target)


def _put(path: Path, found: Path) -> None:
    """Copy a file to its place in one step: others may look for it there at the same time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as temporary:
        temporary.write(found.read_bytes())
    Path(temporary.name).replace(path)


def _run(command: list[str], need: str, folder: Path | None = None, **environment: str) -> None:
    """Run a command; raise CannotRun with its last words if it fails."""
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env={**os.environ, **environment},
            timeout=SECONDS,
            capture_output=True,
            text=True,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise CannotRun(f"needs {need}, within {SECONDS} s: {' '.join(command)}") from None
    if done.returncode:
        raise CannotRun(f"needs {need}: {' '.join(done.stderr.strip().splitlines()[-2:])}")
