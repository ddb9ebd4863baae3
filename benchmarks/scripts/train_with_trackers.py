"""Trains with Lightning for some seconds while runs of four trackers are open, which it logs to.

usage: train_with_trackers.py FILE SECONDS [callback]

It writes into the file when steps ended, and what TraceML's own part for trackers took in this
process: the looks for open runs, in the training thread, and the thread that logs to W&B.
"""

import json
import sys
import threading
import time
from pathlib import Path

from traceml.trace import open_trackers  # before torch, with which tracing begins

looks_s: list[float] = []
look = open_trackers.OpenTrackers._find_runs


def clocked_look(self) -> None:
    """A look for open runs, timed."""
    began = time.perf_counter()
    look(self)
    looks_s.append(time.perf_counter() - began)


open_trackers.OpenTrackers._find_runs = clocked_look

import lightning.pytorch as pl  # noqa: E402 - after the clock
import mlflow  # noqa: E402
import torch  # noqa: E402
import trackio  # noqa: E402
import wandb  # noqa: E402
from lightning.pytorch.loggers import CSVLogger  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402
from torch.utils.tensorboard import SummaryWriter  # noqa: E402

torch.set_num_threads(1)
FILE, SECONDS = Path(sys.argv[1]), float(sys.argv[2])
LOG_EVERY = 50
ends: list[float] = []


class Net(pl.LightningModule):
    """A step of a few milliseconds."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 1))

    def training_step(self, batch, index):
        loss = nn.functional.mse_loss(self.net(batch[0]), batch[1])
        self.log("loss", loss)
        return loss

    def on_train_batch_end(self, outputs, batch, index) -> None:
        ends.append(time.perf_counter())
        step = len(ends)
        if step % LOG_EVERY == 0:
            values = {"loss": float(outputs["loss"])}
            run.log(values)
            mlflow.log_metrics(values, step=step)
            writer.add_scalar("loss", values["loss"], step)
            trackio.log(values, step=step)
        if ends[-1] - ends[0] > SECONDS:
            self.trainer.should_stop = True

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def callbacks() -> list[pl.Callback]:
    """TraceML's, if it is asked for."""
    if "callback" not in sys.argv:
        return []
    from traceml.integrations.lightning import TraceMLCallback

    return [TraceMLCallback()]


def thread_cpu_s(name: str) -> float:
    """The CPU time of a thread of this process; zero where there is none."""
    found = [each.native_id for each in threading.enumerate() if each.name == name]
    if not found:
        return 0.0
    waited_ns = Path(f"/proc/self/task/{found[0]}/schedstat").read_text().split()[0]
    return int(waited_ns) / 1e9


run = wandb.init(project="bench", mode="offline")
mlflow.set_experiment("bench")
mlflow.start_run()
writer = SummaryWriter("events")
trackio.init(project="bench", auto_log_cpu=False)
data = TensorDataset(torch.randn(4096, 256), torch.randn(4096, 1))
trainer = pl.Trainer(
    accelerator="cpu",
    devices=1,
    max_epochs=-1,
    enable_progress_bar=False,
    enable_model_summary=False,
    enable_checkpointing=False,
    log_every_n_steps=LOG_EVERY,
    logger=CSVLogger("csv"),
    callbacks=callbacks(),
)
began_cpu_s = time.thread_time()
trainer.fit(Net(), DataLoader(TensorDataset(*data.tensors), batch_size=64))
content = {
    "ends": ends,
    "main_cpu_s": time.thread_time() - began_cpu_s,
    "looks_s": looks_s,
    "wandb_thread_cpu_s": thread_cpu_s("traceml-wandb"),
}
FILE.write_text(json.dumps(content))
