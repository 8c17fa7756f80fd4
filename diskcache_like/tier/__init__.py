"""The tier on a server that several machines share: below the operations of a cache, and above its shards.

- `tier`: what a cache with `remote=` has beside its shards
- `store`: a shard whose entries are copies of those on the server: what reads and writes do
- `link`: requests with retries, a breaker and counts, and what may be believed without one
- `listener`: the one thread on a machine that hears what others have written
- `state`: what all processes of the machine know, in shared memory
- `wire`: names and values as the server has them
- `server`: Redis and Valkey, by redis-py; `scripts`: what they do in one step
- `behind`: writes that are sent later
"""
