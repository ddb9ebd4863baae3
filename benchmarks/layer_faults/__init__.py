"""Faults planted in layers, and whether the deep profile names the layer."""
