"""Keep the results of a slow function across runs: the second run of this program computes nothing."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from diskcache_like import Cache

directory = sys.argv[1] if len(sys.argv) > 1 else str(Path(tempfile.gettempdir(), "example-primes"))

with Cache(directory, size_limit=2**26) as cache:

    @cache.memoize(tag="primes", version=1)  # change the version when you change the function
    def primes_below(limit: int) -> list[int]:
        """Return the primes below a limit, slowly."""
        return [number for number in range(2, limit) if all(number % divisor for divisor in range(2, number))]

    for limit in (100, 1_000, 3_000):
        print(f"{len(primes_below(limit))} primes below {limit}")
    info = primes_below.cache_info()
    print(f"{info.hits} from the cache, {info.misses} computed")
