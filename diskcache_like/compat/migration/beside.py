"""Copy a directory of DiskCache 5 into a folder within it, once, for a program that goes on there."""

from __future__ import annotations

import fcntl
import os
import time
import warnings

from ...disk.contract import Disk
from ...disk.json_disk import JSONDisk
from ...errors import SettingError, StorageError
from ...system.paths import opened_directory
from .copy import Migration, MigrationOptions, is_finished

FOLDER = "diskcache_like"
PAUSES = (0.01, 0.1, 1.0)  # seconds between attempts, since others may be finding out what the directory is


def copy_once(old: str, disk: type[Disk]) -> None:
    """Copy the cache in `old` into its folder `FOLDER`, unless that was done; wait while another process does it.

    What cannot be copied as data is left out, with a warning. Raises what `Migration` raises, and SettingError for a
    `disk` whose format is its own.
    """
    known = {Disk.codec_name(): "pickle", JSONDisk.codec_name(): "json"}
    name = disk.codec_name()
    if name not in known:
        raise SettingError(f"only a program that has the disk class {name!r} can read what it wrote")
    new = os.path.join(old, FOLDER)
    with opened_directory(old) as folder:
        fcntl.flock(folder, fcntl.LOCK_EX)
        if not is_finished(new):
            _copy(old, new, MigrationOptions(known[name]))


def _copy(old: str, new: str, options: MigrationOptions) -> None:
    with _begun(old, new, options) as migration:
        skipped = migration.run().skipped
    if skipped:
        key, reason = skipped[0]
        warnings.warn(
            f"{len(skipped):,} entries of {old!r} were not copied; the first: {key}: {reason}; to see all, run"
            f" 'diskcache-like migrate --dry-run {old} NEW'",
            UserWarning,
            stacklevel=2,
        )


def _begun(old: str, new: str, options: MigrationOptions) -> Migration:
    for pause in PAUSES:
        try:
            return Migration(old, new, options, within=True)
        except StorageError as error:
            if type(error) is not StorageError:
                raise
            time.sleep(pause)
    return Migration(old, new, options, within=True)
