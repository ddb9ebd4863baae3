"""What TraceML costs, measured: each file here answers for some rows of the table in the docs."""
