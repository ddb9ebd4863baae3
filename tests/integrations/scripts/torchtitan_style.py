"""Pretraining as torchtitan's `Trainer` does it: parameters sharded by FSDP2, micro-batches from a
generator that moves them to the device, containers of optimizers and schedulers, and checkpoints
that are written while training goes on.

For torchrun. Each rank prints its steps and a digest of what it has learnt.
"""

from __future__ import annotations

import gc
import hashlib
import os
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn.functional as F  # noqa: N812 - as everybody calls it
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_optimizer_state_dict
from torch.distributed.checkpoint.stateful import Stateful
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, IterableDataset

try:
    from torchdata.stateful_dataloader import StatefulDataLoader as Loader
except ImportError:  # what it adds is its state
    Loader = DataLoader  # type: ignore[misc]

STEPS, MICRO_BATCHES, BATCH, LENGTH, WORDS, WIDTH = 12, 4, 2, 32, 64, 32
CHECKPOINT_EVERY, VALIDATE_EVERY, LOG_EVERY, COLLECT_EVERY = 5, 6, 4, 5
DEVICE = torch.device("cpu")


class Text(IterableDataset, Stateful):
    """Endless text, of which each rank has its own."""

    def __init__(self, rank: int) -> None:
        self.rank, self.place = rank, 0

    def __iter__(self) -> Iterator[Any]:
        while True:
            generator = torch.Generator().manual_seed(self.rank * 10_000 + self.place)
            tokens = torch.randint(0, WORDS, (LENGTH + 1,), generator=generator)
            self.place += 1
            yield {"input": tokens[:-1]}, tokens[1:]

    def state_dict(self) -> dict[str, Any]:
        return {"place": self.place}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.place = state["place"]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.feed = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.SiLU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True))
        return x + self.feed(x)


class Decoder(nn.Module):
    def __init__(self, layers: int = 2) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleDict({str(place): Block() for place in range(layers)})
        self.output = nn.Linear(WIDTH, WORDS)

    def init_weights(self) -> None:
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding | nn.LayerNorm):
                module.reset_parameters()

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for layer in self.layers.values():
            x = layer(x)
        return self.output(x)


class OptimizersContainer(torch.optim.Optimizer):
    """Several optimizers that are stepped as one; an optimizer itself, so that hooks can be
    registered on it."""

    def __init__(self, model: nn.Module) -> None:
        groups = [[], []]
        for parameter in model.parameters():
            groups[parameter.ndim > 1].append(parameter)
        self.optimizers = [
            torch.optim.AdamW(groups[False], lr=1e-3, weight_decay=0.0),
            torch.optim.AdamW(groups[True], lr=1e-3),
        ]
        super().__init__([p for group in groups for p in group], {"lr": 1e-3})
        self.model = model

    def step(self, closure: Any = None) -> None:
        for optimizer in self.optimizers:
            optimizer.step(closure)

    def zero_grad(self, set_to_none: bool = True) -> None:
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=set_to_none)

    def state_dict(self) -> dict[str, Any]:
        states = [get_optimizer_state_dict(self.model, each) for each in self.optimizers]
        return {str(place): state for place, state in enumerate(states)}


class SchedulersContainer(Stateful):
    def __init__(self, optimizers: OptimizersContainer) -> None:
        self.schedulers = [
            LambdaLR(each, lambda step: min(1.0, (step + 1) / 4)) for each in optimizers.optimizers
        ]

    def step(self) -> None:
        for scheduler in self.schedulers:
            scheduler.step()

    def state_dict(self) -> dict[str, Any]:
        return self.schedulers[0].state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for scheduler in self.schedulers:
            scheduler.load_state_dict(dict(state))


