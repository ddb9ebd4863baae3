"""A small training script that says, in the file it is given, when things happened.

usage: train_small.py FILE SECONDS
"""

import json
import sys
import time

import torch
from torch import nn

torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
x, y = torch.randn(32, 32), torch.randn(32, 1)

first, ends, steps = None, time.monotonic() + float(sys.argv[2]), 0
while first is None or time.monotonic() < ends:
    optimizer.zero_grad()
    nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()
    first = first or time.monotonic()
    steps += 1
    time.sleep(0.002)

with open(sys.argv[1], "w") as file:  # noqa: PTH123 - the script imports what it needs, no more
    json.dump({"first_step": first, "end": time.monotonic(), "steps": steps}, file)
