"""Takes small training steps and writes how long each took, as doubles, to the file it is given.

usage: step_times.py FILE STEPS
"""

import array
import sys
import time

import torch
from torch import nn

torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
x, y = torch.randn(32, 32), torch.randn(32, 1)

times = array.array("d", bytes(8 * int(sys.argv[2])))
for index in range(-200, len(times)):
    began = time.perf_counter()
    optimizer.zero_grad()
    nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()
    if index >= 0:
        times[index] = time.perf_counter() - began

with open(sys.argv[1], "wb") as file:  # noqa: PTH123 - the script imports what it needs, no more
    times.tofile(file)
