"""Streaming from an IterableDataset with a shuffle buffer; the loader's length is not known."""

import random

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset


class LogStream(IterableDataset):
    """Parses lines as they would come from a large file."""

    def __init__(self, n_lines):
        self.n_lines = n_lines

    def lines(self):
        rng = random.Random(0)
        for _ in range(self.n_lines):
            values = [rng.gauss(0, 1) for _ in range(6)]
            label = int(sum(values) > 0)
            yield ",".join(f"{v:.4f}" for v in values) + f",{label}"

    def __iter__(self):
        for line in self.lines():
            *values, label = line.strip().split(",")
            yield torch.tensor([float(v) for v in values]), int(label)


class ShuffleBuffer(IterableDataset):
    def __init__(self, dataset, size):
        self.dataset, self.size = dataset, size

    def __iter__(self):
        buffer = []
        for item in self.dataset:
            if len(buffer) < self.size:
                buffer.append(item)
                continue
            slot = random.randrange(self.size)
            yield buffer[slot]
            buffer[slot] = item
        random.shuffle(buffer)
        yield from buffer


def run():
    random.seed(0)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    loader = DataLoader(ShuffleBuffer(LogStream(500), 64), batch_size=32)
    net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 2))
    opt = torch.optim.Adagrad(net.parameters(), lr=0.05)
    step = 0
    for epoch in range(2):
        seen = 0
        for x, y in loader:
            loss = nn.functional.cross_entropy(net(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            step += 1
            seen += len(x)
        print(f"epoch {epoch}: saw {seen} samples, loss {loss.item():.4f}")
    return step


if __name__ == "__main__":
    print(f"steps: {run()}")
