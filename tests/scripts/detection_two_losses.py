"""Detection style: dict batches, custom collate_fn, a model that returns a dict of losses."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class BoxDataset(Dataset):
    def __init__(self, length):
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, idx):
        generator = torch.Generator().manual_seed(idx)
        image = torch.randn(3, 16, 16, generator=generator)
        n_objects = 1 + idx % 3
        corners = torch.rand(n_objects, 4, generator=generator)
        target = {
            "boxes": corners,
            "labels": torch.randint(0, 4, (n_objects,), generator=generator),
            "image_id": torch.tensor([idx]),
        }
        return {"image": image, "target": target}


def collate_fn(batch):
    return {
        "images": [item["image"] for item in batch],
        "targets": [item["target"] for item in batch],
    }


class TinyDetector(nn.Module):
    def __init__(self, num_classes=4, max_objects=3):
        super().__init__()
        self.max_objects, self.num_classes = max_objects, num_classes
        self.backbone = nn.Sequential(
            nn.Conv2d(3, 8, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(2),
            nn.Flatten(),
        )
        self.cls_head = nn.Linear(32, max_objects * num_classes)
        self.box_head = nn.Linear(32, max_objects * 4)

    def forward(self, images, targets=None):
        features = self.backbone(torch.stack(images))
        logits = self.cls_head(features).view(-1, self.max_objects, self.num_classes)
        boxes = self.box_head(features).view(-1, self.max_objects, 4)
        if not self.training:
            return [
                {"boxes": b, "scores": s.softmax(-1)} for b, s in zip(boxes, logits, strict=True)
            ]
        pairs = [(i, j) for i, t in enumerate(targets) for j in range(len(t["labels"]))]
        rows, columns = (torch.tensor(index) for index in zip(*pairs, strict=True))
        labels = torch.cat([t["labels"] for t in targets])
        wanted = torch.cat([t["boxes"] for t in targets])
        return {
            "loss_classifier": nn.functional.cross_entropy(logits[rows, columns], labels),
            "loss_box_reg": nn.functional.smooth_l1_loss(boxes[rows, columns], wanted),
        }


def train_one_epoch(model, optimizer, data_loader, device, epoch, print_freq):
    model.train()
    steps = 0
    for i, batch in enumerate(data_loader):
        images = [image.to(device) for image in batch["images"]]
        targets = [{k: v.to(device) for k, v in t.items()} for t in batch["targets"]]
        loss_dict = model(images, targets)
        losses = sum(loss for loss in loss_dict.values())
        optimizer.zero_grad()
        losses.backward()
        optimizer.step()
        steps += 1
        if i % print_freq == 0:
            parts = " ".join(f"{k}: {v.item():.4f}" for k, v in loss_dict.items())
            print(f"Epoch: [{epoch}] [{i}/{len(data_loader)}] {parts}")
    return steps


@torch.inference_mode()
def evaluate(model, data_loader):
    model.eval()
    return sum(len(model(batch["images"])) for batch in data_loader)


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    device = torch.device("cpu")
    data_loader = DataLoader(BoxDataset(60), batch_size=6, shuffle=True, collate_fn=collate_fn)
    data_loader_test = DataLoader(BoxDataset(10), batch_size=1, collate_fn=collate_fn)
    model = TinyDetector().to(device)
    params = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(params, lr=0.005, momentum=0.9, weight_decay=0.0005)
    lr_scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=3, gamma=0.1)
    total = 0
    for epoch in range(2):
        total += train_one_epoch(model, optimizer, data_loader, device, epoch, print_freq=5)
        lr_scheduler.step()
        print(f"evaluated {evaluate(model, data_loader_test)} images")
    print(f"steps: {total}")


if __name__ == "__main__":
    main()
