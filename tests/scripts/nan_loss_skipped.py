"""Skipping batches whose loss is not finite: `continue` before backward, or before the step.

The count is the optimizer steps taken; a skipped batch is none.
"""

import math

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
torch.set_num_threads(1)

x = torch.randn(240, 6)
x[37] = float("nan")
x[150] = 1e25  # the forward is still finite, the squared gradient norm is not
loader = DataLoader(TensorDataset(x, x[:, :1].clamp(-3, 3).nan_to_num()), batch_size=12)
model = nn.Linear(6, 1)
loss_fn = nn.L1Loss()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)

completed = skipped = 0
for epoch in range(2):
    for i, (data, target) in enumerate(loader):
        optimizer.zero_grad()
        loss = loss_fn(model(data), target)
        if not math.isfinite(loss.item()):
            print(f"epoch {epoch} batch {i}: loss is {loss.item()}, skipping")
            skipped += 1
            continue
        loss.backward()
        grad_norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if not torch.isfinite(grad_norm):
            print(f"epoch {epoch} batch {i}: gradient norm is {grad_norm}, skipping")
            skipped += 1
            continue
        optimizer.step()
        completed += 1
    print(f"epoch {epoch}: {completed} done, {skipped} skipped")

print(f"steps: {completed}")
