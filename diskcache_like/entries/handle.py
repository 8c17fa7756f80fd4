"""Handle: an open cache, that is, its shards, its secret, its codecs, and the settings in force."""

from __future__ import annotations

import functools
import math
import os
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from ..coherence.counts import Counts
from ..crypto import signing
from ..crypto.keyring import Keyring, MasterKey, Sealer
from ..disk.codec import Codec, new_codec
from ..disk.contract import Disk
from ..encoding.classes import registry_of
from ..encoding.made_keys import space_name
from ..encoding.pickling import resolve_pickle_policy
from ..errors import DiskCacheDirectory, SecretError, SettingError
from ..settings.definitions import DEFAULT_SETTINGS
from ..storage.opening.directory import ensure_directory
from ..storage.opening.file_system import check_file_system
from ..storage.opening.identity import IDENTITY_DEFAULTS, Config, evicts
from ..storage.shards import ShardSet
from ..storage.store import Store
from . import encryption
from .options import Options, check_arguments, resolved

if TYPE_CHECKING:
    from ..system.threads import Threads


LATELY = 0.1  # seconds; the flag that says so comes and goes with each release


class Opening(NamedTuple):
    """How a class of caches opens."""

    recover: bool = True  # replace a corrupt database by an empty one
    timeout: float = 0.0  # seconds that opening waits for the write lock at least, whatever the timeout of operations
    lenient: bool = False  # leave unknown settings out with a warning, as programs expect that were made for DiskCache


def refuse(found: DiskCacheDirectory, directory: str, disk: type[Disk]) -> str:
    """Raise the error for a directory that DiskCache wrote."""
    raise found


instead_of = refuse
"""Returns the directory that is used instead of one that DiskCache wrote, or raises; `compat` replaces this."""


