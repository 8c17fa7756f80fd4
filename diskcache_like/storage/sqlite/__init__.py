"""SQLite: connections, and its errors in the package's words (`connection`), `reader_pool`, `schema`, `statements`."""
