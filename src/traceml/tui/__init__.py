"""The live terminal view: widgets and keys for the same page that the browser shows."""
