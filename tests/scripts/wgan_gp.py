"""WGAN with gradient penalty: the critic steps on every batch, the generator on every fifth.

The count is the critic iterations: a generator update rides in the iteration that makes it.
"""

import argparse

import torch
from torch import autograd, nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--n_epochs", type=int, default=3, help="number of epochs of training")
parser.add_argument("--batch_size", type=int, default=16, help="size of the batches")
parser.add_argument("--lr", type=float, default=0.0002, help="adam: learning rate")
parser.add_argument("--latent_dim", type=int, default=8, help="size of the latent space")
parser.add_argument("--n_critic", type=int, default=5, help="critic steps per generator step")
opt = parser.parse_args()

torch.manual_seed(0)
torch.set_num_threads(1)
lambda_gp = 10


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.model = nn.Sequential(
            nn.Linear(opt.latent_dim, 32), nn.LeakyReLU(0.2), nn.Linear(32, 64), nn.Tanh()
        )

    def forward(self, z):
        return self.model(z).view(z.size(0), 1, 8, 8)


class Discriminator(nn.Module):
    def __init__(self):
        super().__init__()
        self.model = nn.Sequential(nn.Linear(64, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))

    def forward(self, img):
        return self.model(img.view(img.shape[0], -1))


def compute_gradient_penalty(critic, real_samples, fake_samples):
    alpha = torch.rand(real_samples.size(0), 1, 1, 1)
    interpolates = (alpha * real_samples + (1 - alpha) * fake_samples).requires_grad_(True)
    d_interpolates = critic(interpolates)
    gradients = autograd.grad(
        outputs=d_interpolates,
        inputs=interpolates,
        grad_outputs=torch.ones_like(d_interpolates),
        create_graph=True,
        retain_graph=True,
        only_inputs=True,
    )[0]
    gradients = gradients.view(gradients.size(0), -1)
    return ((gradients.norm(2, dim=1) - 1) ** 2).mean()


generator = Generator()
discriminator = Discriminator()
dataloader = DataLoader(
    TensorDataset(torch.rand(160, 1, 8, 8), torch.zeros(160)),
    batch_size=opt.batch_size,
    shuffle=True,
)
optimizer_g = torch.optim.Adam(generator.parameters(), lr=opt.lr, betas=(0.5, 0.999))
optimizer_d = torch.optim.Adam(discriminator.parameters(), lr=opt.lr, betas=(0.5, 0.999))

critic_iterations = 0
for epoch in range(opt.n_epochs):
    for i, (real_imgs, _) in enumerate(dataloader):
        optimizer_d.zero_grad()
        z = torch.randn(real_imgs.shape[0], opt.latent_dim)
        fake_imgs = generator(z).detach()
        real_validity = discriminator(real_imgs)
        fake_validity = discriminator(fake_imgs)
        penalty = compute_gradient_penalty(discriminator, real_imgs.data, fake_imgs.data)
        d_loss = -torch.mean(real_validity) + torch.mean(fake_validity) + lambda_gp * penalty
        d_loss.backward()
        optimizer_d.step()
        critic_iterations += 1

        optimizer_g.zero_grad()
        if i % opt.n_critic == 0:
            fake_imgs = generator(z)
            g_loss = -torch.mean(discriminator(fake_imgs))
            g_loss.backward()
            optimizer_g.step()
            print(f"[Epoch {epoch}] [Batch {i}] [D {d_loss.item():.3f}] [G {g_loss.item():.3f}]")

print(f"steps: {critic_iterations}")
