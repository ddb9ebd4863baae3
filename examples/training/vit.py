"""A small vision transformer (ViT) that classifies images.

    traceml run examples/training/vit.py --run-name vit-before
    traceml run examples/training/vit.py --run-name vit-after --args --fixed
    traceml compare vit-before vit-after

The mistake: the whole validation set is evaluated after every fifth step, which takes longer than
the training. `--fixed` evaluates once per epoch.
"""

import argparse
import tempfile
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

CLASSES = 10
EPOCHS = 2
BATCH_SIZE = 32
PATCH, WIDTH, DEPTH, HEADS = 4, 64, 2, 4
PATCHES = (32 // PATCH) ** 2


class Images(Dataset):
    """Images of noise around one pattern per class, flipped at random."""

    def __init__(self, count: int) -> None:
        draw = torch.Generator().manual_seed(1)
        self.patterns = torch.randn(CLASSES, 3, 32, 32, generator=draw)
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        label = index % CLASSES
        image = self.patterns[label] + torch.randn(3, 32, 32)
        return (image.flip(-1) if torch.rand(()) < 0.5 else image), label


class VisionTransformer(nn.Module):
    """Patches as tokens, a transformer, and the class from their mean."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, WIDTH, PATCH, PATCH)
        self.positions = nn.Parameter(0.02 * torch.randn(PATCHES, WIDTH))
        layer = nn.TransformerEncoderLayer(
            WIDTH, HEADS, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, DEPTH, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        tokens = self.patches(images).flatten(2).transpose(1, 2) + self.positions
        return self.head(self.encoder(tokens).mean(1))


@torch.inference_mode()
def validate(model: nn.Module, loader: DataLoader) -> None:
    model.eval()
    correct = sum((model(images).argmax(1) == labels).sum().item() for images, labels in loader)
    model.train()
    print(f"accuracy {correct / len(loader.dataset):.2f}", flush=True)


def train(options: argparse.Namespace, folder: Path) -> None:
    loader = DataLoader(Images(30 * BATCH_SIZE), BATCH_SIZE, shuffle=True)
    held_out = DataLoader(Images(40 * BATCH_SIZE), BATCH_SIZE)
    if options.fixed:
        validate_every = len(loader)
    else:
        validate_every = 5
    model = VisionTransformer()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.05)
    for epoch in range(1, EPOCHS + 1):
        for step, (images, labels) in enumerate(loader, start=1):
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            if step % validate_every == 0:
                validate(model, held_out)
        print(f"epoch {epoch}: loss {loss.item():.3f}", flush=True)
        torch.save(model.state_dict(), folder / "vit.pt")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--fixed", action="store_true", help="without the mistake")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        train(parser.parse_args(), Path(folder))


if __name__ == "__main__":
    main()
