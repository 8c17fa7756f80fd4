"""Benchmarks of diskcache_like and its peers; the package itself imports nothing from here.

`peers` opens other stores behind a few methods, `workloads` holds what is called and how it is measured, each workload
once, and `report` makes tables, plots and parts of pages of what was found. `budgets` is what the design promises, and
`codecs` measures serializers and compressors. The modules that parse a command line are the commands.
"""
