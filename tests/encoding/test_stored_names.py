"""Entries hold the names of some classes of the package, which stay what they are when a class moves."""

from __future__ import annotations

from diskcache_like import Cache, StoredError

from ..support.cache_kinds import one

ERROR = StoredError("builtins.ValueError", ("no such user", 7))
# Written when the class was in the module that its name tells.
WRITTEN = (
    b"\x93\xc7\x00\x06\xd9+diskcache_like.operations.rules.StoredError"
    b"\x82\xa4kind\xb3builtins.ValueError\xa9arguments\x93\xc7\x00\x01\xacno such user\x07"
)


@one
def test_an_error_that_was_stored_under_its_first_name_is_read(cache: Cache) -> None:
    codec = cache.disk.value_codec
    assert codec.decode(WRITTEN) == ERROR
    assert codec.encode(ERROR) == WRITTEN
