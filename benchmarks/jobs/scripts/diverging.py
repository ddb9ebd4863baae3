"""A regression whose learning rate is far too high: the loss grows until it is no number."""

from __future__ import annotations

import argparse
import math
import tempfile
from pathlib import Path

import torch
from gpu_turn import wait_for_turn
from made_data import Images
from torch import nn
from torch.utils.data import DataLoader

parser = argparse.ArgumentParser()
parser.add_argument("--tiny", action="store_true", help="small enough for a CPU")
options = parser.parse_args()
size, batch, width = (8, 4, 32) if options.tiny else (32, 64, 2048)
device = "cpu" if options.tiny else "cuda"

torch.manual_seed(0)
model = nn.Sequential(
    nn.Flatten(), nn.Linear(3 * size * size, width), nn.ReLU(), nn.Linear(width, 1)
)
wait_for_turn()
model.to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
train = DataLoader(Images(100 * batch, size), batch, num_workers=2, pin_memory=True)
valid = DataLoader(Images(2 * batch, size), batch, num_workers=2)


def loss_of(images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    found = model(images.to(device, non_blocking=True))
    return nn.functional.mse_loss(found[:, 0], labels.to(device).float())


done, losses = 0, []
with tempfile.TemporaryDirectory() as folder:
    for epoch in range(2):
        for images, labels in train:
            loss = loss_of(images, labels)
            if epoch and done % 100 == 50:
                optimizer.param_groups[0]["lr"] = 1e3
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
            done += 1
        with torch.no_grad():
            checked = [loss_of(images, labels).item() for images, labels in valid]
        print(f"epoch {epoch} validation loss {sum(checked) / len(checked):.4f}")
        torch.save(model.state_dict(), Path(folder) / "model.pt")
values = [loss.item() for loss in losses]
first = next(number for number, value in enumerate(values, 1) if not math.isfinite(value))
print(f"step 1 loss {values[0]:.4f}")
print(f"first not finite at step {first}")
print(f"steps {done}")
