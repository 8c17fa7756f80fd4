"""Coherence between processes: a shard's generations in shared memory, its write lock, and what both are built on.

- `generations`: the generation file, by which processes tell each other that an entry may have changed
- `write_lock`: one writer at a time, among threads and processes
- `contexts`: how a hold of that lock, and a with-block, ends wherever a signal handler raises
- `byte_locks`: who has a shard open, is computing a key, or counts in a row; each lock ends with its process
- `counts`: what all processes have counted
- `ring`: small writes that the database does not have yet
- `futex`: sleep until a word changes, and wake those who sleep
- `control_files`: open the files of the others safely
- `_native`: the core in C: the lock (`_lock.c`), the ring's records and an append in a single call (`_ring.c`), which
  know nothing of Python, and a file for each type that gives them to Python; plain data in msgpack
  (`_plain.c`); and value files (`_files.c`)
"""

try:
    from . import _native as _native
except ImportError as error:
    raise ImportError(
        f"diskcache_like's core is not built for this Python ({error}): install the package with `pip install .`, or "
        "build it in place with `pip install -e .`"
    ) from error
