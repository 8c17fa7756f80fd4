"""Add the core in C to a build; everything else about the package is said in pyproject.toml."""

from __future__ import annotations

import sysconfig
from pathlib import Path

from setuptools import Extension, setup

FOLDER = Path("diskcache_like/coherence")
# Pythons without the global lock have no stable ABI yet.
HAS_STABLE_ABI = not sysconfig.get_config_var("Py_GIL_DISABLED")

setup(
    ext_modules=[
        Extension(
            "diskcache_like.coherence._native",
            sorted(map(str, FOLDER.glob("*.c"))),
            depends=sorted(map(str, FOLDER.glob("*.h"))),
            define_macros=[("Py_LIMITED_API", "0x030B0000")] if HAS_STABLE_ABI else [],
            py_limited_api=HAS_STABLE_ABI,
            extra_compile_args=["-std=c11"],
        )
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}} if HAS_STABLE_ABI else {},
)
