"""The data types that all packages share, their units, and the layout of a record."""
