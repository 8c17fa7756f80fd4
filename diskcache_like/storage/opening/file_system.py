"""Refuse a cache on a file system whose mounts need not agree, and warn of one that may be such.

Processes meet in the pages of a mapped file and in the kernel's locks. If they reach one directory through two mounts
that share neither, each goes on alone: hot reads are stale, and one's writes overwrite the other's.
"""

from __future__ import annotations

import errno
from typing import Final

from ...errors import DirectoryError, FileSystemWarning
from ...system.callers import warn
from ...system.mounts import mount_of

# Folders of another machine, or of the host of a virtual machine or a container.
_REMOTE: Final = frozenset(
    {
        "9p",
        "afs",
        "ceph",
        "cifs",
        "coda",
        "drvfs",
        "fakeowner",
        "fuse.grpcfuse",
        "fuse.osxfs",
        "gpfs",
        "lustre",
        "prl_fs",
        "vboxsf",
        "virtiofs",
    }
)
_REMOTE_FAMILIES: Final = ("nfs", "smb")
_CONSEQUENCE: Final = "reads may be stale and writes lost, without an error"

_warned: set[str] = set()


def check_file_system(directory: str, allowed: bool) -> None:
    """Raise DirectoryError for a remote file system, and warn once for each mount of FUSE, unless `allowed`.

    The directory need not be there yet. Where the system does not say, nothing is refused.
    """
    mount = None if allowed else mount_of(directory)
    if mount is None:
        return
    kind, point = mount
    found = f"on a file system of type {kind} ({point})"
    advice = "choose a directory on a local disk, or pass allow_filesystem=True if all processes use this one mount"
    if kind in _REMOTE or kind.startswith(_REMOTE_FAMILIES):
        others = f"where another machine, host or mount uses the same directory, {_CONSEQUENCE}"
        raise DirectoryError(errno.EOPNOTSUPP, f"the cache directory is {found}: {others}; {advice}", directory)
    if (kind == "fuse" or kind.startswith("fuse.")) and point not in _warned:
        others = f"if its files are also reached past this mount, {_CONSEQUENCE}"
        warn(f"{directory!r} is {found}: {others}; {advice}", FileSystemWarning)
        _warned.add(point)
