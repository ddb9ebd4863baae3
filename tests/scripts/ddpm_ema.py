"""DDPM diffusion model with an EMA copy of the network updated after every step, then sampled."""

import copy

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class EMA:
    def __init__(self, beta):
        self.beta, self.step = beta, 0

    def step_ema(self, ema_model, model, step_start_ema=5):
        if self.step < step_start_ema:
            ema_model.load_state_dict(model.state_dict())
        else:
            for current, old in zip(model.parameters(), ema_model.parameters(), strict=True):
                old.data = old.data * self.beta + (1 - self.beta) * current.data
        self.step += 1


class Denoiser(nn.Module):
    def __init__(self, steps):
        super().__init__()
        self.time = nn.Embedding(steps, 16)
        self.inp = nn.Conv2d(1, 16, 3, padding=1)
        self.mid = nn.Sequential(nn.GroupNorm(4, 16), nn.SiLU(), nn.Conv2d(16, 16, 3, padding=1))
        self.out = nn.Conv2d(16, 1, 3, padding=1)

    def forward(self, x, t):
        h = self.inp(x) + self.time(t)[:, :, None, None]
        return self.out(h + self.mid(h))


class Diffusion:
    def __init__(self, noise_steps=20, beta_start=1e-4, beta_end=0.02, img_size=8):
        self.noise_steps, self.img_size = noise_steps, img_size
        self.beta = torch.linspace(beta_start, beta_end, noise_steps)
        self.alpha = 1.0 - self.beta
        self.alpha_hat = torch.cumprod(self.alpha, dim=0)

    def noise_images(self, x, t):
        eps = torch.randn_like(x)
        keep = self.alpha_hat[t][:, None, None, None]
        return keep.sqrt() * x + (1 - keep).sqrt() * eps, eps

    def sample_timesteps(self, n):
        return torch.randint(low=1, high=self.noise_steps, size=(n,))

    def sample(self, model, n):
        model.eval()
        with torch.no_grad():
            x = torch.randn((n, 1, self.img_size, self.img_size))
            for i in reversed(range(1, self.noise_steps)):
                t = torch.full((n,), i)
                alpha, alpha_hat, beta = self.alpha[i], self.alpha_hat[i], self.beta[i]
                noise = torch.randn_like(x) if i > 1 else torch.zeros_like(x)
                x = (x - (1 - alpha) / (1 - alpha_hat).sqrt() * model(x, t)) / alpha.sqrt()
                x = x + beta.sqrt() * noise
        model.train()
        return x.clamp(-1, 1)


def train(epochs=3):
    dataloader = DataLoader(
        TensorDataset(torch.rand(80, 1, 8, 8) * 2 - 1), batch_size=8, shuffle=True
    )
    diffusion = Diffusion()
    model = Denoiser(diffusion.noise_steps)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    mse = nn.MSELoss()
    ema = EMA(0.995)
    ema_model = copy.deepcopy(model).eval().requires_grad_(False)

    steps = 0
    for epoch in range(epochs):
        for (images,) in dataloader:
            t = diffusion.sample_timesteps(images.shape[0])
            x_t, noise = diffusion.noise_images(images, t)
            predicted_noise = model(x_t, t)
            loss = mse(noise, predicted_noise)

            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            steps += 1
            ema.step_ema(ema_model, model)
        sampled = diffusion.sample(ema_model, n=2)
        print(f"epoch {epoch}: MSE {loss.item():.4f}, sample std {sampled.std():.3f}")
    return steps


if __name__ == "__main__":
    torch.manual_seed(0)
    torch.set_num_threads(1)
    print(f"steps: {train()}")