class CheckpointManager:
    """Begins to write a checkpoint, and waits for the one before."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer
        self.process_group = dist.new_group(backend="gloo")
        self.future: Any = None
        self.begun = 0

    def save(self, step: int, last_step: bool = False) -> None:
        if step % CHECKPOINT_EVERY and not last_step:
            return
        if self.future is not None:
            self.future.result()
        trainer = self.trainer
        state = {
            "model": get_model_state_dict(trainer.model),
            "optimizer": trainer.optimizers.state_dict(),
            "lr_scheduler": trainer.schedulers.state_dict(),
            "train_state": {"step": torch.tensor(step)},
        }
        place = f"checkpoint/step-{step}"
        self.begun += 1
        if last_step:
            dcp.save(state, checkpoint_id=place)
        else:
            self.future = dcp.async_save(
                state, checkpoint_id=place, process_group=self.process_group
            )


class Trainer(Stateful):
    def __init__(self) -> None:
        dist.init_process_group("gloo")
        self.rank = dist.get_rank()
        self.mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("dp_shard",))
        torch.manual_seed(0)
        gc.disable()
        with torch.device("meta"):
            model = Decoder()
        self.model = self.parallelize(model)
        self.model.to_empty(device=DEVICE)
        with torch.no_grad():
            self.model.init_weights()
        self.model.train()
        self.optimizers = OptimizersContainer(self.model)
        self.schedulers = SchedulersContainer(self.optimizers)
        self.text = Text(self.rank)
        self.dataloader = Loader(self.text, batch_size=BATCH)
        self.checkpointer = CheckpointManager(self)
        self.step = 0
        self.losses: list[float] = []

    def parallelize(self, model: Decoder) -> Decoder:
        policy = {"mesh": self.mesh, "mp_policy": MixedPrecisionPolicy()}
        for name, layer in model.layers.named_children():
            model.layers.register_module(name, checkpoint_wrapper(layer))
        for layer in model.layers.values():
            fully_shard(layer, **policy)
        fully_shard(model, **policy)
        return model

    def batch_generator(self, data: Any) -> Iterator[tuple[dict[str, torch.Tensor], torch.Tensor]]:
        iterator = iter(data)
        while True:
            try:
                inputs, labels = next(iterator)
            except StopIteration:
                return
            for name, tensor in inputs.items():
                inputs[name] = tensor.to(DEVICE)
            yield inputs, labels.to(DEVICE)

    def loss_of(self, inputs: dict[str, torch.Tensor], labels: torch.Tensor) -> torch.Tensor:
        predicted = self.model(inputs["input"])
        return F.cross_entropy(predicted.flatten(0, 1).float(), labels.flatten(0, 1))

    def forward_backward_step(
        self, inputs: dict[str, torch.Tensor], labels: torch.Tensor
    ) -> torch.Tensor:
        loss = self.loss_of(inputs, labels) / MICRO_BATCHES
        loss.backward()
        return loss

    def train_step(self, data: Iterator[Any]) -> None:
        self.optimizers.zero_grad()
        losses = []
        for micro_batch in range(MICRO_BATCHES):
            self.model.set_requires_gradient_sync(micro_batch == MICRO_BATCHES - 1)
            losses.append(self.forward_backward_step(*next(data)).detach())
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0, foreach=True)
        self.optimizers.step()
        self.schedulers.step()
        loss = torch.stack(losses).sum()
        self.losses.append(loss.item())
        if self.step % LOG_EVERY == 0:
            dist.all_reduce(loss)
            if self.rank == 0:
                print(f"step: {self.step}  loss: {loss.item() / dist.get_world_size():.4f}")

    @torch.no_grad()
    def validate(self) -> None:
        self.model.eval()
        batches = self.batch_generator(Loader(Text(1000 + self.rank), batch_size=BATCH))
        loss = torch.stack([self.loss_of(*next(batches)) for _ in range(3)]).mean()
        dist.all_reduce(loss)
        self.model.train()

    def train(self) -> None:
        data = self.batch_generator(self.dataloader)
        while self.step < STEPS:
            self.step += 1
            if self.step % COLLECT_EVERY == 0:
                gc.collect(1)
            self.train_step(data)
            self.checkpointer.save(self.step, last_step=self.step == STEPS)
            if self.step % VALIDATE_EVERY == 0:
                self.validate()
        if self.checkpointer.future is not None:
            self.checkpointer.future.result()

    def state_dict(self) -> dict[str, Any]:
        return {"step": torch.tensor(self.step)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.step = int(state["step"])

    def close(self) -> None:
        self.model.reshard()  # validation left its last parameters gathered
        learnt = hashlib.sha256(torch.tensor(self.losses).numpy().tobytes())
        for parameter in self.model.parameters():
            learnt.update(parameter.to_local().detach().numpy().tobytes())
        print(f"rank {self.rank}: {learnt.hexdigest()}")
        print(f"steps: {self.step} checkpoints: {self.checkpointer.begun}")
        dist.destroy_process_group()


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    torch.set_num_threads(1)
    trainer = Trainer()
    try:
        trainer.train()
    finally:
        trainer.close()
