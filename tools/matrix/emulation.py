"""Debian's Python for ARM64, run by qemu on another CPU.

Only what is compiled for ARM64 is emulated: pip and the C compiler run as they are. qemu passes loads and stores on to
the CPU it runs on, so on x86-64 this shows what the package does on ARM64, and whether the core in C is right about
words and futexes, but not what happens when a CPU reorders loads and stores.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from prove.proof import CannotRun

from .interpreters import CACHE, MACHINE, ROOT, WHEELS, Environment, Interpreter, requirements

FOLDER = CACHE / "arm64"
SYSROOT = FOLDER / "root"
PYTHON = SYSROOT / "usr" / "bin" / "python3.11"
RELEASE = "bookworm"
PACKAGES = "python3.11-venv,libpython3.11-dev,libstdc++6"  # the last one is for NumPy and Arrow
PROGRAMS = {
    "qemu-aarch64-static": "qemu-user-static",
    "mmdebstrap": "mmdebstrap",
    "aarch64-linux-gnu-gcc": "gcc-aarch64-linux-gnu libc6-dev-arm64-cross",
}
# The C libraries that wheels are built for and Debian 12 runs.
PLATFORMS = [f"manylinux_2_{minor}_aarch64" for minor in range(36, 16, -1)] + ["manylinux2014_aarch64"]
HANDLERS = Path("/proc/sys/fs/binfmt_misc")  # what the kernel starts programs of other CPUs with
HANDLER = Path("/usr/lib/binfmt.d/qemu-aarch64.conf")
CORE = ROOT / "diskcache_like" / "coherence"
SECONDS = 900
# What qemu answers otherwise than the kernel whose calls it passes on.
FORKS_FROM_C = (
    "coherence/test_shared_words.py::test_a_fork_made_from_c_is_noticed",
    "storage/test_fork.py::test_a_fork_from_c_is_noticed",
)
BEYOND_QEMU = dict.fromkeys(FORKS_FROM_C, "qemu says it will wipe pages on fork, and does not")


def interpreter() -> Interpreter:
    """Return the Python, which is unpacked if need be; raise CannotRun if something is missing."""
    if MACHINE == "aarch64":
        raise CannotRun("this machine's own Pythons are for ARM64; leave --arm64 out")
    lacking = [package for program, package in PROGRAMS.items() if not shutil.which(program)]
    if lacking:
        raise CannotRun(f"ARM64 needs more programs: apt-get install {' '.join(lacking)}")
    register()
    if not PYTHON.exists():
        unpack()
    os.environ["QEMU_LD_PREFIX"] = str(SYSROOT)  # where qemu looks for libraries; nothing else reads it
    if (found := Interpreter.probe(str(PYTHON))) is None:
        raise CannotRun(f"{PYTHON} does not start; remove {FOLDER} and try again")
    return found


def register() -> None:
    """Have the kernel start programs for ARM64 with qemu, unless it does."""
    if (HANDLERS / "qemu-aarch64").exists():
        return
    try:
        if not (HANDLERS / "register").exists():
            subprocess.run(["mount", "-t", "binfmt_misc", "binfmt_misc", HANDLERS], check=True, capture_output=True)
        if not (HANDLERS / "qemu-aarch64").exists():
            (HANDLERS / "register").write_text(HANDLER.read_text().strip())
    except (OSError, subprocess.SubprocessError) as error:
        raise CannotRun(f"qemu cannot be made the handler of ARM64's programs, which takes root: {error}") from error


def unpack() -> None:
    """Unpack Python and its libraries, and nothing that would hide a file of this machine."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    fresh = FOLDER / "fresh"
    fresh.parent.mkdir(parents=True)
    options = ("--quiet", "--variant=extract", "--arch=arm64", f"--include={PACKAGES}")
    _must(["mmdebstrap", *options, RELEASE, fresh], "Debian's Python for ARM64 cannot be had")
    for folder in fresh.iterdir():
        if folder.name not in ("lib", "usr") and folder.is_dir() and not folder.is_symlink():
            shutil.rmtree(folder)
    fresh.rename(SYSROOT)


def environment(python: Interpreter) -> Environment:
    """Return an environment in which the tests can run, which is made if need be."""
    folder = FOLDER / "environment"
    own, stamp = folder / "bin" / "python", folder / "installed"
    wanted = requirements()
    if not stamp.exists() or stamp.read_text() != repr(wanted):
        _must([python.path, "-m", "venv", "--clear", "--without-pip", folder], "no environment could be made")
        packages = folder / "lib" / "python3.11" / "site-packages"
        tags = [option for platform in PLATFORMS for option in ("--platform", platform)]
        version = ("--implementation", "cp", "--python-version", "3.11")
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        _must([*pip, *WHEELS, *tags, *version, "--target", packages, *wanted], "a library has no wheel for ARM64")
        (packages / "project.pth").write_text(f"{ROOT}\n")
        stamp.write_text(repr(wanted))
    # Always, as its source may be newer. Its name says which CPU it is for, unlike that of an editable install.
    headers = SYSROOT / "usr" / "include"
    target = CORE / "_native.cpython-311-aarch64-linux-gnu.so"
    options: list[str | Path] = [
        "-std=c11",
        "-O2",
        "-fPIC",
        "-shared",
        f"-I{headers}",
        f"-I{headers / 'python3.11'}",
        "-o",
        target,
    ]
    _must(["aarch64-linux-gnu-gcc", *options, *CORE.glob("*.c")], "the core could not be compiled")
    return Environment(own, (), patience=4)


def _must(command: Sequence[str | Path], otherwise: str) -> None:
    try:
        subprocess.run(command, cwd=ROOT, timeout=SECONDS, check=True, capture_output=True, text=True)
    except subprocess.CalledProcessError as error:
        lines = (error.stderr or error.stdout).strip().splitlines() or [str(error)]
        raise CannotRun(f"{otherwise}: {lines[-1]}") from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CannotRun(f"{otherwise}: {error}") from error
