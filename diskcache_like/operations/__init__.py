"""Operations of a cache that are a topic of their own; `Cache` inherits or calls them.

- `tagging`: evict and list by tag; `namespaces`: views with keys of their own; `iteration`: going over entries
- `queues`: push, pull, peek; `streams`: values read and written in pieces
- `administration`: operations on a cache as a whole: clear, evict, check, stats, reset, rotate
- `inspection`: what the command line tells of a cache and no operation does
- `portable`: entries as bytes that another cache can take
- `views`: keys, values and items
- `faces`: how operations become awaited ones; `awaited`: the door to the classes that have them
- `parts`: what the operations work with
"""
