"""Takes the fastest training steps there are, and says how many it took.

usage: fast_steps.py FILE SECONDS real|empty
"""

import json
import sys
import time

import torch

from traceml import trace_step

torch.set_num_threads(1)
weight = torch.zeros(1, requires_grad=True)
optimizer = torch.optim.SGD([weight], lr=1e-3, foreach=False)


def real() -> None:
    """A backward pass and an optimizer step."""
    weight.backward()
    optimizer.step()


def empty() -> None:
    """Nothing but the word that says it is a step."""
    with trace_step():
        pass


step = real if sys.argv[3] == "real" else empty
steps, began = 0, time.monotonic()
while time.monotonic() - began < float(sys.argv[2]):
    for _ in range(100):
        step()
    steps += 100

with open(sys.argv[1], "w") as file:  # noqa: PTH123 - the script imports what it needs, no more
    json.dump({"steps": steps, "seconds": time.monotonic() - began}, file)
