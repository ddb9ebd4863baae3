"""Turns runs, two or two groups of them, into what changed, by how much, how sure, and why."""
