"""The facts about the machine, the interpreter and the clock that stand beside every result."""

from __future__ import annotations

import os
import platform
import sqlite3
from collections.abc import Mapping
from pathlib import Path

from benchmarks.measure import Costs


def machine_facts(directory: Path, costs: Costs) -> dict[str, str]:
    """Describe the machine, the interpreter and the clock."""
    kind, mount = file_system(directory)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return {
        "CPU": f"{_cpu_model()}, {cores} cores usable",
        "load": " ".join(f"{load:.2f}" for load in os.getloadavg()) + " before the run",
        "kernel": f"{platform.system()} {platform.release()} {platform.machine()}",
        "Python": f"{platform.python_implementation()} {platform.python_version()}",
        "SQLite": sqlite3.sqlite_version,
        "directory": f"{directory} ({kind} on {mount})",
        "clock": f"one pair of readings costs {costs.clock:.0f} ns, one turn of a block's loop {costs.loop:.1f} ns; "
        "both are subtracted",
    }


def in_short(facts: Mapping[str, str]) -> str:
    """Name processor, kernel and interpreter in a line."""
    return ", ".join(facts[name] for name in ("CPU", "kernel", "Python") if name in facts)


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith(("model name", "Model")))
    return next(names, platform.machine())


def file_system(directory: Path) -> tuple[str, str]:
    """Return type and mount point of the file system that holds `directory`."""
    try:
        mounts = Path("/proc/mounts").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return "unknown", "unknown"
    path, best = directory.resolve(), ("unknown", "")
    for line in mounts:
        _, mount, kind, *_rest = line.split()
        mount = mount.replace("\\040", " ")
        if path.is_relative_to(mount) and len(mount) >= len(best[1]):
            best = (kind, mount)
    return best
