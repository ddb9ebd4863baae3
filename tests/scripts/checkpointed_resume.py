"""Activation checkpointing (re-entrant and not) and a resume from a saved state in mid-training.

The count is the optimizer steps before and after the resume together.
"""

import tempfile
from pathlib import Path

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset


class Deep(nn.Module):
    def __init__(self, use_reentrant):
        super().__init__()
        self.use_reentrant = use_reentrant
        self.stem = nn.Linear(6, 24)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(24, 24), nn.Dropout(0.1), nn.Tanh()) for _ in range(3)
        )
        self.head = nn.Linear(24, 2)

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = x + checkpoint(block, x, use_reentrant=self.use_reentrant)
        return self.head(x)


def train_epoch(model, loader, optimizer):
    model.train()
    count = 0
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        count += 1
    print(f"loss {loss.item():.4f}")
    return count


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    loader = DataLoader(
        TensorDataset(torch.randn(160, 6), torch.randint(0, 2, (160,))), batch_size=16, shuffle=True
    )
    model = Deep(use_reentrant=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    total = train_epoch(model, loader, optimizer)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "last.pt"
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)
        del model, optimizer

        state = torch.load(path)
    model = Deep(use_reentrant=False)
    model.load_state_dict(state["model"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    optimizer.load_state_dict(state["optimizer"])
    total += train_epoch(model, loader, optimizer)
    print(f"steps: {total}")


if __name__ == "__main__":
    main()
