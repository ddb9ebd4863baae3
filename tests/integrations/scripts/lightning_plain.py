"""Lightning without a word about TraceML: two optimizers by hand, validation and a checkpoint in
each of two epochs.

Called with the package to use, how the training goes (`whole`, `interrupted`: Ctrl-C in the second
epoch, `failed`: in the second validation, `unprepared`: before anything is set up), and `callback`
where the script gives its own callback.
"""

from __future__ import annotations

import importlib
import sys

import torch
from torch.utils.data import DataLoader

package, course = sys.argv[1], sys.argv[2]
lightning = importlib.import_module(package)
loggers = importlib.import_module(f"{package}.loggers")
callbacks = importlib.import_module(f"{package}.callbacks")

from traceml.trace import ask_agent  # noqa: E402 - after Lightning, as in scripts

ask_agent.PATIENCE_S = 120.0  # the loggers are to be told, however busy the machine is
BATCHES = 24


class Adversaries(lightning.LightningModule):
    """Two optimizers, which the module steps itself."""

    automatic_optimization = False

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(8, 8), torch.nn.Linear(8, 1)

    def prepare_data(self):
        if course == "unprepared":
            raise RuntimeError("there is no data")

    def training_step(self, batch, index):
        if course == "interrupted" and self.current_epoch == 1 and index == BATCHES // 2:
            raise KeyboardInterrupt
        for optimizer in self.optimizers():
            loss = self.second(self.first(batch)).square().mean()
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()
        self.log("loss", loss)

    def validation_step(self, batch, index):
        if course == "failed" and self.current_epoch == 1:
            raise RuntimeError("the second validation fails")
        self.log("val_loss", self.second(self.first(batch)).square().mean())

    def configure_optimizers(self):
        return [torch.optim.SGD(part.parameters(), lr=0.01) for part in (self.first, self.second)]


def own_callback():
    from traceml.integrations.lightning import TraceMLCallback

    return TraceMLCallback()


data = torch.randn(4 * BATCHES, 8)
trainer = lightning.Trainer(
    accelerator="cpu",
    devices=1,
    max_epochs=2,
    log_every_n_steps=1,
    num_sanity_val_steps=0,
    enable_progress_bar=False,
    enable_model_summary=False,
    logger=loggers.CSVLogger("csv", version="0"),
    callbacks=[
        callbacks.ModelCheckpoint("checkpoints"),
        *([own_callback()] if "callback" in sys.argv else []),
    ],
)
trainer.fit(Adversaries(), DataLoader(data, 4), DataLoader(data[:8], 4))
print(f"batches: {2 * BATCHES} optimizer steps: {trainer.global_step}")
