"""Disk: how keys and values become what the database and the value files hold.

`Disk` and `JSONDisk` are the public extension point with the contract of DiskCache 5: `put`, `get`, `store`, `fetch`,
`hash`, `filename`, `remove`, and settings named ``disk_*`` as arguments. The default is built from the data-only codec
and value files. `encode`, `load`, `stored_key` and `user_key` are what a cache calls; they go through the contract
where a subclass changed it and past it where not.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import pickle
import zlib
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from hashlib import blake2b
from io import RawIOBase
from typing import Any, BinaryIO, Self, TypeVar

from . import bulk, codecs, files, keys
from .codecs import NotData, encode_value
from .compressors import EXPANDED_LIMIT
from .errors import DecodeError, SignatureError, ValueEncodeError
from .keyring import Sealer
from .pickles import dumps_pickle, loads_pickle
from .pipeline import Codec
from .record import MODE_BINARY, MODE_BYTES, MODE_NONE, MODE_PICKLE, MODE_RAW, MODE_TEXT, Record
from .sealing import CHUNK, ChunkSealer, SealedFile, sealed_pieces
from .serializers import Msgpack
from .signing import Secret

__all__ = [
    "MODE_BINARY",
    "MODE_NONE",
    "MODE_PICKLE",
    "MODE_RAW",
    "MODE_TEXT",
    "UNKNOWN",
    "Constant",
    "Disk",
    "JSONDisk",
]

_QUEUE_KEYS = keys.QueueKey, keys.PrefixedQueueKey
SMALLEST_FILE = 16  # bytes; a shorter payload always stays in the row, whatever min_file_size says
DIGEST_SIZE = 32  # bytes of a keyless BLAKE2b over a file whose record is authenticated
HEAD_SIZE = 32  # bytes of a value file that tell how it is compressed
JSON_LIMIT = 1 << 30  # bytes that a JSON value may decompress to


class Constant(tuple[str]):
    """A named constant that is equal only to itself across pickling, printed as its name."""

    __slots__ = ()

    def __new__(cls, name: str) -> Self:
        """Make the constant called `name`."""
        return super().__new__(cls, (name,))

    def __getnewargs__(self) -> tuple[str]:
        return (self[0],)

    def __repr__(self) -> str:
        return self[0]


UNKNOWN = Constant("UNKNOWN")


# An encoded value: (mode, payload for the record, value file that was written or None, size of that file).
Stored = tuple[int, bytes, str | None, int]
# A decoded value: (value, what the hot layer may keep of it, how to make a fresh value of that or None if immutable).
Loaded = tuple[Any, Any, Callable[[Any], Any] | None]
KEEP_NOT = Constant("KEEP_NOT")  # in the second place of a Loaded: the hot layer keeps nothing


Piece = TypeVar("Piece", bound=files.Buffer)
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
_DEFAULT_CODEC = Codec(Msgpack((bulk.LIBRARY_TYPES,)))


class _Digest:
    """The digest of a file's content: CRC-32, or BLAKE2b where the record is authenticated."""

    def __init__(self, strong: bool) -> None:
        self._strong = blake2b(digest_size=DIGEST_SIZE) if strong else None
        self._crc = 0

    def passing(self, pieces: Iterable[Piece]) -> Iterator[Piece]:
        """Yield `pieces` unchanged while digesting them."""
        for piece in pieces:
            if self._strong is not None:
                self._strong.update(piece)
            else:
                self._crc = zlib.crc32(piece, self._crc)
            yield piece

    def value(self) -> bytes:
        return self._crc.to_bytes(4, "little") if self._strong is None else self._strong.digest()


class _NewValue:
    """Bytes on their way into a value file, digested as they pass."""

    def __init__(self, file: files.NewFile, strong: bool) -> None:
        self._file = file
        self._digest = _Digest(strong)

    def write(self, piece: files.Buffer) -> None:
        """Append a piece; on DiskFull nothing of it is there, and it may be tried again."""
        self._file.write(piece)
        for _ in self._digest.passing((piece,)):
            pass

    def finish(self, sync: bool) -> Stored:
        """Return the encoded value, its file having its name."""
        self._file.finish(sync)
        return MODE_BINARY, self._digest.value(), self._file.name, self._file.size

    def discard(self) -> None:
        """Drop what was written."""
        self._file.discard()


