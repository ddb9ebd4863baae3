"""Summaries and comparisons as text."""
