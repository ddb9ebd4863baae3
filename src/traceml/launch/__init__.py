"""Starts a training command and its agent, passes signals on, and returns when both are done."""