class _SealedValue(_NewValue):
    """Bytes on their way into a sealed value file, whose content key is derived from its name."""

    def __init__(self, directory: str, sealer: Sealer) -> None:
        data_key = sealer.current()
        name, cipher = data_key.new_file()
        self._file = files.NewFile(directory, name)
        self._epoch = data_key.epoch
        self._sealer = ChunkSealer(cipher)

    def write(self, piece: files.Buffer) -> None:
        """Append a piece; on DiskFull nothing of it is there, and it alone may be tried again."""
        mark = self._sealer.mark()
        try:
            self._file.write(b"".join(self._sealer.seal(piece)))
        except BaseException:
            self._sealer.back_to(mark)
            raise

    def finish(self, sync: bool) -> Stored:
        """Return the encoded value, its file having its name."""
        self._file.write(self._sealer.finish())
        self._file.finish(sync)
        return MODE_BINARY, self._epoch, self._file.name, self._file.size


class Disk:
    """Encode keys and values with the data-only codec; write large values to files.

    `min_file_size`: bytes from which a value goes to a file. `pickle_protocol`: protocol for what is not plain data.
    """

    sealer: Sealer | None = None  # seals everything that is stored, in an encrypted cache
    codec = "msgpack"  # recorded in the cache and compared on reopening; a subclass that overrides store has its name

    def __init__(
        self, directory: str, min_file_size: int = 32 << 10, pickle_protocol: int = pickle.HIGHEST_PROTOCOL
    ) -> None:
        self._directory = str(directory)
        self.min_file_size = min_file_size
        self.pickle_protocol = pickle_protocol
        self.pickle_policy = "signed"
        self.secret: Secret | None = None
        self.authenticates = False  # every record is signed, not only pickles
        self.sync = False  # value files reach stable storage before their row is committed
        kind = type(self)
        self.own_values = kind.store is Disk.store and kind.fetch is Disk.fetch  # no subclass encodes values
        self._own_keys = kind.put is Disk.put and kind.get is Disk.get
        self.value_codec = _DEFAULT_CODEC

    @property
    def min_file_size(self) -> int:
        """Return the bytes from which a value goes to a file."""
        return self._min_file_size

    @min_file_size.setter
    def min_file_size(self, size: int) -> None:
        self._min_file_size = size
        self._file_floor = max(size, SMALLEST_FILE)  # a payload this long or longer goes to a file

    @property
    def value_codec(self) -> Codec:
        """Return what makes payloads of values; the cache sets it, once it knows how it was made."""
        return self._value_codec

    @value_codec.setter
    def value_codec(self, codec: Codec) -> None:
        self._value_codec = codec
        self._plain_values = self.own_values and codec.is_plain
        self.load_payload = _packed_loader(codec) if codec.compresses else _loader(codec.decode)
        self.decode_value = codec.decode

    @classmethod
    def accepts(cls, name: str) -> bool:
        """Tell whether ``disk_<name>`` may be a setting; what the cache sets itself, and methods, may not."""
        return not name.startswith("_") and name not in _CACHE_SETS and not callable(getattr(cls, name, None))

    @classmethod
    def codec_name(cls) -> str:
        """Return the name under which a cache records how its values are encoded."""
        return Disk.codec if cls.store is Disk.store and cls.put is Disk.put else cls.__qualname__

    @classmethod
    def may_be_sealed(cls) -> bool:
        """Tell whether an encrypted cache may use this class: one that changes the contract would see what it seals."""
        return all(getattr(cls, name) is getattr(Disk, name) for name in _CONTRACT)

    # -- the contract ---------------------------------------------------------------------------------------------

    def hash(self, key: object) -> int:
        """Return a hash of `key` that is the same in every process."""
        return zlib.crc32(self.stored_key(key))

    def put(self, key: Any) -> tuple[Any, bool]:
        """Return (database key, raw) for `key`."""
        return keys.encode_key(key), True

    def get(self, key: Any, raw: bool) -> Any:
        """Return the key that `put` gave (key, raw) for."""
        return keys.decode_key(key)

    def store(self, value: Any, read: bool, key: Any = UNKNOWN) -> tuple[int, int, str | None, Any]:
        """Return (file size, mode, file name, database value) for `value`, having written its file if it has one.

        With `read`, `value` is a binary file object that is read to its end.
        """
        mode, payload, file, size = self._encode(value, read, key)
        return size, mode, file, None if file else payload

    def fetch(self, mode: int, filename: str | None, value: Any, read: bool) -> Any:
        """Return the value for what `store` gave; with `read`, a binary file object where the value is bytes."""
        if mode == MODE_PICKLE and self.pickle_policy == "never":
            raise SignatureError("entry is a pickle and the policy is pickle='never'")
        if filename is None:
            return _readable(self._decode(mode, value), read)
        reader = files.open_read(self._directory, filename)
        if mode == MODE_BINARY and read:
            return reader
        with reader:
            content = reader.read()
        return _readable(content if mode == MODE_BINARY else self._decode(mode, content), read)

    def filename(self, key: Any = UNKNOWN, value: Any = UNKNOWN) -> tuple[str, str]:
        """Return (relative name, full path) for a new value file."""
        name = files.new_name()
        return name, os.path.join(self._directory, name)

    def remove(self, file_path: str) -> None:
        """Unlink a value file by its relative name, and the directories that it leaves empty."""
        files.remove(self._directory, file_path)

    # -- what a cache calls ---------------------------------------------------------------------------------------

    def key_encoder(self) -> Callable[[Any], bytes]:
        """Return the function that does what `stored_key` does, without a detour where `put` is the default's."""
        if self.sealer is not None:
            return self.sealer.blinder(keys.encode_key)
        return keys.encode_key if self._own_keys else self.stored_key

    def stored_key(self, key: object) -> bytes:
        """Return the bytes under which the database holds `key`."""
        if self.sealer is not None:
            return self.sealer.blind_key(keys.encode_key(key))
        if self._own_keys:
            return keys.encode_key(key)
        if isinstance(key, _QUEUE_KEYS):
            return keys.encode_key(key)  # `put` would take it for the user's number or text of the same spelling
        db_key, raw = self.put(key)
        return keys.encode_key((db_key, bool(raw)))

    def spelling(self, key: object, stored: bytes) -> bytes | None:
        """Return what has to be stored beside `stored` for iteration to give back a key like `key`."""
        if self.sealer is not None:
            canonical = keys.encode_key(key)
            spelled = keys.spelling(key, canonical)
            kept = spelled if spelled is None or spelled[0] == 0 or self.pickle_policy != "never" else None
            return self.sealer.seal_key(stored, canonical, kept)
        if not self._own_keys:
            return None
        spelled = keys.spelling(key, stored)
        if spelled is None or spelled[0] == 0:
            return spelled
        if self._trusts_keys():
            return spelled
        if self.pickle_policy == "never" or self.secret is None:
            return None  # the entry works by its key; iteration reports it as one that cannot be rebuilt
        return spelled[:1] + self.secret.signer.tag(b"key", stored, spelled[1:]) + spelled[1:]

    def user_key(self, stored: bytes, spelling: bytes | None) -> Any:
        """Return the key for `stored`; raise DecodeError where only code or another secret could rebuild it."""
        if type(stored) is not bytes or not isinstance(spelling, bytes | None):
            raise DecodeError("key and spelling are not BLOBs")
        if self.sealer is not None:
            return self._key_of(*self.sealer.open_key(stored, spelling), authentic=True)
        if not self._own_keys:
            pair = keys.decode_key(stored)
            if isinstance(pair, _QUEUE_KEYS):
                return pair
            if not isinstance(pair, tuple) or len(pair) != 2:
                raise DecodeError("stored key was not written by this kind of Disk")
            return self.get(*pair)
        return self._key_of(stored, spelling, self._trusts_keys())

    def _key_of(self, stored: bytes, spelling: bytes | None, authentic: bool) -> Any:
        if spelling is None or spelling[:1] != b"\x01":
            return keys.decode_key(stored, spelling)
        if authentic and self.pickle_policy == "never":
            raise SignatureError("key is an instance and the policy is pickle='never'")
        pickled = spelling[1:] if authentic else self._verified_key(stored, spelling)
        key = loads_pickle(pickled)
        if keys.encode_key(key) != stored:
            raise DecodeError("stored key and its spelling do not agree")
        return key

    def _trusts_keys(self) -> bool:
        return self.pickle_policy == "trusted" and not self.authenticates

    def _verified_key(self, stored: bytes, spelling: bytes) -> bytes:
        if self.pickle_policy == "never":
            raise SignatureError("key is an instance and the policy is pickle='never'")
        signer = None if self.secret is None else self.secret.verifier
        if signer is None or not signer.verify(spelling[1:17], b"key", stored, spelling[17:]):
            raise SignatureError("key is not authenticated, or with another secret")
        return spelling[17:]

    def encode(self, value: Any, read: bool, key: Any) -> Stored:
        """Return the encoded value; a value file, if one is needed, is written whole when this returns."""
        if self._plain_values and not read:
            try:
                payload = encode_value(value)
            except NotData:
                pass
            else:
                if len(payload) < self._file_floor:
                    return MODE_RAW, payload, None, 0
                if type(value) is not bytes:  # which a file holds as they are
                    return self._write(MODE_RAW, (payload,), key, value)
        if self.own_values:
            return self._encode(value, read, key)
        size, mode, filename, data = self.store(value, read, key=key)
        if filename is None:
            return mode, codecs.encode_value(data), None, 0
        files.checked(filename)
        return mode, self._digest_of(filename, self._strong(mode)), filename, size

    def load(self, record: Record, read: bool, maps: bool = False) -> Loaded:
        """Return the value of a verified record; with `maps` an array or table in a file of its own lies on that file.

        Raises FileNotFoundError when its file is gone, SignatureError for a pickle that is not authenticated,
        DecodeError for anything else that is not as written.
        """
        if record.mode == MODE_PICKLE and not (record.signed or self.pickle_policy == "trusted"):
            raise SignatureError("entry is a pickle that is not authenticated")
        if record.mode == MODE_PICKLE and self.pickle_policy == "never":
            raise SignatureError("entry is a pickle and the policy is pickle='never'")
        if not self.own_values:
            return self._load_through_contract(record, read)
        if record.mode in bulk.MODES:
            return self._load_library(record, maps)
        if record.file is None:
            return self._loaded(record.mode, record.payload, read)
        if record.mode == MODE_BINARY and read:
            return self._verified_reader(record), KEEP_NOT, None
        content = self._verified_content(record)
        if record.mode == MODE_BINARY:
            return content, content, None
        return self._loaded(record.mode, content, read)

    # -- inside ---------------------------------------------------------------------------------------------------

    def _encode(self, value: Any, read: bool, key: Any) -> Stored:
        if read:
            return self._write(MODE_BINARY, _pieces(value), key, value)
        if self._value_codec.packs_libraries:
            pack = bulk.packer(type(value))
            if pack is not None:
                with contextlib.suppress(NotData):  # of which `_payload` will make an error or a pickle
                    return self._encode_library(pack(value), key, value)
        mode, payload = self._payload(value)
        if len(payload) < self._file_floor:
            return mode, payload, None, 0
        return self._write(mode, (payload,), key, value)

    def _encode_library(self, packed: bulk.Packed, key: Any, value: Any) -> Stored:
        """Store an array or table: a large one as a file of its own, unless it is worth compressing."""
        is_large = packed.mode != 0 and packed.size >= self._file_floor
        if is_large and (not self._value_codec.compresses or packed.size > EXPANDED_LIMIT):
            return self._write(packed.mode, packed.pieces, key, value)
        payload = self._value_codec.encode_packed(packed)
        if len(payload) < self._file_floor:
            return MODE_RAW, payload, None, 0
        if packed.mode and not self._value_codec.is_compressed(payload):
            return self._write(packed.mode, packed.pieces, key, value)
        return self._write(MODE_RAW, (payload,), key, value)

    def _payload(self, value: Any) -> tuple[int, bytes]:
        codec = self._value_codec
        if type(value) is bytes:
            if len(value) >= self._file_floor and not codec.compresses:
                return MODE_BINARY, value
            if len(value) >= self._file_floor or not codec.serializer.takes_bytes:
                return self._bytes_payload(value)
        try:
            return MODE_RAW, codec.encode(value)
        except NotData as reason:
            if self.pickle_policy == "never":
                raise ValueEncodeError(
                    f"value of type {type(value).__qualname__} is not plain data ({reason}) and pickle='never' is in "
                    "force; convert it to plain data, or open the cache with pickle='signed' or a Disk of your own"
                ) from None
            return MODE_PICKLE, codec.pack(dumps_pickle(value, self.pickle_protocol), shared=False)

    def _bytes_payload(self, value: bytes) -> tuple[int, bytes]:
        """Return bytes as a payload of their own; without a mark where a file would hold them as they are."""
        payload = self._value_codec.pack(value)
        if len(payload) >= self._file_floor and not self._value_codec.is_compressed(payload):
            return MODE_BINARY, value
        return MODE_BYTES, payload

    def _strong(self, mode: int) -> bool:
        return self.authenticates or mode == MODE_PICKLE

    def _write(self, mode: int, pieces: Iterable[bytes], key: Any, value: Any) -> Stored:
        if self.sealer is not None:
            return self.write_sealed(mode, pieces, self.sealer)
        name, _ = self.filename(key, value)
        digest = _Digest(self._strong(mode))
        size = files.write(self._directory, name, digest.passing(pieces), self.sync)
        return mode, digest.value(), name, size

    def write_sealed(self, mode: int, pieces: Iterable[bytes], sealer: Sealer) -> Stored:
        """Write a value file under a key of its own; the payload is the epoch of the key that this is derived from."""
        data_key = sealer.current()
        name, cipher = data_key.new_file()
        size = files.write(self._directory, name, sealed_pieces(cipher, pieces), self.sync)
        return mode, data_key.epoch, name, size

    def sealed_file(self, record: Record) -> SealedFile:
        """Return the open value file of a record as its content, which is verified as it is read."""
        assert record.file is not None
        assert self.sealer is not None
        identifier = files.to_column(record.file)
        if not isinstance(identifier, bytes):
            raise DecodeError(f"value file {record.file!r} of an encrypted entry has no name made from an id")
        cipher = self.sealer.key_of(record.payload).file_cipher(identifier)
        reader = self._opened(record)
        try:
            return SealedFile(reader, cipher, record.size)
        except BaseException:
            reader.close()
            raise

    def _content(self, record: Record) -> RawIOBase | BinaryIO:
        """Return the open value file of a record as its content, of which nothing was verified yet."""
        assert record.file is not None
        return files.open_read(self._directory, record.file) if self.sealer is None else self.sealed_file(record)

    def new_file(self) -> _NewValue:
        """Return a value file to be written piece by piece, whose content will be the bytes of a value."""
        if self.sealer is not None:
            return _SealedValue(self._directory, self.sealer)
        return _NewValue(files.NewFile(self._directory, files.new_name()), self._strong(MODE_BINARY))

    def _digest_of(self, filename: str, strong: bool) -> bytes:
        digest = _Digest(strong)
        with files.open_read(self._directory, filename) as reader:
            for _ in digest.passing(files.chunks(reader)):
                pass
        return digest.value()

    def _opened(self, record: Record) -> BinaryIO:
        """Return the open value file after comparing its size with the record."""
        assert record.file is not None
        if record.signed and len(record.payload) != DIGEST_SIZE and self.sealer is None:
            raise SignatureError("value file of an authenticated entry has no authenticated digest")
        reader = files.open_read(self._directory, record.file)
        if os.fstat(reader.fileno()).st_size != record.size:
            reader.close()
            raise DecodeError(f"value file {record.file!r} does not have the {record.size} bytes of its entry")
        return reader

    def _compare(self, record: Record, pieces: Iterable[bytes]) -> None:
        digest = _Digest(len(record.payload) == DIGEST_SIZE)
        for _ in digest.passing(pieces):
            pass
        if digest.value() != record.payload:
            raise DecodeError(f"value file {record.file!r} does not match its checksum")

    def _verified_reader(self, record: Record) -> BinaryIO:
        """Return the open value file after comparing its size and digest with the record."""
        if self.sealer is not None:
            return self._verified_sealed_reader(record)
        reader = self._opened(record)
        try:
            self._compare(record, files.chunks(reader))
            reader.seek(0)
        except BaseException:
            reader.close()
            raise
        return reader

    def _verified_sealed_reader(self, record: Record) -> BinaryIO:
        """Return a reader of the content, all of which was verified once, and is again as it is read."""
        content = self.sealed_file(record)
        try:
            content.verify()
        except BaseException:
            content.close()
            raise
        return io.BufferedReader(content, CHUNK)

    def _verified_content(self, record: Record) -> bytes:
        """Return the content of the value file, read once: what is decoded is what was compared."""
        if self.sealer is not None:
            with self.sealed_file(record) as sealed:
                return b"".join(sealed.chunks())
        with self._opened(record) as reader:
            content = reader.read(record.size)
        self._compare(record, (content,))
        return content

    def verify_file(self, record: Record) -> None:
        """Raise FileNotFoundError or DecodeError if the record's value file is missing or not as written."""
        self._verified_reader(record).close()

    def dictionary_of(self, record: Record) -> int:
        """Return the version of the compression dictionary that an entry was made with, 0 for none."""
        head = record.payload
        if record.file is not None:
            try:
                with self._content(record) as reader:
                    head = reader.read(HEAD_SIZE)
            except (FileNotFoundError, DecodeError):
                return 0
        return 0 if record.mode == MODE_BINARY or record.mode in bulk.MODES else self._value_codec.dictionary_of(head)

    def _decode(self, mode: int, payload: bytes) -> Any:
        if mode == MODE_RAW:
            return self.decode_value(payload)
        if mode == MODE_PICKLE:
            return self._load_pickle(payload)
        if mode == MODE_BYTES and self._value_codec.writes_bytes:
            return self._value_codec.unpack(payload)
        raise DecodeError(f"record has mode {mode}, which this codec does not write")

    def _load_pickle(self, payload: bytes) -> Any:
        return loads_pickle(self._value_codec.unpack(payload, shared=False))

    def _load_library(self, record: Record, maps: bool) -> Loaded:
        """Return an array or table from a value file of its own form."""
        if record.file is None or not self._value_codec.packs_libraries:
            raise DecodeError(f"record has mode {record.mode}, which this codec does not write here")
        if maps and self.sealer is None:  # what is sealed on disk can only be read
            with self._opened(record) as file, files.naming(file.name):
                return bulk.unpack_file(record.mode, file), KEEP_NOT, None
        content = self._verified_content(record)
        decode = partial(bulk.unpack, record.mode, trusted=True)
        return bulk.unpack(record.mode, content, trusted=record.signed), content, decode

    def _loaded(self, mode: int, payload: bytes, read: bool) -> Loaded:
        if mode == MODE_RAW:
            value, kept, decode = self.load_payload(payload)
            return _readable(value, read), kept, decode
        value = self._decode(mode, payload)
        if mode == MODE_BYTES:
            return _readable(value, read), payload, self._value_codec.unpack
        return value, payload, self._load_pickle

    def _load_through_contract(self, record: Record, read: bool) -> Loaded:
        if record.file is not None:
            if record.mode == MODE_PICKLE:  # given as a value: the file could be exchanged before `fetch` opens it
                value = self.fetch(record.mode, None, self._verified_content(record), read)
            else:
                self._verified_reader(record).close()
                value = self.fetch(record.mode, record.file, None, read)
            return value, value if not read and codecs.is_immutable(value) else KEEP_NOT, None

        def decode(payload: bytes) -> Any:
            return self.fetch(record.mode, None, codecs.decode_value(payload), False)

        value = self.fetch(record.mode, None, codecs.decode_value(record.payload), read)
        return value, KEEP_NOT if read else record.payload, decode


