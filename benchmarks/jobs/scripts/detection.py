"""A detector on images of different sizes; its targets are matched image by image."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import torch
from gpu_turn import wait_for_turn
from made_data import UnevenImages
from made_models import residual_network
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader

parser = argparse.ArgumentParser()
parser.add_argument("--tiny", action="store_true", help="small enough for a CPU")
options = parser.parse_args()
smallest, largest, batch, channels, steps = (
    (32, 64, 2, 8, 6) if options.tiny else (224, 416, 16, 32, 40)
)
device = "cpu" if options.tiny else "cuda"


class Detector(nn.Module):
    """A score and a box for every cell of a coarse grid."""

    def __init__(self) -> None:
        super().__init__()
        self.body = residual_network(channels, 1, 1)[:-3]
        self.head = nn.Conv2d(channels * 8, 5, 1)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(images)).flatten(2).transpose(1, 2)


def pad_together(samples):
    """Pictures of one batch in one tensor, as large as the largest of them."""
    height = max(picture.shape[1] for picture, _ in samples)
    width = max(picture.shape[2] for picture, _ in samples)
    images = torch.zeros(len(samples), 3, height, width)
    for place, (picture, _) in enumerate(samples):
        images[place, :, : picture.shape[1], : picture.shape[2]] = picture
    return images, [boxes for _, boxes in samples]


def match(found: torch.Tensor, boxes: torch.Tensor) -> torch.Tensor:
    """The loss of one image: the cells that come nearest to a box are to answer for it."""
    distances = torch.cdist(found[:, 1:], boxes)
    nearest, which = distances.min(1)
    is_positive = nearest < nearest.median()
    score_loss = functional.binary_cross_entropy_with_logits(found[:, 0], is_positive.float())
    if not is_positive.any():
        return score_loss
    return score_loss + functional.l1_loss(found[is_positive, 1:], boxes[which[is_positive]])


torch.manual_seed(0)
model = Detector()
wait_for_turn()
model.to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
train = DataLoader(
    UnevenImages(steps * batch, smallest, largest),
    batch,
    shuffle=True,
    num_workers=6,
    pin_memory=True,
    collate_fn=pad_together,
)
valid = DataLoader(
    UnevenImages(2 * batch, smallest, largest), batch, num_workers=2, collate_fn=pad_together
)
done = 0
with tempfile.TemporaryDirectory() as folder:
    for epoch in range(2):
        model.train()
        for number, (images, targets) in enumerate(train):
            found = model(images.to(device, non_blocking=True))
            losses = [
                match(each, boxes.to(device)) for each, boxes in zip(found, targets, strict=True)
            ]
            loss = torch.stack(losses).mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            done += 1
            if number % (steps // 3) == 0:
                print(f"epoch {epoch} batch {number} loss {loss.item():.4f}")
        model.eval()
        with torch.no_grad():
            for images, _ in valid:
                model(images.to(device))
        torch.save(model.state_dict(), Path(folder) / "detector.pt")
print(f"steps {done}")
