"""With what it is measured: seeded keys, values and scripts of operations, the same for every subject."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

GET, SET, DELETE = 0, 1, 2
CLASSIC_KEYS = 100
CLASSIC_SHARES = {GET: 90, SET: 9, DELETE: 1}
VALUE_SIZE = 100
SEED = 563


class Step(NamedTuple):
    """One operation of a script; `value` is empty unless it is a set."""

    kind: int
    key: bytes
    value: bytes


def classic_keys() -> list[bytes]:
    """Return the 100 keys of the classic workload."""
    return [b"%d" % number for number in range(CLASSIC_KEYS)]


def classic_value(key: bytes, draw: random.Random) -> bytes:
    """Return a short byte string that starts with its key, so that a wrong value is noticed."""
    return key + b":" + b"%d" % draw.randrange(1000) * draw.randrange(1, 50)


def classic_script(seed: int, operations: int) -> list[Step]:
    """Return the classic workload: 90 % get, 9 % set, 1 % delete over 100 keys."""
    draw = random.Random(seed)
    keys = classic_keys()
    kinds = draw.choices(list(CLASSIC_SHARES), weights=list(CLASSIC_SHARES.values()), k=operations)
    script = []
    for kind in kinds:
        key = draw.choice(keys)
        script.append(Step(kind, key, classic_value(key, draw) if kind == SET else b""))
    return script


def absent_after(script: Iterable[Step], absent: Iterable[bytes] = ()) -> set[bytes]:
    """Return the keys that are deleted once `script` has run alone."""
    gone = set(absent)
    for step in script:
        if step.kind == SET:
            gone.discard(step.key)
        elif step.kind == DELETE:
            gone.add(step.key)
    return gone


def keys_of(count: int, prefix: str = "user") -> list[str]:
    """Return `count` text keys."""
    return [f"{prefix}:{number:08d}:profile" for number in range(count)]


def value_of(key: str, version: int = 0, size: int = VALUE_SIZE) -> bytes:
    """Return a value of `size` bytes that names its key and version."""
    return f"{key}/{version}/".encode().ljust(size, b".")


def items_of(keys: Sequence[str], version: int = 0) -> Iterator[tuple[str, bytes]]:
    """Yield every key with its value, in shuffled order."""
    order = list(keys)
    random.Random(SEED).shuffle(order)
    return ((key, value_of(key, version)) for key in order)


def blocks_of(keys: Sequence[str], count: int, draw: random.Random) -> list[list[str]]:
    """Return `count` blocks, each all of `keys` in another order."""
    return [draw.sample(keys, len(keys)) for _ in range(count)]
