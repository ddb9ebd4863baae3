"""The variables by which `traceml run` tells the processes below it where to write and what."""

RUN_FOLDER = "TRACEML_RUN_FOLDER"
RING_FOLDER = "TRACEML_RING_FOLDER"
MAX_STEPS = "TRACEML_MAX_STEPS"
PROFILE = "TRACEML_PROFILE"
