"""The keys of an encrypted cache: how the secret leads to them, and how they survive a change of the secret.

    secret, key_context ── HKDF ──> wrapping key ── unwraps ──> KEK ── opens ──> blinding key, data keys

Blinding key and data keys are random and lie in the database, sealed with a random key-encryption key (KEK). The KEK
lies beside them, wrapped once for each secret that opens the cache: one secret, or two while `rotate` is at work. So a
handle can add a data key without knowing the second secret.

Each shard has its own keyring, but all shards of a cache share the blinding key, which decides where a key is stored.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from hashlib import blake2b
from hmac import compare_digest
from typing import Any, Final, NamedTuple, Self
from zlib import crc32

from ..encoding.record import Record
from ..errors import DecodeError, KeyringError, NewerFormat, SecretError, SignatureError
from ..system.signals import reraise_signal
from .aead import (
    EPOCH_SIZE,
    KEY_SIZE,
    NONCE_SIZE,
    TAG_SIZE,
    DataKey,
    decrypt,
    encrypt,
    epoch_of,
    epoch_of_key,
    hkdf_expand,
    hkdf_extract,
    new_cipher,
)
from .signing import keyed

MAX_SEALS: Final = 1 << 31
"""How many records one data key seals at most before a new one is made; NIST SP 800-38D allows 2**32 random nonces."""
RESERVED: Final = 1 << 16
"""How many of these a handle reserves at a time, so that it need not commit a count for every record."""

_FORMAT: Final = 1
_SALT_SIZE: Final = 16
_CHECK_SIZE: Final = 8
_WRAP: Final = struct.Struct(f"{_CHECK_SIZE}s{_CHECK_SIZE}s{_SALT_SIZE}s{NONCE_SIZE + KEY_SIZE + TAG_SIZE}s")
_MAX_WRAPS: Final = 2
_KEK_CONTEXT: Final = b"ring key"  # associated data of a wrapped KEK; part of the format on disk
_CRC: Final = struct.Struct("<I")


class MasterKey:
    """What a secret and a key context lead to: it wraps the KEK of a keyring, and unwraps it."""

    __slots__ = ("_extract", "key_context")

    def __init__(self, secret: bytes, key_context: str) -> None:
        self._extract = hkdf_extract(secret)
        self.key_context = key_context

    def _key(self, salt: bytes) -> bytes:
        return hkdf_expand(self._extract, b"wrapping key", salt, self.key_context.encode("utf-8", "surrogatepass"))

    def _checks(self, salt: bytes) -> tuple[bytes, bytes]:
        """Return checks that recognise the secret, and the secret with this key context, without revealing either."""
        name = self.key_context.encode("utf-8", "surrogatepass")
        return (
            hkdf_expand(self._extract, b"secret check", salt, size=_CHECK_SIZE),
            hkdf_expand(self._extract, b"key context check", salt, name, size=_CHECK_SIZE),
        )

    def wrap(self, key: bytes) -> bytes:
        """Return a KEK wrapped with the secret."""
        salt = os.urandom(_SALT_SIZE)
        wrapped = encrypt(new_cipher(self._key(salt)), key, _KEK_CONTEXT)
        return _WRAP.pack(*self._checks(salt), salt, wrapped)

    def matches(self, wrap: bytes) -> bool:
        """Tell whether `wrap` was made with this secret and key context."""
        secret, context, salt, _ = _WRAP.unpack(wrap)
        return compare_digest(secret + context, b"".join(self._checks(salt)))

    def is_of_another_context(self, wrap: bytes) -> bool:
        """Tell whether `wrap` was made with this secret but another key context."""
        secret, _, salt, _ = _WRAP.unpack(wrap)
        return compare_digest(secret, self._checks(salt)[0]) and not self.matches(wrap)

    def unwrap(self, wrap: bytes) -> bytes:
        """Return the KEK in a wrap that matches; raise SignatureError if it was changed."""
        salt, wrapped = _WRAP.unpack(wrap)[2:]
        return decrypt(new_cipher(self._key(salt)), wrapped, 0, _KEK_CONTEXT)


class Keyring(NamedTuple):
    """The keys of a shard in plain form, and the wraps of the KEK."""

    blinding: bytes
    data: tuple[tuple[bytes, bytes], ...]  # pairs of epoch and data key; new entries are sealed with the last one
    kek: bytes
    wraps: tuple[bytes, ...]

    @classmethod
    def new(cls, master: MasterKey) -> Self:
        """Make the keys of a new cache."""
        kek = os.urandom(KEY_SIZE)
        return cls(os.urandom(KEY_SIZE), (_new_key(),), kek, (master.wrap(kek),))

    @property
    def epoch(self) -> bytes:
        """Return the epoch of the data key that seals new entries."""
        return self.data[-1][0]

    def with_new_key(self) -> Self:
        """Return a keyring that seals with a new data key, and still opens what the old ones sealed."""
        key = _new_key()
        while any(key[0] == epoch for epoch, _ in self.data):
            key = _new_key()
        return self._replace(data=(*self.data, key))

    def opened_by_both(self, master: MasterKey, new: MasterKey) -> Self:
        """Return the keyring for the duration of a rotation: with a new data key, opened by the old and new secret."""
        wraps = [wrap for wrap in self.wraps if master.matches(wrap)]
        if not any(new.matches(wrap) for wrap in wraps):
            wraps.append(new.wrap(self.kek))
        return self.with_new_key()._replace(wraps=tuple(wraps))

    def opened_by_one(self, master: MasterKey) -> Self:
        """Return the keyring for the end of a rotation: with the last data key only, opened by this secret only."""
        kek = os.urandom(KEY_SIZE)
        return self._replace(data=self.data[-1:], kek=kek, wraps=(master.wrap(kek),))

    def is_opened_by(self, master: MasterKey) -> bool:
        """Tell whether this secret opens the keyring."""
        return any(master.matches(wrap) for wrap in self.wraps)

    def sealed(self) -> bytes:
        """Return the bytes that the database holds."""
        head = bytes((_FORMAT, len(self.wraps))) + b"".join(self.wraps)
        plain = self.blinding + b"".join(epoch + key for epoch, key in self.data)
        body = head + encrypt(new_cipher(self.kek), plain, head)
        return body + _CRC.pack(crc32(body))

    @classmethod
    def opened(cls, sealed: bytes, master: MasterKey, place: str) -> Self:
        """Open a sealed keyring; raise SecretError for another secret or key context, KeyringError for damage."""
        head, wraps = _split(sealed, place)
        wrap = next((wrap for wrap in wraps if master.matches(wrap)), None)
        if wrap is None:
            raise _secret_error(wraps, master, place)
        try:
            kek = master.unwrap(wrap)
            plain = decrypt(new_cipher(kek), sealed[: -_CRC.size], len(head), head)
        except SignatureError as error:
            raise _damaged_error(place) from error
        step = EPOCH_SIZE + KEY_SIZE
        pairs = [plain[start : start + step] for start in range(KEY_SIZE, len(plain), step)]
        if not pairs or len(pairs[-1]) != step:  # any number of them is fine: short-lived handles add many data keys
            raise _damaged_error(place)
        data = tuple((pair[:EPOCH_SIZE], pair[EPOCH_SIZE:]) for pair in pairs)
        return cls(plain[:KEY_SIZE], data, kek, wraps)


def _new_key() -> tuple[bytes, bytes]:
    return os.urandom(EPOCH_SIZE), os.urandom(KEY_SIZE)


def is_whole(sealed: bytes) -> bool:
    """Tell whether a sealed keyring matches its checksum."""
    return len(sealed) >= 2 + _CRC.size and _CRC.pack(crc32(sealed[: -_CRC.size])) == sealed[-_CRC.size :]


def _split(sealed: bytes, place: str) -> tuple[bytes, tuple[bytes, ...]]:
    """Return head and wraps of a sealed keyring; raise NewerFormat or KeyringError if it cannot be read."""
    if not is_whole(sealed):
        raise _damaged_error(place)
    if sealed[0] > _FORMAT:
        raise NewerFormat(
            f"{place!r}: the keyring of this encrypted cache has format {sealed[0]}, this version of diskcache_like"
            f" reads up to {_FORMAT}: upgrade the package"
        )
    end = 2 + sealed[1] * _WRAP.size
    if sealed[0] != _FORMAT or not 0 < sealed[1] <= _MAX_WRAPS or len(sealed) <= end + NONCE_SIZE:
        raise _damaged_error(place)
    return sealed[:end], tuple(sealed[start : start + _WRAP.size] for start in range(2, end, _WRAP.size))


def _damaged_error(place: str) -> KeyringError:
    return KeyringError(
        f"{place!r}: the keyring of this encrypted cache is damaged, and without it no entry can be read"
    )


def _secret_error(wraps: tuple[bytes, ...], master: MasterKey, place: str) -> SecretError:
    if any(master.is_of_another_context(wrap) for wrap in wraps):
        return SecretError(
            f"{place!r} is encrypted under another key context than {master.key_context!r}: pass the key_context= that"
            " it was made with"
        )
    return SecretError(
        f"{place!r} is encrypted with another secret than the one given; if rotate changed it, pass the new one"
    )


class _Present(NamedTuple):
    """The keyring as it was read last, its data key, and the version that was seen before."""

    keyring: Keyring
    key: DataKey
    seen: object


class Sealer:
    """Seal and open what one shard holds, and follow the changes of its keyring.

    `load` returns the sealed keyring that the database holds now. `version` returns a value that changes whenever the
    keyring may have changed; under the write lock it is exact.
    """

    def __init__(self, master: MasterKey, place: str, load: Callable[[], bytes], version: Callable[[], object]) -> None:
        self.master = master
        self._place = place
        self._load = load
        self._version = version
        self._known: dict[bytes, bytes] = {}  # data keys by epoch
        # The ciphers of those that were used: making one takes longer than reading an entry, and keys may be thousands.
        self._keys: dict[bytes, DataKey] = {}
        self._openers: dict[bytes, Callable[..., bytes]] = {}
        self._present: _Present
        self.siblings: tuple[Sealer, ...] = ()  # sealers of the other shards, whose keyrings change at the same time
        self.left = 0  # records that may be sealed before more must be reserved; below 0 that is overdue
        self.reload()
        blinding = self._present.keyring.blinding
        self._key_hash = blake2b(key=blinding, person=b"dcl key", digest_size=32)
        # What is stored: for a key's canonical bytes, and in the columns of tags and queues.
        self.blind_key = keyed(self._key_hash)
        self.blind_tag = keyed(blake2b(key=blinding, person=b"dcl tag", digest_size=16))
        self.blind_queue = keyed(blake2b(key=blinding, person=b"dcl queue", digest_size=16))

    def reload(self) -> None:
        """Read the keyring again. Known keys stay known, because a reader may hold an older record.

        Raises KeyringError if the keyring replaced a damaged one: other handles would not find what this one stored.
        """
        seen = self._version()  # before loading the keyring: a change in between is noticed next time
        keyring = Keyring.opened(self._load(), self.master, self._place)
        if self._known and keyring.blinding != self._present.keyring.blinding:
            raise KeyringError(
                f"{self._place!r}: its keyring was replaced while the cache was open; close it and open it again"
            )
        self._known = {**dict(keyring.data), **self._known}
        # All three at once: a thread that was overtaken here stores an older version, too, so nobody uses its keyring.
        self._present = _Present(keyring, self.key_of(keyring.epoch), seen)

    def belongs_to(self, sealed: bytes | None) -> bool:
        """Tell whether a sealed keyring has this blinding key; True if it cannot be opened."""
        if sealed is None:
            return False
        try:
            opened = Keyring.opened(sealed, self.master, self._place)
        except (KeyringError, NewerFormat, SecretError):
            return True
        return opened.blinding == self._present.keyring.blinding

    @property
    def keyring(self) -> Keyring:
        """Return the keyring that the database has now."""
        return self._followed().keyring

    def current(self) -> DataKey:
        """Return the key to seal with."""
        return self._followed().key

    def _followed(self) -> _Present:
        """Return what was read at the present version, which under the write lock is what the database has."""
        while True:
            present = self._present
            if self._version() == present.seen:
                return present
            self._follow()

    def _follow(self) -> None:
        """Read the keyrings of this shard and its siblings again: this process might use a sibling's too late."""
        self.reload()
        for sealer in self.siblings:
            if sealer._version() != sealer._present.seen:
                sealer.reload()

    def key_of(self, epoch: bytes) -> DataKey:
        """Return the data key of an epoch; raise SignatureError if there is none."""
        key = self._keys.get(epoch)
        if key is not None:
            return key
        known = self._known.get(epoch)
        if known is None:
            self._follow()
            known = self._known.get(epoch)
            if known is None:
                raise SignatureError("entry was sealed with a key that this cache does not have")
        key = self._keys[epoch] = DataKey(epoch, known)
        self._openers[key.plain_head] = key.decrypt
        return key

    # -- blinding -----------------------------------------------------------------------------------------------------

    def blinder(self, encode: Callable[[Any], bytes]) -> Callable[[Any], bytes]:
        """Return a function that encodes and blinds a key, with one call less."""
        new = self._key_hash.copy

        def blind(key: Any) -> bytes:
            state = new()
            state.update(encode(key))
            return state.digest()

        return blind

    # -- sealing ------------------------------------------------------------------------------------------------------

    def seal(self, stored_key: bytes, record: Record) -> bytes:
        """Return the sealed record of an entry."""
        self.left -= 1
        return self.current().seal(stored_key, record)

    def open(self, stored_key: object, packed: object) -> Record:
        """Return the record; raise SignatureError if it is not sealed, was changed, or belongs to another entry."""
        if type(stored_key) is not bytes:
            raise DecodeError("key is not a BLOB")
        return self.key_of(epoch_of(packed)).open(stored_key, packed)  # type: ignore[arg-type]

    def plain_payload(self, stored_key: bytes, packed: object) -> bytes | None:
        """Return, quickly, the payload of a record without metadata; None for any other record, and for damage."""
        if type(packed) is not bytes:
            return None
        decrypt = self._openers.get(head := packed[:5])
        if decrypt is None:
            return None
        try:
            return decrypt(packed[5:17], memoryview(packed)[17:], head + stored_key)
        except Exception as error:  # `open` will say what is wrong
            reraise_signal(error)
            return None

    def seal_key(self, stored_key: bytes, canonical: bytes, original: bytes | None) -> bytes:
        """Return a sealed key, from which iteration can rebuild the key."""
        return self.current().seal_key(stored_key, canonical, original)

    def open_key(self, stored_key: bytes, sealed: object) -> tuple[bytes, bytes | None]:
        """Return canonical bytes and original key; raise SignatureError if they do not belong to this stored key."""
        canonical, original = self.key_of(epoch_of_key(sealed)).open_key(stored_key, sealed)  # type: ignore[arg-type]
        if self.blind_key(canonical) != stored_key:
            raise SignatureError("sealed key does not belong to its entry")
        return canonical, original
