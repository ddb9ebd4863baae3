"""DataLoaders with two persistent workers each for training and validation over two epochs."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, get_worker_info


class Augmented(Dataset):
    def __init__(self, size, train):
        self.size, self.train = size, train

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        x = torch.randn(3, 8, 8, generator=generator)
        label = int(x.mean() > 0)
        if self.train and torch.rand(()) < 0.5:
            x = x.flip(-1)
        return x, label


def worker_init_fn(worker_id):
    torch.manual_seed(get_worker_info().seed % 2**31)


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    common = {"num_workers": 2, "persistent_workers": True, "worker_init_fn": worker_init_fn}
    train_loader = DataLoader(Augmented(160, True), batch_size=16, shuffle=True, **common)
    val_loader = DataLoader(Augmented(32, False), batch_size=16, prefetch_factor=2, **common)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)

    steps = 0
    for epoch in range(2):
        model.train()
        for x, y in train_loader:
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            steps += 1
        model.eval()
        with torch.no_grad():
            hits = sum((model(x).argmax(1) == y).sum().item() for x, y in val_loader)
        print(f"epoch {epoch}: loss {loss.item():.3f}, val {hits}/{len(val_loader.dataset)}")
    print(f"steps: {steps}")


if __name__ == "__main__":
    main()
