"""Gradient accumulation over a DataLoader whose last group and last batch are smaller.

One step is one optimizer step; its micro-batches are inside it.
"""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

accum_iter = 4
torch.manual_seed(0)
torch.set_num_threads(1)

features = torch.randn(211, 10)
targets = features[:, :3].sum(1, keepdim=True)
data_loader = DataLoader(TensorDataset(features, targets), batch_size=8, shuffle=True)
valid_loader = DataLoader(TensorDataset(features[:40], targets[:40]), batch_size=20)

model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 1))
criterion = nn.MSELoss()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

updates = 0
for epoch in range(3):
    model.train()
    for batch_idx, (inputs, labels) in enumerate(data_loader):
        preds = model(inputs)
        loss = criterion(preds, labels)
        loss = loss / accum_iter
        loss.backward()
        # weights update
        if ((batch_idx + 1) % accum_iter == 0) or (batch_idx + 1 == len(data_loader)):
            optimizer.step()
            updates += 1
            optimizer.zero_grad()

    model.eval()
    with torch.no_grad():
        val = sum(criterion(model(x), y).item() for x, y in valid_loader) / len(valid_loader)
    print(f"epoch {epoch}: {len(data_loader)} batches, val loss {val:.4f}")

print(f"steps: {updates}")
