"""Turns facts into findings: what is wrong with a run, why, and what to do."""
