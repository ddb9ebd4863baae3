"""timm's own parts in a loop like its `train.py`: mixup, accumulation, model EMA, a scheduler,
validation and `CheckpointSaver`, for two epochs."""

from __future__ import annotations

from pathlib import Path

import timm
import torch
from timm.data import Mixup
from timm.loss import SoftTargetCrossEntropy
from timm.optim import create_optimizer_v2
from timm.scheduler import create_scheduler_v2
from timm.utils import CheckpointSaver, ModelEmaV2
from torch.utils.data import DataLoader, TensorDataset

EPOCHS, BATCHES, MICRO_BATCHES = 2, 24, 2

model = timm.create_model("test_resnet", num_classes=10)
ema = ModelEmaV2(model)
optimizer = create_optimizer_v2(model, opt="adamw", lr=1e-3)
scheduler, _ = create_scheduler_v2(optimizer, num_epochs=EPOCHS)
mixup, loss_of = Mixup(mixup_alpha=0.2, num_classes=10), SoftTargetCrossEntropy()
Path("checkpoints").mkdir(exist_ok=True)
saver = CheckpointSaver(model, optimizer, checkpoint_dir="checkpoints")
images, classes = torch.randn(BATCHES * 8, 3, 32, 32), torch.randint(0, 10, (BATCHES * 8,))
train = DataLoader(TensorDataset(images, classes), 8, shuffle=True)
held_out = DataLoader(TensorDataset(images[:32], classes[:32]), 8)
steps = 0
for epoch in range(EPOCHS):
    model.train()
    for place, (x, y) in enumerate(train):
        x, y = mixup(x, y)
        loss = loss_of(model(x), y) / MICRO_BATCHES
        loss.backward()
        if (place + 1) % MICRO_BATCHES == 0:
            optimizer.step()
            optimizer.zero_grad()
            ema.update(model)
            steps += 1
    scheduler.step(epoch + 1)
    model.eval()
    with torch.no_grad():
        for x, _ in held_out:
            model(x)
    saver.save_checkpoint(epoch, metric=float(epoch))
print(f"steps: {steps}")
