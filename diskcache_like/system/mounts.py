"""Tell on which kind of file system a path is."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final, NamedTuple

from .signals import reraise_signal

MOUNTS: Final = "/proc/self/mountinfo"
DESCRIPTORS: Final = "/proc/self/fdinfo"

_ESCAPE: Final = re.compile(rb"\\([0-7]{3})")  # of blanks and backslashes in the table of mounts


class Mount(NamedTuple):
    """A mounted file system: its kind, with that of a FUSE program (`fuse.sshfs`), and where it is mounted."""

    kind: str
    point: str


def mount_of(path: str) -> Mount | None:
    """Return the mount that a directory is on, or will be on once it is made.

    None for a disk of this machine, which one look tells, and if the system does not say. The kernel names the mount of
    an open directory, so neither links nor mounts over mounts can mislead.
    """
    try:
        descriptor = _open_nearest(path)
    except OSError as error:
        reraise_signal(error)
        return None
    try:
        if os.major(os.fstat(descriptor).st_dev):  # a block device; all else has numbers of major 0
            return None
        return _listed(descriptor)
    finally:
        os.close(descriptor)


def _open_nearest(path: str) -> int:
    """Open a directory, or the nearest one above it that is there; O_PATH would not make an automounter mount it."""
    while True:
        try:
            return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            above = os.path.dirname(path)
            if above == path:
                raise
            path = above


def _listed(descriptor: int) -> Mount | None:
    """Look the mount of an open directory up in the table of mounts."""
    try:
        number = re.search(rb"^mnt_id:\s*(\d+)", Path(DESCRIPTORS, str(descriptor)).read_bytes(), re.MULTILINE)
        # number, parent, device, root, point, options, further fields, "-", kind: blanks in paths are escaped
        form = rb"^%d \d+ \S+ \S+ (\S+) .*?- (\S+) "
        line = number and re.search(form % int(number[1]), Path(MOUNTS).read_bytes(), re.MULTILINE)
    except OSError as error:
        reraise_signal(error)
        return None
    if not line:
        return None
    point = _ESCAPE.sub(lambda octal: bytes([int(octal[1], 8)]), line[1])
    return Mount(os.fsdecode(line[2]), os.fsdecode(point))
