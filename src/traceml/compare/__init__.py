"""Compares two runs or two groups of runs: what changed, by how much, how certain, and why."""
