"""CycleGAN: itertools.chain over two generators, G first, then two discriminators, unpaired loader.

Three optimizers step in every iteration, so the count is the number of iterations.
"""

import itertools
import random

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Unpaired(Dataset):
    def __init__(self, size=24):
        self.a = torch.randn(size, 1, 8, 8)
        self.b = torch.randn(size, 1, 8, 8) + 1

    def __len__(self):
        return len(self.a)

    def __getitem__(self, index):
        return {"A": self.a[index], "B": self.b[random.randrange(len(self.b))]}


class ReplayBuffer:
    def __init__(self, max_size=50):
        self.max_size = max_size
        self.data = []

    def push_and_pop(self, images):
        result = []
        for image in images.detach():
            if len(self.data) < self.max_size:
                self.data.append(image)
                result.append(image)
            elif random.random() > 0.5:
                slot = random.randrange(self.max_size)
                result.append(self.data[slot])
                self.data[slot] = image
            else:
                result.append(image)
        return torch.stack(result)


def generator():
    return nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 1, 3, padding=1))


def discriminator():
    return nn.Sequential(nn.Conv2d(1, 8, 4, 2, 1), nn.LeakyReLU(0.2), nn.Conv2d(8, 1, 4))


def set_requires_grad(nets, requires_grad):
    for net in nets:
        for param in net.parameters():
            param.requires_grad = requires_grad


def main():
    random.seed(0)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    g_ab, g_ba, d_a, d_b = generator(), generator(), discriminator(), discriminator()
    criterion_gan, criterion_cycle = nn.MSELoss(), nn.L1Loss()
    optimizer_g = torch.optim.Adam(
        itertools.chain(g_ab.parameters(), g_ba.parameters()), lr=2e-4, betas=(0.5, 0.999)
    )
    optimizer_d_a = torch.optim.Adam(d_a.parameters(), lr=2e-4, betas=(0.5, 0.999))
    optimizer_d_b = torch.optim.Adam(d_b.parameters(), lr=2e-4, betas=(0.5, 0.999))
    buffer_a, buffer_b = ReplayBuffer(), ReplayBuffer()

    iterations = 0
    for epoch in range(2):
        for batch in DataLoader(Unpaired(), batch_size=2, shuffle=True):
            real_a, real_b = batch["A"], batch["B"]

            set_requires_grad([d_a, d_b], False)
            optimizer_g.zero_grad()
            fake_b, fake_a = g_ab(real_a), g_ba(real_b)
            pred_b, pred_a = d_b(fake_b), d_a(fake_a)
            loss_gan = criterion_gan(pred_b, torch.ones_like(pred_b))
            loss_gan = loss_gan + criterion_gan(pred_a, torch.ones_like(pred_a))
            loss_cycle = criterion_cycle(g_ba(fake_b), real_a) + criterion_cycle(
                g_ab(fake_a), real_b
            )
            loss_g = loss_gan + 10.0 * loss_cycle
            loss_g.backward()
            optimizer_g.step()

            set_requires_grad([d_a, d_b], True)
            for net, optimizer, real, fake in (
                (d_a, optimizer_d_a, real_a, buffer_a.push_and_pop(fake_a)),
                (d_b, optimizer_d_b, real_b, buffer_b.push_and_pop(fake_b)),
            ):
                optimizer.zero_grad()
                pred_real, pred_fake = net(real), net(fake)
                loss_d = 0.5 * (
                    criterion_gan(pred_real, torch.ones_like(pred_real))
                    + criterion_gan(pred_fake, torch.zeros_like(pred_fake))
                )
                loss_d.backward()
                optimizer.step()
            iterations += 1
        print(f"epoch {epoch}: G {loss_g.item():.3f} D {loss_d.item():.3f}")
    print(f"steps: {iterations}")


if __name__ == "__main__":
    main()
