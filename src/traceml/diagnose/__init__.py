"""Turns facts into findings."""
