"""The training script that the fault bench runs, and the faults that can be planted in it."""
