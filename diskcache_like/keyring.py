"""The keys of an encrypted cache: from the secret to what seals, and back when the secret changes.

    secret, namespace ── HKDF ──> wrapping key ── unwraps ──> ring key ── opens ──> blinding key, data keys

Blinding key and data keys are random and lie in the database, sealed under the random ring key, which lies beside them,
wrapped once per secret that opens the cache: one secret, or two while `rotate` is at work. Whoever holds the cache open
can add a data key without knowing a second secret.

Each shard has a keyring of its own; all shards of a cache share the blinding key, which decides where a key lives.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from hashlib import blake2b
from hmac import compare_digest
from typing import Any, Final, NamedTuple, Self
from zlib import crc32

from .errors import DecodeError, KeyringError, NewerFormat, SecretError, SignatureError
from .interrupts import let_through
from .record import Record
from .sealing import (
    EPOCH_SIZE,
    KEY_SIZE,
    NONCE_SIZE,
    TAG_SIZE,
    DataKey,
    decrypted,
    derived,
    encrypted,
    epoch_of,
    epoch_of_key,
    extracted,
    new_cipher,
)

MAX_SEALS: Final = 1 << 31
"""Records that one data key seals at most; then there is a new one. NIST SP 800-38D allows 2**32 random nonces."""
RESERVED: Final = 1 << 16
"""Records that a handle takes out of that number at a time, so that counting costs no commit of its own."""

_FORMAT: Final = 1
_SALT_SIZE: Final = 16
_CHECK_SIZE: Final = 8
_WRAP: Final = struct.Struct(f"{_CHECK_SIZE}s{_CHECK_SIZE}s{_SALT_SIZE}s{NONCE_SIZE + KEY_SIZE + TAG_SIZE}s")
_MAX_WRAPS: Final = 2
_CRC: Final = struct.Struct("<I")


class Master:
    """A secret with its namespace, as far as wrapping keys need it."""

    __slots__ = ("_extract", "namespace")

    def __init__(self, secret: bytes, namespace: str) -> None:
        self._extract = extracted(secret)
        self.namespace = namespace

    def _key(self, salt: bytes) -> bytes:
        return derived(self._extract, b"wrapping key", salt, self.namespace.encode("utf-8", "surrogatepass"))

    def _checks(self, salt: bytes) -> tuple[bytes, bytes]:
        """Return what recognises the secret, and the secret with its namespace, without revealing either."""
        name = self.namespace.encode("utf-8", "surrogatepass")
        return (
            derived(self._extract, b"secret check", salt, size=_CHECK_SIZE),
            derived(self._extract, b"namespace check", salt, name, size=_CHECK_SIZE),
        )

    def wrap(self, key: bytes) -> bytes:
        """Return a key wrapped under the secret."""
        salt = os.urandom(_SALT_SIZE)
        wrapped = encrypted(new_cipher(self._key(salt)), key, b"ring key")
        return _WRAP.pack(*self._checks(salt), salt, wrapped)

    def matches(self, wrap: bytes) -> bool:
        """Tell whether `wrap` was made with this secret and namespace."""
        secret, namespace, salt, _ = _WRAP.unpack(wrap)
        return compare_digest(secret + namespace, b"".join(self._checks(salt)))

    def is_of_another_namespace(self, wrap: bytes) -> bool:
        """Tell whether `wrap` was made with this secret but not with this namespace."""
        secret, _, salt, _ = _WRAP.unpack(wrap)
        return compare_digest(secret, self._checks(salt)[0]) and not self.matches(wrap)

    def unwrap(self, wrap: bytes) -> bytes:
        """Return the key in a wrap that matches; raise SignatureError if it was changed."""
        salt, wrapped = _WRAP.unpack(wrap)[2:]
        return decrypted(new_cipher(self._key(salt)), wrapped, 0, b"ring key")


class Keyring(NamedTuple):
    """The keys of a shard in the clear, and the wraps that lead to them."""

    blinding: bytes
    data: tuple[tuple[bytes, bytes], ...]  # epoch and key; what is written now is sealed with the last one
    ring_key: bytes
    wraps: tuple[bytes, ...]

    @classmethod
    def new(cls, master: Master) -> Self:
        """Make the keys of a new cache."""
        ring_key = os.urandom(KEY_SIZE)
        return cls(os.urandom(KEY_SIZE), (_new_key(),), ring_key, (master.wrap(ring_key),))

    @property
    def epoch(self) -> bytes:
        """Return the epoch of what is written now."""
        return self.data[-1][0]

    def with_new_key(self) -> Self:
        """Return a keyring that seals with a new data key and still opens what the old ones sealed."""
        key = _new_key()
        while any(key[0] == epoch for epoch, _ in self.data):
            key = _new_key()
        return self._replace(data=(*self.data, key))

    def opened_by_both(self, master: Master, new: Master) -> Self:
        """Return a keyring for the time of a rotation: with a new data key, opened by the secret before and after."""
        wraps = [wrap for wrap in self.wraps if master.matches(wrap)]
        if not any(new.matches(wrap) for wrap in wraps):
            wraps.append(new.wrap(self.ring_key))
        return self.with_new_key()._replace(wraps=tuple(wraps))

    def opened_by_one(self, master: Master) -> Self:
        """Return the keyring at the end of a rotation: what is sealed now, and nothing that the other secret opens."""
        ring_key = os.urandom(KEY_SIZE)
        return self._replace(data=self.data[-1:], ring_key=ring_key, wraps=(master.wrap(ring_key),))

    def is_opened_by(self, master: Master) -> bool:
        """Tell whether this secret is one of those that open the keyring."""
        return any(master.matches(wrap) for wrap in self.wraps)

    def sealed(self) -> bytes:
        """Return the bytes that the database holds."""
        head = bytes((_FORMAT, len(self.wraps))) + b"".join(self.wraps)
        plain = self.blinding + b"".join(epoch + key for epoch, key in self.data)
        body = head + encrypted(new_cipher(self.ring_key), plain, head)
        return body + _CRC.pack(crc32(body))

    @classmethod
    def opened(cls, sealed: bytes, master: Master, place: str) -> Self:
        """Return the keyring; raise SecretError for another secret or namespace and KeyringError for damage."""
        head, wraps = _taken_apart(sealed, place)
        wrap = next((wrap for wrap in wraps if master.matches(wrap)), None)
        if wrap is None:
            raise _other_secret(wraps, master, place)
        try:
            ring_key = master.unwrap(wrap)
            plain = decrypted(new_cipher(ring_key), sealed[: -_CRC.size], len(head), head)
        except SignatureError as error:
            raise _damaged(place) from error
        step = EPOCH_SIZE + KEY_SIZE
        pairs = [plain[start : start + step] for start in range(KEY_SIZE, len(plain), step)]
        if not pairs or len(pairs[-1]) != step:  # of any number: handles that write little bring a new one soon
            raise _damaged(place)
        data = tuple((pair[:EPOCH_SIZE], pair[EPOCH_SIZE:]) for pair in pairs)
        return cls(plain[:KEY_SIZE], data, ring_key, wraps)


def _new_key() -> tuple[bytes, bytes]:
    return os.urandom(EPOCH_SIZE), os.urandom(KEY_SIZE)


def is_whole(sealed: bytes) -> bool:
    """Tell whether a sealed keyring is what somebody wrote, as far as its checksum tells."""
    return len(sealed) >= 2 + _CRC.size and _CRC.pack(crc32(sealed[: -_CRC.size])) == sealed[-_CRC.size :]


def _taken_apart(sealed: bytes, place: str) -> tuple[bytes, tuple[bytes, ...]]:
    """Return head and wraps of a sealed keyring; one that is whole and of a newer format is not damaged."""
    if not is_whole(sealed):
        raise _damaged(place)
    if sealed[0] > _FORMAT:
        raise NewerFormat(
            f"{place!r}: the keyring of this encrypted cache has format {sealed[0]}, this version of diskcache_like"
            f" reads up to {_FORMAT}: upgrade the package"
        )
    end = 2 + sealed[1] * _WRAP.size
    if sealed[0] != _FORMAT or not 0 < sealed[1] <= _MAX_WRAPS or len(sealed) <= end + NONCE_SIZE:
        raise _damaged(place)
    return sealed[:end], tuple(sealed[start : start + _WRAP.size] for start in range(2, end, _WRAP.size))


def _damaged(place: str) -> KeyringError:
    return KeyringError(
        f"{place!r}: the keyring of this encrypted cache is damaged, and without it no entry can be read"
    )


def _other_secret(wraps: tuple[bytes, ...], master: Master, place: str) -> SecretError:
    if any(master.is_of_another_namespace(wrap) for wrap in wraps):
        return SecretError(
            f"{place!r} is encrypted under another namespace than {master.namespace!r}: pass the namespace= that it was"
            " made with"
        )
    return SecretError(
        f"{place!r} is encrypted with another secret than the one given; if it was changed by rotate, pass the new one"
    )


class Sealer:
    """Seal and open what one shard holds, following its keyring as that changes.

    `load` returns the sealed keyring as the database holds it now. `version` returns a value that is another one
    whenever the keyring may be; under the write lock what it says is exact.
    """

    def __init__(self, master: Master, place: str, load: Callable[[], bytes], version: Callable[[], object]) -> None:
        self.master = master
        self._place = place
        self._load = load
        self._version = version
        self._known: dict[bytes, bytes] = {}  # data keys by epoch
        # Those of them that were in use: making one takes longer than reading an entry, and there may be thousands.
        self._keys: dict[bytes, DataKey] = {}
        self._openers: dict[bytes, Callable[..., bytes]] = {}
        self.keyring: Keyring
        self.siblings: tuple[Sealer, ...] = ()  # of the cache's other shards, whose keyrings change at the same time
        self.left = 0  # records that may be sealed before the next are reserved; below 0 they are due
        self.reload()
        blinding = self.keyring.blinding
        self._blind_key = blake2b(key=blinding, person=b"dcl key", digest_size=32)
        self._blind_tag = blake2b(key=blinding, person=b"dcl tag", digest_size=16)
        self._blind_queue = blake2b(key=blinding, person=b"dcl queue", digest_size=16)

    def reload(self) -> None:
        """Read the keyring anew. Keys that were known stay known, since what a reader holds may be older.

        Raises KeyringError where it took the place of a damaged one: nobody else would look for what is stored here.
        """
        seen = self._version()  # before the keyring: what changes in between is noticed next time
        keyring = Keyring.opened(self._load(), self.master, self._place)
        if self._known and keyring.blinding != self.keyring.blinding:
            raise KeyringError(
                f"{self._place!r}: its keyring is another one now than that of this handle; open it again"
            )
        self._known = {**dict(keyring.data), **self._known}
        present = self.key_of(keyring.epoch)
        self.keyring = keyring
        self._current = present
        self._seen = seen  # last: who finds it to be the version seals with what is current

    def belongs_to(self, sealed: bytes | None) -> bool:
        """Tell whether keys are blinded here as under another keyring; True if it cannot be opened."""
        if sealed is None:
            return False
        try:
            return Keyring.opened(sealed, self.master, self._place).blinding == self.keyring.blinding
        except (KeyringError, NewerFormat, SecretError):
            return True

    def current(self) -> DataKey:
        """Return the key to seal with."""
        if self._version() != self._seen:
            self._follow()
        return self._current

    def _follow(self) -> None:
        """Read the keyring anew, and those of the other shards, which this process may not meet in time otherwise."""
        self.reload()
        for sealer in self.siblings:
            if sealer._version() != sealer._seen:
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

    def blind_key(self, canonical: bytes) -> bytes:
        """Return the stored key of a key."""
        state = self._blind_key.copy()
        state.update(canonical)
        return state.digest()

    def blinder(self, encode: Callable[[Any], bytes]) -> Callable[[Any], bytes]:
        """Return a function that encodes a key and blinds it, in one call less."""
        new = self._blind_key.copy

        def blind(key: Any) -> bytes:
            state = new()
            state.update(encode(key))
            return state.digest()

        return blind

    def blind_tag(self, tag: bytes) -> bytes:
        """Return what the tag column holds."""
        state = self._blind_tag.copy()
        state.update(tag)
        return state.digest()

    def blind_queue(self, prefix: bytes) -> bytes:
        """Return what the queue column holds."""
        state = self._blind_queue.copy()
        state.update(prefix)
        return state.digest()

    # -- sealing ------------------------------------------------------------------------------------------------------

    def seal(self, stored: bytes, record: Record) -> bytes:
        """Return the sealed record of an entry."""
        self.left -= 1
        return self.current().seal(stored, record)

    def open(self, stored: object, blob: object) -> Record:
        """Return the record; raise SignatureError for one that is not sealed, was changed, or is another entry's."""
        if type(stored) is not bytes:
            raise DecodeError("key is not a BLOB")
        return self.key_of(epoch_of(blob)).open(stored, blob)  # type: ignore[arg-type]

    def plain_payload(self, stored: bytes, blob: object) -> bytes | None:
        """Return the payload of a record with nothing else, quickly; None for any other, and for what is not whole."""
        if type(blob) is not bytes:
            return None
        decrypt = self._openers.get(head := blob[:5])
        if decrypt is None:
            return None
        try:
            return decrypt(blob[5:17], memoryview(blob)[17:], head + stored)
        except Exception as error:  # whatever is wrong, `open` will tell
            let_through(error)
            return None

    def seal_key(self, stored: bytes, canonical: bytes, spelling: bytes | None) -> bytes:
        """Return a key sealed for iteration to give back."""
        return self.current().seal_key(stored, canonical, spelling)

    def seal_setting(self, name: str, content: bytes) -> bytes:
        """Return what is stored beside the settings under a name, sealed."""
        return self.current().seal_setting(name.encode(), content)

    def open_setting(self, name: str, sealed: object) -> bytes:
        """Return what `seal_setting` sealed under that name; raise DecodeError for anything else."""
        return self.key_of(epoch_of_key(sealed)).open_setting(name.encode(), sealed)  # type: ignore[arg-type]

    def open_key(self, stored: bytes, sealed: object) -> tuple[bytes, bytes | None]:
        """Return canonical bytes and spelling of a key; raise SignatureError if either is not this stored key's."""
        canonical, spelling = self.key_of(epoch_of_key(sealed)).open_key(stored, sealed)  # type: ignore[arg-type]
        if self.blind_key(canonical) != stored:
            raise SignatureError("sealed key is not the one of its entry")
        return canonical, spelling
