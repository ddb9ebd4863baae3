"""CNN in the style of the MNIST example: train() and validate() per epoch, best checkpoint."""

import argparse
import tempfile
from pathlib import Path

import torch
from torch import nn, optim
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, Dataset


class Shapes(Dataset):
    """Synthetic 12x12 images whose bright row tells the class."""

    def __init__(self, size, seed):
        generator = torch.Generator().manual_seed(seed)
        self.labels = torch.randint(0, 4, (size,), generator=generator)
        self.images = torch.randn(size, 1, 12, 12, generator=generator) * 0.3
        for image, label in zip(self.images, self.labels, strict=True):
            image[0, int(label) * 3] += 1.0

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return self.images[index], self.labels[index]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 3)
        self.conv2 = nn.Conv2d(8, 8, 3)
        self.dropout = nn.Dropout(0.25)
        self.fc = nn.Linear(8 * 4 * 4, 4)

    def forward(self, x):
        x = torch.relu(self.conv1(x))
        x = nn.functional.max_pool2d(torch.relu(self.conv2(x)), 2)
        x = self.dropout(torch.flatten(x, 1))
        return nn.functional.log_softmax(self.fc(x), dim=1)


def train(args, model, device, train_loader, optimizer, epoch):
    model.train()
    steps = 0
    for batch_idx, (data, target) in enumerate(train_loader):
        data, target = data.to(device), target.to(device)
        optimizer.zero_grad()
        output = model(data)
        loss = nn.functional.nll_loss(output, target)
        loss.backward()
        optimizer.step()
        steps += 1
        if batch_idx % args.log_interval == 0:
            print(
                f"Train Epoch: {epoch} [{batch_idx * len(data)}/{len(train_loader.dataset)}]"
                f"\tLoss: {loss.item():.6f}"
            )
    return steps


def validate(model, device, loader):
    model.eval()
    loss, correct = 0.0, 0
    with torch.no_grad():
        for data, target in loader:
            data, target = data.to(device), target.to(device)
            output = model(data)
            loss += nn.functional.nll_loss(output, target, reduction="sum").item()
            correct += output.argmax(dim=1).eq(target).sum().item()
    print(f"Test set: loss {loss / len(loader.dataset):.4f}, {correct}/{len(loader.dataset)}")
    return correct / len(loader.dataset)


def main():
    parser = argparse.ArgumentParser(description="Small CNN example")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--test-batch-size", type=int, default=16)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--lr", type=float, default=1.0)
    parser.add_argument("--gamma", type=float, default=0.7)
    parser.add_argument("--log-interval", type=int, default=4)
    args = parser.parse_args()

    torch.manual_seed(1)
    torch.set_num_threads(1)
    device = torch.device("cpu")
    train_loader = DataLoader(Shapes(256, seed=0), batch_size=args.batch_size, shuffle=True)
    test_loader = DataLoader(Shapes(128, seed=1), batch_size=args.test_batch_size)

    model = Net().to(device)
    optimizer = optim.Adadelta(model.parameters(), lr=args.lr)
    scheduler = StepLR(optimizer, step_size=1, gamma=args.gamma)

    steps = 0
    best = 0.0
    with tempfile.TemporaryDirectory() as folder:
        for epoch in range(1, args.epochs + 1):
            steps += train(args, model, device, train_loader, optimizer, epoch)
            accuracy = validate(model, device, test_loader)
            scheduler.step()
            if accuracy >= best:
                best = accuracy
                torch.save(model.state_dict(), Path(folder) / "best.pt")
    print(f"steps: {steps}")


if __name__ == "__main__":
    main()
