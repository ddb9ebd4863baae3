"""The variables and marks by which `traceml run` and the processes below it know of each other."""

RUN_FOLDER = "TRACEML_RUN_FOLDER"
RING_FOLDER = "TRACEML_RING_FOLDER"
MAX_STEPS = "TRACEML_MAX_STEPS"
PROFILE = "TRACEML_PROFILE"

MARKS = "marks"
"""A folder in the run's, for small files by which interpreters say how far they came."""
PYTHON_MARK = "python"
TORCH_MARK = "torch"
TROUBLE_MARK = "trouble"
"""Why tracing is off in a process below, in words for people."""
