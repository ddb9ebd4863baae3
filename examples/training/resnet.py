"""A small ResNet that classifies images from a remote store.

    traceml run examples/training/resnet.py --run-name resnet-before
    traceml run examples/training/resnet.py --run-name resnet-after --args --fixed
    traceml compare resnet-before resnet-after

The mistake: the training process itself downloads and prepares every image, one after the other,
and the model waits. `--fixed` gives that work to the loader's workers.
"""

import argparse
import tempfile
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

CLASSES = 10
EPOCHS = 2
BATCH_SIZE = 32
REQUEST_S = 0.0015
"""How long the store takes to answer a request for one image."""


class RemoteImages(Dataset):
    """Images of noise around one pattern per class; a request and some work for each."""

    def __init__(self, count: int, train: bool) -> None:
        self.patterns = torch.randn(CLASSES, 3, 40, 40, generator=torch.Generator().manual_seed(1))
        self.count, self.train = count, train

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        label = index % CLASSES
        image = self.augment(self.download(label, index)) if self.train else self.patterns[label]
        return image[:, :32, :32], label

    def download(self, label: int, index: int) -> torch.Tensor:
        time.sleep(REQUEST_S)  # stands for an object store, a network file system, an HTTP server
        noise = torch.Generator().manual_seed(index)
        return self.patterns[label] + torch.randn(3, 40, 40, generator=noise)

    def augment(self, image: torch.Tensor) -> torch.Tensor:
        top, left = torch.randint(0, 8, (2,)).tolist()
        image = image[:, top : top + 32, left : left + 32]
        return image.flip(-1) if torch.rand(()) < 0.5 else image


class Block(nn.Module):
    """Two convolutions, and a way around them."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.around = nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return functional.relu(self.body(images) + self.around(images))


def build_model() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, 1, 1),
        Block(16, 16, stride=1),
        Block(16, 32, stride=2),
        Block(32, 64, stride=2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, CLASSES),
    )


def build_loader(images: Dataset, options: argparse.Namespace) -> DataLoader:
    if options.fixed:
        loader = DataLoader(
            images, BATCH_SIZE, shuffle=True, num_workers=2, persistent_workers=True
        )
    else:
        loader = DataLoader(images, BATCH_SIZE, shuffle=True)
    return loader


@torch.inference_mode()
def validate(model: nn.Module, loader: DataLoader) -> float:
    model.eval()
    correct = sum((model(images).argmax(1) == labels).sum().item() for images, labels in loader)
    model.train()
    return correct / len(loader.dataset)


def train(options: argparse.Namespace, folder: Path) -> None:
    loader = build_loader(RemoteImages(40 * BATCH_SIZE, train=True), options)
    held_out = DataLoader(RemoteImages(2 * BATCH_SIZE, train=False), BATCH_SIZE)
    model = build_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    for epoch in range(1, EPOCHS + 1):
        for images, labels in loader:
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
        accuracy = validate(model, held_out)
        print(f"epoch {epoch}: loss {loss.item():.3f}, accuracy {accuracy:.2f}", flush=True)
        torch.save(model.state_dict(), folder / "resnet.pt")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--fixed", action="store_true", help="without the mistake")
    torch.manual_seed(0)
    torch.set_num_threads(1)  # of two cores, one is for the loader
    with tempfile.TemporaryDirectory() as folder:
        train(parser.parse_args(), Path(folder))


if __name__ == "__main__":
    main()
