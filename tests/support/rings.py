"""Read the ring of a write buffer as its file has it, and have writers die between any two changes of it."""

from __future__ import annotations

import contextlib
import mmap
import os
import signal
from collections.abc import Callable, Iterator
from functools import partial
from itertools import accumulate
from math import isnan
from struct import Struct
from typing import NamedTuple
from unittest import mock
from zlib import crc32

from diskcache_like.coherence import _native
from diskcache_like.coherence._native import Words
from diskcache_like.coherence.generations import prime_below
from diskcache_like.coherence.ring import PAGE, Ring, Word, Written
from diskcache_like.errors import DecodeError

SMALLEST = _native.HEADER_SIZE  # bytes of a record
WHOLE = "whole header"  # the step with which a record happens
HEADER = Struct("<QqQQqIBBxxIiiddIII")


class Header(NamedTuple):
    """What stands before the content of a record."""

    offset: int
    tick: int
    h: int
    previous: int
    version: int
    key_size: int
    walk: int
    kind: int
    v_size: int
    original_size: int
    tags_size: int
    expire: float
    fresh: float
    body_check: int
    last: int
    check: int

    @property
    def body_size(self) -> int:
        """Return the bytes behind the header."""
        return self.key_size + self.v_size + max(self.original_size, 0) + max(self.tags_size, 0)

    @property
    def size(self) -> int:
        """Return the bytes to the next record."""
        return SMALLEST + self.body_size + 7 & ~7


def content_of(ring: Ring) -> mmap.mmap:
    """Return the bytes of the whole file."""
    assert ring._mapping is not None
    return ring._mapping


def table_of(ring: Ring) -> Words:
    """Return the table: the offset of the newest record of each slot."""
    return Words(content_of(ring), (PAGE + ring.capacity) // 8, ring.slots)


def place_of(ring: Ring, offset: int) -> int:
    """Return where in the file what has an offset lies."""
    return PAGE + offset % ring.capacity


def record_at(ring: Ring, offset: int) -> tuple[Header | None, bytes]:
    """Return header and content of the record at an offset; None if there is none."""
    content, at = content_of(ring), place_of(ring, offset)
    found = content[at : at + SMALLEST]
    if len(found) == SMALLEST and found[:8] == offset.to_bytes(8, "little"):
        header = Header(*HEADER.unpack(found))
        if crc32(found[:-4]) == header.check:
            return header, content[at + SMALLEST : at + SMALLEST + header.body_size]
    return None, b""


def find_unchecked(ring: Ring, home: int, stored_key: bytes) -> Written | None:
    """Find the newest record of a key as `Ring.find` does, but compare no checksum."""
    offset, content = table_of(ring)[home % prime_below(ring.slots)], content_of(ring)
    while offset and offset >= ring.words[Word.FLOOR]:
        at = place_of(ring, offset)
        header = Header(*HEADER.unpack(content[at : at + SMALLEST]))
        if header.h == home and header.key_size == len(stored_key):
            body = content[at + SMALLEST : at + SMALLEST + header.body_size]
            if body.startswith(stored_key):
                return written_in(header, body)
        offset = header.previous
    return None


@contextlib.contextmanager
def finding(find: Callable[[Ring, int, bytes], Written | None]) -> Iterator[None]:
    """Have every look for a key in a ring go through a function like `Ring.find`."""

    def read(ring: Ring, home: int, stored_key: bytes) -> bytes | bool | None:
        try:
            written = find(ring, home, stored_key)
        except DecodeError:
            return False
        return None if written is None else True if written.packed is None else written.packed

    of_a_ring = property(lambda ring: partial(read, ring), lambda *_: None)
    with mock.patch.object(Ring, "find", find), mock.patch.object(Ring, "read", of_a_ring):
        yield


def written_in(header: Header, body: bytes) -> Written:
    """Return the write that a record is about."""
    sizes = header.key_size, header.v_size, max(header.original_size, 0), max(header.tags_size, 0)
    ends = list(accumulate(sizes))
    stored, v, original, tags = (body[end - size : end] for end, size in zip(ends, sizes, strict=True))
    if header.kind == 0:
        return Written(header.version, header.h, stored, None)
    return Written(
        header.version,
        header.h,
        stored,
        v,
        None if isnan(header.expire) else header.expire,
        None if isnan(header.fresh) else header.fresh,
        None if header.tags_size < 0 else tags.decode("ascii"),
        None if header.original_size < 0 else original,
        header.kind == 1,
    )


def records(ring: Ring, offset: int, last: int) -> Iterator[tuple[Header, bytes]]:
    """Yield header and content of the records from an offset on, as far as the chain holds."""
    limit = offset + ring.capacity
    while True:
        header, body = record_at(ring, offset)
        if header is None:
            header, body = record_at(ring, (offset // ring.capacity + 1) * ring.capacity)
        if header is None or header.last != last or header.offset + header.size > limit:
            return
        yield header, body
        offset, last = header.offset + header.size, header.check


def dies_at(step: int | str, work: Callable[[], object]) -> bool:
    """Do some work in a child that is killed at a step, by number or name, of what changes a ring; tell whether it was.

    The memory of rings is shared with the child.
    """
    child = os.fork()
    if not child:
        taken = 0

        def count(name: str) -> None:
            nonlocal taken
            taken += 1
            if step in (taken, name):
                os.kill(os.getpid(), signal.SIGKILL)

        status = 1
        try:
            _native.watch_steps(count)
            work()
            status = 0
        finally:
            os._exit(status)
    status = os.waitpid(child, 0)[1]
    assert status in (0, signal.SIGKILL)
    return status != 0
