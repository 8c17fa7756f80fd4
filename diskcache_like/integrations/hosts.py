"""What every adapter needs: an error that says how to install its library, and the cache that it was given."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterator
from typing import Any

from ..cache import Cache, without_face
from ..errors import missing_dependency

LONGEST = 200  # bytes of a name that is a tag

Given = Any  # a directory, a Cache, FanoutCache or namespace, or the `aio` of one


@contextlib.contextmanager
def host(package: str, extra: str) -> Iterator[None]:
    """Import a package in the body; raise MissingDependency, which names the extra, where it is not installed."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != package.partition(".")[0]:
            raise  # the library is there, and lacks one of its own
        raise missing_dependency(package, extra, f"diskcache_like.integrations.{extra.replace('-', '_')}") from error


def is_directory(cache: Given) -> bool:
    """Tell whether an adapter was given a directory, and so has to open the cache, and to close it."""
    return isinstance(cache, str | os.PathLike)


def opened(cache: Given, **settings: Any) -> Cache:
    """Return the cache that an adapter was given, or that in the directory, which it opens with the settings."""
    if is_directory(cache):
        return Cache(cache, **settings)
    if settings:
        raise TypeError(f"settings {sorted(settings)} are for a directory: give them to the cache where it is opened")
    return without_face(cache)


def tag_of(name: str) -> str:
    """Return the tag for a name: the name itself, or its digest if it is too long for a tag."""
    encoded = name.encode()
    return name if len(encoded) <= LONGEST else hashlib.blake2b(encoded, digest_size=16).hexdigest()
