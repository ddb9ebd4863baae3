"""Training a torch.compiled model (backend "eager": no compiler is needed) with validation."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
torch.set_num_threads(1)


class Residual(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.fc = nn.Linear(dim, dim)

    def forward(self, x):
        return x + torch.relu(self.fc(self.norm(x)))


raw_model = nn.Sequential(nn.Linear(12, 32), Residual(32), Residual(32), nn.Linear(32, 3))
optimizer = torch.optim.AdamW(raw_model.parameters(), lr=1e-3)
model = torch.compile(raw_model, backend="eager")

x, y = torch.randn(192, 12), torch.randint(0, 3, (192,))
train_loader = DataLoader(TensorDataset(x[:160], y[:160]), batch_size=16, shuffle=True)
val_loader = DataLoader(TensorDataset(x[160:], y[160:]), batch_size=16)

n = 0
for epoch in range(2):
    model.train()
    for inputs, labels in train_loader:
        optimizer.zero_grad(set_to_none=True)
        loss = nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()
        n += 1
    model.eval()
    with torch.no_grad():
        val = sum(nn.functional.cross_entropy(model(a), b).item() for a, b in val_loader)
    print(f"epoch {epoch}: train {loss.item():.3f} val {val / len(val_loader):.3f}")

print(f"steps: {n}")
