"""Turns records into facts about a run: the step table and its reductions, spreads and trends."""
