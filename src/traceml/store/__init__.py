"""Writes and reads runs: rings drained to record files, run folders; alone knows file formats."""
