"""Tell which boot of the machine this is."""

from __future__ import annotations

import functools
import sys
from pathlib import Path
from typing import Final

from .signals import reraise_signal

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_UUID_SIZE: Final = 64  # bytes, more than a UUID as text has


def boot_id() -> int:
    """Return a number that changes each time the machine starts, or 0 if the system does not say."""
    try:
        text = _session_uuid() if sys.platform == "darwin" else _kernels_uuid(_BOOT_ID)
        return int(text.replace("-", "").strip()[:16], 16)
    except (OSError, ValueError, AttributeError) as error:
        reraise_signal(error)
        return 0


@functools.cache  # opening a shard asks for it twice
def _kernels_uuid(path: Path) -> str:
    """Return Linux's name of this boot."""
    return path.read_text("ascii")


@functools.cache
def _session_uuid() -> str:
    """Return macOS's name of this boot."""
    import ctypes  # slow to import, and not needed on Linux

    found, size = ctypes.create_string_buffer(_UUID_SIZE), ctypes.c_size_t(_UUID_SIZE)
    ctypes.CDLL(None).sysctlbyname(b"kern.bootsessionuuid", found, ctypes.byref(size), None, 0)
    return found.value.decode("ascii")
