"""Trains a small model as anyone would; a fault may be planted in it.

usage: train.py [--model NAME] [--steps N] … [--fault NAME --size N --rank N --onset N --every N]
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.faults.training.data import Samples, loader
from benchmarks.faults.training.fault import Fault
from benchmarks.faults.training.models import TASKS, Accelerated
from benchmarks.faults.training.plan import Setup, from_words
from benchmarks.faults.training.planting import plant_fault
from benchmarks.jobs.scripts.gpu_turn import wait_for_turn

LEARNING_RATE = 1e-3


def join_ranks() -> int:
    """Meet the other ranks, where the launcher started any."""
    if "RANK" not in os.environ:
        return 0
    dist.init_process_group("gloo")
    return dist.get_rank()


def make_model(setup: Setup, fault: Fault) -> nn.Module:
    """The model, with the fault in it, spread over the ranks."""
    model = TASKS[setup.model].model()
    if setup.device_ms:
        model.blocks[-1] = Accelerated(model.blocks[-1], setup.device_ms / 1e3)
    struck = fault.model(model)
    if setup.cuda:
        struck.cuda()
    if not dist.is_initialized():
        return struck
    if setup.engine == "fsdp":
        return _sharded(struck)
    return DistributedDataParallel(struck)


def _sharded(model: nn.Module) -> nn.Module:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    fully_shard(model, mesh=mesh)  # in place: the module stays, its class grows
    return model


def boundary(setup: Setup, model: nn.Module) -> AbstractContextManager[Any]:
    """What a step is wrapped in."""
    if not setup.explicit:
        return nullcontext()
    import traceml

    return traceml.trace_step(model)


def batches(setup: Setup, fault: Fault) -> Iterator[Any]:
    """Every batch of every epoch."""
    samples = Samples(setup.model, setup.steps * setup.accumulate * setup.batch)
    data = fault.data(samples)
    for epoch in range(setup.epochs):
        yield from loader(setup, data, fault.collate(), epoch)


def train(setup: Setup, fault: Fault, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Train, with a place for checkpoints."""
    with tempfile.TemporaryDirectory() as folder:
        loop(setup, fault, model, optimizer, Checkpoints(setup, folder))


def loop(
    setup: Setup,
    fault: Fault,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    checkpoints: Checkpoints,
) -> None:
    """Fetch, forward, backward, optimizer; now and then evaluation and a checkpoint."""
    step = 0
    fault.begin_step(step)
    for number, (x, y) in enumerate(batches(setup, fault), start=1):
        step_is_complete = number % setup.accumulate == 0
        with boundary(setup, model):
            if setup.cuda:
                x, y = x.cuda(), y.cuda()
            x, y = fault.batch(x, y)
            output = model(x)
            loss = fault.loss(nn.functional.cross_entropy(output, y) / setup.accumulate)
            loss.backward()
            if step_is_complete:
                fault.after_backward()
                optimizer.step()
                optimizer.zero_grad()
                fault.after_optimizer(output)
        if not step_is_complete:
            continue
        step += 1
        if setup.evaluate_every and step % setup.evaluate_every == 0:
            evaluate(setup, model)
        if setup.checkpoint_every and step % setup.checkpoint_every == 0:
            checkpoints.save(model)
        fault.begin_step(step)


def evaluate(setup: Setup, model: nn.Module) -> float:
    """The loss on batches that are not trained on."""
    model.eval()
    total = 0.0
    samples = Samples(setup.model, setup.evaluate_batches * setup.batch)
    with torch.no_grad():
        for x, y in torch.utils.data.DataLoader(samples, batch_size=setup.batch):
            total += nn.functional.cross_entropy(model(x), y).item()
    model.train()
    return total / setup.evaluate_batches


class Checkpoints:
    """Saves the model, and what else belongs to it, over the last one saved."""

    def __init__(self, setup: Setup, folder: str) -> None:
        self.path = Path(folder) / "checkpoint.pt"
        self.more = torch.ones(setup.checkpoint_mb * 250_000)

    def save(self, model: nn.Module) -> None:
        torch.save({"model": model.state_dict(), "more": self.more}, self.path)


def main() -> None:
    """Train as the command line says."""
    setup, plant = from_words()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rank = join_ranks()
    fault = plant_fault(setup, plant, rank)
    if setup.cuda:
        wait_for_turn()
    model = make_model(setup, fault)
    fault.spread(model)
    optimizer = fault.optimizer(torch.optim.SGD)(model.parameters(), lr=LEARNING_RATE)  # type: ignore[call-arg]
    fault.optimizer_made(optimizer)
    train(setup, fault, model, optimizer)
    if dist.is_initialized():
        dist.barrier()  # a rank that leaves early would break the others' last exchange
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
