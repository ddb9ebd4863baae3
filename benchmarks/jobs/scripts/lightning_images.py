"""An image classifier with Lightning: workers, validation and checkpoints, mixed precision."""

from __future__ import annotations

import argparse
import tempfile

import pytorch_lightning as lightning
import torch
from gpu_turn import wait_for_turn
from made_data import Images
from made_models import residual_network
from torch.nn import functional
from torch.utils.data import DataLoader

parser = argparse.ArgumentParser()
parser.add_argument("--tiny", action="store_true", help="small enough for a CPU")
options = parser.parse_args()
size, batch, channels, steps = (32, 4, 8, 6) if options.tiny else (96, 96, 192, 40)


class Classifier(lightning.LightningModule):
    """A residual network and its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.net = residual_network(channels, 2, 100)
        self.seen = []

    def training_step(self, batch, index):
        loss = functional.cross_entropy(self.net(batch[0]), batch[1])
        self.log("loss", loss)
        self.seen.append(loss.detach())
        return loss

    def validation_step(self, batch, index):
        self.log("val_loss", functional.cross_entropy(self.net(batch[0]), batch[1]))

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


lightning.seed_everything(0)
train = DataLoader(Images(steps * batch, size), batch, num_workers=6, persistent_workers=True)
valid = DataLoader(Images(2 * batch, size), batch, num_workers=2)
model = Classifier()
wait_for_turn()
with tempfile.TemporaryDirectory() as folder:
    trainer = lightning.Trainer(
        max_epochs=2,
        default_root_dir=folder,
        accelerator="cpu" if options.tiny else "gpu",
        devices=1,
        precision="32-true" if options.tiny else "bf16-mixed",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=1,
    )
    trainer.fit(model, train, valid)
for number, loss in enumerate(model.seen[:: steps // 3]):
    print(f"step {number * (steps // 3) + 1} loss {loss.item():.4f}")
print(f"steps {trainer.global_step}")
