r"""Turn keys into stored keys and back, decide where they lie in the database, and order them.

`canonical` makes the bytes of a stored key. If these alone would not give back a key of the same type and form (`1.0`,
`True`, `{'b': 1, 'a': 2}`, an instance), the original key is stored too, in the column `spelling`: as b'\x00' and the
key as data, or as b'\x01' and the key as a pickle, which the caller must authenticate before loading it. An original
key is used only if it encodes to the stored key.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import math
import secrets
from collections import OrderedDict
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache, partial
from itertools import chain
from pathlib import PosixPath, PureWindowsPath
from typing import Any, Final, NoReturn, Self
from uuid import UUID

from ..coherence import _native
from ..errors import DecodeError, KeyEncodeError, KeyTooLarge, ValueEncodeError
from ..system.signals import reraise_signal
from . import canonical, made_keys
from .canonical import KEY_DEPTH, KEY_SIZE_LIMIT, encode_key, encode_unbounded
from .made_keys import NamespacedKey, PrefixedQueueKey, QueueKey
from .msgpack_reader import NESTED, ArrayMark, Format
from .pickling import dumps_pickle
from .values import NotSerializable, decode_value, encode_value, int_from_bytes

__all__ = [
    "COMPOUND",
    "KEY_DEPTH",
    "KEY_SIZE_LIMIT",
    "EncodedKey",
    "KeyDecodeError",
    "NamespacedKey",
    "PrefixedQueueKey",
    "QueueKey",
    "decode_key",
    "encode_key",
    "encode_unbounded",
    "hashes_like_stored_key",
    "is_of_kind",
    "is_prime",
    "key_hash",
    "kind_of",
    "located",
    "new_modulus",
    "original_key",
    "queue_columns",
    "queue_key",
    "queue_number",
    "sort_key",
]

_AS_DATA: Final = b"\x00"
_AS_PICKLE: Final = b"\x01"


class KeyDecodeError(DecodeError):
    """A stored key identifies something that can be rebuilt only from the original key."""


class EncodedKey(bytes):
    """A key as its stored bytes, which stay what they are whatever becomes of the key; equal only to such bytes.

    It stands for a key that other code may change, or whose equality does not agree with that of stored keys.
    """

    original: bytes | None  # what is stored beside the bytes, where these alone do not give the key back

    def __new__(cls, stored_key: bytes, original: bytes | None = None) -> Self:
        """Make the key of these bytes."""
        self = super().__new__(cls, stored_key)
        self.original = original
        return self

    def __eq__(self, other: object) -> bool:
        return type(other) is EncodedKey and bytes.__eq__(self, other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = bytes.__hash__

    def __repr__(self) -> str:
        try:
            return repr(decode_key(self, self.original))
        except DecodeError:  # of an instance, which only code rebuilds
            return f"<a key of {len(self)} bytes>"


canonical.encode_as_is(EncodedKey)


def queue_key(prefix: str | None, number: int) -> QueueKey | PrefixedQueueKey:
    """Return the key of an item in a queue."""
    return QueueKey(number) if prefix is None else PrefixedQueueKey(prefix, number)


def queue_columns(stored_key: bytes) -> tuple[bytes, int] | tuple[None, None]:
    """Return what the columns of a queue's item hold, by its key; None twice for any other entry."""
    code = _CODE_AT.get(stored_key[:1])  # most keys begin in another way
    if code is None or stored_key[code : code + 1] not in _QUEUE_CODES:
        return None, None
    column = _queue_of(stored_key[:-8])
    return (None, None) if column is None else (column, queue_number(stored_key))


def queue_number(stored_key: bytes) -> int:
    """Return the number in the key of a queue's item: its last eight bytes. The others are the queue's."""
    return int(canonical.BIASED.unpack(stored_key[-8:])[0]) - (1 << 63)


@lru_cache(maxsize=256)
def _queue_of(start: bytes) -> bytes | None:
    """Return the column of the queue whose keys begin so; None if no keys do."""
    try:
        return encode_key(decode_key(start + bytes(8)).prefix)
    except DecodeError:
        return None


