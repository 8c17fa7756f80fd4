"""Generics: the type of keys, values and items that a cache or a collection is annotated with, as `Cache[str, bytes]`.

They are for type checkers alone: nothing is checked when a program runs. Without them each is Any.
"""

from __future__ import annotations

from types import GenericAlias
from typing import TYPE_CHECKING, Any, Generic

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    K = TypeVar("K", default=Any)
    V = TypeVar("V", default=Any)
    T = TypeVar("T", default=Any)

    class OfKeysAndValues(Generic[K, V]):
        """What has keys and values."""

else:
    from typing import TypeVar

    K, V, T = TypeVar("K"), TypeVar("V"), TypeVar("T")

    class OfKeysAndValues:
        """What has keys and values."""

        __class_getitem__ = classmethod(GenericAlias)
