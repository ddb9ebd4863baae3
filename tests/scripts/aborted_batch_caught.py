"""Recovery from out-of-memory: RuntimeErrors in forward or backward are caught, the loop goes on.

The count is the completed optimizer steps; an aborted batch is none.
"""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Fragile(nn.Module):
    """Fails in forward on a batch with a marked sample, as a too long sequence would."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(4, 16)
        self.head = nn.Linear(16, 2)

    def forward(self, x):
        hidden = torch.relu(self.embed(x))
        if (x > 90).any():
            raise RuntimeError("CUDA out of memory. Tried to allocate 20.00 GiB (simulated)")
        return self.head(hidden)


class Explosive(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, fail):
        ctx.fail = fail
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        if ctx.fail:
            raise RuntimeError("CUDA out of memory in backward (simulated)")
        return grad, None


def train(model, loader, optimizer, epochs):
    done = 0
    for epoch in range(epochs):
        for i, (x, y) in enumerate(loader):
            try:
                out = model(x)
                out = Explosive.apply(out, (x < -90).any().item())
                loss = nn.functional.cross_entropy(out, y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                done += 1
            except RuntimeError as e:
                if "out of memory" not in str(e):
                    raise
                print(f"| WARNING: ran out of memory in batch {i}, skipping batch")
                optimizer.zero_grad()
                continue
        print(f"epoch {epoch}: {done} steps so far")
    return done


if __name__ == "__main__":
    torch.manual_seed(0)
    torch.set_num_threads(1)
    x = torch.randn(160, 4)
    x[45, 0], x[120, 0] = 99.0, -99.0
    loader = DataLoader(TensorDataset(x, torch.randint(0, 2, (160,))), batch_size=10)
    model = Fragile()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    steps = train(model, loader, optimizer, epochs=2)
    print(f"steps: {steps}")
