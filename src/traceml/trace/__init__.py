"""Measures steps inside the training process; never raises into it, never waits."""