_PLAIN = frozenset({str, bytes, int})


def _loader(decode: Callable[[bytes], Any]) -> Callable[[bytes], Loaded]:
    """Return the function that loads a payload in the row; made once, since looking up a method costs a tenth of it."""

    def load(payload: bytes) -> Loaded:
        value = decode(payload)
        if type(value) in _PLAIN or codecs.is_immutable(value):
            return value, value, None
        return value, payload, decode

    return load


def _packed_loader(codec: Codec) -> Callable[[bytes], Loaded]:
    """Return a loader that keeps compressed payloads even of immutable values: the hot layer counts their bytes."""
    load_stored = _loader(codec.decode)

    def load(payload: bytes) -> Loaded:
        if codec.is_compressed(payload):
            return codec.decode(payload), payload, codec.decode
        return load_stored(payload)

    return load


def _readable(value: Any, read: bool) -> Any:
    """Return bytes as a file object when the caller asked to read."""
    return io.BytesIO(value) if read and type(value) is bytes else value


def _pieces(reader: BinaryIO) -> Iterator[bytes]:
    kind = type(reader).__qualname__
    read = getattr(reader, "read", None)
    if not callable(read):
        raise ValueEncodeError(f"read=True needs a binary file object, not a {kind}")
    while piece := read(files.CHUNK):
        if not isinstance(piece, bytes | bytearray | memoryview):
            raise ValueEncodeError(f"read=True needs a binary file object, {kind} gave {type(piece).__qualname__}")
        yield bytes(piece)
    if piece != b"":
        raise ValueEncodeError(f"read=True needs a blocking binary file object, {kind} gave {piece!r}")


