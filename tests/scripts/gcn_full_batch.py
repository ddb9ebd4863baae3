"""Graph convolution on the full batch: no loader, one step and one evaluation per epoch."""

import torch
import torch.nn as nn
import torch.nn.functional as F  # noqa: N812


class GCNConv(nn.Module):
    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.lin = nn.Linear(in_channels, out_channels, bias=False)

    def forward(self, x, adj):
        return torch.sparse.mm(adj, self.lin(x))


class GCN(torch.nn.Module):
    def __init__(self, in_channels, hidden_channels, out_channels):
        super().__init__()
        self.conv1 = GCNConv(in_channels, hidden_channels)
        self.conv2 = GCNConv(hidden_channels, out_channels)

    def forward(self, x, adj):
        x = F.dropout(x, p=0.5, training=self.training)
        x = self.conv1(x, adj).relu()
        x = F.dropout(x, p=0.5, training=self.training)
        return self.conv2(x, adj)


torch.manual_seed(12345)
torch.set_num_threads(1)
num_nodes, num_classes = 120, 3
y = torch.randint(0, num_classes, (num_nodes,))
x = F.one_hot(y, num_classes).float() + torch.randn(num_nodes, num_classes)
dense = ((y[:, None] == y[None, :]) & (torch.rand(num_nodes, num_nodes) < 0.1)).float()
dense = ((dense + dense.t()) > 0).float() + torch.eye(num_nodes)
inv_sqrt = dense.sum(1).rsqrt()
adj = (inv_sqrt[:, None] * dense * inv_sqrt[None, :]).to_sparse()
train_mask = torch.rand(num_nodes) < 0.3

model = GCN(num_classes, 16, num_classes)
optimizer = torch.optim.Adam(
    [
        {"params": model.conv1.parameters(), "weight_decay": 5e-4},
        {"params": model.conv2.parameters(), "weight_decay": 0},
    ],
    lr=0.01,
)


def train():
    model.train()
    optimizer.zero_grad()
    out = model(x, adj)
    loss = F.cross_entropy(out[train_mask], y[train_mask])
    loss.backward()
    optimizer.step()
    return loss.item()


@torch.no_grad()
def test():
    model.eval()
    pred = model(x, adj).argmax(dim=-1)
    return [float((pred[mask] == y[mask]).float().mean()) for mask in (train_mask, ~train_mask)]


steps = 0
best = 0.0
for epoch in range(1, 31):
    loss = train()
    steps += 1
    train_acc, test_acc = test()
    best = max(best, test_acc)
    if epoch % 10 == 0:
        print(f"Epoch: {epoch:03d}, Loss: {loss:.4f}, Train: {train_acc:.4f}, Test: {test_acc:.4f}")
print(f"steps: {steps}")