# ---------------------------------------------------------------------------------------------------- decoding

_CODE_AT: Final = {b"\xc7": 2, b"\xc8": 3, b"\xc9": 5}  # by how an extension of MessagePack begins
_SHORT_TEXT: Final = frozenset(bytes([0xA0 + size]) for size in range(32))
_QUEUE_CODES: Final = (bytes([canonical.QUEUE]), bytes([canonical.PREFIXED]))
_FIRST_DAY: Final = dt.timedelta(days=1)  # days are counted from 1


def _needs_original_key(_: object) -> NoReturn:
    raise KeyDecodeError("a stored key identifies an instance, class or function; only its original key rebuilds it")


def _read_moment(data: bytes) -> dt.timedelta:
    return dt.timedelta(microseconds=canonical.WORD.unpack(data)[0])


def _read_instant(data: bytes) -> dt.datetime:
    try:
        return dt.datetime.min.replace(tzinfo=dt.UTC) + (_read_moment(data) - _FIRST_DAY)
    except OverflowError:  # in the key's zone its year is from 1 to 9999, but not in UTC
        _needs_original_key(data)


def _read_time(data: bytes) -> dt.time:
    moment = dt.datetime.min + _read_moment(data)
    return moment.time()


def _read_prefixed(data: bytes) -> PrefixedQueueKey:
    return PrefixedQueueKey(data[:-8].decode("utf-8", "surrogatepass"), queue_number(data))


def _read_range(items: list[Any]) -> range:
    if len(items) < 3:
        return range(items[1], items[1] + 1) if len(items) == 2 else range(0)
    _, start, stop, step = items
    return range(start, stop, step)


def _read_decimal(items: list[Any]) -> Decimal:
    _, coefficient, exponent = items
    canonical.check_digits(canonical.digits_of(coefficient))
    return Decimal(coefficient).scaleb(exponent, canonical.EXACT)


def _read_fraction(items: list[Any]) -> Fraction:
    _, numerator, denominator = items
    canonical.check_digits(max(canonical.digits_of(numerator), canonical.digits_of(denominator)))
    return Fraction(numerator, denominator)


def _read_path(kind: type[PosixPath | PureWindowsPath], data: bytes) -> PosixPath | PureWindowsPath:
    return kind(data.decode("utf-8", "surrogatepass"))


_KEYS: Final = Format(
    {
        canonical.INT: int_from_bytes,
        canonical.COMPLEX: lambda data: complex(*canonical.PAIR.unpack(data)),
        canonical.DATE: lambda data: dt.date.fromordinal(int.from_bytes(data, "big")),
        canonical.DATETIME: lambda data: dt.datetime.min + (_read_moment(data) - _FIRST_DAY),
        canonical.INSTANT: _read_instant,
        canonical.TIME: _read_time,
        canonical.ZONED_TIME: _needs_original_key,
        canonical.TIMEDELTA: lambda data: dt.timedelta(*canonical.DAYS.unpack(data)),
        canonical.UUID_CODE: lambda data: UUID(bytes=data),
        canonical.ELLIPSIS: lambda _data: ...,
        canonical.NAME: _needs_original_key,
        canonical.QUEUE: lambda data: QueueKey(queue_number(data)),
        canonical.PREFIXED: _read_prefixed,
        canonical.POSIX_PATH: partial(_read_path, PosixPath),
        canonical.WINDOWS_PATH: partial(_read_path, PureWindowsPath),
    },
    {
        canonical.TUPLE: ArrayMark(lambda items: tuple(items[1:])),
        canonical.SET: ArrayMark(lambda items: frozenset(items[1:])),
        canonical.RANGE: ArrayMark(_read_range),
        canonical.DECIMAL: ArrayMark(_read_decimal),
        canonical.FRACTION: ArrayMark(_read_fraction),
        canonical.ENUM: ArrayMark(_needs_original_key),
        canonical.DATACLASS: ArrayMark(_needs_original_key),
        canonical.INSTANCE: ArrayMark(_needs_original_key),
        canonical.ORDERED: ArrayMark(lambda items: OrderedDict(zip(items[1::2], items[2::2], strict=True))),
    },
)


