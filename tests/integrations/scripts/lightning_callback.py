"""Lightning with `TraceMLCallback` alone, under plain python: accumulation, and then manual
optimization.

Called with the package to use and the number of processes.
"""

from __future__ import annotations

import importlib
import sys
import time

import torch
from torch.utils.data import DataLoader

package, devices = sys.argv[1], int(sys.argv[2])
lightning = importlib.import_module(package)
loggers = importlib.import_module(f"{package}.loggers")
callbacks = importlib.import_module(f"{package}.callbacks")
progress_bar = importlib.import_module(f"{package}.callbacks.progress.progress_bar")

from traceml.integrations.lightning import TraceMLCallback  # noqa: E402
from traceml.trace import ask_agent  # noqa: E402 - after Lightning, as in scripts

SLEPT_S = 0.01
"""In each of the first module's training steps, which Lightning runs inside the optimizer's."""
ask_agent.PATIENCE_S = 120.0  # the loggers are to be told, however busy the machine is


class Regression(lightning.LightningModule):
    """One optimizer, which Lightning steps."""

    def __init__(self) -> None:
        super().__init__()
        self.save_hyperparameters({"width": 8})
        self.net = torch.nn.Linear(8, 1)

    def on_train_start(self):
        for logger in self.loggers:
            logger.experiment.log_hparams({"asked": 1})
        print(f"v_num: {progress_bar.get_standard_metrics(self.trainer)['v_num']}")

    def training_step(self, batch, index):
        time.sleep(SLEPT_S)
        loss = self.net(batch).square().mean()
        self.log("loss", loss)
        return loss

    def validation_step(self, batch, index):
        self.log("val_loss", self.net(batch).square().mean(), sync_dist=devices > 1)

    def test_step(self, batch, index):
        self.net(batch)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


class Adversaries(lightning.LightningModule):
    """Two optimizers, which the module steps itself."""

    automatic_optimization = False

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(8, 8), torch.nn.Linear(8, 1)

    def training_step(self, batch, index):
        for optimizer in self.optimizers():
            loss = self.second(self.first(batch)).square().mean()
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()

    def configure_optimizers(self):
        return [torch.optim.SGD(part.parameters(), lr=0.01) for part in (self.first, self.second)]


def trainer(**options):
    return lightning.Trainer(
        accelerator="cpu",
        devices=devices,
        strategy="ddp" if devices > 1 else "auto",
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[TraceMLCallback(run_name="trained"), *options.pop("callbacks", [])],
        **options,
    )


data = torch.randn(64, 8)
if __name__ == "__main__":
    automatic = trainer(
        max_epochs=2,
        accumulate_grad_batches=2,
        num_sanity_val_steps=1,
        log_every_n_steps=1,
        logger=loggers.CSVLogger("csv", version="0"),
        callbacks=[callbacks.ModelCheckpoint("checkpoints")],
    )
    model = Regression()
    automatic.fit(model, DataLoader(data, 4), DataLoader(data[:8], 4))
    print(f"automatic: {automatic.global_step}")
    if devices == 1:
        automatic.test(model, DataLoader(data[:8], 4), verbose=False)
        manual = trainer(max_epochs=1, logger=False, enable_checkpointing=False)
        manual.fit(Adversaries(), DataLoader(data, 4))
        print(f"manual: {manual.global_step}")
