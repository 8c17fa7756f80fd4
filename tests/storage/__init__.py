"""Directories, transactions, upkeep, descriptors and forks: what the storage layer does with its files."""
