"""Recommender with sparse embeddings: SparseAdam for the tables, Adam for the dense layers.

Both optimizers step in every iteration, so the count is the number of iterations.
"""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class TwoTower(nn.Module):
    def __init__(self, n_users=200, n_items=100, dim=8):
        super().__init__()
        self.users = nn.Embedding(n_users, dim, sparse=True)
        self.items = nn.EmbeddingBag(n_items, dim, mode="mean", sparse=True)
        self.top = nn.Sequential(nn.Linear(2 * dim, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, user, history):
        return self.top(torch.cat([self.users(user), self.items(history)], dim=1)).squeeze(1)


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    dataset = TensorDataset(
        torch.randint(0, 200, (480,)), torch.randint(0, 100, (480, 5)), torch.rand(480).round()
    )
    loader = DataLoader(dataset, batch_size=32, shuffle=True)
    model = TwoTower()
    sparse = [*model.users.parameters(), *model.items.parameters()]
    optimizers = [
        torch.optim.SparseAdam(sparse, lr=1e-2),
        torch.optim.Adam(model.top.parameters(), lr=1e-3),
    ]
    criterion = nn.BCEWithLogitsLoss()
    iterations = 0
    for epoch in range(2):
        for user, history, clicked in loader:
            for optimizer in optimizers:
                optimizer.zero_grad()
            loss = criterion(model(user, history), clicked)
            loss.backward()
            for optimizer in optimizers:
                optimizer.step()
            iterations += 1
        print(f"epoch {epoch}: {loss.item():.4f}")
    print(f"steps: {iterations}")


if __name__ == "__main__":
    main()
