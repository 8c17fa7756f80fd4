"""Portable: entries as bytes that another cache can take, whatever the codecs of the two are."""

from __future__ import annotations

from typing import Any

from ..disk.codec import new_codec
from ..disk.contract import Disk
from ..disk.serializers import Msgpack
from ..encoding import keys
from ..encoding.record import MODE_PICKLE, Metadata, Record, pack, unpack
from ..encoding.tags import pack_tags, tags_of
from ..encoding.values import encode_value
from ..errors import DecodeError
from ..settings.definitions import DEFAULT_SETTINGS
from .parts import Parts

_NO_FILES = 1 << 62  # bytes from which a value would go to a file of its own

Item = tuple[Any, Any, float | None, tuple[Any, ...]]  # key, value, moment of expiry, tags


class Portable:
    """Turn entries of a cache into bytes and back, under its pickle policy, its secret and its classes.

    The bytes hold a record as an unencrypted cache without a compressor would store it. So a pickle is loaded only if
    it was signed with the secret of the cache that takes it, and bytes that were damaged on the way are refused.
    """

    def __init__(self, cache: Parts) -> None:
        handle = cache._handle
        self._disk = disk = Disk(handle.directory, _NO_FILES)
        disk.pickle_policy, disk.secret = handle.pickle_policy, handle.secret
        disk.value_codec = new_codec("msgpack", "none", DEFAULT_SETTINGS, handle.pickle_policy, (handle.classes,))
        self._decode = Msgpack().decode
        self._secret = handle.secret
        self._signs_pickles = handle.pickle_policy == "signed"

    def pack(self, item: Item) -> bytes:
        """Return an entry as bytes; raise ValueEncodeError for a value that the pickle policy refuses."""
        key, value, expire, tags = item
        stored_key = keys.encode_key(key)
        mode, payload, _, _ = self._disk.encode(value, False, key)
        signer = self._secret.signer if mode == MODE_PICKLE and self._signs_pickles else None
        record = pack(stored_key, Record(mode, payload, Metadata(expire, pack_tags(tags=tags))), signer)
        return encode_value((stored_key, self._disk.original_key(key, stored_key), record))

    def unpack(self, data: bytes) -> Item:
        """Return the entry that `pack` made bytes of; raise DecodeError for any other bytes.

        SignatureError, which is a DecodeError, means a pickle that was not signed with this cache's secret.
        """
        found = self._decode(data)
        if type(found) is not tuple or len(found) != 3:
            raise DecodeError("expected a key, its original and a record")
        stored_key, original, packed = found
        record = unpack(stored_key, packed, self._secret.verifier)
        if record.file is not None:
            raise DecodeError("its value lies in a file of another cache")
        key = self._disk.user_key(stored_key, original)
        return key, self._disk.load(record, False)[0], record.expire, tags_of(record.metadata.tags)
