"""Turns records into facts about a run: aligned windows, shares, spreads, trends."""
