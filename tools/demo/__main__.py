"""`python -m tools.demo`: see the cache at work on Python's standard library."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial

from diskcache_like.cli.arguments import positive
from diskcache_like.cli.main import ended
from tools.demo.study import run


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demonstration and return its exit code: 1 if any read was stale, 2 if it failed."""
    parser = argparse.ArgumentParser(prog="python -m tools.demo", description=__doc__)
    parser.add_argument("directory", nargs="?", help="keep the cache here (default: a temporary directory)")
    parser.add_argument("--processes", type=positive, metavar="N", help="how many processes share the cache")
    parser.add_argument("--limit", type=positive, metavar="N", help="measure only the first N modules")
    asked = parser.parse_args(arguments)
    return ended(partial(run, asked.directory, asked.processes, asked.limit), asked.directory)


if __name__ == "__main__":
    sys.exit(main())
