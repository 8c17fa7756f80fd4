"""Run chosen tests and proofs with every Python and SQLite at hand: `make matrix`."""
