"""Maintenance that writes do beside writing, each when it is due.

- `maintenance`: what is due before a write, before a transaction, and when the lock is released
- `eviction`: when live entries go, and how many; `victims`: which ones
- `quota`: how shards share the size limit
- `removal`: delete rows whatever room there is; `bulk_removal`: everything of a kind, in batches
- `checkpoints`: keep the WAL short, give free pages back; `trash`: unlink files after their grace
- `recovery`: after a full disk or a damaged database, mend it and try once more
- `data_keys`: the keyring of an encrypted shard, and when its next data key begins
"""
