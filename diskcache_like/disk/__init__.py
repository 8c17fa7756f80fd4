"""How keys and values become payloads and value files.

- `contract`: `Disk`, DiskCache's public extension point; `json_disk`: `JSONDisk`
- `payloads`: values to payloads and back, by a `codec` made of one of the `serializers` and a compressor
- `value_files`: value files with their digests; `file_io`: create, open and remove files safely
- `columnar/`: arrays, tables and data frames of other libraries
"""
