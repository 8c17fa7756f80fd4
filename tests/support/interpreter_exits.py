"""The ways in which an interpreter ends while it has a cache open, as programs; `cache` is the handle.

Each ends quietly, and leaves what was written before; what it wrote under the key "undone" is not to be there.
"""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

ENDINGS = {
    "with an open handle": """
        cache.set("key", 1)
        cache.get("key")
    """,
    "in the middle of an iteration": """
        cache.set_many(dict.fromkeys(range(500), 1))
        iterator, other = iter(cache), cache.iterkeys()
        next(iterator), next(other)
    """,
    "with an open value file": """
        cache.set("key", b"x" * 40000)
        file = cache.read("key")
    """,
    "within a transaction": """
        transaction = cache.transact()
        transaction.__enter__()
        cache.set("undone", 1)
    """,
    "with daemon threads writing": """
        import threading
        def write(number):
            while True:
                cache.set(number, b"x" * 100, retry=True)
                cache.get(number + 1)
        for number in range(4):
            threading.Thread(target=write, args=(number,), daemon=True).start()
        while len(cache) < 4:
            pass
    """,
    "with threads still writing": """
        import threading
        def write(number):
            for count in range(200):
                cache.set((number, count), count, retry=True)
        for number in range(4):
            threading.Thread(target=write, args=(number,)).start()
    """,
    "by an exception": """
        cache.set("key", 1)
        raise SystemExit(0)
    """,
    "in a forked child": """
        import os
        cache.set("key", 1)
        pid = os.fork()
        if pid:
            assert os.waitpid(pid, 0)[1] == 0
            cache.set("key", 2)
        else:
            cache.incr("child")
    """,
    "in a forked child that did nothing": """
        import os
        cache.set("key", 1)
        pid = os.fork()
        if pid:
            assert os.waitpid(pid, 0)[1] == 0
            cache.set("key", 2)
    """,
    "by leaving a transaction": """
        import sys
        with cache.transact():
            cache.set("undone", 1)
            sys.exit(0)
    """,
    "with a generator within a transaction": """
        def transact():
            with cache.transact():
                cache.set("undone", 1)
                yield
        generator = transact()
        next(generator)
    """,
    "with a thread within a transaction": """
        import threading
        inside = threading.Event()
        def transact():
            with cache.transact():
                cache.set("undone", 1)
                inside.set()
                threading.Event().wait()
        threading.Thread(target=transact, daemon=True).start()
        inside.wait()
    """,
    "with daemon threads in transactions": """
        import threading
        def transact(number):
            while True:
                with cache.transact(retry=True):
                    cache.incr(("left", number))
                    cache.set(("large", number), b"x" * 40000)
                    cache.incr(("right", number))
        for number in range(4):
            threading.Thread(target=transact, args=(number,), daemon=True).start()
        while len(cache) < 12:
            pass
    """,
    "at once, in the middle of writes": """
        import os, threading
        def write(number):
            while True:
                cache.set(number, b"x" * 40000, retry=True)
                cache.incr(("count", number), retry=True)
        for number in range(4):
            threading.Thread(target=write, args=(number,), daemon=True).start()
        while len(cache) < 8:
            pass
        os._exit(0)
    """,
    "using the cache at exit": """
        import atexit
        @atexit.register
        def use():
            cache.set("at exit", cache.get("key"))
            with cache.transact():
                cache.incr("count")
            cache.close()
            cache.incr("count")
        cache.set("key", 1)
    """,
    "using the cache in a finalizer": """
        class Last:
            def __init__(self, cache):
                self.cache = cache
            def __del__(self):
                self.cache.incr("count")
                assert self.cache.get("key") == 1
        cache.set("key", 1)
        last = Last(cache)
    """,
    "with a pool of threads at work": """
        from concurrent.futures import ThreadPoolExecutor
        pool = ThreadPoolExecutor(3)
        for number in range(300):
            pool.submit(cache.set, number, number, retry=True)
    """,
}
# May leave a file without its entry behind, which check(fix=True) removes: a daemon thread stops for good wherever it
# is when the interpreter ends, as in a process that is killed.
ABRUPT = ("with daemon threads in transactions", "at once, in the middle of writes")
_OPENERS = {"one": "Cache({!r})", "fanout": "FanoutCache({!r}, shards=3, timeout=60)"}


def end(name: str, directory: Path, kind: str, patience: float) -> subprocess.CompletedProcess[str]:
    """Run the program on a cache of one kind, and return what became of it; stop it after so many seconds."""
    lines = f"from diskcache_like import *\ncache = {_OPENERS[kind].format(str(directory))}\n"
    script = lines + textwrap.dedent(ENDINGS[name])
    command = [sys.executable, "-c", script]
    return subprocess.run(command, capture_output=True, text=True, timeout=patience, check=False)
