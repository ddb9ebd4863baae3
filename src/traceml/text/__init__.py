"""Turns summaries and comparisons into text."""
