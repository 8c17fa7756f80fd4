"""The files of a shard: find, make, verify, repair and replace them.

- `opener`: open a shard, made or repaired first where that is needed; `mutex`: one thread at a time
- `replacement`: quarantine a damaged database, and go on with the next
- `identity`: what a shard's directory holds, and what a database says about itself
- `shard_layout`: which shards a directory holds; `directory`: make one, refuse an unsafe one
- `file_system`: refuse a remote one, where processes may not see each other's writes
"""
