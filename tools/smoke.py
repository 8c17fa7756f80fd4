"""Try the installed package, in seconds and with the standard library alone.

`make dist` and cibuildwheel run it with the Python of an environment that a wheel was installed into.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import itertools
import os
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import diskcache_like
from diskcache_like.coherence._native import Words
from diskcache_like.encoding import checksum

DISTRIBUTION = "diskcache-like"
TIMEOUT = 120  # seconds; a command that takes longer hangs
# How many times as fast as DiskCache an installation is at least, on a busy machine too.
FASTER = {"set": 2.5, "delete": 2.0, "get": 8.0}
IN_AN_INTERPRETER = """
from diskcache_like import Cache
with Cache({directory!r}) as cache:
    cache.incr("count")
    cache["key"] = "value"
    assert cache["key"] == "value"
"""
OTHER_PROCESS = """\
import sys
from diskcache_like import Cache

with Cache(sys.argv[1]) as cache:
    assert cache.get("row") == {"numbers": [1, 2.5], "text": "ä"}, "a row differs"
    assert cache.get("file") == bytes(100_000), "a value file differs"
    assert cache.incr("count") == 2, "a count differs"
    cache.set("row", "new")
"""


class SmokeError(Exception):
    """The installed package does not do what it must."""


def check_place() -> None:
    """Refuse to try the sources instead of what was installed."""
    package = Path(diskcache_like.__file__).parent
    if package.with_name("pyproject.toml").exists():
        raise SmokeError(f"{package} is the project's source; install a wheel, and run its Python with -P")


def check_files() -> None:
    """Look for the files that are not code, and compare the versions."""
    files = importlib.metadata.files(DISTRIBUTION) or []
    found = {path.name for path in files if Path(str(path.locate())).is_file()}
    if missing := {"py.typed", "LICENSE", "METADATA"} - found:
        raise SmokeError(f"not installed: {', '.join(sorted(missing))}")
    told = importlib.metadata.version(DISTRIBUTION)
    if told != diskcache_like.__version__:
        raise SmokeError(f"version {diskcache_like.__version__} was installed as {told}")


def check_processes(directory: Path) -> None:
    """Write, let another process read and write, and read what it wrote over a hot entry."""
    with diskcache_like.Cache(str(directory)) as cache:
        cache.set("row", {"numbers": [1, 2.5], "text": "ä"})
        cache.set("file", bytes(100_000))
        cache.incr("count")
        cache.get("row")
        run(sys.executable, "-P", "-c", OTHER_PROCESS, str(directory))
        found = cache.get("row"), cache.get("count")
    if found != ("new", 2):
        raise SmokeError(f"another process wrote 'new' and 2; this one reads {found}")


def check_operations(directory: Path) -> None:
    """Use each kind of operation once; with `python -W error` a warning is an error."""
    for kind in (diskcache_like.Cache, diskcache_like.FanoutCache):
        with kind(str(directory / kind.__name__)) as cache:
            cache.set_many({number: number for number in range(50)}, expire=60)
            cache.set("file", bytes(100_000), expire=60, tags=["red", "blue"])
            cache.add("added", 1, tag="red")
            cache.retag("added", add=["green"])
            found = [cache.touch("added", 60), len(cache.get_many(["file", "added"])), cache.push("item"), cache.pull()]
            found += [list(cache.keys(tags=["red"])), cache.tags(), list(cache), cache.pop(1), cache.delete(2)]
            with cache.transact():
                cache.incr("count", cache.pop(3))
            with diskcache_like.Lock(cache, "lock", expire=60):
                cache.namespace("own")["key"] = cache["count"]
            found += [
                cache.evict("red"),
                cache.expire(),
                cache.cull(),
                cache.volume(),
                cache.check(fix=True),
                len(cache),
            ]
            found += [cache.stats(), cache.clear()]
    deque = diskcache_like.Deque([1, 2, 3], str(directory / "deque"))
    index = diskcache_like.Index(str(directory / "index"), a=1)
    found = [deque.popleft(), list(deque), index.popitem(), len(index)]
    if found != [1, [2, 3], ("a", 1), 0]:
        raise SmokeError(f"a Deque and an Index gave {found}")


def check_interpreters(directory: Path, times: int = 3) -> None:
    """Use a cache in several interpreters of this process, one after the other."""
    code = IN_AN_INTERPRETER.format(directory=str(directory))
    if sys.version_info >= (3, 14):
        with importlib.import_module("concurrent.futures").InterpreterPoolExecutor(max_workers=1) as pool:
            for _ in range(times):
                pool.submit(exec, code).result()
    elif sys.version_info[:2] != (3, 12):  # whose `datetime`, which msgpack needs, is broken in all but the first one
        module = importlib.import_module("_interpreters" if sys.version_info >= (3, 13) else "_xxsubinterpreters")
        for _ in range(times):
            interpreter = module.create()
            if failure := module.run_string(interpreter, code):
                raise SmokeError(f"in an interpreter of its own a cache fails: {failure}")
            module.destroy(interpreter)
    else:
        return
    with diskcache_like.Cache(str(directory)) as cache:
        if cache.get("count") != times:
            raise SmokeError(f"{times} interpreters counted to {cache.get('count')}")


def check_memoize(directory: Path) -> None:
    """Call a memoized function twice."""
    calls = []
    with diskcache_like.Cache(str(directory)) as cache:

        @cache.memoize(expire=600)
        def square(number: int) -> int:
            calls.append(number)
            return number * number

        results = [square(12), square(number=12)]
    if (results, calls) != ([144, 144], [12]):
        raise SmokeError(f"a memoized function returned {results} after the calls {calls}; expected one call")


def check_core() -> None:
    """Have the core in C write a word, and look for the fast checksum."""
    words = Words(bytearray(16), 0, 2)
    words[1] = 7
    if list(words) != [0, 7]:
        raise SmokeError(f"the core stored 7 in word 1 and made {list(words)}")
    if checksum.SOURCE != "zlib_ng":
        raise SmokeError(f"checksums are computed by {checksum.SOURCE}; expected zlib_ng")


def check_speed(directory: Path, tries: int = 3) -> dict[str, float]:
    """Return how many times as fast as DiskCache calls are; other work on the machine may spoil all tries but one."""
    for left in reversed(range(tries)):
        ratios = compare_with_diskcache(directory / str(left))
        if all(ratios[call] >= least for call, least in FASTER.items()):
            return ratios
    raise SmokeError(f"beside DiskCache calls are {ratios} times as fast; expected {FASTER}")


def compare_with_diskcache(directory: Path) -> dict[str, float]:
    """Return DiskCache's median time of each call divided by this package's, both in turns of 100 calls."""
    diskcache = importlib.import_module("diskcache")
    keys = [(f"key {number}",) for number in range(100)]
    taken: dict[tuple[str, int], list[int]] = {}
    with diskcache.Cache(directory / "old") as old, diskcache_like.Cache(directory / "new") as new:
        for _, (which, cache) in itertools.product(range(50), enumerate((old, new))):
            taken.setdefault(("set", which), []).extend(timed(cache.set, [(*key, os.urandom(100)) for key in keys]))
            timed(cache.get, keys)
            taken.setdefault(("get", which), []).extend(timed(cache.get, keys))
            taken.setdefault(("delete", which), []).extend(timed(cache.delete, keys))
    medians = {name: statistics.median(times) for name, times in taken.items()}
    return {call: round(medians[call, 0] / medians[call, 1], 1) for call in FASTER}


def timed(call: Callable[..., Any], arguments: Iterable[tuple[Any, ...]]) -> list[int]:
    """Return the nanoseconds that each call takes."""
    clock, times = time.perf_counter_ns, []
    for one in arguments:
        began = clock()
        call(*one)
        times.append(clock() - began)
    return times


def check_commands(directory: Path) -> None:
    """Look at the cache from the shell, by both names of the command."""
    script = Path(sysconfig.get_path("scripts"), DISTRIBUTION)
    for command in ([sys.executable, "-P", "-m", "diskcache_like"], [str(script)]):
        if not run(*command, "stats", str(directory)).strip():
            raise SmokeError(f"{' '.join(command)} stats printed nothing")


def run(*command: str) -> str:
    """Run a command and return what it printed."""
    try:
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=TIMEOUT, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SmokeError(f"{command[0]} did not run: {error}") from error
    if done.returncode:
        raise SmokeError(f"{command[0]} ended with status {done.returncode}: {done.stdout.strip()}")
    return done.stdout


def main() -> None:
    """Try everything, and say what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--beside-diskcache", action="store_true", help="compare the speed with DiskCache's instead")
    beside_diskcache = parser.parse_args().beside_diskcache
    with tempfile.TemporaryDirectory(prefix="smoke-") as folder:
        directory = Path(folder, "cache")
        try:
            check_place()
            check_files()
            check_core()
            if beside_diskcache:
                sys.stdout.write(f"smoke: {check_speed(directory)} times as fast as DiskCache\n")
                return
            check_processes(directory)
            check_operations(Path(folder))
            check_interpreters(Path(folder, "interpreters"))
            check_memoize(directory)
            check_commands(directory)
        except SmokeError as error:
            sys.exit(f"smoke: {error}")
    place, version = Path(diskcache_like.__file__).parent, sys.version.partition(" ")[0]
    sys.stdout.write(f"smoke: {place} works, Python {version}\n")


if __name__ == "__main__":
    main()
