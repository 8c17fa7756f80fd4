"""JSON as a serializer, for entries that programs in other languages should read.

It accepts what JSON expresses exactly: dictionaries with text keys, lists, text, finite floats, integers from -2**63 to
2**64 - 1, booleans and None, nested up to 250 deep. A tuple or a NaN would come back as something else, so it raises
`NotSerializable`.

With and without orjson the same values are accepted, and the same bytes are read as the same value; the bytes written
may differ in the form of an exponent.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from itertools import compress
from typing import Any, Final

from ..errors import DecodeError
from ..system.signals import reraise_signal
from .msgpack_reader import Buffer
from .values import NotSerializable

JSON_DEPTH: Final = 250
"""How deeply containers may be nested; orjson's limit is 254."""
_LOWEST, _HIGHEST = -(1 << 63), (1 << 64) - 1
_SCALARS: Final = frozenset((str, int, float, bool, type(None)))
_TYPES: Final = _SCALARS | {list, dict}
_LONG: Final = re.compile(rb"[0-9]{19}")
_KEYS: Final = frozenset((str,))


class Json:
    """Serialise with orjson where it is installed, else with the standard library."""

    takes_bytes = False

    def __init__(self) -> None:
        fast = _orjson()
        self._dumps, self._loads = fast or (_dumps, _loads)
        self._bounds_integers = fast is not None

    def encode(self, value: Any) -> bytes:
        """Return the JSON text of `value` in UTF-8, or raise `NotSerializable`."""
        try:
            data = self._dumps(value)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise NotSerializable(f"JSON cannot express it exactly ({error})") from error
        _check(value, b"null" in data, not self._bounds_integers and _LONG.search(data) is not None)
        return data

    def decode(self, payload: Buffer) -> Any:
        """Return the value of a JSON text; raise DecodeError, and no other error, for anything else."""
        try:
            return self._loads(payload)
        except MemoryError:
            raise
        except (ValueError, RecursionError) as error:
            reraise_signal(error)
            raise DecodeError(f"a stored value of {len(payload)} bytes is not JSON: {error}") from error


def _check(value: Any, has_null: bool, has_long: bool) -> None:
    """Raise `NotSerializable` for what JSON encoders accept but change: some types, non-finite floats, huge integers.

    `has_null`, `has_long`: whether the JSON text can contain such floats or integers.
    """
    level = [value]
    for _ in range(JSON_DEPTH + 1):
        kinds = list(map(type, level))
        found = set(kinds)
        if not found <= _TYPES:
            names = ", ".join(sorted(kind.__qualname__ for kind in found - _TYPES))
            raise NotSerializable(f"JSON cannot express a value of type {names} exactly")
        if has_null and float in found and not all(map(math.isfinite, compress(level, _are(kinds, float)))):
            raise NotSerializable("JSON has no form for a float that is not finite")
        if has_long and not all(_LOWEST <= number <= _HIGHEST for number in compress(level, _are(kinds, int))):
            raise NotSerializable("JSON readers lose digits of an integer beyond 64 bits")
        if found <= _SCALARS:
            return
        below: list[Any] = []
        for mapping in compress(level, _are(kinds, dict)):
            if not _KEYS.issuperset(map(type, mapping)):
                raise NotSerializable("JSON has only text keys")
            below.extend(mapping.values())
        for members in compress(level, _are(kinds, list)):
            below.extend(members)
        level = below
    raise NotSerializable(f"it is nested more than {JSON_DEPTH} deep, or contains itself")


def _are(kinds: list[type], kind: type) -> list[bool]:
    return [one is kind for one in kinds]


def _orjson() -> tuple[Callable[[Any], bytes], Callable[[Buffer], Any]] | None:
    try:
        import orjson
    except ImportError:
        return None
    options = orjson.OPT_PASSTHROUGH_SUBCLASS | orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME

    def dumps(value: Any) -> bytes:
        return orjson.dumps(value, None, options)

    return dumps, orjson.loads


def _dumps(value: Any) -> bytes:
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_refuse)
    return text.encode()


def _refuse(value: Any) -> Any:
    raise TypeError(f"{type(value).__qualname__} is not JSON")


def _loads(payload: Buffer) -> Any:
    text = str(payload, "utf-8")
    value = json.loads(text, parse_int=_integer, parse_float=_float, parse_constant=_constant)
    if "\\ud" in text.lower():  # this may be half of a surrogate pair, which orjson refuses
        json.dumps(value, ensure_ascii=False).encode()
    return value


def _integer(digits: str) -> int | float:
    number = int(digits) if len(digits) <= 20 else _HIGHEST + 1
    return number if _LOWEST <= number <= _HIGHEST else _float(digits)


def _float(digits: str) -> float:
    number = float(digits)
    if math.isinf(number):
        raise ValueError(f"{digits[:20]} is too large a number")
    return number


def _constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")
