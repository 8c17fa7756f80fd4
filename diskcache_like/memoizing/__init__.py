"""Computed values: one is read, or computed once for all who want it, and kept.

- `computed`: get_or_set and memoize; `computing`: what both do; `many`: the same for many keys; `steps`: how, in a
  thread or a loop; `rules`: options; `flights`: one computes for all
- `memoize`: the decorator; `call_keys`: the keys of calls; `identities`: what tells functions and classes apart;
  `templates`: text that names arguments
- `why`: why a look-up finds nothing
"""
