"""Our pages in a real browser."""
