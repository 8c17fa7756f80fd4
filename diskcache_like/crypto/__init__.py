"""Signatures and encryption.

- `signing`: the secret of a cache, where it comes from, and authentication with it
- `keyring`: the keys of an encrypted cache, and how they follow a change of the secret
- `aead`: encryption of records, keys, settings and value files with AES-256-GCM
"""
