"""Trains a stack of layers on the CPU for some seconds: nothing but compute.

usage: train_layers.py BEGAN SECONDS WORK    (BEGAN: a file to make at the first step)
"""

import sys
import time
from pathlib import Path

import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)
layers = [nn.Sequential(nn.Linear(192, 192), nn.ReLU()) for _ in range(int(sys.argv[3]))]
model = nn.Sequential(*layers, nn.Linear(192, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
x, y = torch.randn(64, 192), torch.randn(64, 1)

ends = None
while ends is None or time.monotonic() < ends:
    optimizer.zero_grad()
    nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()
    if ends is None:
        ends = time.monotonic() + float(sys.argv[2])
        Path(sys.argv[1]).touch()
