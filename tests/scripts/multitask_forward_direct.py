"""Multi-task learning: a shared trunk and two heads, called through model.forward(x) directly."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class MultiTask(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU())
        self.age_head = nn.Linear(32, 1)
        self.gender_head = nn.Linear(32, 2)

    def forward(self, x):
        shared = self.trunk.forward(x)
        return self.age_head.forward(shared), self.gender_head.forward(shared)


torch.manual_seed(0)
torch.set_num_threads(1)
X = torch.randn(300, 10)
age, gender = X[:, :1] * 10 + 40, (X[:, 1] > 0).long()
trainloader = DataLoader(
    TensorDataset(X[:240], age[:240], gender[:240]), batch_size=24, shuffle=True
)
testloader = DataLoader(TensorDataset(X[240:], age[240:], gender[240:]), batch_size=30)

model = MultiTask()
mse, ce = nn.MSELoss(), nn.CrossEntropyLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

num_step = 0
for epoch in range(3):
    for x, a, g in trainloader:
        optimizer.zero_grad()
        age_pred, gender_pred = model.forward(x)
        loss = 0.01 * mse(age_pred, a) + ce(gender_pred, g)
        loss.backward()
        optimizer.step()
        num_step += 1
    with torch.no_grad():
        hits = 0
        for x, _, g in testloader:
            _, gender_pred = model.forward(x)
            hits += (gender_pred.argmax(1) == g).sum().item()
    print("epoch", epoch, "loss", loss.item(), "accuracy", hits / len(testloader.dataset))

print(f"steps: {num_step}")
