"""Planted faults: real training runs whose truth is known, and whether TraceML says it."""
