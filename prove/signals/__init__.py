"""Signals whose handlers use the cache, or raise, in the middle of a call."""
