"""Presence: a process shows to others that it has not ended, by a lock that the kernel drops when it does.

Process ids cannot tell: they are used again, and in another container they mean another process. Each process locks one
byte, at a random offset, of a file that all of them can open; whoever reads that offset in an entry asks the kernel
whether the byte is still locked. The lock is one of an open file description (`F_OFD_SETLK` in fcntl(2)), so that it
ends neither when another descriptor of the file is closed nor with the thread that took it.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import struct
import sys
from pathlib import Path

from ..system.signals import reraise_signal
from .control_files import open_control_file

# As <fcntl.h> of Linux has them; not every Python names them.
_GET = getattr(fcntl, "F_OFD_GETLK", 36)
_SET = getattr(fcntl, "F_OFD_SETLK", 37)
_FLOCK = struct.Struct("@hhqqi0q")  # struct flock: type, whence, start, length, process id (0 for these commands)

_OFFSETS = 1 << 62  # none is the last that a file can have, nor met twice by chance


class Presence:
    """A lock on one byte of a control file, held until it is closed or the process ends.

    `name` is what others ask for, empty where the system has no such lock. A forked child must close what it inherits:
    otherwise its parent would seem to live as long as the child does.
    """

    __slots__ = ("_descriptor", "_held", "name")

    def __init__(self, path: Path, *, shared: bool = False) -> None:
        self.name = ""
        self._held: dict[int, object] = {}  # what `hold` has locked; single steps on a dictionary are atomic
        self._descriptor = open_control_file(path, create=False, shared=shared)
        offset = secrets.randbelow(_OFFSETS)
        if self._ask(_SET, offset) is not None:
            self.name = str(offset)

    def has_ended(self, name: str) -> bool:
        """Tell whether the process that has `name` has certainly ended, or closed what it was present in."""
        if name == self.name or not (name.isascii() and name.isdigit() and len(name) < 20):
            return False
        return int(name) < _OFFSETS and self._ask(_GET, int(name)) == fcntl.F_UNLCK

    def hold(self, number: int, owner: object) -> bool:
        """Lock the byte of a number, of less than 61 bits, for an owner in this process; return whether it was free.

        The dictionary keeps the threads of this process apart, for which the kernel sees one owner, and the kernel the
        processes. `let_go` is safe whenever this is interrupted.
        """
        if self._held.setdefault(number, owner) is not owner:
            return False
        if self._ask(_SET, _OFFSETS + number) is None:
            del self._held[number]
            return False
        return True

    def let_go(self, number: int, owner: object) -> None:
        """Free the byte of a number if this owner holds it."""
        if self._held.get(number) is owner:
            self._ask(_SET, _OFFSETS + number, fcntl.F_UNLCK)
            del self._held[number]  # last: until then no other thread takes what the kernel has freed

    def _ask(self, command: int, offset: int, kind: int = fcntl.F_WRLCK) -> int | None:
        """Try or take a lock on a byte and return the kind of lock that the kernel answers, None for no answer."""
        if not sys.platform.startswith("linux"):
            return None  # its struct flock has another layout
        try:
            answer = fcntl.fcntl(self._descriptor, command, _FLOCK.pack(kind, os.SEEK_SET, offset, 1, 0))
        except (OSError, ValueError) as error:  # a ValueError if another thread has closed it just now
            reraise_signal(error)
            return None
        return int(_FLOCK.unpack(answer)[0])

    def close(self) -> None:
        """Let go of the byte; do nothing the second time."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)
