"""A queue of jobs for several processes that survives their end, with one writer of the summary at a time."""

from __future__ import annotations

import multiprocessing
import tempfile

from diskcache_like import Cache, Lock

JOBS = 30
WORKERS = 3


def work(directory: str) -> None:
    """Take jobs until there are none."""
    with Cache(directory) as cache:
        while (item := cache.pull("jobs"))[0] is not None:
            number = item[1]["number"]
            with cache.transact():  # both or neither, for everyone who looks
                cache.incr("done")
                cache.incr("sum", number**2)
            with Lock(cache, "log", expire=10):
                cache.set("last", number)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        with Cache(directory, eviction_policy="none") as cache:  # nothing that waits may be evicted
            for number in range(JOBS):
                cache.push({"number": number}, "jobs")
        spawn = multiprocessing.get_context("spawn")
        workers = [spawn.Process(target=work, args=(directory,)) for _ in range(WORKERS)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        with Cache(directory) as cache:
            print(f"{cache['done']} jobs done, sum of squares {cache['sum']}, last {cache['last'] in range(JOBS)}")
