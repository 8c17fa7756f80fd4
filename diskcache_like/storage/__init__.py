"""Where values are kept: shards, stores and value files. The only part of the package that talks to SQLite."""
