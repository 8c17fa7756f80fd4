r"""Turn keys into stored keys and back, place them, and order them.

`canonical` decides the bytes. Where they alone would not give back a key of the same type and spelling (`1.0`, `True`,
`{'b': 1, 'a': 2}`, an instance), a spelling is stored beside them: b'\x00' and the key as data, or b'\x01' and the
key as a pickle, which the caller authenticates before it is loaded. What a spelling says is believed only if it
encodes to the stored key.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import math
import secrets
from decimal import Decimal
from fractions import Fraction
from functools import partial
from pathlib import PosixPath, PureWindowsPath
from typing import Any, Final, NoReturn
from uuid import UUID

from . import canonical as form
from .canonical import KEY_DEPTH, KEY_SIZE_LIMIT, PrefixedQueueKey, QueueKey, encode_key, encode_long
from .codecs import NotData, decode_value, encode_value, int_from_bytes
from .errors import DecodeError, KeyEncodeError, KeyTooLarge, ValueEncodeError
from .interrupts import let_through
from .pickles import dumps_pickle
from .structure import NESTED, Format, Mark

__all__ = [
    "KEY_DEPTH",
    "KEY_SIZE_LIMIT",
    "KeyDecodeError",
    "PrefixedQueueKey",
    "QueueKey",
    "decode_key",
    "encode_key",
    "encode_long",
    "encode_tag",
    "is_direct",
    "is_prime",
    "key_hash",
    "new_modulus",
    "queue_key",
    "sort_token",
    "spelling",
]

_AS_DATA: Final = b"\x00"
_AS_PICKLE: Final = b"\x01"


class KeyDecodeError(DecodeError):
    """A stored key identifies something that only its spelling can rebuild."""


def queue_key(prefix: str | None, number: int) -> QueueKey | PrefixedQueueKey:
    """Make the key of an item in a queue."""
    return QueueKey(number) if prefix is None else PrefixedQueueKey(prefix, number)


def encode_tag(tag: object) -> bytes | None:
    """Encode the tag of an entry like a key; None stays None.

    Beside a tag no spelling is stored, so one that only its spelling could give back is refused.
    """
    if tag is None:
        return None
    stored = encode_key(tag)
    if not _is_plain(tag):
        try:
            _decode(stored)
        except DecodeError as error:
            kind = type(tag)
            raise KeyEncodeError(
                f"a tag of type {kind.__module__}.{kind.__qualname__} could not be given back; use text, a number or"
                " another plain value that identifies it"
            ) from error
    return stored


# ---------------------------------------------------------------------------------------------------- decoding

_FIRST_DAY: Final = dt.timedelta(days=1)  # days are counted from 1


def _needs_spelling(_: object) -> NoReturn:
    raise KeyDecodeError("a stored key identifies an instance, a class or a function; only its spelling rebuilds it")


def _read_moment(data: bytes) -> dt.timedelta:
    return dt.timedelta(microseconds=form.WORD.unpack(data)[0])


def _read_instant(data: bytes) -> dt.datetime:
    try:
        return dt.datetime.min.replace(tzinfo=dt.UTC) + (_read_moment(data) - _FIRST_DAY)
    except OverflowError:  # within a day of the first or last year, written in another zone
        _needs_spelling(data)


def _read_time(data: bytes) -> dt.time:
    moment = dt.datetime.min + _read_moment(data)
    return moment.time()


def _read_queue_key(data: bytes) -> QueueKey | PrefixedQueueKey:
    return QueueKey(form.BIASED.unpack(data)[0] - (1 << 63))


def _read_prefixed(data: bytes) -> PrefixedQueueKey:
    number = form.BIASED.unpack(data[-8:])[0] - (1 << 63)
    return PrefixedQueueKey(data[:-8].decode("utf-8", "surrogatepass"), number)


def _read_range(items: list[Any]) -> range:
    if len(items) < 3:
        return range(items[1], items[1] + 1) if len(items) == 2 else range(0)
    _, start, stop, step = items
    return range(start, stop, step)


def _read_decimal(items: list[Any]) -> Decimal:
    _, coefficient, exponent = items
    form.check_digits(form.digits_of(coefficient))
    return Decimal(coefficient).scaleb(exponent, form.EXACT)


def _read_fraction(items: list[Any]) -> Fraction:
    _, numerator, denominator = items
    form.check_digits(max(form.digits_of(numerator), form.digits_of(denominator)))
    return Fraction(numerator, denominator)


def _read_path(kind: type[PosixPath | PureWindowsPath], data: bytes) -> PosixPath | PureWindowsPath:
    return kind(data.decode("utf-8", "surrogatepass"))


_KEYS: Final = Format(
    {
        form.INT: int_from_bytes,
        form.COMPLEX: lambda data: complex(*form.PAIR.unpack(data)),
        form.DATE: lambda data: dt.date.fromordinal(int.from_bytes(data, "big")),
        form.DATETIME: lambda data: dt.datetime.min + (_read_moment(data) - _FIRST_DAY),
        form.INSTANT: _read_instant,
        form.TIME: _read_time,
        form.ZONED_TIME: _needs_spelling,
        form.TIMEDELTA: lambda data: dt.timedelta(*form.DAYS.unpack(data)),
        form.UUID_CODE: lambda data: UUID(bytes=data),
        form.ELLIPSIS: lambda _data: ...,
        form.NAME: _needs_spelling,
        form.QUEUE: _read_queue_key,
        form.PREFIXED: _read_prefixed,
        form.POSIX_PATH: partial(_read_path, PosixPath),
        form.WINDOWS_PATH: partial(_read_path, PureWindowsPath),
    },
    {
        form.TUPLE: Mark(lambda items: tuple(items[1:])),
        form.SET: Mark(lambda items: frozenset(items[1:])),
        form.RANGE: Mark(_read_range),
        form.DECIMAL: Mark(_read_decimal),
        form.FRACTION: Mark(_read_fraction),
        form.ENUM: Mark(_needs_spelling),
        form.DATACLASS: Mark(_needs_spelling),
        form.INSTANCE: Mark(_needs_spelling),
    },
)


def decode_key(stored: bytes, spelling_payload: bytes | None = None) -> Any:
    """Rebuild a key without running code, or raise `DecodeError`; what it returns encodes to `stored`.

    A spelling as data is used if it is one of this key; one as a pickle is the caller's to verify and load.
    """
    if spelling_payload is not None and spelling_payload[:1] == _AS_DATA:
        try:
            key = decode_value(memoryview(spelling_payload)[1:])
            if encode_key(key) == stored:
                return key
        except (DecodeError, KeyEncodeError, KeyTooLarge):
            pass
    return _decode(stored)


def _decode(stored: bytes) -> Any:
    if not 0 < len(stored) <= KEY_SIZE_LIMIT:
        raise DecodeError(f"a stored key of {len(stored)} bytes was not written by this package")
    try:
        key = _KEYS.unpack(stored) if stored[0] in NESTED else decode_value(stored)
        if encode_key(key) == stored:
            return key
    except (DecodeError, MemoryError):
        raise
    except Exception as exc:
        let_through(exc)
        raise DecodeError(f"a stored key of {len(stored)} bytes cannot be decoded: {exc}") from exc
    raise DecodeError(f"a stored key of {len(stored)} bytes is not in its canonical form")


# ---------------------------------------------------------------------------------------------------- spelling

_PLAIN: Final = frozenset(
    (str, bytes, int, type(None), dt.date, dt.timedelta, UUID, type(...), PosixPath, QueueKey, PrefixedQueueKey)
)


def _is_plain(key: Any) -> bool:
    kind = type(key)
    if kind is tuple:
        return all(map(_is_plain, key))
    return kind in _PLAIN or (kind is float and not key.is_integer())


def spelling(key: Any, stored: bytes) -> bytes | None:
    """Return what to store beside `stored` so that a key of the same type and spelling comes back.

    None where nothing is needed, which is the common case, and where nothing helps: a memoryview, or an instance
    that cannot be pickled.
    """
    if type(key) in _PLAIN or _is_plain(key):
        return None
    try:
        payload = encode_value(key)
    except NotData:
        return _pickled(key)
    try:
        if encode_value(_decode(stored)) == payload:
            return None
    except (DecodeError, NotData):
        pass
    return _AS_DATA + payload


def _pickled(key: object) -> bytes | None:
    try:
        return _AS_PICKLE + dumps_pickle(key)
    except ValueEncodeError:
        return None


# ----------------------------------------------------------------------------------------------------- placing

SHORT: Final = 64  # bytes from which on a key is digested before it is divided, since division is quadratic
MODULUS_BITS: Final = 61  # that a modulus may have in a file: bit 60 is 0, but no range shows that it was flipped
_PRIMES: Final = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37)
_PRIMORIAL: Final = math.prod(_PRIMES)  # a factor in common with it rules out seven odd numbers in ten


def key_hash(stored: bytes, modulus: int) -> int:
    """Return the place of a stored key: a multiple of four below 2**62."""
    if len(stored) > SHORT:
        stored = hashlib.blake2b(stored, digest_size=16).digest()
    return (int.from_bytes(stored, "big") % modulus) << 2


def new_modulus() -> int:
    """Choose a random prime between 2**59 and 2**60, so that nobody can prepare keys that share a place.

    One of which no flipped bit makes another prime: with that all keys would be looked for in the wrong places, and
    what is no prime is noticed. About one prime in eighteen is like that.
    """
    while True:
        candidate = (1 << 59) + secrets.randbelow(1 << 59) | 1
        if not _may_be_prime(candidate) or any(_may_be_prime(candidate ^ 1 << bit) for bit in range(MODULUS_BITS)):
            continue
        if is_prime(candidate):
            return candidate


def _may_be_prime(number: int) -> bool:
    """Tell whether a number may be a prime, by Fermat: true for every one above 37 and for very few others."""
    return math.gcd(number, _PRIMORIAL) == 1 and pow(2, number - 1, number) == 1


def is_prime(number: int) -> bool:
    """Tell whether a number above 37 is a prime, by Miller and Rabin; these bases err for none below 2**64."""
    twos = ((number - 1) & -(number - 1)).bit_length() - 1
    for base in _PRIMES:
        power = pow(base, number >> twos, number)
        if power in (1, number - 1):
            continue
        for _ in range(twos - 1):
            power = power * power % number
            if power == number - 1:
                break
        else:
            return False
    return True


# ------------------------------------------------------------------------------------------ use in the process

_DIRECT: Final = frozenset((str, bytes, int, bool, type(None), dt.date, UUID, Fraction, QueueKey, PrefixedQueueKey))
_EXAMINED: Final = 16


def is_direct(key: Any) -> bool:
    """Tell whether the key object may stand for its stored key in a dict: its equality and hash agree with them."""
    return type(key) in _DIRECT or _is_direct(key, _EXAMINED) >= 0


def _is_direct(key: Any, budget: int) -> int:
    """Return how many members may still be looked at, or a negative number for no."""
    kind = type(key)
    if kind in _DIRECT:
        return budget
    if kind is tuple or kind is frozenset:
        budget -= len(key)
        for member in key if budget >= 0 else ():
            budget = _is_direct(member, budget)
            if budget < 0:
                break
        return budget
    if kind is float:
        return budget if key == key else -1
    if kind is Decimal:
        return -1 if key.is_nan() else budget
    # Python compares datetimes of one zone by their faces, which in an hour that comes twice is not the instant.
    return budget if kind is dt.datetime and type(key.tzinfo) in (type(None), dt.timezone) else -1


def sort_token(key: Any) -> tuple[Any, ...]:
    """Order keys: numbers by value (NaN last), then text, then bytes, then the rest by type and stored bytes."""
    if type(key) is str:
        return 1, key
    stored = encode_key(key)
    try:
        plain = _decode(stored)
    except DecodeError:
        return 3, type(key).__name__, stored
    if type(plain) in (int, float, Decimal, Fraction):
        return (0, plain, 0) if plain == plain else (0, math.inf, 1)
    if type(plain) in (str, bytes):
        return 1 if type(plain) is str else 2, plain
    return 3, type(key).__name__, stored
