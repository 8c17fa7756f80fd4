"""Locks, throttles, barriers, averages and stampede protection."""
