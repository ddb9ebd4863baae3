"""The live terminal view: widgets and keys over the same page that the browser shows."""
