"""Trains a model with a fault planted in one of its layers.

usage: train.py MODEL FAULT LAYER [--size N] [--onset STEP] [--steps N] [--batch N] [--device D]
                [--lightning] [--limit-mb N] [--validate-every N]
"""

from __future__ import annotations

import argparse
import resource
from pathlib import Path
from typing import Any

import torch

from benchmarks.layer_faults.models import BATCH, TASKS, Task
from benchmarks.layer_faults.plants import Planted, plant

LEARNING_RATE = 1e-3
BAD_BATCH, FULL_IN_OPTIMIZER = "bad_batch", "full_in_optimizer"
"""Faults of the loop, and of no layer's code."""


def options(words: list[str] | None = None) -> argparse.Namespace:
    """What was asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", choices=sorted(TASKS))
    parser.add_argument("fault")
    parser.add_argument("layer")
    parser.add_argument("--size", type=float, default=1.0)
    parser.add_argument("--onset", type=int, default=1)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--batch", type=int, default=BATCH)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--lightning", action="store_true")
    parser.add_argument("--limit-mb", type=int, help="of address space, above what is in use")
    parser.add_argument("--validate-every", type=int, default=0)
    return parser.parse_args(words)


def limit_memory(megabytes: int) -> None:
    """Let this process have so much more address space than it has by now."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    size = pages * resource.getpagesize() + (megabytes << 20)
    resource.setrlimit(resource.RLIMIT_AS, (size, resource.getrlimit(resource.RLIMIT_AS)[1]))


def prepared(asked: argparse.Namespace) -> tuple[Task, Planted]:
    """The model with its fault."""
    torch.manual_seed(0)
    task = TASKS[asked.model]()
    if asked.fault in (BAD_BATCH, FULL_IN_OPTIMIZER):
        return task, Planted(asked.size, asked.onset)
    layer = task.model.get_submodule(asked.layer)
    return task, plant(layer, asked.fault, asked.size, asked.onset)


def batch_of(task: Task, asked: argparse.Namespace, fault: Planted) -> Any:
    """The inputs of a step."""
    inputs = task.inputs(asked.batch).to(asked.device)
    if asked.fault == BAD_BATCH and fault.is_on:
        inputs[0] = float("nan")
    return inputs


def train(asked: argparse.Namespace) -> None:
    """The loop that everybody writes."""
    task, fault = prepared(asked)
    task.model.to(asked.device)
    task.model.train()
    optimizer = torch.optim.Adam(task.model.parameters(), LEARNING_RATE)
    if asked.limit_mb:
        limit_memory(asked.limit_mb)
    for step in range(1, asked.steps + 1):
        fault.step = step
        optimizer.zero_grad()
        task.loss(task.model, batch_of(task, asked, fault)).backward()
        optimizer.step()
        if asked.validate_every and step % asked.validate_every == 0:
            validate(task, asked, fault)


def validate(task: Task, asked: argparse.Namespace, fault: Planted) -> None:
    """A look at the loss without training."""
    task.model.eval()
    with torch.no_grad():
        task.loss(task.model, batch_of(task, asked, fault))
    task.model.train()


def train_with_lightning(asked: argparse.Namespace) -> None:
    """The same by a LightningModule and its Trainer."""
    import pytorch_lightning as lightning

    task, fault = prepared(asked)

    class Lit(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = task.model

        def training_step(self, batch: Any, index: int) -> Any:
            fault.step = index + 1
            return task.loss(self.net, batch_of(task, asked, fault))

        def configure_optimizers(self) -> Any:
            return torch.optim.Adam(self.parameters(), LEARNING_RATE)

    trainer = lightning.Trainer(
        max_steps=asked.steps,
        max_epochs=1,
        accelerator="cpu" if asked.device == "cpu" else "gpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Lit(), torch.utils.data.DataLoader(range(asked.steps)))  # type: ignore[arg-type]


if __name__ == "__main__":
    chosen = options()
    torch.set_num_threads(1)
    (train_with_lightning if chosen.lightning else train)(chosen)
