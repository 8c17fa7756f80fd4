"""Tell which boot of the machine this is."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from .signals import reraise_signal

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


def boot_id() -> int:
    """Return a number that changes each time the machine starts, or 0 if the system does not say."""
    try:
        return int(_BOOT_ID.read_text(encoding="ascii").replace("-", "").strip()[:16], 16)
    except (OSError, ValueError) as error:
        reraise_signal(error)
        return 0
