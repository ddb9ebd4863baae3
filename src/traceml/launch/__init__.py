"""Starts a training command and its agent, forwards signals, and returns when both are done."""
