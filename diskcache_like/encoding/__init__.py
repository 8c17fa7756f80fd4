"""Keys, values and records as bytes: no file is opened here, and no database.

- `keys`: keys to stored keys and back, and where in the database they lie; `canonical`: the bytes of a stored key
- `made_keys`: the keys of queues and namespaces; `tags`: the tags of an entry
- `values`: plain data as msgpack; `msgpack_reader`: read msgpack within bounds; `copying`: copies of decoded values
- `classes`: dataclasses, enums and other registered classes as data
- `json`: the JSON serializer; `pickling`: pickles of what is not plain data
- `compressors`: zlib, zstd and lz4
- `record`: the stored form of an entry, with its signature or checksum; `checksum`: the fastest CRC-32
- `file_names`: the names of value files; `globs`: which keys match a glob
"""
