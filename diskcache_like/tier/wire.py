"""Names and values as the server has them: authenticated or sealed, bound to the namespace, the key and the tags."""

from __future__ import annotations

import os
from functools import lru_cache
from hashlib import blake2b
from typing import TYPE_CHECKING, Final

from ..crypto import aead
from ..crypto.signing import Signer, keyed
from ..encoding.made_keys import OF_NAMESPACES, WITHIN
from ..encoding.record import Record, pack, pack_fields, unpack, unpack_fields
from ..encoding.tags import split_tags
from ..errors import DecodeError
from .scripts import RECORD, TAG_SIZE, TAGS_START, VERSION_START
from .state import SLOTS

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

DIGEST_SIZE: Final = 16
NAME_SIZE: Final = 1 + DIGEST_SIZE  # behind the prefix, which another namespace may continue
_SALT_SIZE: Final = 16
_SEALS: Final = 1 << 30  # by one key, so that its random nonces do not collide


class Wire:
    """Make names and values for one namespace, and take them apart.

    `secret`: authenticates every value, or seals it with `encrypts`; without one a value has a checksum. `format`:
    names the codec, so that a machine with another one finds nothing that it could not decode.
    """

    def __init__(self, namespace: str, format: str, secret: bytes | None, encrypts: bool) -> None:
        space = namespace.encode("utf-8", "surrogatepass")
        self.prefix = b"dl:" + space + b":"
        self.tags = self.prefix + b"t"
        self.probe = self.prefix + b"probe"  # a name that is never there
        self._binding = blake2b(format.encode(), digest_size=DIGEST_SIZE, key=b"dcl remote").digest() + space + b"\0"
        key = b"" if secret is None else blake2b(secret + space, person=b"dcl names").digest()
        self.digest = keyed(blake2b(key=key, digest_size=DIGEST_SIZE, person=b"dcl entry"))  # of a key's canonical form
        # Of an encoded tag; in a namespace, with the tag of that before it.
        self.tag_digest = keyed(blake2b(key=key, digest_size=DIGEST_SIZE, person=b"dcl tag"))
        self._signer = None
        self._sealer = None
        if encrypts:
            assert secret is not None
            self._sealer = _Sealer(aead.hkdf_extract(secret), space)
        elif secret is not None:
            salt = blake2b(space, digest_size=16).digest()
            self._signer = Signer(blake2b(secret, person=b"dcl wire", salt=salt).digest())

    # -- names --------------------------------------------------------------------------------------------------------

    def tag_digests(self, packed: bytes) -> list[bytes]:
        """Return the digests of tags, as a record keeps them; in a namespace also those of tags there alone."""
        if not packed:
            return []
        tags = split_tags(packed)
        within = next((tag for tag in tags if tag.startswith(WITHIN)), None)
        digests = [self.tag_digest(tag) for tag in tags]
        if within is None:
            return digests
        return digests + [self.tag_digest(within + tag) for tag in tags if not tag.startswith(OF_NAMESPACES)]

    def entry_name(self, digest: bytes) -> bytes:
        """Return the name of an entry."""
        return self.prefix + b"e" + digest

    def lease_name(self, digest: bytes) -> bytes:
        """Return the name of the lease by which one machine computes an entry."""
        return self.prefix + b"l" + digest

    def slot_of(self, name: bytes) -> tuple[bool, int] | None:
        """Return whether a name is that of a tag, and the index of its word; None for a foreign name."""
        start = len(self.prefix)
        if len(name) != start + NAME_SIZE or not name.startswith(self.prefix):
            return None
        return name[start : start + 1] == b"t", index_of(name[start + 1 :])

    # -- values -------------------------------------------------------------------------------------------------------

    def pack(self, canonical: bytes, record: Record) -> bytes:
        """Return the record of an entry as it travels."""
        if record.metadata.version:
            record = record._replace(metadata=record.metadata._replace(version=b""))
        bound = self._binding + canonical
        if self._sealer is not None:
            return self._sealer.seal(pack_fields(record), bound)
        return pack(bound, record, self._signer)

    def unpack(self, canonical: bytes, content: bytes) -> tuple[bytes, Record]:
        """Return the version and the record of a value; raise DecodeError for one that does not prove itself."""
        if len(content) < TAGS_START or content[:1] != RECORD:
            raise DecodeError("the server has something else under the name of an entry")
        start = TAGS_START + TAG_SIZE * content[1]
        version = content[VERSION_START:TAGS_START]
        digests = {content[at : at + DIGEST_SIZE] for at in range(TAGS_START, start, TAG_SIZE)}
        bound, travelled = self._binding + canonical, content[start:]
        if self._sealer is not None:
            record = unpack_fields(self._sealer.open(travelled, bound), True)
        else:
            record = unpack(bound, travelled, self._signer, self._signer is not None)
        if digests != set(self.tag_digests(record.metadata.tags)) or record.file is not None or record.metadata.version:
            raise DecodeError("the tags on the server are not those of the record")
        return version, record


def index_of(digest: bytes) -> int:
    """Return the index of the word of a digest."""
    return int.from_bytes(digest[:8], "big") % SLOTS


class _Sealer:
    """AES-256-GCM with a key of this handle's own, derived from the secret and a random salt that each value brings."""

    def __init__(self, extract: bytes, space: bytes) -> None:
        self._extract, self._space = extract, space
        self._cipher_of = lru_cache(1024)(self._derived)
        self._renew()

    def _derived(self, salt: bytes) -> AESGCM:
        return aead.new_cipher(aead.hkdf_expand(self._extract, b"remote", self._space, salt))

    def _renew(self) -> None:
        self._salt = os.urandom(_SALT_SIZE)
        self._left = _SEALS

    def seal(self, plain: bytes, bound: bytes) -> bytes:
        """Return sealed bytes."""
        self._left -= 1
        if self._left < 0:
            self._renew()
        salt = self._salt
        cipher: AESGCM = self._cipher_of(salt)
        return salt + aead.encrypt(cipher, plain, salt + bound)

    def open(self, sealed: bytes, bound: bytes) -> bytes:
        """Return the plain bytes; raise SignatureError if they were changed or belong elsewhere."""
        salt = sealed[:_SALT_SIZE]
        return aead.decrypt(self._cipher_of(salt), sealed, _SALT_SIZE, salt + bound)
