"""Two processes that train on their own and stop after a fixed number of steps, mid-epoch."""

import torch
import torch.multiprocessing as mp
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

STEPS = 17


def worker(index):
    torch.manual_seed(index)
    torch.set_num_threads(1)
    data = TensorDataset(torch.randn(400, 8), torch.randn(400, 1))
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    optimizer = torch.optim.Adam(model.parameters())
    steps = 0
    for inputs, targets in DataLoader(data, batch_size=16):
        nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
        optimizer.zero_grad()
        steps += 1
        if steps == STEPS:
            break
    if index == 0:
        print(f"steps: {steps}", flush=True)


if __name__ == "__main__":
    mp.spawn(worker, nprocs=2)
