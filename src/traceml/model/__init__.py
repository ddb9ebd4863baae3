"""The nouns every room speaks of, their units, and the layout of a record."""
