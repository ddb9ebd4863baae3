"""An image classifier that reads its loss in every step, fed by too few workers."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import torch
from gpu_turn import wait_for_turn
from made_data import Images
from made_models import residual_network
from torch.nn import functional
from torch.utils.data import DataLoader

parser = argparse.ArgumentParser()
parser.add_argument("--tiny", action="store_true", help="small enough for a CPU")
parser.add_argument("--fixed", action="store_true", help="enough workers, little to do for them")
options = parser.parse_args()
size, batch, channels, steps = (32, 4, 8, 6) if options.tiny else (128, 64, 96, 45)
workers, passes = (8, 0) if options.fixed else (2, 2)
device = "cpu" if options.tiny else "cuda"

torch.manual_seed(0)
model = residual_network(channels, 2, 100)
wait_for_turn()
model.to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
train = DataLoader(
    Images(steps * batch, size, passes=passes),
    batch,
    shuffle=True,
    num_workers=workers,
    pin_memory=True,
    persistent_workers=True,
)
valid = DataLoader(Images(2 * batch, size), batch, num_workers=2, pin_memory=True)
done = 0
with tempfile.TemporaryDirectory() as folder:
    for epoch in range(2):
        model.train()
        total = 0.0
        for number, (images, labels) in enumerate(train):
            images = images.to(device, non_blocking=True)
            labels = labels.to(device, non_blocking=True)
            loss = functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
            done += 1
            if number % (steps // 3) == 0:
                print(f"epoch {epoch} batch {number} loss {loss.item():.4f}")
        model.eval()
        right = 0
        with torch.no_grad():
            for images, labels in valid:
                right += (model(images.to(device)).argmax(1).cpu() == labels).sum().item()
        print(f"epoch {epoch} mean loss {total / steps:.4f}")
        torch.save({"model": model.state_dict(), "epoch": epoch}, Path(folder) / "last.pt")
del train  # ends its workers: at its exit Python would wait 5 s for each, persistent and pinned
print(f"steps {done}")
