"""A command-line tool that counts the lines of source files, and looks only at those that have changed."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from diskcache_like import Cache


def cache_directory() -> Path:
    """Return where a user's caches are, as the XDG base directory specification says."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "example-line-counter"


def main() -> None:
    """Print a line for each folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", default=Path(__file__).parent, type=Path)
    parser.add_argument("--cache", default=cache_directory(), type=Path)
    asked = parser.parse_args()
    with Cache(asked.cache, size_limit=2**24, timeout=1) as cache:

        @cache.memoize(expire="30d")
        def lines(path: str, changed: int, size: int) -> int:
            """Return the number of lines; time and size are part of the key, so a changed file is read again."""
            return Path(path).read_bytes().count(b"\n")

        files = sorted(path for path in asked.folder.rglob("*.py") if path.is_file())
        total = 0
        for path in files:
            status = path.stat()
            total += lines(str(path.resolve()), status.st_mtime_ns, status.st_size)
        info = lines.cache_info()
        print(f"{total} lines in {len(files)} files; {info.hits} known before, {info.misses} read")


if __name__ == "__main__":
    main()
