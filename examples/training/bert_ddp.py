"""A small BERT-style model that learns to classify texts, on two ranks (DDP).

    traceml run examples/training/bert_ddp.py --nproc-per-node 2 --run-name ddp-before
    traceml run examples/training/bert_ddp.py --nproc-per-node 2 --run-name ddp-after --args --fixed
    traceml compare ddp-before ddp-after

The mistake: the corpus is sorted by length and cut into one part per rank. The last rank gets the
long texts, and the others wait for it in every step. `--fixed` deals texts of like length out to
all ranks.
"""

import argparse
import os
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, Sampler

PAD, WORDS, CLASSES = 0, 1000, 4
EPOCHS = 2
BATCH_SIZE = 16
SHORTEST, LONGEST = 8, 96
WIDTH, DEPTH, HEADS = 64, 3, 4


class Texts(Dataset):
    """Texts of random words, the shortest first; those of a class share a word."""

    def __init__(self, count: int, seed: int) -> None:
        draw = torch.Generator().manual_seed(seed)
        lengths = torch.randint(SHORTEST, LONGEST + 1, (count,), generator=draw).sort().values
        self.labels = torch.randint(0, CLASSES, (count,), generator=draw).tolist()
        self.texts = [
            torch.randint(1 + CLASSES, WORDS, (length,), generator=draw) for length in lengths
        ]
        for text, label in zip(self.texts, self.labels, strict=True):
            text[0] = 1 + label

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.texts[index], self.labels[index]


def pad(samples: list[tuple[torch.Tensor, int]]) -> tuple[torch.Tensor, torch.Tensor]:
    texts, labels = zip(*samples, strict=True)
    words = nn.utils.rnn.pad_sequence(list(texts), batch_first=True, padding_value=PAD)
    return words, torch.tensor(labels)


class RankBatches(Sampler[list[int]]):
    """The batches of one rank, in an order of their own in each epoch."""

    def __init__(self, count: int, fixed: bool) -> None:
        rank, ranks = dist.get_rank(), dist.get_world_size()
        if fixed:
            mine = range(rank, count, ranks)  # neighbours in length go to different ranks
        else:
            mine = range(count // ranks * rank, count // ranks * (rank + 1))
        self.batches = [list(mine[at : at + BATCH_SIZE]) for at in range(0, len(mine), BATCH_SIZE)]
        self.order = random.Random(0)  # the same on all ranks

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[list[int]]:
        yield from self.order.sample(self.batches, len(self.batches))


class Classifier(nn.Module):
    """A transformer over words, and the class from their mean."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH, padding_idx=PAD)
        self.places = nn.Embedding(LONGEST, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, DEPTH, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        states = self.words(words) + self.places.weight[: words.shape[1]]
        states = self.encoder(states, src_key_padding_mask=words == PAD)
        return self.head(states.mean(1))


@torch.inference_mode()
def validate(model: nn.Module, loader: DataLoader) -> float:
    model.eval()
    correct = torch.tensor(0)
    for words, labels in loader:
        correct += (model(words).argmax(1) == labels).sum()
    model.train()
    return correct.item() / len(loader.dataset)


def train(options: argparse.Namespace, folder: Path) -> None:
    texts, held_out = Texts(960, seed=1), Texts(64, seed=2)
    loader = DataLoader(texts, batch_sampler=RankBatches(len(texts), options.fixed), collate_fn=pad)
    check = DataLoader(held_out, BATCH_SIZE, collate_fn=pad)
    model = DistributedDataParallel(Classifier())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for epoch in range(1, EPOCHS + 1):
        for words, labels in loader:
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(words), labels)
            loss.backward()
            optimizer.step()
        if dist.get_rank() == 0:
            accuracy = validate(model.module, check)
            print(f"epoch {epoch}: loss {loss.item():.3f}, accuracy {accuracy:.2f}", flush=True)
            torch.save(model.module.state_dict(), folder / "classifier.pt")
        dist.barrier()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--fixed", action="store_true", help="without the mistake")
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // int(os.environ["WORLD_SIZE"])))
    dist.init_process_group("gloo")
    with tempfile.TemporaryDirectory() as folder:
        train(options, Path(folder))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
