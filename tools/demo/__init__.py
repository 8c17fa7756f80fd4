"""A demonstration: what a cache does for processes that share it, and what it costs (`make demo`)."""
