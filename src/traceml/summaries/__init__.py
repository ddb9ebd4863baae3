"""The final summary as one record: built from facts and findings, read from JSON of any version."""
