"""Turns what a training process saw happen into its steps."""
