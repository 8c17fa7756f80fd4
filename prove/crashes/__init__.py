"""Processes that are killed: at any moment, at every step, and as owners of locks."""
