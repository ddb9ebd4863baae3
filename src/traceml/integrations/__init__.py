"""Joins TraceML to libraries that start or run the training: runs in the user's own processes."""