def decode_key(stored_key: bytes, original: bytes | None = None) -> Any:
    """Rebuild a key without running code, or raise `DecodeError`; the result always encodes to `stored_key`.

    An original key that is data is used if it belongs to this stored key; the caller deals with one that is a pickle.
    """
    if original is None and stored_key[:1] in _SHORT_TEXT and len(stored_key) == stored_key[0] - 0x9F:
        text = stored_key[1:]
        if text.isascii():  # most keys: this is their one form
            return text.decode()
    if stored_key[:1] == made_keys.START:
        path, inner = made_keys.split_key(stored_key)
        return NamespacedKey(path, decode_key(inner, original))  # type: ignore[arg-type]  # it has a path
    if original is not None and original[:1] == _AS_DATA:
        try:
            key = decode_value(memoryview(original)[1:])
            if encode_key(key) == stored_key:
                return key
        except (DecodeError, KeyEncodeError, KeyTooLarge):
            pass
    return _decode(stored_key)


def _decode(stored_key: bytes) -> Any:
    if not 0 < len(stored_key) <= KEY_SIZE_LIMIT:
        raise DecodeError(f"a stored key of {len(stored_key)} bytes was not written by this package")
    try:
        key = _KEYS.unpack(stored_key) if stored_key[0] in NESTED else decode_value(stored_key)
        if encode_key(key) == stored_key:
            return key
    except (DecodeError, MemoryError):
        raise
    except Exception as exc:
        reraise_signal(exc)
        raise DecodeError(f"a stored key of {len(stored_key)} bytes cannot be decoded: {exc}") from exc
    raise DecodeError(f"a stored key of {len(stored_key)} bytes is not in its canonical form")


# ------------------------------------------------------------------------------------------------ original key

_PLAIN: Final = frozenset(
    (str, bytes, int, type(None), dt.date, dt.timedelta, UUID, type(...), PosixPath, QueueKey, PrefixedQueueKey)
)


def _is_plain(key: Any) -> bool:
    kind = type(key)
    if kind is tuple:
        return all(map(_is_plain, key))
    if kind is OrderedDict:
        return all(map(_is_plain, chain.from_iterable(key.items())))
    return kind in _PLAIN or (kind is float and not key.is_integer())


def original_key(key: Any, stored_key: bytes) -> bytes | None:
    """Return what to store beside `stored_key` so that a key of the same type and form can be read back.

    None if nothing is needed, which is the common case, or if nothing helps: for a memoryview, and for an instance
    that cannot be pickled.
    """
    if type(key) in _PLAIN or _is_plain(key):
        return None
    if type(key) is EncodedKey:
        return key.original
    if type(key) is NamespacedKey:
        return original_key(key.key, stored_key[len(key.path.start) :])
    try:
        payload = encode_value(key)
    except NotSerializable:
        try:
            return _AS_PICKLE + dumps_pickle(key)
        except ValueEncodeError:
            return None
    try:
        if encode_value(_decode(stored_key)) == payload:
            return None
    except (DecodeError, NotSerializable):
        pass
    return _AS_DATA + payload


# ------------------------------------------------------------------------------------- place in the database

DIGEST_ABOVE: Final = _native.DIGEST_ABOVE
MODULUS_BITS: Final = 61  # bits of a stored modulus in which a flip would not be noticed by its size alone
_PRIMES: Final = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37)
_PRIMORIAL: Final = math.prod(_PRIMES)  # testing for a common factor with it rules out seven of ten odd numbers


def key_hash(stored_key: bytes, modulus: int) -> int:
    """Return the hash of a stored key, which is its place in the database: a multiple of four below 2**62."""
    if len(stored_key) > DIGEST_ABOVE:
        stored_key = hashlib.blake2b(stored_key, digest_size=16).digest()
    return (int.from_bytes(stored_key, "big") % modulus) << 2


