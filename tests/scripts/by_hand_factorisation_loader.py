"""Matrix factorisation with raw tensors and a hand-written update, ratings from a DataLoader.

There is no optimizer object: the count is the number of updates.
"""

import torch
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
torch.set_num_threads(1)

n_users, n_items, rank, lr, reg = 40, 30, 4, 0.5, 1e-3
users = torch.randint(0, n_users, (512,))
items = torch.randint(0, n_items, (512,))
ratings = 3 + torch.randn(512).clamp(-2, 2)
train_loader = DataLoader(TensorDataset(users, items, ratings), batch_size=64, shuffle=True)
test_loader = DataLoader(TensorDataset(users[:64], items[:64], ratings[:64]), batch_size=32)

P = torch.randn(n_users, rank) * 0.1
Q = torch.randn(n_items, rank) * 0.1
b = torch.zeros(1)
for tensor in (P, Q, b):
    tensor.requires_grad_()


def predict(u, i):
    return (P[u] * Q[i]).sum(1) + b


updates = 0
for epoch in range(4):
    for u, i, r in train_loader:
        loss = ((predict(u, i) - r) ** 2).mean() + reg * (P[u].pow(2).sum() + Q[i].pow(2).sum())
        loss.backward()
        with torch.no_grad():
            for tensor in (P, Q, b):
                tensor -= lr * tensor.grad
                tensor.grad = None
        updates += 1
    with torch.no_grad():
        rmse = torch.cat([(predict(u, i) - r) ** 2 for u, i, r in test_loader]).mean().sqrt()
    print(f"epoch {epoch}: rmse {rmse.item():.4f}")

print(f"steps: {updates}")
