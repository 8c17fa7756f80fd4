"""Replay traces of requests on simulated eviction policies, and on real caches."""
