"""A small diffusion model: a U-Net that learns to tell the noise in an image.

    traceml run examples/training/diffusion.py --run-name diffusion-before
    traceml run examples/training/diffusion.py --run-name diffusion-after --args --fixed
    traceml compare diffusion-before diffusion-after

The mistake: the loss of the averaged weights is kept for a curve, and with each loss the graph that
it came from: all activations of that forward. `--fixed` keeps its number alone.
"""

import argparse
import copy
import tempfile
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

EPOCHS = 2
BATCH_SIZE = 16
SIZE = 32
TIMES = 100
"""How many levels of noise there are."""
SIGNAL = torch.cumprod(1 - torch.linspace(1e-3, 0.1, TIMES), 0)
"""What is left of an image at each level, as a share of its variance."""
AVERAGE_EVERY = 8
DECAY = 0.95


class Squares(Dataset):
    """Images of one bright square on a dark ground."""

    def __init__(self, count: int) -> None:
        self.corners = torch.randint(0, 20, (count, 2), generator=torch.Generator().manual_seed(1))

    def __len__(self) -> int:
        return len(self.corners)

    def __getitem__(self, index: int) -> torch.Tensor:
        top, left = self.corners[index].tolist()
        image = torch.full((3, SIZE, SIZE), -1.0)
        image[:, top : top + 12, left : left + 12] = 1.0
        return image


def convolutions(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, 1, 1),
        nn.GroupNorm(4, outputs),
        nn.SiLU(),
        nn.Conv2d(outputs, outputs, 3, 1, 1),
        nn.SiLU(),
    )


class UNet(nn.Module):
    """Down twice and up again; each level of noise is added as a vector."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.times = nn.Embedding(TIMES, 4 * width)
        self.first = convolutions(3, width)
        self.second = convolutions(width, 2 * width)
        self.lowest = convolutions(2 * width, 4 * width)
        self.second_up = convolutions(6 * width, 2 * width)
        self.first_up = convolutions(3 * width, width)
        self.last = nn.Conv2d(width, 3, 1)

    def forward(self, images: torch.Tensor, times: torch.Tensor) -> torch.Tensor:
        first = self.first(images)
        second = self.second(functional.avg_pool2d(first, 2))
        lowest = self.lowest(functional.avg_pool2d(second, 2))
        lowest = lowest + self.times(times)[:, :, None, None]
        up = self.second_up(torch.cat([functional.interpolate(lowest, scale_factor=2), second], 1))
        return self.last(
            self.first_up(torch.cat([functional.interpolate(up, scale_factor=2), first], 1))
        )


def loss_of(model: nn.Module, images: torch.Tensor) -> torch.Tensor:
    times = torch.randint(0, TIMES, (len(images),))
    noise = torch.randn_like(images)
    signal = SIGNAL[times][:, None, None, None]
    noisy = signal.sqrt() * images + (1 - signal).sqrt() * noise
    return functional.mse_loss(model(noisy, times), noise)


@torch.no_grad()
def average_weights(average: nn.Module, model: nn.Module) -> None:
    for mean, weight in zip(average.parameters(), model.parameters(), strict=True):
        mean.lerp_(weight, 1 - DECAY)


@torch.inference_mode()
def validate(model: nn.Module, loader: DataLoader) -> float:
    model.eval()
    losses = [loss_of(model, images).item() for images in loader]
    model.train()
    return sum(losses) / len(losses)


def train(options: argparse.Namespace, folder: Path) -> None:
    loader = DataLoader(Squares(60 * BATCH_SIZE), BATCH_SIZE, shuffle=True)
    held_out = DataLoader(Squares(4 * BATCH_SIZE), BATCH_SIZE)
    model = UNet()
    average = copy.deepcopy(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    curve = []
    for epoch in range(1, EPOCHS + 1):
        for step, images in enumerate(loader, start=1):
            optimizer.zero_grad()
            loss = loss_of(model, images)
            loss.backward()
            optimizer.step()
            average_weights(average, model)
            if step % AVERAGE_EVERY == 0:
                if options.fixed:
                    with torch.no_grad():
                        curve.append(loss_of(average, images).item())
                else:
                    curve.append(loss_of(average, images))
        print(f"epoch {epoch}: averaged {curve[-1]:.3f}", end=", ")
        print(f"validation loss {validate(model, held_out):.3f}", flush=True)
        torch.save(average.state_dict(), folder / "diffusion.pt")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--fixed", action="store_true", help="without the mistake")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        train(parser.parse_args(), Path(folder))


if __name__ == "__main__":
    main()
