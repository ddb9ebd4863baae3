"""Serves pages to a browser, writes the one-file report, and shows runs in a notebook."""
