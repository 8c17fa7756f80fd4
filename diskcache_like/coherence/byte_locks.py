"""Byte locks: kernel locks on single bytes of a control file, which end with the process that holds them.

They are locks of an open file description (`F_OFD_SETLK` in fcntl(2)), so that they end neither when another descriptor
of the file is closed nor with the thread that took them.
"""

from __future__ import annotations

import fcntl
import os
import struct
import sys
from pathlib import Path

from ..system.signals import reraise_signal
from .control_files import open_control_file

# As <fcntl.h> of Linux has them; not every Python names them.
_GET, _SET = getattr(fcntl, "F_OFD_GETLK", 36), getattr(fcntl, "F_OFD_SETLK", 37)
_FLOCK = struct.Struct("@hhqqi0q")  # struct flock: type, whence, start, length, process id (0 for this command)

_FIRST = 1 << 62  # the byte of number 0; no file is that long, so that what is locked is never content
_PROBE = _FIRST - 1  # the byte on which everybody has a shared lock


class ByteLocks:
    """What one handle has locked of a control file, until it is closed or the process ends.

    `available` tells whether the system has such locks and these are open. A forked child must close what it
    inherits: otherwise what its parent holds would stay locked as long as the child lives.
    """

    __slots__ = ("_held", "available", "descriptor")

    def __init__(self, path: Path, *, shared: bool = False, create: bool = False) -> None:
        self.descriptor, self.available = -1, False
        self._held: dict[int, object] = {}  # owners by number; single steps on a dictionary are atomic
        self.descriptor = open_control_file(path, create=create, shared=shared)
        self.available = self._ask(_SET, _PROBE, fcntl.F_RDLCK) is not None

    def hold(self, number: int, owner: object) -> bool:
        """Lock the byte of a number, of less than 61 bits, for an owner in this process; return whether it was free.

        The dictionary keeps the threads of this process apart, for which the kernel sees one owner, and the kernel the
        processes. `let_go` is safe whenever this is interrupted.
        """
        if self._held.setdefault(number, owner) is not owner:
            return False
        if self._ask(_SET, _FIRST + number, fcntl.F_WRLCK) is None:
            del self._held[number]
            return False
        return True

    def let_go(self, number: int, owner: object) -> None:
        """Free the byte of a number if this owner holds it."""
        if self._held.get(number) is owner:
            self._ask(_SET, _FIRST + number, fcntl.F_UNLCK)
            del self._held[number]  # last: until then no other thread takes what the kernel has freed

    def let_go_of_all(self, owner: object) -> None:
        """Free every byte that this owner holds."""
        for number in tuple(self._held):
            self.let_go(number, owner)

    def are_shared(self) -> bool:
        """Tell whether another handle has these locks open, in this process or another; False if that is not known."""
        found = self._ask(_GET, _PROBE, fcntl.F_WRLCK) if self.available else None
        return found is not None and _FLOCK.unpack(found)[0] != fcntl.F_UNLCK

    def _ask(self, command: int, offset: int, kind: int) -> bytes | None:
        """Ask the kernel for a lock of a kind on a byte, and return what it answers; None if it refuses."""
        if not sys.platform.startswith("linux"):
            return None  # its struct flock has another layout
        try:
            return fcntl.fcntl(self.descriptor, command, _FLOCK.pack(kind, os.SEEK_SET, offset, 1, 0))
        except (OSError, ValueError) as error:  # a ValueError if another thread has closed it just now
            reraise_signal(error)
            return None

    def leave(self) -> None:
        """Close, and no longer count as open, even if a child that was forked from C keeps the file open."""
        self._ask(_SET, _PROBE, fcntl.F_UNLCK)
        self.close()

    def close(self) -> None:
        """Free everything; do nothing the second time."""
        descriptor, self.descriptor, self.available = self.descriptor, -1, False
        if descriptor >= 0:
            os.close(descriptor)

    def __del__(self) -> None:  # of a handle that was dropped
        if hasattr(self, "descriptor"):  # else a signal handler raised before it was set
            self.close()
