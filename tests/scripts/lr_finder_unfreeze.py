"""Fine-tuning: LR range test on a throw-away copy, then gradual unfreezing by add_param_group.

The count is every optimizer step, those of the range test included.
"""

import copy

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def lr_find(model, loader, criterion, start=1e-4, factor=2.0, num_it=8):
    trial = copy.deepcopy(model)
    optimizer = torch.optim.SGD([p for p in trial.parameters() if p.requires_grad], lr=start)
    history = []
    done = 0
    for _, (x, y) in zip(range(num_it), loader):  # noqa: B905
        loss = criterion(trial(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        done += 1
        history.append((optimizer.param_groups[0]["lr"], loss.item()))
        optimizer.param_groups[0]["lr"] *= factor
    return min(history, key=lambda pair: pair[1])[0], done


def fit(model, loader, criterion, optimizer, epochs):
    done = 0
    for _ in range(epochs):
        for x, y in loader:
            optimizer.zero_grad()
            loss = criterion(model(x), y)
            loss.backward()
            optimizer.step()
            done += 1
    print(f"loss {loss.item():.4f} with {len(optimizer.param_groups)} parameter groups")
    return done


torch.manual_seed(0)
torch.set_num_threads(1)
x = torch.randn(160, 10)
y = (x[:, 0] > 0).long()
loader = DataLoader(TensorDataset(x, y), batch_size=16, shuffle=True)
criterion = nn.CrossEntropyLoss()
body = nn.Sequential(nn.Linear(10, 24), nn.ReLU(), nn.Linear(24, 24), nn.ReLU()).requires_grad_(
    False
)
model = nn.Sequential(body, nn.Linear(24, 2))

lr, total = lr_find(model, loader, criterion)
print(f"suggested lr {lr:.1e}")
optimizer = torch.optim.SGD(model[1].parameters(), lr=lr)
total += fit(model, loader, criterion, optimizer, epochs=1)
body[2].requires_grad_(True)
optimizer.add_param_group({"params": body[2].parameters(), "lr": lr / 10})
total += fit(model, loader, criterion, optimizer, epochs=1)
print(f"steps: {total}")
