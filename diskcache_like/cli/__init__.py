"""The command line, `diskcache-like` or `python -m diskcache_like`.

- `main`: the parser of all commands, errors and exit codes
- `entries`: `get`, `set`, `touch`, `retag`, `delete`, `keys`, `evict` and `sizes`
- `whole`: `stats`, `watch`, `check`, `reset`, `expire`, `cull` and `clear`
- `monitoring`: `bigkeys`, `hotkeys`, `tags` and `health`
- `transfer`: `export`, `import` and `copy`
- `migrate`, `serving`: the commands `migrate` and `serve`
- `arguments`: what arguments may be
- `opening`: opening a cache that is there, also one that can only be read
- `terminal`: what is printed: text, JSON, tables and progress bars
"""
