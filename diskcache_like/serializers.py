"""Serialise values: which serializers there are, and what each of them takes.

A serializer takes a value only if it comes back equal and of exactly the same type; for anything else it raises
`NotData`, and the caller pickles the value if the policy allows. What it reads is data: it runs no code.

`Msgpack` is the format of `codecs`. Extensions add types to it: each says how values of a type are written, and what
its codes and marks mean when they are read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

from . import codecs
from .codecs import MARKS, SCALARS, NotData
from .errors import DecodeError, SettingError
from .json_text import Json
from .structure import Buffer, Format, Marks, Scalars, decoder

Writer = Callable[[Any], Any]


class Serializer(Protocol):
    """What a codec needs of a serializer."""

    takes_bytes: bool
    """Whether it writes byte strings; where it does not, they are stored as they are."""

    def encode(self, value: Any) -> bytes:
        """Return the payload of `value`, or raise `NotData`."""
        ...

    @property
    def decode(self) -> Callable[[Buffer], Any]:
        """Return the function that reads a payload, or raises DecodeError for anything that was not written so."""
        ...


class Extensions(Protocol):
    """Types that msgpack is to take beside its own."""

    scalars: Scalars
    marks: Marks

    def writer(self, kind: type) -> Writer | None:
        """Return the function that turns a value of exactly this type into an extension or a marked array.

        None for a type that is not one of these. What the function puts into a marked array has to be data itself.
        """
        ...


class Msgpack:
    """The canonical, typed format of `codecs`, with the types of some extensions."""

    takes_bytes = True

    def __init__(self, extensions: Sequence[Extensions] = ()) -> None:
        self._extensions = tuple(extensions)
        self._pack = codecs.packing_with(self._default)
        scalars, marks = dict(SCALARS), dict(MARKS)
        for extension in self._extensions:
            scalars.update(extension.scalars)
            marks.update(extension.marks)
        self.decode = decoder(Format(scalars, marks)) if extensions else codecs.decode_value

    def encode(self, value: Any) -> bytes:
        """Return the payload of `value`, or raise `NotData`."""
        try:
            return codecs.encode_value(value)
        except NotData:
            if not self._extensions:
                raise
        return codecs.encode_with(value, self._pack, self._default, self._is_known)

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
        return codecs.extend(value) if writer is None else writer(value)


class Pickle:
    """Leave every value to pickle; byte strings stay as they are."""

    takes_bytes = False

    def encode(self, value: Any) -> bytes:
        """Raise `NotData`, so that the value is pickled under the policy."""
        raise NotData("serializer='pickle' pickles every value")

    def decode(self, payload: Buffer) -> Any:
        """Raise DecodeError: what is not marked as a pickle was not written here."""
        raise DecodeError("an entry of a cache with serializer='pickle' is not a pickle")


SERIALIZERS: Final[dict[str, Callable[[Sequence[Extensions]], Serializer]]] = {
    "msgpack": Msgpack,
    "json": lambda _extensions: Json(),
    "pickle": lambda _extensions: Pickle(),
}
"""How each serializer is made, by name; those without extensions ignore them."""


def new_serializer(name: str, extensions: Sequence[Extensions] = ()) -> Serializer:
    """Return the serializer called `name`, or raise SettingError that lists the known ones."""
    make = SERIALIZERS.get(name)
    if make is None:
        raise SettingError(f"serializer is {name!r}, expected one of {', '.join(map(repr, SERIALIZERS))}")
    return make(extensions)
