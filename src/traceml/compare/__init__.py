"""Turns two summaries into what changed, by how much, and a verdict."""
