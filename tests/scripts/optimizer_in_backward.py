"""Optimizer fused into backward: one small optimizer per parameter, stepped from a gradient hook.

Every parameter's optimizer steps once per backward, so the count is the number of iterations.
"""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
torch.set_num_threads(1)

model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer_dict = {p: torch.optim.Adam([p], foreach=False) for p in model.parameters()}


def optimizer_hook(parameter) -> None:
    optimizer_dict[parameter].step()
    optimizer_dict[parameter].zero_grad()


for p in model.parameters():
    p.register_post_accumulate_grad_hook(optimizer_hook)

inputs = torch.randn(240, 8)
loader = DataLoader(TensorDataset(inputs, inputs.norm(dim=1, keepdim=True)), batch_size=16)

iterations = 0
for epoch in range(2):
    for x, y in loader:
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        iterations += 1
    print(f"epoch {epoch}: {loss.item():.4f}")

print(f"steps: {iterations}")
