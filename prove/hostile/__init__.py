"""Directories that a bad disk or an attacker wrote."""
