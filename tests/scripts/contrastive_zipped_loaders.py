"""Contrastive learning with two augmented views: a labelled and an unlabelled loader zipped."""

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, TensorDataset


class TwoViews(Dataset):
    """Wraps a tensor of images and returns two random augmentations of each."""

    def __init__(self, images):
        self.images = images

    def __len__(self):
        return len(self.images)

    def augment(self, x):
        x = x.flip(-1) if torch.rand(()) < 0.5 else x
        return x * (0.8 + 0.4 * torch.rand(())) + 0.05 * torch.randn_like(x)

    def __getitem__(self, index):
        return self.augment(self.images[index]), self.augment(self.images[index])


class SimCLR(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(3, 8, 3, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
        )
        self.projector = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))
        self.classifier = nn.Linear(8, 3)

    def forward(self, x):
        h = self.encoder(x)
        return functional.normalize(self.projector(h), dim=1), self.classifier(h)


def nt_xent(z1, z2, temperature=0.5):
    z = torch.cat([z1, z2])
    similarity = z @ z.t() / temperature
    similarity.fill_diagonal_(-1e9)
    n = len(z1)
    positives = torch.cat([torch.arange(n, 2 * n), torch.arange(n)])
    return functional.cross_entropy(similarity, positives)


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    unlabelled = DataLoader(TwoViews(torch.randn(160, 3, 12, 12)), batch_size=16, shuffle=True)
    labelled = DataLoader(
        TensorDataset(torch.randn(60, 3, 12, 12), torch.randint(0, 3, (60,))), batch_size=4
    )
    model = SimCLR()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    count = 0
    for epoch in range(3):
        # the shorter of the two ends the epoch
        for (view1, view2), (x, y) in zip(unlabelled, labelled):  # noqa: B905
            z1, _ = model(view1)
            z2, _ = model(view2)
            _, logits = model(x)
            loss = nt_xent(z1, z2) + 0.5 * functional.cross_entropy(logits, y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            count += 1
        print(f"epoch {epoch}: loss {loss.item():.4f}")
    print(f"steps: {count}")


main()
