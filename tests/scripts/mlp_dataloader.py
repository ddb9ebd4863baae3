"""MLP classification as in the official quickstart: module-level loop over a DataLoader."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
torch.set_num_threads(1)

device = "cuda" if torch.cuda.is_available() else "cpu"
print(f"Using {device} device")

inputs = torch.randn(320, 20)
labels = (inputs[:, :4].sum(dim=1) > 0).long()
loader = DataLoader(TensorDataset(inputs, labels), batch_size=32, shuffle=True)

model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 2)).to(device)
loss_fn = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

steps = 0
for epoch in range(3):
    running_loss = 0.0
    for x, y in loader:
        x, y = x.to(device), y.to(device)
        pred = model(x)
        loss = loss_fn(pred, y)

        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        steps += 1
        running_loss += loss.item()
    print(f"epoch {epoch}: loss {running_loss / len(loader):.4f}")

print(f"steps: {steps}")
