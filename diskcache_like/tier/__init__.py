"""The tier on a server that several machines share: below the operations of a cache, and above its shards.

From the top down:

- `rows`: the place of a key on the server, and the parts of a cache with `remote=`
- `store`: what reads ask and where writes go, by the interface of a shard
- `copies`: what this machine has of an entry, and whether it may be believed
- `tier`: what a handle has beside its shards; `words`: where its hot layer looks
- `listener`: the one thread on a machine that hears what others have written
- `link`: requests, with retries; `server`: Redis and Valkey, by redis-py
- `wire`: names and values as the server has them; `scripts`: what it does in one step
- `state`: what all processes of the machine know, in shared memory
"""