class JSONDisk(Disk):
    """Store keys and values as compressed JSON.

    `compress_level`: of zlib, 0 to 9. Other arguments as for `Disk`.
    """

    def __init__(self, directory: str, compress_level: int = 1, **kwargs: Any) -> None:
        self.compress_level = compress_level
        super().__init__(directory, **kwargs)

    def put(self, key: Any) -> tuple[Any, bool]:
        """Return (database key, raw) for a key that JSON can express."""
        return super().put(self._squeeze(key, sort_keys=True))

    def get(self, key: Any, raw: bool) -> Any:
        """Return the key that `put` gave (key, raw) for."""
        return expand_json(super().get(key, raw))

    def store(self, value: Any, read: bool, key: Any = UNKNOWN) -> tuple[int, int, str | None, Any]:
        """Return (file size, mode, file name, database value); raise ValueEncodeError for what JSON cannot express."""
        return super().store(value if read else self._squeeze(value), read, key=key)

    def fetch(self, mode: int, filename: str | None, value: Any, read: bool) -> Any:
        """Return the value, or with `read` the compressed JSON as a binary file object."""
        data = super().fetch(mode, filename, value, read)
        return data if read else expand_json(data)

    def _squeeze(self, value: Any, sort_keys: bool = False) -> bytes:
        try:
            text = json.dumps(value, sort_keys=sort_keys)
        except (TypeError, ValueError, RecursionError) as error:
            raise ValueEncodeError(f"JSON cannot express a {type(value).__qualname__}: {error}") from error
        return zlib.compress(text.encode(), self.compress_level)


def expand_json(data: Any) -> Any:
    """Return the JSON in compressed `data`, refusing more than `JSON_LIMIT` bytes of it."""
    try:
        stream = zlib.decompressobj()
        text = stream.decompress(data, JSON_LIMIT)
        if stream.unconsumed_tail or not stream.eof:
            raise DecodeError("compressed JSON is cut off or larger than the limit")
        return json.loads(text)
    except (zlib.error, ValueError, TypeError, RecursionError) as error:
        if isinstance(error, DecodeError):
            raise
        raise DecodeError(f"not compressed JSON: {error}") from error
