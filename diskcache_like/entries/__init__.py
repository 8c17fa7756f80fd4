"""A cache as one process has it open.

- `handle`: what is open, and the settings in force; `options`: the arguments of a cache, checked
- `row_codec`: keys to stored keys and stores, records to rows and back, and what an entry has to prove
- `loading`: read an entry, and decide whether it may be kept hot
- `hot`: the hot layer: lookup, SIEVE, and what hits and misses leave behind
- `atomic_key`: changing an entry in one step, sleeping and waking on one key, for recipes
- `encryption`, `rotation`: keys attached to a cache, and changed
- `metrics`: what the counts of all processes mean; `timing`: how long calls take, where that is wanted
"""
