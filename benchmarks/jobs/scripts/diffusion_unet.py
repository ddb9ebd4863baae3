"""A denoising U-Net with a moving average of its weights, in bfloat16."""

from __future__ import annotations

import argparse
import copy
import tempfile
from pathlib import Path

import torch
from gpu_turn import wait_for_turn
from made_data import Images
from made_models import UNet
from torch.nn import functional
from torch.utils.data import DataLoader

parser = argparse.ArgumentParser()
parser.add_argument("--tiny", action="store_true", help="small enough for a CPU")
options = parser.parse_args()
size, batch, channels, steps = (32, 4, 8, 6) if options.tiny else (64, 128, 128, 60)
device = "cpu" if options.tiny else "cuda"

torch.manual_seed(0)
model = UNet(channels)
wait_for_turn()
model.to(device)
average = copy.deepcopy(model).requires_grad_(False)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
train = DataLoader(
    Images(steps * batch, size),
    batch,
    shuffle=True,
    num_workers=6,
    pin_memory=True,
    persistent_workers=True,
)
valid = DataLoader(Images(2 * batch, size), batch, num_workers=2)


@torch.no_grad()
def update_average(decay: float = 0.999) -> None:
    for kept, new in zip(average.parameters(), model.parameters(), strict=True):
        kept.lerp_(new, 1 - decay)


def denoising_loss(net: torch.nn.Module, images: torch.Tensor) -> torch.Tensor:
    level = torch.rand(len(images), device=device)
    noise = torch.randn_like(images)
    mixed = images + level.view(-1, 1, 1, 1) * noise
    with torch.autocast(device, torch.bfloat16):
        return functional.mse_loss(net(mixed, level).float(), noise)


done = 0
with tempfile.TemporaryDirectory() as folder:
    for epoch in range(2):
        model.train()
        for number, (images, _) in enumerate(train):
            loss = denoising_loss(model, images.to(device, non_blocking=True))
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            update_average()
            done += 1
            if number % (steps // 3) == 0:
                print(f"epoch {epoch} batch {number} loss {loss.item():.4f}")
        average.eval()
        with torch.no_grad():
            checked = [denoising_loss(average, images.to(device)).item() for images, _ in valid]
        print(f"epoch {epoch} validation loss {sum(checked) / len(checked):.4f}")
        torch.save(
            {"model": model.state_dict(), "ema": average.state_dict()}, Path(folder) / "ckpt.pt"
        )
del train  # ends its workers: at its exit Python would wait 5 s for each, persistent and pinned
print(f"steps {done}")
