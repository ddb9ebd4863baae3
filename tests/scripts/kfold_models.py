"""K-fold cross-validation: a new model and a new optimizer for every fold, in functions.

The count is the optimizer steps of all folds together.
"""

from functools import partial

import torch
from torch import nn, optim
from torch.utils.data import DataLoader, Subset, TensorDataset


def build_model(hidden):
    return nn.Sequential(nn.Linear(6, hidden), nn.ReLU(), nn.Linear(hidden, 1))


def kfold(n, k, generator):
    order = torch.randperm(n, generator=generator)
    folds = order.chunk(k)
    for i in range(k):
        yield torch.cat([f for j, f in enumerate(folds) if j != i]).tolist(), folds[i].tolist()


def fit(model, loader, make_optimizer, epochs):
    opt = make_optimizer(model.parameters())
    steps = 0
    for _ in range(epochs):
        for x, y in loader:
            opt.zero_grad()
            nn.functional.huber_loss(model(x), y).backward()
            opt.step()
            steps += 1
    return steps


def score(model, loader):
    with torch.inference_mode():
        return sum(nn.functional.l1_loss(model(x), y, reduction="sum").item() for x, y in loader)


def main():
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    x = torch.randn(120, 6)
    dataset = TensorDataset(x, x.abs().sum(1, keepdim=True))
    total = 0
    for fold, (train_ids, test_ids) in enumerate(kfold(len(dataset), 4, generator)):
        model = build_model(hidden=16)
        train_loader = DataLoader(Subset(dataset, train_ids), batch_size=15, shuffle=True)
        test_loader = DataLoader(Subset(dataset, test_ids), batch_size=30)
        total += fit(model, train_loader, partial(optim.Adam, lr=1e-2), epochs=1)
        print(f"FOLD {fold}: MAE {score(model, test_loader) / len(test_ids):.3f}")
    print(f"steps: {total}")


if __name__ == "__main__":
    main()
