"""Add the optional C helper to a build; everything else about the package is said in pyproject.toml.

Without cffi or a C compiler the package is built without the helper, and a warning says so.
"""

from __future__ import annotations

import os
import runpy
import sys
import sysconfig
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext


def warn(reason: object) -> None:
    sys.stderr.write(
        f"warning: diskcache_like is built without its optional C helper ({reason}). It works without: writers that "
        "wait for each other wait a little longer, and on CPUs other than x86-64 the hot layer is off.\n"
    )


def extensions() -> list[Extension]:
    if os.environ.get("DISKCACHE_LIKE_NATIVE") == "0":
        return []
    try:
        # By path: importing it would import the package, whose dependencies are not there yet.
        builder = runpy.run_path(str(Path(__file__).with_name("diskcache_like") / "coherence" / "native_build.py"))
    except ImportError as error:
        warn(error)
        return []
    extension: Extension = builder["ffibuilder"].distutils_extension(tmpdir="build/native", verbose=False)
    extension.optional = True
    return [extension]


class OptionalBuild(build_ext):
    """Go on without an extension that cannot be compiled."""

    def run(self) -> None:
        try:
            super().run()
        except Exception as error:  # no compiler shows in many ways, none of which is a reason to refuse to install
            warn(error)

    def build_extension(self, ext: Extension) -> None:
        try:
            super().build_extension(ext)
        except Exception as error:
            warn(error)


def requirements() -> list[str]:
    """Return what building the helper takes, which no marker in pyproject.toml can say.

    cffi refuses to be installed for CPython 3.13 without its global lock, and installing this package must not fail
    for that.
    """
    refused = sys.version_info < (3, 14) and bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
    return [] if refused else ["cffi>=1.17"]


setup(ext_modules=extensions(), cmdclass={"build_ext": OptionalBuild}, setup_requires=requirements())