# The fast way for most keys: `encode_key` with `key_hash`, and `decode_key` after a check of the hash.
located = _native.located
key_at = _native.key_at


def new_modulus() -> int:
    """Choose a random prime between 2**59 and 2**60, so that nobody can prepare keys whose hashes collide.

    No flipped bit may turn it into another prime: then every key would be looked for in the wrong place, whereas a
    number that is not prime is noticed. About one prime in eighteen qualifies.
    """
    while True:
        candidate = (1 << 59) + secrets.randbelow(1 << 59) | 1
        if not _may_be_prime(candidate) or any(_may_be_prime(candidate ^ 1 << bit) for bit in range(MODULUS_BITS)):
            continue
        if is_prime(candidate):
            return candidate


def _may_be_prime(number: int) -> bool:
    """Tell whether a number may be prime, by Fermat's test: True for every prime above 37 and for few other numbers."""
    return math.gcd(number, _PRIMORIAL) == 1 and pow(2, number - 1, number) == 1


@lru_cache(maxsize=64)  # of a cache's modulus, which each of its shards has
def is_prime(number: int) -> bool:
    """Tell whether a number above 37 is prime, by the Miller-Rabin test, which is exact below 2**64 for these bases."""
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


# ------------------------------------------------------------------------------------- keys within the process

_DIRECT: Final = frozenset(
    (str, bytes, int, bool, type(None), dt.date, UUID, Fraction, QueueKey, PrefixedQueueKey, EncodedKey)
)
_COMPOUND: Final = frozenset((tuple, frozenset, NamespacedKey))
_EXAMINED: Final = 16


class COMPOUND:
    """Stands for the type of keys that have members."""


def hashes_like_stored_key(key: Any) -> bool:
    """Tell whether the key's equality and hash agree with its stored key's, so that it can replace that in a dict."""
    return type(key) in _DIRECT or _is_direct(key, _EXAMINED) >= 0


def kind_of(key: Any) -> type:
    """Return the type that a key must have to be this one, if it is equal to it; COMPOUND if its members count, too.

    Objects of other types may be equal to a key and have other stored bytes, as a `pandas.Timestamp` and a `datetime`.
    """
    kind = type(key)
    return COMPOUND if kind in _COMPOUND else kind


def is_of_kind(key: Any, kind: type) -> bool:
    """Tell whether a key that is equal to another one, of that kind, is the same stored key."""
    if kind is not COMPOUND:
        return type(key) is kind
    if type(key) is NamespacedKey:
        return type(key[1]) in _DIRECT or _is_direct(key[1], _EXAMINED) >= 0
    if type(key) is tuple and len(key) < _EXAMINED:  # what follows, without calls
        for member in key:
            if type(member) not in _DIRECT:
                break
        else:
            return True
    return _is_direct(key, _EXAMINED) >= 0


def _is_direct(key: Any, budget: int) -> int:
    """Return how many more members may be examined, or a negative number for no."""
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
    if kind is NamespacedKey:
        return _is_direct(key.key, budget)
    if kind is float:
        return budget if key == key else -1
    if kind is Decimal:
        return -1 if key.is_nan() else budget
    # Python compares two datetimes of the same zone by their clock faces, which repeat in the hour of a clock change.
    return budget if kind is dt.datetime and type(key.tzinfo) in (type(None), dt.timezone) else -1


def sort_key(key: Any) -> tuple[Any, ...]:
    """Return what to sort a key by: numbers by value (NaN last), then text, bytes, and the rest by type and bytes."""
    if type(key) is str:
        return 1, key
    stored_key = encode_key(key)
    try:
        plain = _decode(stored_key)
    except DecodeError:
        return 3, type(key).__name__, stored_key
    if type(plain) in (int, float, Decimal, Fraction):
        return (0, plain, 0) if plain == plain else (0, math.inf, 1)
    if type(plain) in (str, bytes):
        return 1 if type(plain) is str else 2, plain
    return 3, type(key).__name__, stored_key
