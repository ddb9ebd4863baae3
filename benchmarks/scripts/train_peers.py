"""Trains under one of several tools and says, in the file it is given, how long its steps took.

usage: train_peers.py FILE STEPS [traceml-ai | torch.profiler]
"""

import json
import sys
import time
from contextlib import nullcontext

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

stamps, steps, tool = sys.argv[1], int(sys.argv[2]), sys.argv[3] if sys.argv[3:] else ""
torch.set_num_threads(1)
torch.manual_seed(0)
model = nn.Sequential(*(nn.Sequential(nn.Linear(256, 256), nn.ReLU()) for _ in range(12)))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
loader = DataLoader(TensorDataset(torch.randn(128 * steps, 256)), batch_size=128)


def around_step():
    """What a script has to write around its step for this tool."""
    return traceml_ai.trace_step(model) if tool == "traceml-ai" else nullcontext()


if tool == "traceml-ai":
    import traceml_ai  # in its own environment

    traceml_ai.init(mode="auto")
profiler = torch.profiler.profile() if tool == "torch.profiler" else nullcontext()

times, first = [], 0.0
with profiler:
    last = time.perf_counter()
    for (inputs,) in loader:
        with around_step():
            optimizer.zero_grad()
            model(inputs).square().mean().backward()
            optimizer.step()
        now = time.perf_counter()
        times.append(now - last)
        last = now
        first = first or time.monotonic()

with open(stamps, "w") as file:  # noqa: PTH123 - the script imports what it needs, no more
    json.dump({"times_s": times, "first_step": first, "end": time.monotonic()}, file)
