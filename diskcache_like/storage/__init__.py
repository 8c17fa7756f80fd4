"""Shards and the values in them. This folder and `migration.old_database` alone talk to SQLite.

- `shards`: which store holds a key, and transactions over several; `redo_log`: finishes one that was cut off
- `store`: one shard, a facade over the parts below and in the folders
- `writer`: put, remove and compute; `rows`: where the row of a key lies, and how it changes
- `write_buffer`: small writes appended to a ring, and flushed from there to the database
- `shard_settings`: settings in force and stored
- `check`, `rekeying`: whole stores checked, and sealed anew
- `shard/`: what is open of a shard; `opening/`: its files; `upkeep/`: maintenance by writes; `sqlite/`: connections
"""
