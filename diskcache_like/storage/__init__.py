"""Shards and the values in them. This folder and `compat.migration.old_database` alone talk to SQLite.

- `shards`: which store holds a key, and transactions over several; `redo_log`: finishes one that was cut off
- `interface`: what an operation on a key may ask of a store; `store`: one shard, a facade
- `writer`: put, remove and update; `rows`: where the row of a key lies, and how it changes
- `write_buffer`: small writes appended to a ring, and flushed from there to the database
- `shard_settings`: settings in force and stored
- `check`, `rekeying`: whole stores checked, and sealed anew
- `shard/`: what is open of a shard; `opening/`: its files; `upkeep/`: maintenance by writes; `sqlite/`: connections
"""
