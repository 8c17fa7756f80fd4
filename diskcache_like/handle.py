"""Handle: an open cache, that is, its shards, its secret, its codecs, and the settings in force.

`Handle` is the lowest part of `Cache`: it opens and configures, and knows neither keys nor values.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Mapping
from functools import partial
from typing import Any, TypeVar

from . import encryption, signing
from .coherence.words import choose_implementation
from .dictionaries import Dictionaries
from .disk import Disk
from .errors import SettingError
from .hot import COUNTED, FREQUENCY, NO_MARKS, RECENCY, SEVERAL, HotLayer
from .keyring import Keyring, Master, Sealer
from .metrics import Metrics
from .objects import allowed
from .options import Options, check_arguments, resolved
from .pipeline import Codec, new_codec
from .policies import policy_named
from .settings import DEFAULT_SETTINGS
from .storage.holding import Holder
from .storage.layout import UNSAID, Config
from .storage.shards import Shards, ensure_directory
from .storage.store import Store

T = TypeVar("T")


class Handle:
    """Open a cache and keep it configured."""

    _RECOVER = True  # a corrupt database is set aside and the cache goes on empty
    _unpickled: dict[str, Any]  # settings and options that a pickle brought, until the handle is opened
    _OPENING = 0.0  # seconds that opening waits for the write lock at least, whatever the timeout of operations

    def _open(
        self,
        directory: str | os.PathLike[str] | None,
        shards: int,
        timeout: float,
        disk: type[Disk],
        settings: dict[str, Any],
    ) -> None:
        check_arguments(timeout, disk, shards)
        options, given = Options.split({**settings, **self.__dict__.pop("_unpickled", {})})
        self._options = options
        self._given = given
        self._timeout = timeout
        self._clock = options.clock
        self.metrics = Metrics()
        self._counters = self.metrics.counters
        self._warned = False
        self._marks = NO_MARKS
        self._counts = False
        self._tracks = NO_MARKS
        self._pickle_policy = signing.resolve_pickle_policy(options.pickle)
        self._classes = allowed(options.allow)
        self._check_codec(disk, {**DEFAULT_SETTINGS, **given})
        self._secret = signing.load_secret(options.secret, os.environ)
        self._signs_all = self._secret.explicit
        self._sealer: Sealer | None = None
        self._maps = options.mmap
        self._implementation = choose_implementation(options.coherence)
        self._directory = resolved(directory)
        ensure_directory(self._directory, options.shared, sync=given.get("durability") == "power")
        self._config = self._configuration(timeout, disk)
        self._shards = Shards(self._directory, shards, self._config, disk)
        try:
            self._adopt(self._shards)
        except BaseException:  # such as a stored codec whose package is not installed here
            self._shards.close_soon()
            raise
        self._finalizer = weakref.finalize(self, self._shards.close_soon)

    def _configuration(self, timeout: float, disk: type[Disk]) -> Config:
        options = self._options
        identity: dict[str, Any] = {name: value for name, value in self._asked().items() if value is not None}
        if options.encrypt:
            encryption.refuse_own_contract(disk)
            identity["keyring"] = Keyring.new(self._master()).sealed()
        elif self._signs_all:
            identity["key_check"] = self._secret.signer.key_check()
        return Config(
            given=self._given,
            identity=identity,
            timeout=max(timeout, self._OPENING),
            clock=options.clock,
            implementation=self._implementation,
            slots=options.generation_slots,
            recover=self._RECOVER,
            shared=options.shared,
            encrypt=options.encrypt,
        )

    def _adopt(self, shards: Shards) -> None:
        """Take over what the opened shards say: modulus, disk and settings."""
        self._modulus = shards.modulus
        self._one = shards.stores[0] if len(shards.stores) == 1 else None
        for store in shards.stores:
            self._configure(store.disk)
        if "keyring" in shards.stores[0].identity:
            self._sealer = encryption.attach(shards.stores, self._master(), self._directory)
        self._hot_encoded = self._options.hot_encoded and self._sealer is not None
        self._opens_plain = self._sealer is not None and not self._hot_encoded
        self._disk = shards.stores[0].disk
        self._reads_simple = not self._signs_all and self._disk.own_values
        self._set_codecs()
        self._stored_key = self._disk.key_encoder()
        effective = shards.stores[0].settings
        self._hot = HotLayer(0 if self._implementation == "off" else effective["hot_size_limit"])
        self._hot_get = self._hot.entries.get
        self._hot_put = self._hot.put
        for name, value in effective.items():
            self._apply(name, value)

    def _configure(self, disk: Disk) -> None:
        disk.pickle_policy = self._pickle_policy
        disk.secret = self._secret
        disk.authenticates = self._signs_all
        disk.sync = self._shards.stores[0].settings["durability"] == "power"

    def _master(self) -> Master:
        return encryption.master_of(self._options.secret, self._options.namespace, self._directory)

    def _take_secret(self, secret: bytes | str) -> None:
        """Go on with the secret that the cache was given by a rotation."""
        self._options.secret = secret
        self._secret = signing.load_secret(secret, os.environ)
        for store in self._shards.stores:
            store.disk.secret = self._secret

    def _check_codec(self, disk: type[Disk], settings: dict[str, Any]) -> None:
        """Raise for a serializer or compressor that there is not, before anything is made."""
        asked = {name: value for name, value in self._asked().items() if value is not None}
        if asked and (disk.store is not Disk.store or disk.fetch is not Disk.fetch):
            raise SettingError(f"{disk.__qualname__} encodes values itself: leave out {' and '.join(asked)}, or disk")
        if not all(type(name) is str for name in asked.values()):
            raise SettingError(f"serializer and compressor are {asked!r}, expected names")
        if asked:
            self._new_codec({**UNSAID, **asked}, settings)

    def _asked(self) -> dict[str, str | None]:
        return {"serializer": self._options.serializer, "compressor": self._options.compressor}

    def _codec_of(self, store: Store, changed: Mapping[str, Any]) -> Codec:
        """Return the codec that a shard was made with, with the settings in force and those changed now."""
        named = {name: store.identity[name] for name in UNSAID}
        return self._new_codec(named, {**store.settings, **changed}, self._dictionaries.get(store))

    def _new_codec(
        self, named: Mapping[str, str], settings: Mapping[str, Any], dictionaries: Dictionaries | None = None
    ) -> Codec:
        return new_codec(
            **named,
            settings=settings,
            policy=self._pickle_policy,
            extensions=(self._classes,),
            dictionaries=dictionaries,
        )

    def _set_codecs(self) -> None:
        signer = self._secret.signer if self._signs_all and self._sealer is None else None  # sealed ones need no tag
        self._dictionaries = {
            store: Dictionaries(store, signer)
            for store in self._shards.stores
            if store.identity["compressor"] == "zstd" and store.disk.own_values
        }
        for store in self._shards.stores:
            if store.disk.own_values:
                store.disk.value_codec = self._codec_of(store, {})
        self._compresses = self._disk.value_codec.compresses

    @property
    def directory(self) -> str:
        """Return the absolute path of the cache directory."""
        return self._directory

    @property
    def timeout(self) -> float:
        """Return the seconds that an operation waits for the write lock."""
        return self._timeout

    @property
    def disk(self) -> Disk:
        """Return the object that encodes keys and values."""
        return self._disk

    def _tracking(self) -> int:
        if not self._counts:
            return self._marks
        return SEVERAL if self._marks else COUNTED

    def _apply(self, name: str, value: Any) -> None:
        """Make a setting effective in this handle."""
        setattr(self, name, value)
        if name == "eviction_policy":
            policy = policy_named(value)
            self._marks = RECENCY if policy.marks_recency else FREQUENCY if policy.marks_frequency else NO_MARKS
            self._tracks = self._tracking()
        elif name == "statistics":
            self._counts = bool(value)
            self._tracks = self._tracking()
            for store in self._shards.stores:
                # Of the counters only: the stores outlive a cache dropped without `close`, and must not keep it.
                store.config.on_write = partial(_add_counts, self._counters) if value else None
        elif name == "durability":
            for store in self._shards.stores:
                store.disk.sync = value == "power"
        elif name.startswith("compress_"):
            self._set_codecs()
        elif name == "hot_size_limit" and hasattr(self, "_hot"):
            self._hot.resize(0 if self._implementation == "off" else value)
        elif name.startswith("disk_"):
            for store in self._shards.stores:
                setattr(store.disk, name[5:], value)
        settings = self._shards.stores[0].settings
        self._evicts = policy_named(settings["eviction_policy"]).evicts and settings["cull_limit"] > 0
        self._share = self._shards.stores[0].limit

    def _flush_counts(self, store: Holder) -> None:
        """Add this handle's counts to the shared ones; the write lock is held."""
        _add_counts(self._counters, store)

    def _wait(self, retry: bool) -> float | None:
        return None if retry else self._timeout

    def _wait_for_all(self, retry: bool) -> float | None:
        """Return the seconds that the removal of many entries waits for each lock."""
        return self._wait(retry)

    def _timed_out(self, answer: T) -> T:
        """Decide what a Timeout becomes: here it is raised. Call in an except block only."""
        raise  # noqa: PLE0704


def _add_counts(counters: list[int], store: Holder) -> None:
    hits, misses = counters
    if hits or misses:
        counters[:] = [0, 0]
        store.count_uses(hits, misses)
