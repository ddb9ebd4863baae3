"""An active GradScaler that meets overflowing gradients and then skips optimizer.step itself.

The count is the optimizer steps taken: a batch whose step the scaler skipped is none.
"""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class AverageMeter:
    def __init__(self):
        self.sum, self.count = 0.0, 0

    def update(self, val, n=1):
        self.sum += val * n
        self.count += n

    @property
    def avg(self):
        return self.sum / max(self.count, 1)


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    x = torch.randn(320, 8)
    x[100] = float("inf")  # one broken sample makes one overflowing batch per epoch
    dataset = TensorDataset(x, torch.randint(0, 3, (320,)))
    loader = DataLoader(dataset, batch_size=16, shuffle=False)
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 3))
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    losses = AverageMeter()

    taken = skipped = 0
    for epoch in range(2):
        for images, target in loader:
            with torch.amp.autocast("cpu", dtype=torch.bfloat16):
                loss = criterion(model(images), target)
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scale_before = scaler.get_scale()
            scaler.step(optimizer)
            scaler.update()
            if scaler.get_scale() < scale_before:
                skipped += 1
            else:
                taken += 1
                losses.update(loss.item(), images.size(0))
        print(f"epoch {epoch}: loss {losses.avg:.4f}, skipped so far {skipped}")
    print(f"steps: {taken}")


if __name__ == "__main__":
    main()
