"""Tell which boot of the machine this is."""

from __future__ import annotations

import functools
import os
import sys
from pathlib import Path
from typing import Final

from .signals import reraise_signal

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_UUID_SIZE: Final = 64  # bytes, more than a UUID as text has


def boot_id() -> int:
    """Return a number that changes each time the machine starts, or 0 if the system does not say."""
    try:
        text = _session_uuid() if sys.platform == "darwin" else _kernels_uuid()
        return int(text.replace("-", "").strip()[:16], 16)
    except (OSError, ValueError, AttributeError) as error:
        reraise_signal(error)
        return 0


def _kernels_uuid() -> str:
    """Return Linux's name of this boot, with as few steps as possible, since opening a shard asks for it twice."""
    descriptor = os.open(_BOOT_ID, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, _UUID_SIZE).decode("ascii")
    finally:
        os.close(descriptor)


@functools.cache
def _session_uuid() -> str:
    """Return macOS's name of this boot."""
    import ctypes  # slow to import, and not needed on Linux

    found, size = ctypes.create_string_buffer(_UUID_SIZE), ctypes.c_size_t(_UUID_SIZE)
    ctypes.CDLL(None).sysctlbyname(b"kern.bootsessionuuid", found, ctypes.byref(size), None, 0)
    return found.value.decode("ascii")
