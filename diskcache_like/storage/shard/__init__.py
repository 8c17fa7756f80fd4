"""One shard as one process has it open.

- `open_shard`: what is open, when it is opened anew, forks; `limits`: how much it may hold
- `forking`: quiesce every shard before a fork
- `reader`: SELECTs on a pool; `writer_connection`: the one connection that writes, and its transaction
- `transactions`: take the write lock; transactions and savepoints; `ownership`: whose transaction it is
- `invalidation`: slots odd before a commit, even after it
- `row`: what a store takes and gives
"""
