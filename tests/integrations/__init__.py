"""What others bring: DiskCache, Django, CPython's own tests, NumPy, pandas, polars and Arrow."""
