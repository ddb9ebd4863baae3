"""Follows rings, samples host, processes and GPUs, and writes the records and the summary."""
