"""Benchmarks of diskcache_like against its peers; nothing here is imported by the package.

Subjects say what is measured, workloads with what, measure how; each section module answers one question, budgets
hold the answers that the design promises, and report prints them. `python -m benchmarks.quick` runs them all,
`benchmarks.objectives` fails if a budget is missed, and `benchmarks.compare` measures two revisions of the package
against each other.
"""
