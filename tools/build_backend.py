"""Build with setuptools; where the machine has no C compiler that works, with zig's, which is a package of PyPI."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from setuptools import build_meta
from setuptools.build_meta import (
    build_sdist,
    get_requires_for_build_sdist,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)

__all__ = [  # the hooks that a build calls, those of setuptools among them
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]

ZIG = "ziglang>=0.13"
HEADERS = Path(sysconfig.get_path("include"), "Python.h")


def compiles() -> bool:
    """Tell whether the C compiler that setuptools would call works, and has the C library's headers."""
    command = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "trial.c")
        source.write_text("#include <stdlib.h>\nint trial(void) { return EXIT_SUCCESS; }\n", encoding="ascii")
        command += ["-fPIC", "-shared", "-o", f"{source}.so", str(source)]
        try:
            return subprocess.run(command, capture_output=True, check=False).returncode == 0
        except OSError:
            return False


def get_requires_for_build_wheel(config_settings: Any = None) -> list[str]:
    """Ask for zig where no compiler works; refuse at once what cannot succeed."""
    if not HEADERS.exists():
        sys.exit(f"diskcache_like cannot be built without {HEADERS}; on Debian: apt-get install python3-dev")
    return [*build_meta.get_requires_for_build_wheel(config_settings), *([] if compiles() else [ZIG])]


def get_requires_for_build_editable(config_settings: Any = None) -> list[str]:
    """Ask for the same."""
    return get_requires_for_build_wheel(config_settings)


def build_wheel(*arguments: Any, **named: Any) -> str:
    """Build a wheel with the compiler that there is."""
    return build(build_meta.build_wheel, *arguments, **named)


def build_editable(*arguments: Any, **named: Any) -> str:
    """Compile in place with the compiler that there is."""
    return build(build_meta.build_editable, *arguments, **named)


def build(hook: Callable[..., str], *arguments: Any, **named: Any) -> str:
    """Call a hook of setuptools; if that fails, say what to install."""
    if not compiles():
        os.environ["CC"] = zig = f"{shlex.quote(sys.executable)} -m ziglang cc -mcpu=baseline"
        os.environ["LDSHARED"] = f"{zig} -shared"  # without options for the linker that Python was linked with
    try:
        return hook(*arguments, **named)
    except (Exception, SystemExit) as error:
        sys.exit(
            f"{error}\ndiskcache_like cannot be built here; install a C compiler (Debian: apt-get install gcc libc6-dev)."
        )
