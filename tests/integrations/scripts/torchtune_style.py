"""Fine-tuning as a recipe of torchtune does it: `setup`, `train` and `save_checkpoint`, gradient
accumulation weighted by tokens, activation checkpointing, a compiled loss and the context of the
profiler around the loop.

Prints its steps, and a digest of what it has learnt.
"""

from __future__ import annotations

import hashlib
import os
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    apply_activation_checkpointing,
)
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, Dataset, DistributedSampler

try:
    from torchdata.stateful_dataloader import StatefulDataLoader as Loader
except ImportError:  # what it adds is its state
    Loader = DataLoader  # type: ignore[misc]

EPOCHS, STEPS_PER_EPOCH, ACCUMULATION, BATCH, WORDS, WIDTH = 2, 6, 3, 2, 64, 32
IGNORED = -100


class Instructions(Dataset):
    """Texts of unlike lengths; what is asked is masked in the labels."""

    def __len__(self) -> int:
        return STEPS_PER_EPOCH * ACCUMULATION * BATCH + 1

    def __getitem__(self, index: int) -> dict[str, list[int]]:
        generator = torch.Generator().manual_seed(index)
        length = int(torch.randint(8, 24, (), generator=generator))
        tokens = torch.randint(1, WORDS, (length,), generator=generator).tolist()
        return {"tokens": tokens, "labels": [IGNORED] * 4 + tokens[4:]}


def padded_collate(batch: list[dict[str, list[int]]]) -> dict[str, torch.Tensor]:
    pad = partial(nn.utils.rnn.pad_sequence, batch_first=True)
    return {
        "tokens": pad([torch.tensor(each["tokens"]) for each in batch], padding_value=0),
        "labels": pad([torch.tensor(each["labels"]) for each in batch], padding_value=IGNORED),
    }


def batch_to_device(batch: dict[str, Any], device: torch.device) -> None:
    for name, value in batch.items():
        batch[name] = value.to(device)


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.mix = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.mix(self.norm(x)).cumsum(1) / x.shape[1]
        return x + self.mlp(x)


class TinyDecoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(2))
        self.output = nn.Linear(WIDTH, WORDS)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.output(x)


class CrossEntropy(nn.Module):
    def forward(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        total = nn.functional.cross_entropy(
            logits.flatten(0, 1).float(),
            labels.flatten(),
            ignore_index=IGNORED,
            reduction="sum",
        )
        return total / (labels != IGNORED).sum().clamp(min=1)


class Recipe:
    def __init__(self) -> None:
        self._device = torch.device("cpu")
        self.global_step = 0
        self.losses: list[float] = []

    def setup(self) -> None:
        torch.manual_seed(0)
        self._model = self._setup_model()
        self._optimizer = torch.optim.AdamW(self._model.parameters(), lr=1e-3)
        self._loss_fn = self._setup_loss()
        self._dataloader = self._setup_data()
        self._lr_scheduler = LambdaLR(self._optimizer, lambda step: min(1.0, (step + 1) / 4))
        self._profiler = self._setup_profiler()

    def _setup_model(self) -> nn.Module:
        with torch.device("meta"):
            model = TinyDecoder()
        apply_activation_checkpointing(model, auto_wrap_policy=ModuleWrapPolicy({Layer}))
        model.load_state_dict(TinyDecoder().state_dict(), assign=True)
        return model.to(self._device).train()

    def _setup_loss(self) -> nn.Module:
        loss = CrossEntropy()
        loss.compile(backend=os.environ.get("TORCH_COMPILE_BACKEND", "aot_eager"), dynamic=True)
        return loss

    def _setup_data(self) -> Any:
        data = Instructions()
        sampler = DistributedSampler(data, num_replicas=1, rank=0, shuffle=True, seed=0)
        return Loader(
            data, batch_size=BATCH, sampler=sampler, collate_fn=padded_collate, drop_last=True
        )

    def _setup_profiler(self) -> torch.profiler.profile:
        return torch.profiler.profile(
            activities=[torch.profiler.ProfilerActivity.CPU],
            schedule=torch.profiler.schedule(wait=4, warmup=1, active=1, repeat=1),
        )

    def _loss_step(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        labels = batch.pop("labels")
        logits = self._model(batch["tokens"])
        shifted = torch.hstack((labels[..., 1:], torch.full_like(labels[:, :1], IGNORED)))
        loss = self._loss_fn(logits, shifted)
        del logits
        return loss

    def save_checkpoint(self, epoch: int) -> None:
        folder = Path("output", f"epoch_{epoch}")
        folder.mkdir(parents=True)
        torch.save(self._model.state_dict(), folder / "model.pt")
        if epoch + 1 < EPOCHS:
            recipe = {"optimizer": self._optimizer.state_dict(), "epoch": epoch}
            torch.save(recipe, folder / "recipe_state.pt")

    def train(self) -> None:
        self._optimizer.zero_grad()
        running_loss, num_tokens, began = 0.0, 0, time.perf_counter()
        with self._profiler as profiler:
            for epoch in range(EPOCHS):
                self._dataloader.sampler.set_epoch(epoch)
                for index, batch in enumerate(self._dataloader):
                    batch_to_device(batch, self._device)
                    current = (batch["labels"] != IGNORED).sum()
                    num_tokens += current
                    current_loss = self._loss_step(batch) * current
                    running_loss += current_loss.detach()
                    current_loss.backward()
                    if (index + 1) % ACCUMULATION == 0:
                        for parameter in self._model.parameters():
                            parameter.grad *= 1 / num_tokens
                        nn.utils.clip_grad_norm_(self._model.parameters(), max_norm=1.0)
                        self._optimizer.step()
                        self._optimizer.zero_grad(set_to_none=True)
                        self._lr_scheduler.step()
                        self.global_step += 1
                        self.losses.append((running_loss / num_tokens).item())
                        seconds = time.perf_counter() - began
                        print(f"{epoch}|{self.global_step}|Loss: {self.losses[-1]}|{seconds:.2f} s")
                        running_loss, num_tokens, began = 0.0, 0, time.perf_counter()
                    profiler.step()
                    if (index + 1) // ACCUMULATION == STEPS_PER_EPOCH:
                        break
                self.save_checkpoint(epoch)

    def cleanup(self) -> None:
        learnt = hashlib.sha256(torch.tensor(self.losses).numpy().tobytes())
        for parameter in self._model.parameters():
            learnt.update(parameter.detach().numpy().tobytes())
        print(f"learnt: {learnt.hexdigest()}")
        print(f"steps: {self.global_step}")


def recipe_main() -> None:
    torch.set_num_threads(1)
    recipe = Recipe()
    recipe.setup()
    recipe.train()
    recipe.cleanup()


if __name__ == "__main__":
    recipe_main()
