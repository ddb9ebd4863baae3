"""A small decoder (GPT-style) that learns to continue a text.

    traceml run examples/training/decoder.py --run-name decoder-before
    traceml run examples/training/decoder.py --run-name decoder-after --args --fixed
    traceml compare decoder-before decoder-after

The mistake: the quantiles of every parameter's gradient are computed and written down in each step,
which takes longer than the model. `--fixed` does so in every fiftieth step.
"""

import argparse
import json
import tempfile
from pathlib import Path
from typing import TextIO

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

LETTERS = 128
EPOCHS = 2
BATCH_SIZE = 8
CONTEXT = 64
WIDTH, DEPTH, HEADS = 128, 4, 4
QUANTILES = torch.tensor([0.01, 0.25, 0.5, 0.75, 0.99])


class Windows(Dataset):
    """Windows of a long text of random words, each with the same window one letter later."""

    def __init__(self, count: int) -> None:
        draw = torch.Generator().manual_seed(1)
        words = torch.randint(0, LETTERS, (50, 8), generator=draw)
        order = torch.randint(0, len(words), (count * CONTEXT // 8 + 1,), generator=draw)
        self.text, self.count = words[order].flatten(), count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        window = self.text[index * CONTEXT : (index + 1) * CONTEXT + 1]
        return window[:-1], window[1:]


class Layer(nn.Module):
    """Attention to what came before and a feed-forward network, each added to what came in."""

    def __init__(self) -> None:
        super().__init__()
        self.inwards, self.outwards = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.forwards = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)])

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        states = states + self._attend(self.norms[0](states))
        return states + self.forwards(self.norms[1](states))

    def _attend(self, states: torch.Tensor) -> torch.Tensor:
        size = states.shape[:2]
        parts = self.inwards(states).chunk(3, dim=-1)
        heads = (part.view(*size, HEADS, -1).transpose(1, 2) for part in parts)
        seen = functional.scaled_dot_product_attention(*heads, is_causal=True)
        return self.outwards(seen.transpose(1, 2).reshape(*size, WIDTH))


class Decoder(nn.Module):
    """Scores of every letter that may come next."""

    def __init__(self) -> None:
        super().__init__()
        self.letters = nn.Embedding(LETTERS, WIDTH)
        self.places = nn.Embedding(CONTEXT, WIDTH)
        self.layers = nn.Sequential(*(Layer() for _ in range(DEPTH)))
        self.head = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, LETTERS))

    def forward(self, letters: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(self.letters(letters) + self.places.weight))


def note_gradients(model: nn.Module, step: int, notes: TextIO) -> None:
    """Writes the quantiles of each parameter's gradient as one line."""
    quantiles = {
        name: torch.quantile(parameter.grad.flatten(), QUANTILES).tolist()
        for name, parameter in model.named_parameters()
    }
    notes.write(json.dumps({"step": step, **quantiles}) + "\n")


def loss_of(model: nn.Module, letters: torch.Tensor, next_letters: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(model(letters).flatten(0, 1), next_letters.flatten())


@torch.inference_mode()
def validate(model: nn.Module, loader: DataLoader) -> float:
    model.eval()
    losses = [loss_of(model, letters, following).item() for letters, following in loader]
    model.train()
    return sum(losses) / len(losses)


def train(options: argparse.Namespace, folder: Path) -> None:
    if options.fixed:
        note_every = 50
    else:
        note_every = 1
    loader = DataLoader(Windows(40 * BATCH_SIZE), BATCH_SIZE, shuffle=True)
    held_out = DataLoader(Windows(4 * BATCH_SIZE), BATCH_SIZE)
    model = Decoder()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    step = 0
    with (folder / "gradients.jsonl").open("w") as notes:
        for epoch in range(1, EPOCHS + 1):
            for letters, following in loader:
                step += 1
                optimizer.zero_grad()
                loss = loss_of(model, letters, following)
                loss.backward()
                if step % note_every == 0:
                    note_gradients(model, step, notes)
                optimizer.step()
            print(f"epoch {epoch}: validation loss {validate(model, held_out):.3f}", flush=True)
            torch.save(model.state_dict(), folder / "decoder.pt")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--fixed", action="store_true", help="without the mistake")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        train(parser.parse_args(), Path(folder))


if __name__ == "__main__":
    main()
