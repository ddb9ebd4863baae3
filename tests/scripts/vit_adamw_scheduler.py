"""Vision Transformer with AdamW, label smoothing and a learning-rate schedule stepped per batch."""

import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, SequentialLR
from torch.utils.data import DataLoader, TensorDataset, random_split


class ViT(nn.Module):
    def __init__(self, image_size=16, patch=4, dim=32, depth=2, heads=4, classes=5):
        super().__init__()
        tokens = (image_size // patch) ** 2
        self.to_patch = nn.Conv2d(3, dim, kernel_size=patch, stride=patch)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, dim))
        self.pos_embedding = nn.Parameter(torch.randn(1, tokens + 1, dim) * 0.02)
        layer = nn.TransformerEncoderLayer(
            dim, heads, 2 * dim, dropout=0.1, batch_first=True, norm_first=True
        )
        self.transformer = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.head = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, classes))

    def forward(self, img):
        x = self.to_patch(img).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls_token.expand(x.size(0), -1, -1), x], dim=1)
        return self.head(self.transformer(x + self.pos_embedding)[:, 0])


@torch.inference_mode()
def evaluate(model, loader):
    model.eval()
    correct = sum((model(x).argmax(-1) == y).sum().item() for x, y in loader)
    return correct / len(loader.dataset)


def train_one_epoch(model, criterion, optimizer, loader, scheduler):
    model.train()
    count = 0
    for image, target in loader:
        loss = criterion(model(image), target)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        count += 1
        scheduler.step()
    return count, loss.item()


def main():
    torch.manual_seed(42)
    torch.set_num_threads(1)
    labels = torch.randint(0, 5, (240,))
    images = torch.randn(240, 3, 16, 16) + labels.view(-1, 1, 1, 1) * 0.5
    train_set, val_set = random_split(TensorDataset(images, labels), [192, 48])
    train_loader = DataLoader(train_set, batch_size=16, shuffle=True, drop_last=True)
    val_loader = DataLoader(val_set, batch_size=16)

    model = ViT()
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.05)
    scheduler = SequentialLR(
        optimizer,
        [LinearLR(optimizer, 0.1, total_iters=5), CosineAnnealingLR(optimizer, T_max=19)],
        milestones=[5],
    )
    total = 0
    for epoch in range(2):
        count, loss = train_one_epoch(model, criterion, optimizer, train_loader, scheduler)
        total += count
        print(f"Epoch {epoch}: loss {loss:.3f} acc {evaluate(model, val_loader):.2%}")
    print(f"steps: {total}")


if __name__ == "__main__":
    main()
