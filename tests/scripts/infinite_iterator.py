"""Iteration-based training: next() on an iterator restarted at StopIteration, eval now and then."""

import torch
from torch import nn
from torch.utils.data import DataLoader, RandomSampler, TensorDataset

torch.manual_seed(0)
torch.set_num_threads(1)

MAX_ITER, EVAL_EVERY = 32, 8
x = torch.randn(110, 9)
y = x.sum(dim=1).gt(0).float().unsqueeze(1)
dataset = TensorDataset(x, y)
train_loader = DataLoader(dataset, batch_size=12, sampler=RandomSampler(dataset))
val_loader = DataLoader(dataset, batch_size=30)

model = nn.Sequential(nn.Linear(9, 24), nn.ReLU(), nn.Linear(24, 1))
optimizer = torch.optim.NAdam(model.parameters(), lr=2e-3)
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1e-2, total_steps=MAX_ITER)
bce = nn.BCEWithLogitsLoss()

train_iter = iter(train_loader)
val_iter = iter(val_loader)
taken = 0
for it in range(1, MAX_ITER + 1):
    try:
        inputs, targets = next(train_iter)
    except StopIteration:
        train_iter = iter(train_loader)
        inputs, targets = next(train_iter)

    loss = bce(model(inputs), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    taken += 1
    scheduler.step()

    if it % EVAL_EVERY == 0:
        # one validation batch only, from an iterator that lives across evaluations
        batch = next(val_iter, None)
        if batch is None:
            val_iter = iter(val_loader)
            batch = next(val_iter)
        model.eval()
        with torch.no_grad():
            val_loss = bce(model(batch[0]), batch[1])
        model.train()
        print(f"iter {it}: train {loss.item():.4f} val {val_loss.item():.4f}")

print(f"steps: {taken}")
