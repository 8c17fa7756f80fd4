"""Run a program that imports DiskCache on this package: `python -m diskcache_like.compat SCRIPT [ARGUMENT ...]`."""

from __future__ import annotations

from . import main

if __name__ == "__main__":
    main()
