"""Add the C helper to a build; everything else about the package is said in pyproject.toml."""

from __future__ import annotations

import sys
import sysconfig

from setuptools import setup

# cffi compiles to the stable ABI but for PyPy, Pythons without the global lock, and those compiled for debugging.
STABLE_ABI = (
    sys.implementation.name == "cpython"
    and not sysconfig.get_config_var("Py_GIL_DISABLED")
    and not hasattr(sys, "gettotalrefcount")
)

setup(
    cffi_modules=["diskcache_like/coherence/native_build.py:ffibuilder"],
    options={"bdist_wheel": {"py_limited_api": "cp311"}} if STABLE_ABI else {},
)
