"""Functional training: a parameter dict, torch.func.grad_and_value, functional_call, pure SGD.

There is neither backward() nor an optimizer object: the count is the number of parameter updates.
"""

import torch
from torch import nn
from torch.func import functional_call, grad_and_value
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
torch.set_num_threads(1)

net = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))


def loss_fn(params, x, y):
    return nn.functional.mse_loss(functional_call(net, params, (x,)), y)


def sgd_update(params, grads, lr):
    return {name: value - lr * grads[name] for name, value in params.items()}


def train_step(params, batch, lr=0.05):
    grads, loss = grad_and_value(loss_fn)(params, *batch)
    return sgd_update(params, grads, lr), loss


inputs = torch.randn(160, 8)
outputs = inputs.pow(2).mean(1, keepdim=True)
loader = DataLoader(TensorDataset(inputs, outputs), batch_size=16, shuffle=True)

params = {name: value.detach() for name, value in net.named_parameters()}
updates = 0
for epoch in range(3):
    for batch in loader:
        params, loss = train_step(params, batch)
        updates += 1
    print(f"epoch {epoch}: {loss.item():.4f}")

print(f"steps: {updates}")
