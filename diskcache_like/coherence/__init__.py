"""Coherence between processes: a shard's generations in shared memory, its write lock, and what both are built on.

- `generations`: the generation file, by which processes tell each other that an entry may have changed
- `write_lock`: one writer at a time, among threads and processes
- `byte_locks`: who is computing a key; each lock ends with its process
- `ring`: small writes that the database does not have yet
- `appender`: add one of them in a single call of the C helper
- `futex`: sleep until a word changes, and wake those who sleep
- `atomics`: how 64-bit words are read and written on each CPU
- `control_files`: open the files of the first four safely
- `native`, `native_build`: load and build the optional C helper
"""
