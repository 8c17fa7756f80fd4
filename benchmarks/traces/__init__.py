"""Traces of what real programs asked their caches for: what each policy of eviction would have hit."""
