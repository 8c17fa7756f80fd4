"""Caches and collections built on `Cache`.

- `fanout`: `FanoutCache`, a cache in several shards, with named children
- `deque`, `index`: `Deque` and `Index`; `durable`: what both have in common
"""
