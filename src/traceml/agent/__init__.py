"""Follows rings, samples host, processes and GPUs, ships to the summary."""
