"""MAML-like meta-learning: inner loop by autograd.grad and functional_call, one outer Adam.

The count is the outer optimizer's steps: inner adaptations are part of them.
"""

import torch
from torch import nn
from torch.func import functional_call


class SineNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(1, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, x):
        return self.net(x)


def sample_task():
    amplitude, phase = 0.1 + 4.9 * torch.rand(1), torch.pi * torch.rand(1)

    def draw(k):
        x = torch.rand(k, 1) * 10 - 5
        return x, amplitude * torch.sin(x + phase)

    return draw


def adapt(model, x, y, inner_steps, inner_lr, create_graph=True):
    weights = dict(model.named_parameters())
    for _ in range(inner_steps):
        loss = nn.functional.mse_loss(functional_call(model, weights, (x,)), y)
        grads = torch.autograd.grad(loss, weights.values(), create_graph=create_graph)
        weights = {
            name: w - inner_lr * g for (name, w), g in zip(weights.items(), grads, strict=True)
        }
    return weights


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = SineNet()
    meta_optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    outer_steps = 0
    for meta_iteration in range(20):
        meta_optimizer.zero_grad()
        meta_loss = 0.0
        for _task in range(4):
            draw = sample_task()
            fast_weights = adapt(model, *draw(10), inner_steps=2, inner_lr=0.01)
            x_query, y_query = draw(10)
            prediction = functional_call(model, fast_weights, (x_query,))
            meta_loss = meta_loss + nn.functional.mse_loss(prediction, y_query)
        (meta_loss / 4).backward()
        meta_optimizer.step()
        outer_steps += 1
        if meta_iteration % 5 == 0:
            print(f"iteration {meta_iteration}: meta loss {meta_loss.item() / 4:.3f}")

    draw = sample_task()
    tuned = adapt(model, *draw(10), inner_steps=5, inner_lr=0.01, create_graph=False)
    with torch.no_grad():
        x, y = draw(50)
        loss = nn.functional.mse_loss(functional_call(model, tuned, (x,)), y)
    print(f"after adaptation: {loss.item():.3f}")
    print(f"steps: {outer_steps}")


if __name__ == "__main__":
    main()
