"""Add the optional C helper to a build; everything else about the package is said in pyproject.toml.

Without cffi or a C compiler the package is built without the helper, and a warning says so. A wheel is named for what
came of it: with the helper for every CPython from 3.11 on, on one platform; without it for any Python and platform.
"""

from __future__ import annotations

import os
import runpy
import sys
import sysconfig
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

FREE_THREADED = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
# cffi compiles to the stable ABI but for PyPy, Pythons without the global lock, and those compiled for debugging.
STABLE_ABI = sys.implementation.name == "cpython" and not FREE_THREADED and not hasattr(sys, "gettotalrefcount")


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
    extension.py_limited_api = STABLE_ABI
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


class WheelOfWhatWasBuilt(bdist_wheel):
    """Make a wheel for any platform where the helper could not be compiled."""

    def run(self) -> None:
        self.run_command("build")  # now; the same command does nothing when the base class runs it again
        helpers = self.get_finalized_command("build_ext").get_outputs()
        if not any(Path(helper).exists() for helper in helpers):
            self.distribution.ext_modules = []
            self.root_is_pure = True
        super().run()


def requirements() -> list[str]:
    """Return what building the helper takes, which no marker in pyproject.toml can say.

    cffi refuses to be installed for CPython 3.13 without its global lock, and installing this package must not fail
    for that.
    """
    refused = sys.version_info < (3, 14) and FREE_THREADED
    return [] if refused else ["cffi>=1.17"]


setup(
    ext_modules=extensions(),
    cmdclass={"build_ext": OptionalBuild, "bdist_wheel": WheelOfWhatWasBuilt},
    options={"bdist_wheel": {"py_limited_api": "cp311"}} if STABLE_ABI else {},
    setup_requires=requirements(),
)
