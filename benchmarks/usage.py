"""What a subject takes of the machine: processor time, memory, and room on disk, as Linux counts them."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from benchmarks.peers.spec import BenchmarkError

BLOCK = 512  # what st_blocks counts, whatever the file system
FORGET_PEAK = "5"


@dataclass(frozen=True)
class Usage:
    """What a process has used: seconds of processor time so far, and bytes of memory now."""

    cpu_seconds: float
    resident: int


def usage_of(pid: int) -> Usage:
    """Ask the kernel about a process."""
    try:
        # The second field is the program's name, which may hold spaces and parentheses.
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError as error:
        raise BenchmarkError(f"process {pid} cannot be measured: {error.strerror}; has it ended?") from error
    # Counted from the third field, the state: 14 and 15 are time in user mode and in the kernel, 24 is memory.
    ticks, pages = int(fields[11]) + int(fields[12]), int(fields[21])
    return Usage(ticks / os.sysconf("SC_CLK_TCK"), pages * os.sysconf("SC_PAGE_SIZE"))


def reset_peak_memory() -> bool:
    """Make this process's peak what it has now; False where the kernel does not allow it."""
    try:
        Path("/proc/self/clear_refs").write_text(FORGET_PEAK, encoding="ascii")
    except OSError:
        return False
    return True


def peak_memory() -> int:
    """Return the most bytes of memory that this process has had since `reset_peak_memory`."""
    for line in Path("/proc/self/status").read_text(encoding="utf-8", errors="replace").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise BenchmarkError("the kernel does not tell peak memory: no VmHWM in /proc/self/status")


def disk_bytes(directory: Path) -> int:
    """Return the bytes that a directory takes on disk, itself included; a file with several names counts once."""
    seen: dict[tuple[int, int], int] = {}
    for folder, _, names in os.walk(directory):
        for path in (Path(folder), *(Path(folder, name) for name in names)):
            with suppress(FileNotFoundError):  # removed while we look
                found = path.lstat()
                seen[found.st_dev, found.st_ino] = found.st_blocks
    return sum(seen.values()) * BLOCK