class Handle:
    """Open a cache, hold what is open, and keep it configured. It knows neither keys nor values."""

    def __init__(
        self,
        directory: str | os.PathLike[str] | None,
        shards: int,
        timeout: float,
        disk: type[Disk],
        arguments: dict[str, Any],
        opening: Opening,
    ) -> None:
        check_arguments(timeout, disk, shards)
        self.options, self.given = Options.split(arguments, opening.lenient)
        self.timeout = timeout
        self._contended_until = 0.0
        self.said = set[str]()  # what is said once
        self.watch: Callable[[str, Callable[..., Any]], Callable[..., Any]] | None = None  # put around computations
        self.clock = self.options.clock
        self.pickle_policy = resolve_pickle_policy(self.options.pickle)
        self.classes = registry_of(self.options.allow)
        self._check_codec(disk)
        self.secret = signing.load_secret(self.options.secret, os.environ)
        self.signs_all = self.secret.explicit
        self.sealer: Sealer | None = None
        self.directory = resolved(directory)
        check_file_system(self.directory, self.options.allow_filesystem)
        try:
            self._open_shards(shards, disk, opening)
        except DiskCacheDirectory as found:
            self.directory = instead_of(found, self.directory, disk)
            self._open_shards(shards, disk, opening)
        try:
            self._adopt()
        except BaseException:  # such as a stored codec whose package is not installed here
            self.close_soon()
            raise

    def _open_shards(self, shards: int, disk: type[Disk], opening: Opening) -> None:
        ensure_directory(self.directory, self.options.shared, sync=self.given.get("durability") == "power")
        self.counts = Counts(self.directory, space_name, self.options.shared)
        self.counts.hides_names = bool(self.options.encrypt)
        try:
            self.shards = ShardSet(self.directory, shards, self._configuration(disk, opening), disk)
        except BaseException:
            self.counts.close()
            raise

    def _configuration(self, disk: type[Disk], opening: Opening) -> Config:
        options = self.options
        identity: dict[str, Any] = self._requested_codec()
        if options.encrypt:
            encryption.refuse_own_contract(disk)
            identity["keyring"] = Keyring.new(self.master()).sealed()
        elif self.signs_all:
            identity["key_check"] = self.secret.signer.key_check()
        return Config(
            given=self.given,
            identity=identity,
            timeout=max(self.timeout, opening.timeout),
            clock=options.clock,
            slots=options.generation_slots,
            recover=opening.recover,
            shared=options.shared,
            encrypt=options.encrypt,
            counts=self.counts,
            counts_keys=options.remote is None,
        )

    def _adopt(self) -> None:
        """Adopt encryption, disk and settings from the opened shards."""
        stores = self.shards.stores
        for disk in (store.disk for store in stores):
            disk.pickle_policy = self.pickle_policy
            disk.secret = self.secret
            disk.authenticates = self.signs_all
            disk.sync = self.settings["durability"] == "power"
        if "keyring" in stores[0].identity:
            self.sealer = encryption.attach(stores, self.master(), self.directory)
            self.counts.hides_names = True
        self.disk = stores[0].disk
        self._set_codecs()
        for name, value in self.settings.items():
            if not name.startswith("compress_"):  # which the codecs have
                self.apply(name, value)

    @property
    def settings(self) -> dict[str, Any]:
        """Return the settings in force."""
        return self.shards.stores[0].settings

    @functools.cached_property
    def threads(self) -> Threads:
        """Return the threads for calls that would block an event loop."""
        from ..system.threads import Threads  # late: it needs asyncio, which takes long to import

        return Threads()

    def close(self) -> None:
        """Close every file, and end the threads; the next use opens and makes them again."""
        if "threads" in vars(self):
            self.threads.close()
        try:
            self.shards.close(max(self.timeout, 1.0))
        finally:
            self.counts.close()

    def close_soon(self) -> None:
        """Close what is free now, for a cache that is dropped; the rest with the next opening."""
        self.shards.close_soon()
        self.counts.close(waits=False)

    def writes_slowly(self) -> bool:
        """Tell whether a write may take long now: it is synced to the disk, or others had to wait for a lock lately."""
        stores = self.shards.stores
        for store in stores:  # no generator, and mostly no clock, since each write of a face asks this
            if store.shard.lock.contended():
                self._contended_until = time.monotonic() + LATELY  # a hint for the next writes: any thread may set it
        is_contended = self._contended_until > 0.0 and time.monotonic() < self._contended_until
        return is_contended or stores[0].shard.settings["durability"] == "power"

    @property
    def hot_limit(self) -> int:
        """Return the bytes that the hot layer may hold."""
        return int(self.settings["hot_size_limit"])

    def master(self) -> MasterKey:
        """Return what opens the cache's keyring; raise SecretError if no secret is given."""
        given = signing.given_secret(self.options.secret, os.environ)
        if given is None:
            wanted = f"pass secret= or set {signing.SECRET_VARIABLE}"
            raise SecretError(f"{self.directory!r}: an encrypted cache needs its secret: {wanted}")
        return MasterKey(given, self.options.key_context)

    def take_secret(self, secret: bytes | str) -> None:
        """Use the new secret that a rotation has given the cache."""
        self.options.secret = secret
        self.secret = signing.load_secret(secret, os.environ)
        for store in self.shards.stores:
            store.disk.secret = self.secret

    def _requested_codec(self) -> dict[str, Any]:
        """Return the serializer and the compressor that the arguments name."""
        asked = {"serializer": self.options.serializer, "compressor": self.options.compressor}
        return {name: value for name, value in asked.items() if value is not None}

    def _check_codec(self, disk: type[Disk]) -> None:
        """Raise SettingError for an unknown serializer or compressor, before anything is made."""
        asked = self._requested_codec()
        if asked and (disk.store is not Disk.store or disk.fetch is not Disk.fetch):
            raise SettingError(f"{disk.__qualname__} encodes values itself: leave out {' and '.join(asked)}, or disk")
        if not all(type(name) is str for name in asked.values()):
            raise SettingError(f"serializer and compressor are {asked!r}, expected names")
        if asked:
            self._new_codec({**IDENTITY_DEFAULTS, **asked}, {**DEFAULT_SETTINGS, **self.given})

    def codec_of(self, store: Store, changed: Mapping[str, Any]) -> Codec:
        """Return the codec that a shard was made with, under the settings in force and those in `changed`."""
        named = {name: store.identity[name] for name in IDENTITY_DEFAULTS}
        return self._new_codec(named, {**store.settings, **changed})

    def _new_codec(self, named: Mapping[str, str], settings: Mapping[str, Any]) -> Codec:
        return new_codec(**named, settings=settings, policy=self.pickle_policy, extensions=(self.classes,))

    def _set_codecs(self) -> None:
        first = self.shards.stores[0]
        if not first.disk.own_values:
            return
        common = self.codec_of(first, {})
        for store in self.shards.stores:
            is_alike = store.settings == first.settings and store.identity == first.identity
            store.disk.value_codec = common if is_alike else self.codec_of(store, {})

    def apply(self, name: str, value: Any) -> None:
        """Make a setting effective in the disks, the codecs and what is counted."""
        stores = self.shards.stores
        if name == "metrics_level":
            self.counts.open(value)
        elif name == "durability":
            for store in stores:
                store.disk.sync = value == "power"
        elif name.startswith("compress_"):
            self._set_codecs()
        elif name.startswith("disk_"):
            for store in stores:
                setattr(store.disk, name[5:], value)
        self.value_limit = stores[0].limit if evicts(self.settings) else math.inf  # bytes that one value may have
