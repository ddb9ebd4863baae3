"""U-Net segmentation with bfloat16 autocast, two losses, logging, validation inside the epoch."""

import logging
import sys

import torch
import torch.nn as nn
import torch.nn.functional as F  # noqa: N812
from torch.utils.data import DataLoader, Dataset, random_split


class DoubleConv(nn.Module):
    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.double_conv = nn.Sequential(
            nn.Conv2d(in_channels, out_channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(out_channels),
            nn.ReLU(inplace=True),
            nn.Conv2d(out_channels, out_channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(out_channels),
            nn.ReLU(inplace=True),
        )

    def forward(self, x):
        return self.double_conv(x)


class UNet(nn.Module):
    def __init__(self, n_channels=1, n_classes=2):
        super().__init__()
        self.inc = DoubleConv(n_channels, 8)
        self.down = nn.Sequential(nn.MaxPool2d(2), DoubleConv(8, 16))
        self.up = nn.ConvTranspose2d(16, 8, 2, stride=2)
        self.conv = DoubleConv(16, 8)
        self.outc = nn.Conv2d(8, n_classes, 1)

    def forward(self, x):
        x1 = self.inc(x)
        x2 = self.up(self.down(x1))
        return self.outc(self.conv(torch.cat([x1, x2], dim=1)))


class Blobs(Dataset):
    def __init__(self, n):
        self.masks = (torch.rand(n, 16, 16) > 0.7).long()
        self.images = self.masks.float().unsqueeze(1) + 0.2 * torch.randn(n, 1, 16, 16)

    def __len__(self):
        return len(self.masks)

    def __getitem__(self, i):
        return {"image": self.images[i], "mask": self.masks[i]}


def dice_loss(probs, target, epsilon=1e-6):
    inter = 2 * (probs * target).sum()
    return 1 - (inter + epsilon) / (probs.sum() + target.sum() + epsilon)


@torch.inference_mode()
def evaluate(net, dataloader):
    net.eval()
    score = 0.0
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for batch in dataloader:
            pred = net(batch["image"]).argmax(dim=1)
            score += 1 - dice_loss(pred.float(), batch["mask"].float()).item()
    net.train()
    return score / len(dataloader)


def train_model(model, epochs=2, batch_size=4, learning_rate=1e-4, val_percent=0.2):
    dataset = Blobs(50)
    n_val = int(len(dataset) * val_percent)
    train_set, val_set = random_split(dataset, [len(dataset) - n_val, n_val])
    loader_args = {"batch_size": batch_size, "num_workers": 0}
    train_loader = DataLoader(train_set, shuffle=True, **loader_args)
    val_loader = DataLoader(val_set, shuffle=False, drop_last=True, **loader_args)
    optimizer = torch.optim.RMSprop(model.parameters(), lr=learning_rate, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, "max", patience=5)
    criterion = nn.CrossEntropyLoss()
    global_step = 0
    for epoch in range(1, epochs + 1):
        model.train()
        epoch_loss = 0.0
        for batch in train_loader:
            images, true_masks = batch["image"], batch["mask"]
            with torch.autocast("cpu", dtype=torch.bfloat16):
                masks_pred = model(images)
                loss = criterion(masks_pred, true_masks)
                loss += dice_loss(F.softmax(masks_pred, dim=1)[:, 1].float(), true_masks.float())
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            global_step += 1
            epoch_loss += loss.item()

            if global_step % 5 == 0:  # evaluation round in the middle of an epoch
                val_score = evaluate(model, val_loader)
                scheduler.step(val_score)
                logging.info("Validation Dice score: %.3f", val_score)
        logging.info("Epoch %d finished, loss %.3f", epoch, epoch_loss / len(train_loader))
    return global_step


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(levelname)s: %(message)s", stream=sys.stderr)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    n = train_model(UNet().to(memory_format=torch.channels_last))
    print(f"steps: {n}")
