"""What a cache is told when it is opened.

- `definitions`: the settings: names, defaults, types and ranges
- `lifetimes`: how long something lives, as a caller says it
- `policies`: eviction policies: which entry goes first
- `remote`: `Remote`: which server, and what holds when it is slow or gone
- `misuse`: what a caller meant with a name that does not exist
"""
