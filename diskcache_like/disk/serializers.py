"""The serializers, and which values each of them takes.

A serializer takes a value only if it comes back equal and of exactly the same type. For any other value it raises
`NotSerializable`, and the caller pickles the value if the policy allows that. Reading runs no code, and raises
DecodeError for what the serializer did not write. One that does not take bytes (`takes_bytes`) has byte strings stored
as they are.

`Msgpack` is the format of `encoding/values.py`. Extensions add types to it: each says how to write values of its types,
and what its codes and marks mean when they are read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from ..encoding import values
from ..encoding.classes import Registry
from ..encoding.json import Json
from ..encoding.msgpack_reader import Buffer, Format, decoder
from ..encoding.values import MARKS, SCALARS, NotSerializable
from ..errors import DecodeError, SettingError
from .columnar.registry import ColumnarTypes, Tables

Writer = Callable[[Any], Any]
# What adds types to msgpack. The items that its writers put into a marked array must be data themselves.
Extensions = ColumnarTypes | Registry


class Msgpack:
    """The canonical, typed format of `encoding/values.py`, with additional types."""

    takes_bytes = True

    def __init__(self, extensions: Sequence[Extensions] = ()) -> None:
        self._extensions = tuple(extensions)
        self._pack = values.packing_with(self._default)
        scalars, marks = dict(SCALARS), dict(MARKS)
        for extension in self._extensions:
            scalars.update(extension.scalars)
            marks.update(extension.marks)
        self.decode = decoder(Format(scalars, marks)) if extensions else values.decode_value

    def encode(self, value: Any) -> bytes:
        """Return the payload of `value`, or raise `NotSerializable`."""
        try:
            return values.encode_value(value)
        except NotSerializable:
            if not self._extensions:
                raise
        return values.encode_with(value, self._pack, self._default, self._is_known)

    def _writer(self, kind: type) -> Writer | None:
        for extension in self._extensions:
            writer = extension.writer(kind)
            if writer is not None:
                return writer
        return None

    def _is_known(self, kind: type) -> bool:
        return self._writer(kind) is not None

    def _default(self, value: Any) -> Any:
        writer = self._writer(type(value))
        return values.extension_of(value) if writer is None else writer(value)


class Pickle:
    """Leave every value but byte strings to pickle."""

    takes_bytes = False

    def encode(self, value: Any) -> bytes:
        """Raise `NotSerializable`, so that the value is pickled under the policy."""
        raise NotSerializable("serializer='pickle' pickles every value")

    def decode(self, payload: Buffer) -> Any:
        """Raise DecodeError: this serializer writes nothing but pickles, and those are not read here."""
        raise DecodeError("an entry of a cache with serializer='pickle' is not a pickle")


Serializer = Msgpack | Json | Pickle | Tables

SERIALIZERS: Final[dict[str, Callable[[Sequence[Extensions]], Serializer]]] = {
    "msgpack": Msgpack,
    "json": lambda _extensions: Json(),
    "pickle": lambda _extensions: Pickle(),
    "arrow": lambda _extensions: Tables(),
}
"""How to make each serializer, by name; only msgpack uses the extensions."""


def new_serializer(name: str, extensions: Sequence[Extensions] = ()) -> Serializer:
    """Return the serializer called `name`, or raise a SettingError that lists the known ones."""
    make = SERIALIZERS.get(name)
    if make is None:
        raise SettingError(f"serializer is {name!r}, expected one of {', '.join(map(repr, SERIALIZERS))}")
    return make(extensions)
