"""One small function per user verb: wiring, no logic."""
