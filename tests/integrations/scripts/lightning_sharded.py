"""Lightning with parameters that are sharded (FSDP2) over two processes, which it starts itself.

Called with `callback` where `TraceMLCallback` is to be used. Its strategy `fsdp` cannot be run
here: Lightning and torch's FSDP1 both refuse a machine without an accelerator.
"""

from __future__ import annotations

import sys

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.strategies import ModelParallelStrategy
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader

RANKS = 2


class Sharded(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Sequential(
            torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1)
        )

    def configure_model(self) -> None:
        mesh = self.device_mesh["data_parallel"]
        for part in (self.net[0], self.net[2], self.net):
            fully_shard(part, mesh=mesh)

    def training_step(self, batch, index):
        loss = self.net(batch).square().mean()
        self.log("loss", loss)
        return loss

    def validation_step(self, batch, index):
        self.log("val_loss", self.net(batch).square().mean(), sync_dist=True)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.01)


def make_callbacks():
    found = [ModelCheckpoint("checkpoints")]
    if "callback" in sys.argv:
        from traceml.integrations.lightning import TraceMLCallback

        found.append(TraceMLCallback(run_name="trained"))
    return found


if __name__ == "__main__":
    data = torch.randn(128, 8)
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=RANKS,
        strategy=ModelParallelStrategy(data_parallel_size=RANKS, tensor_parallel_size=1),
        max_epochs=2,
        accumulate_grad_batches=2,
        num_sanity_val_steps=1,
        log_every_n_steps=1,
        enable_progress_bar=False,
        enable_model_summary=False,
        logger=CSVLogger("csv", version="0"),
        callbacks=make_callbacks(),
    )
    trainer.fit(Sharded(), DataLoader(data, 4), DataLoader(data[:8], 4))
    if trainer.is_global_zero:
        print(f"steps: {trainer.global_step}")
