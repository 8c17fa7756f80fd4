"""Run the tests of the core in C with AddressSanitizer and UBSan: `make sanitize`.

Both watch a copy of the package, which is compiled and removed again, so the core of the checkout stays as it is. What
they report first ends the process that did it. Before the tests, a copy that reads one byte too many has to be caught.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "diskcache_like"
COMPILER = "gcc"
WATCHED = "-fsanitize=address,undefined"
OPTIONS = f"{WATCHED} -fno-sanitize-recover=all -fno-omit-frame-pointer -O1 -g"
# Under a minute; `make sanitize ARGS="tests/coherence tests/storage/test_write_buffer.py"` takes longer.
TESTS = (
    "tests/coherence/test_counters.py",
    "tests/coherence/test_generations.py",
    "tests/coherence/test_hostile_rings.py",
    "tests/coherence/test_marks.py",
    "tests/coherence/test_newest_writes.py",
    "tests/coherence/test_read_file.py",
    "tests/coherence/test_ring.py",
    "tests/coherence/test_shared_words.py",
    "tests/coherence/test_write_lock.py",
    "tests/coherence/test_write_lock_waiting.py",
    "tests/encoding/test_keys.py",
    "tests/encoding/test_plain_data.py",
    "tests/encoding/test_record.py",
)
FOUND = "heap-buffer-overflow"
CONTROL = """
from diskcache_like.coherence._native import Ring
Ring(bytearray(8192), 4096, 4088, 1, 1).append(1, 1, 1, b"key", b"value")
"""


class Fault(NamedTuple):
    """A change of the core that makes it unsound."""

    file: str
    sound: str
    faulty: str


# One byte behind the memory of a record, which the core makes a byte longer than it is.
FAULT = Fault("_ring_type.c", "dl_crc32(0, body, size)", "dl_crc32(0, body, size + 2)")


class Unable(Exception):
    """The core cannot be watched here."""


def runtime() -> Path:
    """Return the library that has to be loaded before Python; raise Unable if there is none."""
    if shutil.which(COMPILER) is None:
        raise Unable(f"there is no {COMPILER}")
    asked = [COMPILER, "-print-file-name=libasan.so"]
    found = Path(subprocess.run(asked, check=True, capture_output=True, text=True).stdout.strip())
    if not found.is_absolute() or found.read_bytes()[:4] != b"\x7fELF":  # some systems have a text for the linker there
        raise Unable(f"{COMPILER} has no libasan.so that can be loaded")
    return found


def build(folder: Path, fault: Fault | None) -> Path:
    """Copy the package and compile its core, with a fault if one is given; return where it can be imported from."""
    shutil.copytree(ROOT / PACKAGE, folder / PACKAGE, ignore=shutil.ignore_patterns("*.so", "*.pyc"))
    shutil.copy(ROOT / "setup.py", folder)
    if fault:
        source = folder / PACKAGE / "coherence" / fault.file
        source.write_text(source.read_text().replace(fault.sound, fault.faulty))
    compiling = {"CC": COMPILER, "CFLAGS": OPTIONS, "LDSHARED": f"{COMPILER} -shared {WATCHED}"}
    command = [sys.executable, "setup.py", "--quiet", "build_ext", "--inplace"]
    subprocess.run(command, cwd=folder, env={**os.environ, **compiling}, check=True)
    return folder


def watched(place: Path, command: Sequence[str], library: Path, fault: Fault | None = None) -> tuple[int, str]:
    """Run Python with a package that is built in `place`; return its exit status, and the reports, of children too."""
    reports = place / "reports"
    reports.mkdir(parents=True)
    package = build(place / "package", fault)
    options = f"abort_on_error=1:log_path={reports / 'report'}"
    environment = {
        "ASAN_OPTIONS": f"{options}:allocator_may_return_null=1:detect_leaks=0",  # Python itself leaks
        "LD_PRELOAD": str(library),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONMALLOC": "malloc",  # so that each object has memory of its own, with a fence around it
        "PYTHONPATH": os.pathsep.join((str(package), str(ROOT))),
        "PYTHONSAFEPATH": "1",  # else the checkout's package, in the current directory, comes first
        "UBSAN_OPTIONS": f"{options}:print_stacktrace=1",
    }
    status = subprocess.run(
        [sys.executable, *command], cwd=ROOT, env={**os.environ, **environment}, check=False
    ).returncode
    return status, "\n".join(path.read_text() for path in sorted(reports.iterdir()))


def main(arguments: Sequence[str]) -> int:
    """Run the control, then the tests, or those that the command line names; return 0 if nothing was found."""
    try:
        library = runtime()
    except Unable as reason:
        sys.stderr.write(f"sanitize: not run: {reason}\n")
        return int(os.environ.get("CI") == "true" and shutil.which(COMPILER) is not None)
    with tempfile.TemporaryDirectory(prefix="sanitize-") as name:
        status, report = watched(Path(name, "control"), ("-c", CONTROL), library, FAULT)
        if FOUND not in report:
            sys.stderr.write(f"sanitize: the control was not caught, and ended with status {status}\n{report}")
            return 1
        # So quiet that .ci/run does not take these for the tests that it looks for.
        status, report = watched(Path(name, "tests"), ("-m", "pytest", "-qq", *(arguments or TESTS)), library)
    sys.stderr.write(report)
    return 1 if report else status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
