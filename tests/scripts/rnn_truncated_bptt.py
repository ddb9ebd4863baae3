"""Truncated backpropagation through time: several optimizer steps per batch of sequences."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Tracker(nn.Module):
    def __init__(self):
        super().__init__()
        self.gru = nn.GRU(3, 16, batch_first=True)
        self.out = nn.Linear(16, 1)

    def forward(self, x, state=None):
        y, state = self.gru(x, state)
        return self.out(y), state


def main(epochs=2, tbptt=8):
    torch.manual_seed(0)
    torch.set_num_threads(1)
    signal = torch.randn(32, 32, 3)
    target = signal.cumsum(dim=1).mean(dim=2, keepdim=True)
    loader = DataLoader(TensorDataset(signal, target), batch_size=8, shuffle=True)
    model = Tracker()
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)

    n_steps = 0
    for epoch in range(epochs):
        for x, y in loader:
            state = None
            for x_part, y_part in zip(x.split(tbptt, dim=1), y.split(tbptt, dim=1), strict=True):
                if state is not None:
                    state = state.detach()
                prediction, state = model(x_part, state)
                loss = nn.functional.mse_loss(prediction, y_part)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                n_steps += 1
        print(f"epoch {epoch} loss {loss.item():.4f}")
    print(f"steps: {n_steps}")


if __name__ == "__main__":
    main()
