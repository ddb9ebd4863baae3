"""Trains for some seconds on samples that one DataLoader worker has to make: input-bound.

usage: train_loader.py BEGAN SECONDS WORK    (BEGAN: a file to make at the first step)
"""

import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)
torch.manual_seed(0)
WORK = int(sys.argv[3])


class Augmented(Dataset):
    """Images that are blurred again and again while they are fetched."""

    def __len__(self):
        return 1_000_000

    def __getitem__(self, number):
        image = torch.full((3, 24, 24), float(number % 7))
        for _ in range(WORK):
            image = (image + image.roll(1, -1) + image.roll(1, -2)) / 3
        return image.flatten(), torch.zeros(1)


model = nn.Sequential(nn.Linear(3 * 24 * 24, 64), nn.ReLU(), nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

ends = None
for x, y in DataLoader(Augmented(), batch_size=16, num_workers=1):
    optimizer.zero_grad()
    nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()
    if ends is None:
        ends = time.monotonic() + float(sys.argv[2])
        Path(sys.argv[1]).touch()
    if time.monotonic() >= ends:
        break
