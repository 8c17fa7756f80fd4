"""Administration: operations on a cache as a whole: removing many entries, checks, statistics, secrets, settings."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..disk import file_io
from ..entries import rotation
from ..entries.loading import ENOVAL
from ..entries.timing import time_calls
from ..errors import CacheError, ExpiryError, SettingError
from ..settings.definitions import HANDLE_ONLY, SettingsInForce, checked, checked_all, is_setting, unknown
from ..settings.lifetimes import Lifetimes
from ..settings.policies import policy_named
from ..storage.check import check_whole
from ..storage.shards import new_disk
from .tagging import Tagging

if TYPE_CHECKING:
    from ..entries.metrics import Metrics

LIFETIMES = "default_expire", "max_age"
MOMENTS = 1e300  # seconds; a moment farther away is a mistake


class Administration(Tagging, SettingsInForce):
    """The operations on a cache as a whole."""

    def clear(self, retry: bool = False) -> int:
        """Remove every entry and return how many there were. Goes in batches; a Timeout carries the count so far."""
        if self._tier is not None:
            self._tier.clear()
        removed = self._remove_from_all(lambda store: store.remove_selected("any", tuple, self._wait_for_all(retry)))
        self._hot.clear()
        return removed

    def expire(self, now: float | None = None, retry: bool = False) -> int:
        """Remove every entry that is expired at `now` and return how many there were. Goes in batches.

        `now`: seconds since 1970, None for the present. Raises ExpiryError for anything else, and Timeout, which
        carries the count so far.
        """
        moment: Any = self._handle.clock() if now is None else now
        if isinstance(moment, bool) or not isinstance(moment, int | float) or not abs(moment) <= MOMENTS:
            raise ExpiryError(f"now is {now!r}, expected seconds since 1970 or None")
        wait, moment = self._wait_for_all(retry), float(moment)  # an integer may be too large for SQLite
        return self._remove_from_all(lambda store: store.remove_selected("expired", lambda: (moment,), wait))

    def cull(self, retry: bool = False) -> int:
        """Remove expired entries, then live ones by policy until the limits hold; return how many went.

        Goes in batches; a Timeout carries the count so far.
        """
        return self._remove_from_all(lambda store: store.cull(self._wait_for_all(retry)))

    def flush(self, retry: bool = False) -> None:
        """Flush everything that waits in the write buffer to the database; do nothing where there is none.

        Named children of a FanoutCache are caches of their own, and are not flushed. A FanoutCache waits without limit.
        Raises Timeout, DiskFull.
        """
        for store in self._shards.stores:
            store.flush(self._wait_for_all(retry))

    def sync(self, retry: bool = False) -> None:
        """Make everything written so far outlast a power loss, whatever the cache's `durability`.

        Waits for the disk; each value file is looked at. Shards one after the other: what others write meanwhile may be
        in one and not yet in another. Named children of a FanoutCache are caches of their own, and are left out. A
        FanoutCache waits without limit. Raises Timeout, DiskFull, DirectoryError if the disk fails, and
        TransactionError within a transaction.
        """
        for store in self._shards.stores:
            store.sync(self._wait_for_all(retry))
        for path in (self._handle.directory, os.path.dirname(self._handle.directory)):
            file_io.sync_folder(path)

    def check(self, fix: bool = False, retry: bool = False) -> list[Any]:
        """Compare database, value files and totals, and return a list of warnings; with `fix`, repair what is wrong.

        It runs no stored code and touches no file outside the directory. Others may write meanwhile, but a large value
        whose file is written and whose entry is not yet committed is reported as an unknown file. With `fix` that write
        stores nothing and raises StorageError; it can be tried again.
        """
        verify, wait = self._rows.check_record, self._wait(retry)
        return [problem for store in self._shards.stores for problem in check_whole(store, verify, fix, wait)]

    def stats(self, enable: bool = True, reset: bool = False) -> tuple[int, int]:
        """Return the hits and misses of all processes while this was switched on, and switch it on or off.

        `enable`: whether reads are counted from now on; this is stored. `reset`: begin again at 0. For programs made
        for DiskCache: `metrics` tells more, and need not be switched on. Waits for the write lock without limit.
        """
        given: Any = enable
        if given not in (True, False):
            raise SettingError(f"enable is {enable!r}, expected True or False: whether to count from now on")
        found = self._handle.counts.stats(bool(given), reset)
        self.reset("statistics", int(enable))
        return found

    def metrics(self, reset: bool = False) -> Metrics:
        """Return what all processes of this machine have counted: hits, misses, evictions, and more; see `Metrics`.

        In a namespace: of its keys, and of those of the namespaces in it. `reset`: begin again at 0; the cache itself
        does that. Takes no lock. With `metrics_level="off"` it tells of this handle alone.
        """
        if reset and self._within is not None:
            raise CacheError(
                "reset=True is not there in a namespace: it is about all counts, so call that of the cache"
            )
        found = self._counted(anew=True)
        if reset:
            self._handle.counts.begin_anew()
        return found

    def _counted(self, anew: bool) -> Metrics:
        """Return what `metrics` does; without `anew`, what was counted since the file was made."""
        from ..entries.metrics import metrics_of  # late: it makes classes that take long to make

        within = "" if self._within is None else "/".join((*self._within.names, ""))
        return metrics_of(self._handle, within, anew)

    def volume(self) -> int:
        """Return the bytes that the cache takes: database pages that hold something, value files, and control files.

        What is removed counts no longer at once, although its file stays for a second or two for those who read it. The
        size limit counts such files, and they are the first to go.

        First flushes the write buffer. Raises Timeout if it cannot within `timeout` seconds or a minute, whichever is
        longer.
        """
        return sum(store.volume() for store in self._shards.stores)

    def rotate(self, new_secret: bytes | str, progress: Callable[[int, int], object] | None = None) -> None:
        """Give an encrypted cache another secret, and seal every entry anew with another key.

        Others may go on using it: those with the old secret until this is done. If it is interrupted, either secret
        opens the cache, and another call goes on where this one stopped. `progress(done, total)` is called after each
        100 entries. Waits for the write lock without limit. Raises SettingError for a cache that is not encrypted.
        """
        rotation.rotate(self._handle, new_secret, progress)

    def create_tag_index(self) -> None:
        """Set `tag_index` to 1, for programs made for DiskCache. It has no effect: tags are always indexed."""
        self.reset("tag_index", 1)

    def drop_tag_index(self) -> None:
        """Set `tag_index` to 0, for programs made for DiskCache. It has no effect: tags are always indexed."""
        self.reset("tag_index", 0)

    def reset(self, key: str, value: Any = ENOVAL, update: bool = True) -> Any:
        """Return a setting as stored, or store `value` for it; with `update=False` change this handle only.

        In each case it is in force in this handle from then on. Storing waits for the write lock without limit. Raises
        SettingError for what is no setting, or no value of it.
        """
        if not is_setting(key):
            raise SettingError(unknown(key))
        handle, first, own = self._handle, self._shards.stores[0], not update
        if value is ENOVAL:
            value, update, own = first.stored_setting(key), False, False
        else:
            new_disk(type(handle.disk), handle.directory, {**first.settings, key: checked(key, value)})
            handle.codec_of(first, {key: checked(key, value)})  # raises for a level that the compressor does not have
        changed = checked_all({key: value})  # durability and sqlite_synchronous go together
        for name, effective in changed.items():
            if update or effective != first.settings.get(name):
                for store in self._shards.stores:
                    store.change_setting(name, effective, update, None, self._apply)
            if own or name in HANDLE_ONLY:
                handle.given[name] = effective  # also after it is closed and opens again
            elif not update:
                handle.given.pop(name, None)
            if name == "statistics":
                handle.counts.switch_stats(bool(effective))
            self._apply(name, effective)
        return changed[key]

    def _apply(self, name: str, value: Any) -> None:
        """Make a setting effective in this handle."""
        given = self._handle.given
        if name in given:
            given[name] = value
        self._handle.apply(name, value)
        self._take_setting(name, value)

    def _take_setting(self, name: str, value: Any) -> None:
        """Show a setting of the disk's own as an attribute of the cache, and make it effective in the hot layer."""
        if not hasattr(SettingsInForce, name):
            object.__setattr__(self, name, value)  # whatever it is called
        if name == "eviction_policy":
            self._hot.mark_for(policy_named(value))
        elif name == "statistics":
            if value:
                self._handle.counts.switch_stats(True)
        elif name == "metrics_level":
            locks = [store.transactions for store in self._shards.stores]
            self._hot_get = time_calls(self._handle.counts, self._loader, self._hot, self._rows.stores, locks)
        elif name in LIFETIMES:
            found = Lifetimes(*map(self._handle.settings.get, LIFETIMES))
            self._rows.lifetimes = found if any(found) else None
        elif name == "hot_size_limit":
            self._hot.resize(self._handle.hot_limit)
