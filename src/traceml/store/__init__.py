"""Writes and reads runs: folders, record files, rings; the only package that knows file formats."""
