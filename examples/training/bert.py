"""A small BERT-style model that learns to fill in masked words.

    traceml run examples/training/bert.py --profile deep --run-name bert-before
    traceml run examples/training/bert.py --profile deep --run-name bert-after --args --fixed
    traceml compare bert-before bert-after

The mistake: padding is hidden from attention with minus infinity. One text of the corpus is empty,
so all its scores are minus infinity, their softmax is NaN, and from there on so is everything.
`--fixed` hides padding with the smallest finite number.
"""

import argparse
import tempfile
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

PAD, MASK, WORDS = 0, 1, 256
EPOCHS = 2
BATCH_SIZE = 16
LONGEST = 48
WIDTH, DEPTH, HEADS = 64, 3, 4
MASKED_SHARE = 0.15


class Corpus(Dataset):
    """Texts that count upwards from a random word; the text in the middle is empty."""

    def __init__(self, count: int, seed: int) -> None:
        draw = torch.Generator().manual_seed(seed)
        starts = torch.randint(2, WORDS - LONGEST, (count,), generator=draw)
        lengths = torch.randint(8, LONGEST + 1, (count,), generator=draw)
        lengths[count // 2] = 0  # nothing is left of it once the corpus is cleaned
        self.texts = [
            start + torch.arange(length) for start, length in zip(starts, lengths, strict=True)
        ]

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.texts[index]


def mask_words(texts: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """A padded batch of words, and which of them are masked."""
    words = nn.utils.rnn.pad_sequence(texts, batch_first=True, padding_value=PAD)
    is_masked = (torch.rand(words.shape) < MASKED_SHARE) & (words != PAD)
    return words, is_masked


class Attention(nn.Module):
    """Attention in both directions, to every word that is not padding."""

    def __init__(self, fixed: bool) -> None:
        super().__init__()
        self.inwards, self.outwards = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.fixed = fixed

    def forward(self, states: torch.Tensor, is_padding: torch.Tensor) -> torch.Tensor:
        size = states.shape[:2]
        split = (part.view(*size, HEADS, -1).transpose(1, 2) for part in self._project(states))
        queries, keys, values = split
        scores = queries @ keys.transpose(-1, -2) / (WIDTH // HEADS) ** 0.5
        if self.fixed:
            hidden = torch.finfo(scores.dtype).min
        else:
            hidden = float("-inf")
        weights = scores.masked_fill(is_padding[:, None, None, :], hidden).softmax(-1)
        return self.outwards((weights @ values).transpose(1, 2).reshape(*size, WIDTH))

    def _project(self, states: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return self.inwards(states).chunk(3, dim=-1)


class Layer(nn.Module):
    """Attention and a feed-forward network, each added to what came in."""

    def __init__(self, fixed: bool) -> None:
        super().__init__()
        self.attention = Attention(fixed)
        self.forwards = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)])

    def forward(self, states: torch.Tensor, is_padding: torch.Tensor) -> torch.Tensor:
        states = states + self.attention(self.norms[0](states), is_padding)
        return states + self.forwards(self.norms[1](states))


class MaskedLanguageModel(nn.Module):
    """Scores of every word at every place."""

    def __init__(self, fixed: bool) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH, padding_idx=PAD)
        self.places = nn.Embedding(LONGEST, WIDTH)
        self.layers = nn.ModuleList(Layer(fixed) for _ in range(DEPTH))
        self.head = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS))

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        states = self.words(words) + self.places.weight[: words.shape[1]]
        for layer in self.layers:
            states = layer(states, words == PAD)
        return self.head(states)


def loss_of(model: nn.Module, words: torch.Tensor, is_masked: torch.Tensor) -> torch.Tensor:
    """How badly the masked words are filled in."""
    scores = model(words.masked_fill(is_masked, MASK))
    losses = functional.cross_entropy(scores.flatten(0, 1), words.flatten(), reduction="none")
    return (losses * is_masked.flatten()).sum() / is_masked.sum()


@torch.inference_mode()
def validate(model: nn.Module, loader: DataLoader) -> float:
    model.eval()
    losses = [loss_of(model, words, is_masked).item() for words, is_masked in loader]
    model.train()
    return sum(losses) / len(losses)


def train(options: argparse.Namespace, folder: Path) -> None:
    loader = DataLoader(
        Corpus(64 * BATCH_SIZE, seed=1), BATCH_SIZE, shuffle=True, collate_fn=mask_words
    )
    held_out = DataLoader(Corpus(8 * BATCH_SIZE, seed=2), BATCH_SIZE, collate_fn=mask_words)
    model = MaskedLanguageModel(options.fixed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for epoch in range(1, EPOCHS + 1):
        for words, is_masked in loader:
            optimizer.zero_grad()
            loss = loss_of(model, words, is_masked)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        print(f"epoch {epoch}: validation loss {validate(model, held_out):.3f}", flush=True)
        torch.save(model.state_dict(), folder / "bert.pt")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--fixed", action="store_true", help="without the mistake")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        train(parser.parse_args(), Path(folder))


if __name__ == "__main__":
    main()
