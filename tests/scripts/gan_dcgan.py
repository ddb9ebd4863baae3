"""DCGAN in the style of the tutorial: two optimizers, two backwards for D, detach, one DataLoader.

Both optimizers step in every iteration, so the count is the number of iterations.
"""

import torch
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(999)
torch.set_num_threads(1)

batch_size, nz, num_epochs = 16, 8, 3
real_label, fake_label = 1.0, 0.0


def weights_init(m):
    classname = m.__class__.__name__
    if classname.find("Conv") != -1:
        nn.init.normal_(m.weight.data, 0.0, 0.02)
    elif classname.find("BatchNorm") != -1:
        nn.init.normal_(m.weight.data, 1.0, 0.02)
        nn.init.constant_(m.bias.data, 0)


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.main = nn.Sequential(
            nn.ConvTranspose2d(nz, 16, 4, 1, 0, bias=False),
            nn.BatchNorm2d(16),
            nn.ReLU(True),
            nn.ConvTranspose2d(16, 1, 4, 2, 1, bias=False),
            nn.Tanh(),
        )

    def forward(self, z):
        return self.main(z)


class Discriminator(nn.Module):
    def __init__(self):
        super().__init__()
        self.main = nn.Sequential(
            nn.Conv2d(1, 16, 4, 2, 1, bias=False),
            nn.LeakyReLU(0.2, inplace=True),
            nn.Conv2d(16, 1, 4, 1, 0, bias=False),
            nn.Sigmoid(),
        )

    def forward(self, x):
        return self.main(x)


dataset = TensorDataset(torch.rand(160, 1, 8, 8) * 2 - 1, torch.zeros(160))
dataloader = DataLoader(dataset, batch_size=batch_size, shuffle=True)
net_g, net_d = Generator(), Discriminator()
net_g.apply(weights_init)
net_d.apply(weights_init)

criterion = nn.BCELoss()
fixed_noise = torch.randn(4, nz, 1, 1)
optimizer_d = optim.Adam(net_d.parameters(), lr=0.0002, betas=(0.5, 0.999))
optimizer_g = optim.Adam(net_g.parameters(), lr=0.0002, betas=(0.5, 0.999))

img_list = []
iters = 0
print("Starting Training Loop...")
for epoch in range(num_epochs):
    for i, data in enumerate(dataloader, 0):
        # (1) Update D network: maximize log(D(x)) + log(1 - D(G(z)))
        net_d.zero_grad()
        real = data[0]
        label = torch.full((real.size(0),), real_label)
        err_d_real = criterion(net_d(real).view(-1), label)
        err_d_real.backward()
        noise = torch.randn(real.size(0), nz, 1, 1)
        fake = net_g(noise)
        label.fill_(fake_label)
        err_d_fake = criterion(net_d(fake.detach()).view(-1), label)
        err_d_fake.backward()
        optimizer_d.step()

        # (2) Update G network: maximize log(D(G(z)))
        net_g.zero_grad()
        label.fill_(real_label)
        err_g = criterion(net_d(fake).view(-1), label)
        err_g.backward()
        optimizer_g.step()
        iters += 1

        if i % 5 == 0:
            err_d = err_d_real + err_d_fake
            print(f"[{epoch}/{num_epochs}][{i}] D: {err_d.item():.4f} G: {err_g.item():.4f}")
        if iters % 10 == 0:
            with torch.no_grad():
                img_list.append(net_g(fixed_noise).detach().cpu())

print(f"steps: {iters}")
