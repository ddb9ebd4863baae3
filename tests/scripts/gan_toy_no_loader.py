"""Toy GAN in fifty lines of plain PyTorch: samplers instead of a loader, one D and one G update.

Both optimizers step in every iteration, so the count is the number of iterations.
"""

import torch
from torch import nn, optim

torch.set_num_threads(1)
torch.manual_seed(0)


def get_distribution_sampler(mu, sigma):
    return lambda n: torch.normal(mu, sigma, (n, 1))


def get_generator_input_sampler():
    return lambda n: torch.rand(n, 1)


def mlp(inputs, hidden, outputs):
    return nn.Sequential(
        nn.Linear(inputs, hidden),
        nn.Tanh(),
        nn.Linear(hidden, hidden),
        nn.Tanh(),
        nn.Linear(hidden, outputs),
    )


def train():
    d_sampler = get_distribution_sampler(4.0, 1.25)
    gi_sampler = get_generator_input_sampler()
    g, d = mlp(1, 8, 1), nn.Sequential(mlp(1, 8, 1), nn.Sigmoid())
    criterion = nn.BCELoss()
    d_optimizer = optim.SGD(d.parameters(), lr=1e-3, momentum=0.9)
    g_optimizer = optim.SGD(g.parameters(), lr=1e-3, momentum=0.9)
    iterations = 0
    for epoch in range(30):
        d.zero_grad()
        d_real_error = criterion(d(d_sampler(32)), torch.ones(32, 1))
        d_real_error.backward()
        d_fake_data = g(gi_sampler(32)).detach()
        d_fake_error = criterion(d(d_fake_data), torch.zeros(32, 1))
        d_fake_error.backward()
        d_optimizer.step()

        g.zero_grad()
        g_error = criterion(d(g(gi_sampler(32))), torch.ones(32, 1))
        g_error.backward()
        g_optimizer.step()
        iterations += 1

        if epoch % 10 == 0:
            print(
                f"Epoch {epoch}: D ({d_real_error:.3f} real, {d_fake_error:.3f} fake) {g_error:.3f}"
            )
    return iterations


n = train()
print(f"steps: {n}")
