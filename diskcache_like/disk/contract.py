"""Disk: turn keys and values into what the database and the value files hold.

`Disk` is the public extension point with the contract of DiskCache 5: `put`, `get`, `store`, `fetch`, `hash`,
`filename`, `remove`, and settings named ``disk_*`` as arguments. By default values go through the data-only codec
(`Payloads`), and large ones into files (`ValueFiles`). A cache calls `encode`, `load`, `stored_key` and `user_key`;
these call the methods of the contract only if a subclass has overridden them, and then each time: what such a `fetch`
makes of a value is never kept in memory.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import zlib
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, BinaryIO, ClassVar, Self

from ..crypto.signing import Secret
from ..encoding import file_names, keys, values
from ..encoding.compressors import EXPANDED_LIMIT
from ..encoding.made_keys import split_key
from ..encoding.pickling import loads_pickle
from ..encoding.record import MODE_ARRAY, MODE_BINARY, MODE_NONE, MODE_PICKLE, MODE_RAW, MODE_TEXT, Record
from ..encoding.values import NotSerializable, encode_value
from ..errors import DecodeError, SignatureError, ValueEncodeError, named
from . import file_io
from .columnar import registry
from .payloads import Loaded, Payloads, readable
from .value_files import Encoded, ValueFiles

__all__ = [
    "MODE_BINARY",
    "MODE_NONE",
    "MODE_PICKLE",
    "MODE_RAW",
    "MODE_TEXT",
    "UNKNOWN",
    "Constant",
    "Disk",
]

_QUEUE_KEYS = keys.QueueKey, keys.PrefixedQueueKey


class Constant(tuple[str]):
    """A named constant that is printed as its name, and is itself again after pickling."""

    __slots__ = ()
    _known: ClassVar[dict[str, Any]] = {}

    def __new__(cls, name: str) -> Self:
        """Return the constant called `name`."""
        found: Self = cls._known.setdefault(name, super().__new__(cls, (name,)))
        return found

    def __getnewargs__(self) -> tuple[str]:
        return (self[0],)

    def __repr__(self) -> str:
        return self[0]


UNKNOWN = Constant("UNKNOWN")
NOT_KEPT = Constant("NOT_KEPT")  # as the second item of a Loaded: the hot layer must keep nothing

_CACHE_SETS = frozenset(
    {
        "authenticates",
        "codec",
        "decode_value",
        "load_payload",
        "own_values",
        "pickle_policy",
        "sealer",
        "secret",
        "sync",
        "value_codec",
    }
)
_CONTRACT = ("put", "get", "store", "fetch", "hash", "filename", "remove")


class Disk(Payloads, ValueFiles):
    """Encode keys and values with the data-only codec, and write large values to files.

    `min_file_size`: size in bytes from which a value goes to a file. `pickle_protocol`: protocol for values that are
    not plain data.
    """

    codec = "msgpack"  # recorded in the cache and compared on reopening; see `codec_name`

    def __init__(
        self, directory: str, min_file_size: int = 32 << 10, pickle_protocol: int = pickle.HIGHEST_PROTOCOL
    ) -> None:
        self.secret: Secret | None = None
        kind = type(self)
        self.own_values = kind.store is Disk.store and kind.fetch is Disk.fetch  # no subclass encodes values
        self.own_keys = kind.put is Disk.put and kind.get is Disk.get  # no subclass makes keys
        ValueFiles.__init__(self, directory)
        Payloads.__init__(self, min_file_size, pickle_protocol)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._directory!r})"

    @classmethod
    def accepts(cls, name: str) -> bool:
        """Tell whether ``disk_<name>`` may be a setting: the name is public, no method, and not set by the cache."""
        return not name.startswith("_") and name not in _CACHE_SETS and not callable(getattr(cls, name, None))

    @classmethod
    def codec_name(cls) -> str:
        """Return the name that a cache records for how values are encoded: the class's own if it overrides that."""
        return Disk.codec if cls.store is Disk.store and cls.put is Disk.put else cls.__qualname__

    @classmethod
    def may_be_sealed(cls) -> bool:
        """Tell whether an encrypted cache may use this class: not if it overrides the contract, and sees plain text."""
        return all(getattr(cls, name) is getattr(Disk, name) for name in _CONTRACT)

    # -- the contract ---------------------------------------------------------------------------------------------

    def hash(self, key: object) -> int:
        """Return a hash of `key` that is the same in every process; for callers, since no cache asks for it."""
        return zlib.crc32(self.stored_key(key))

    def put(self, key: Any) -> tuple[Any, bool]:
        """Return (database key, raw) for `key`."""
        return keys.encode_key(key), True

    def get(self, key: Any, raw: bool) -> Any:
        """Return the key for which `put` returned (key, raw)."""
        return keys.decode_key(_bytes_of("key", key))

    def store(self, value: Any, read: bool, key: Any = UNKNOWN) -> tuple[int, int, str | None, Any]:
        """Write `value` to a file if it is large, and return (file size, mode, file name, database value).

        With `read`, `value` is a binary file object that is read to its end.
        """
        mode, payload, file, size = self._encode(value, read, key)
        return size, mode, file, None if file else payload

    def fetch(self, mode: int, filename: str | None, value: Any, read: bool) -> Any:
        """Return the value for what `store` returned; with `read`, bytes are returned as a binary file object."""
        if mode == MODE_PICKLE and self.pickle_policy == "never":
            raise SignatureError("entry is a pickle and the policy is pickle='never'")
        if filename is None:
            return readable(self._decode(mode, _bytes_of("value", value)), read)
        reader = file_io.open_read(self._directory, filename)
        if mode == MODE_BINARY and read:
            return reader
        with reader:
            content = reader.read()
        return readable(content if mode == MODE_BINARY else self._decode(mode, content), read)

    def filename(self, key: Any = UNKNOWN, value: Any = UNKNOWN) -> tuple[str, str]:
        """Return (relative name, full path) for a new value file."""
        name = file_names.new_name()
        return name, os.path.join(self._directory, name)

    def remove(self, file_path: str) -> None:
        """Remove a value file, given by its relative name, and the directories that it leaves empty."""
        file_io.remove(self._directory, file_path)

    # -- what a cache calls ---------------------------------------------------------------------------------------

    def key_encoder(self) -> Callable[[Any], bytes]:
        """Return the fastest function that does what `stored_key` does."""
        if self.sealer is not None:
            return self.sealer.blinder(keys.encode_key)
        return keys.encode_key if self.own_keys else self.stored_key

    def stored_key(self, key: object) -> bytes:
        """Return the bytes under which the database holds `key`."""
        if self.sealer is not None:
            return self.sealer.blind_key(keys.encode_key(key))
        if self.own_keys:
            return keys.encode_key(key)
        if isinstance(key, (*_QUEUE_KEYS, keys.EncodedKey)):
            return keys.encode_key(key)  # `put` would take it for the equal int or str of a user
        if type(key) is keys.NamespacedKey:
            return key.path.start + self.stored_key(key.key)
        db_key, raw = self.put(key)
        return keys.encode_key((db_key, bool(raw)))

    def fixed_key(self, key: Any) -> Any:
        """Return a key that stays what it is, whatever becomes of this one, and that no other key is taken for."""
        if not self.own_keys:
            return keys.EncodedKey(self.stored_key(key))
        if keys.hashes_like_stored_key(key):
            return key
        if type(key) is keys.NamespacedKey:
            return keys.NamespacedKey(key.path, self.fixed_key(key.key))
        stored_key = keys.encode_key(key)
        return keys.EncodedKey(stored_key, keys.original_key(key, stored_key))

    def original_key(self, key: object, stored_key: bytes) -> bytes | None:
        """Return the original key as it must be stored beside `stored_key`, or None if it need not be stored."""
        if self.sealer is not None:
            canonical = keys.encode_key(key)
            original = keys.original_key(key, canonical)
            kept = original if original is None or original[0] == 0 or self.pickle_policy != "never" else None
            return self.sealer.seal_key(stored_key, canonical, kept)
        if not self.own_keys:
            return None
        original = keys.original_key(key, stored_key)
        if original is None or original[0] == 0 or self._trusts_keys():
            return original
        if self.pickle_policy == "never" or self.secret is None:
            return None  # the entry can be read by its key, but iteration reports that it cannot rebuild the key
        return original[:1] + self.secret.signer.tag(b"key", stored_key, original[1:]) + original[1:]

    def user_key(self, stored_key: bytes, original: bytes | None) -> Any:
        """Return the user's key for `stored_key`; raise DecodeError if only code or another secret could rebuild it."""
        if type(stored_key) is not bytes or not (original is None or type(original) is bytes):
            raise DecodeError("stored key and original key are not BLOBs")
        if self.sealer is not None:
            return self._key_of(*self.sealer.open_key(stored_key, original), authentic=True)
        if not self.own_keys:
            path, inner = split_key(stored_key)
            pair = keys.decode_key(inner)
            if isinstance(pair, _QUEUE_KEYS):
                return pair
            if not isinstance(pair, tuple) or len(pair) != 2:
                raise DecodeError("stored key was not written by this class of Disk")
            return self.get(*pair) if path is None else keys.NamespacedKey(path, self.get(*pair))
        if original is None:
            return keys.decode_key(stored_key)
        return self._key_of(stored_key, original, self._trusts_keys())

    def _key_of(self, stored_key: bytes, original: bytes | None, authentic: bool) -> Any:
        if original is None or original[:1] != b"\x01":
            return keys.decode_key(stored_key, original)
        if authentic and self.pickle_policy == "never":
            raise SignatureError("key is an instance and the policy is pickle='never'")
        pickled = original[1:] if authentic else self._verified_key(stored_key, original)
        path, inner = split_key(stored_key)
        key = loads_pickle(pickled)
        if keys.encode_key(key) != inner:
            raise DecodeError("stored key and original key do not agree")
        return key if path is None else keys.NamespacedKey(path, key)

    def _trusts_keys(self) -> bool:
        return self.pickle_policy == "trusted" and not self.authenticates

    def _verified_key(self, stored_key: bytes, original: bytes) -> bytes:
        if self.pickle_policy == "never":
            raise SignatureError("key is an instance and the policy is pickle='never'")
        signer = None if self.secret is None else self.secret.verifier
        if signer is None or not signer.verify(original[1:17], b"key", stored_key, original[17:]):
            raise SignatureError("key is not authenticated, or with a different secret")
        return original[17:]

    def encode(self, value: Any, read: bool, key: Any) -> Encoded:
        """Encode a value; if it needs a value file, that file is complete when this returns."""
        # A file holds bytes as they are, so packing large ones would copy them for nothing.
        if self._plain_values and not read and not (type(value) is bytes and len(value) >= self._file_floor):
            try:
                payload = encode_value(value)
            except NotSerializable:
                pass
            else:
                if len(payload) < self._file_floor:
                    return MODE_RAW, payload, None, 0
                return self._write(MODE_RAW, (payload,), key, value)
        try:
            if self.own_values:
                return self._encode(value, read, key)
            size, mode, filename, data = self.store(value, read, key=key)
        except ValueEncodeError as error:
            whose = "a queue's item" if key is UNKNOWN else f"value of key {named(key):.200}"
            error.args = (f"{whose}: {error}",)
            raise
        if filename is None:
            return mode, values.encode_value(data), None, 0
        file_names.checked(filename)
        return mode, self._digest_of(filename, self._strong(mode)), filename, size

    def load(self, record: Record, read: bool, maps: bool = False, keeps: bool = False) -> Loaded:
        """Return the value of a verified record; with `maps`, an array or table in a value file is mapped from it.

        `keeps`: the hot layer may keep the value; if not, an array is read straight into memory of its own.
        Raises FileNotFoundError if its file is gone, SignatureError for a pickle that is not authenticated, and
        DecodeError for anything else that was not written like this.
        """
        if record.mode == MODE_PICKLE and not (record.signed or self.pickle_policy == "trusted"):
            raise SignatureError("entry is a pickle that is not authenticated")
        if record.mode == MODE_PICKLE and self.pickle_policy == "never":
            raise SignatureError("entry is a pickle and the policy is pickle='never'")
        if not self.own_values:
            return self._load_through_contract(record, read)
        if record.mode in registry.MODES:
            return self._load_columnar(record, maps, keeps)
        if record.file is None:
            return self._loaded(record.mode, record.payload, read)
        if record.mode == MODE_BINARY and read:
            return self._verified_reader(record), NOT_KEPT, None
        content = self._verified_content(record)
        if record.mode == MODE_BINARY:
            return content, content, None
        return self._loaded(record.mode, content, read)

    # -- inside ---------------------------------------------------------------------------------------------------

    def _encode(self, value: Any, read: bool, key: Any) -> Encoded:
        if read:
            return self._write(MODE_BINARY, _pieces(value), key, value)
        if self._value_codec.packs_columnar:
            pack = registry.packer(type(value))
            if pack is not None:
                with contextlib.suppress(NotSerializable):  # `_payload` will raise an error, or pickle it
                    return self._encode_columnar(pack(value), key, value)
        mode, payload = self._payload(value)
        if len(payload) < self._file_floor:
            return mode, payload, None, 0
        return self._write(mode, (payload,), key, value)

    def _encode_columnar(self, packed: registry.Packed, key: Any, value: Any) -> Encoded:
        """Encode an array or table; a large one is written to a file in its own format, unless compressing it pays."""
        is_large = packed.mode != 0 and packed.size >= self._file_floor
        if is_large and (not self._value_codec.compresses or packed.size > EXPANDED_LIMIT):
            return self._write(packed.mode, packed.pieces, key, value)
        payload = self._value_codec.encode_packed(packed)
        if len(payload) < self._file_floor:
            return MODE_RAW, payload, None, 0
        if packed.mode and not self._value_codec.is_compressed(payload):
            return self._write(packed.mode, packed.pieces, key, value)
        return self._write(MODE_RAW, (payload,), key, value)

    def _write(self, mode: int, pieces: Iterable[bytes], key: Any, value: Any) -> Encoded:
        if self.sealer is not None:
            return self.write_sealed(mode, pieces, self.sealer)
        name, _ = self.filename(key, value)
        return self.write_file(mode, pieces, name)

    def write_value(self, mode: int, content: bytes, key: Any) -> Encoded:
        """Write content that another machine has encoded to a value file, and return the encoded value."""
        return self._write(mode, (content,), key, UNKNOWN)

    def carried(self, record: Record) -> Record:
        """Return a verified record as other machines can read it: without a file."""
        if record.file is None:
            return record
        return record._replace(payload=self._verified_content(record), file=None, size=0)

    def _load_columnar(self, record: Record, maps: bool, keeps: bool) -> Loaded:
        """Return an array or table from a value file in its own format."""
        if record.file is None or not self._value_codec.packs_columnar:
            raise DecodeError(f"record has mode {record.mode}, which this codec does not write here")
        if maps and self.sealer is None:  # a sealed file can only be read, not mapped
            with self._opened(record) as file, file_io.translated_errors(file.name):
                return registry.unpack_file(record.mode, file), NOT_KEPT, None
        if record.mode == MODE_ARRAY and not keeps and self.sealer is None:
            memory = self._verified_memory(record, registry.memory(record.size))
            return registry.unpack(record.mode, memory, record.signed, copy=False), NOT_KEPT, None
        content = self._verified_content(record)
        decode = partial(registry.unpack, record.mode, trusted=True)
        return registry.unpack(record.mode, content, trusted=record.signed), content, decode

    def _load_through_contract(self, record: Record, read: bool) -> Loaded:
        if record.file is not None:
            if record.mode == MODE_PICKLE:  # as content: the file could be replaced before `fetch` opened it
                value = self.fetch(record.mode, None, self._verified_content(record), read)
            else:
                self._verified_reader(record).close()
                value = self.fetch(record.mode, record.file, None, read)
            return value, NOT_KEPT, None

        def decode(payload: bytes) -> Any:
            return self.fetch(record.mode, None, values.decode_value(payload), False)

        value = self.fetch(record.mode, None, values.decode_value(record.payload), read)
        return value, NOT_KEPT if read else record.payload, decode


def _pieces(reader: BinaryIO) -> Iterator[bytes]:
    kind = type(reader).__qualname__
    read = getattr(reader, "read", None)
    if not callable(read):
        raise ValueEncodeError(f"read=True needs a binary file object, not a {kind}")
    while piece := read(file_io.CHUNK):
        if not isinstance(piece, bytes | bytearray | memoryview):
            raise ValueEncodeError(f"read=True needs a binary file object, {kind} gave {type(piece).__qualname__}")
        yield bytes(piece)
    if piece != b"":
        raise ValueEncodeError(f"read=True needs a blocking binary file object, {kind} gave {piece!r}")


def _bytes_of(noun: str, stored: object) -> bytes:
    """Return what a row holds as bytes; raise DecodeError for text and numbers, which were planted."""
    if not isinstance(stored, bytes | bytearray | memoryview):
        raise DecodeError(f"stored {noun} is {type(stored).__name__}, expected bytes")
    return bytes(stored)
