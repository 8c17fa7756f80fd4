"""The command line, `python -m diskcache_like`.

- `main`: the parser, and the commands `stats`, `check` and `clear`; `demo`, `migrate`: the other two
- `terminal`: progress bars and tables
"""
