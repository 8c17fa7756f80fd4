"""Copy a directory of DiskCache 5 into a new cache without trusting anything in it.

- `copy`: the migration itself; `beside`: one into a folder of the old directory, for `compat`
- `source`: which caches the old directory holds, and the keys and values of their rows
- `old_database`: read an old database safely
- `plain_pickle`: read pickles of plain data without unpickling
"""
