"""Arrays, tables and data frames of other libraries as plain data.

- `registry`: which module packs and reads which type
- `numpy_arrays`, `string_arrays`: NumPy's arrays and scalars, and its arrays of texts of any length
- `arrow`, `pandas`, `polars`: tables of Arrow, and frames and series as such tables
"""
