"""One small function per verb a user says: wiring, no logic."""
