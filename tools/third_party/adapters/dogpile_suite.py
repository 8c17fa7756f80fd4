"""The tests that dogpile.cache has for every backend, on `integrations.dogpile`."""

from __future__ import annotations

import tempfile
from typing import Any, ClassVar

from dogpile.cache import register_backend
from dogpile.testing import fixtures

from diskcache_like.integrations.dogpile import LEASE  # what the entry point names

directory = tempfile.TemporaryDirectory(prefix="dogpile-")
register_backend("diskcache_like", "diskcache_like.integrations.dogpile", "DogpileBackend")


class OnDisk:
    backend = "diskcache_like"
    config_args: ClassVar[Any] = {"arguments": {"directory": directory.name, "lock_timeout": LEASE}}


class BackendTest(OnDisk, fixtures._GenericBackendTestSuite):
    pass


class SerializerTest(OnDisk, fixtures._GenericSerializerTestSuite, fixtures._GenericBackendTestSuite):
    pass


class MutexTest(OnDisk, fixtures._GenericMutexTestSuite):
    pass
