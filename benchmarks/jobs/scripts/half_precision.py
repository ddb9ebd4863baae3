"""An image classifier in fp16 with a gradient scaler, in channels-last layout."""

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
options = parser.parse_args()
size, batch, channels, steps = (32, 4, 8, 6) if options.tiny else (96, 256, 128, 25)
device = "cpu" if options.tiny else "cuda"

torch.manual_seed(0)
torch.backends.cudnn.benchmark = True
model = residual_network(channels, 2, 100)
wait_for_turn()
model.to(device, memory_format=torch.channels_last)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=2 * steps)
scaler = torch.amp.GradScaler(device, enabled=not options.tiny)
train = DataLoader(
    Images(steps * batch, size),
    batch,
    shuffle=True,
    num_workers=6,
    pin_memory=True,
    persistent_workers=True,
)
valid = DataLoader(Images(2 * batch, size), batch, num_workers=2, pin_memory=True)
done = 0
with tempfile.TemporaryDirectory() as folder:
    for epoch in range(2):
        model.train()
        for number, (images, labels) in enumerate(train):
            images = images.to(device, non_blocking=True, memory_format=torch.channels_last)
            labels = labels.to(device, non_blocking=True)
            with torch.autocast(device, torch.float16, enabled=not options.tiny):
                loss = functional.cross_entropy(model(images), labels)
            optimizer.zero_grad(set_to_none=True)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            scaler.step(optimizer)
            scaler.update()
            schedule.step()
            done += 1
            if number % (steps // 3) == 0:
                print(f"epoch {epoch} batch {number} loss {loss.item():.4f}")
        model.eval()
        with torch.no_grad(), torch.autocast(device, torch.float16, enabled=not options.tiny):
            for images, _ in valid:
                model(images.to(device, memory_format=torch.channels_last))
        torch.save(model.state_dict(), Path(folder) / "model.pt")
del train  # ends its workers: at its exit Python would wait 5 s for each, persistent and pinned
print(f"steps {done}")
