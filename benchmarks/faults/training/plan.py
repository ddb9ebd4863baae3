"""What the command line of the training script says: the training, and the fault planted in it."""

from __future__ import annotations

import argparse
from dataclasses import MISSING, dataclass, fields
from typing import Any

NOTED_IN = "FAULT_BENCH_ONSET"
"""The environment variable that names the file where the script notes the fault's onset."""


@dataclass(frozen=True, slots=True)
class Setup:
    """A training as a user would set it up."""

    model: str = "conv"
    steps: int = 200
    batch: int = 32
    engine: str = "ddp"
    """How several ranks work together: `ddp` or `fsdp`."""
    explicit: bool = False
    """Whether the script marks its steps with `traceml.trace_step`."""
    workers: int = 0
    accumulate: int = 1
    epochs: int = 1
    evaluate_every: int = 0
    evaluate_batches: int = 0
    checkpoint_every: int = 0
    checkpoint_mb: int = 0
    """What the checkpoint holds besides the model."""
    device_ms: float = 0.0
    """Time of a step spent off the CPU, as on an accelerator: ranks beyond the cores stay fair."""
    cuda: bool = False


@dataclass(frozen=True, slots=True)
class Plant:
    """A fault, its size, and where and when it strikes."""

    fault: str = ""
    size: float = 0.0
    """Milliseconds a step, or megabytes a step where the fault is about memory."""
    rank: int = -1
    """The only rank it strikes; -1 strikes all."""
    onset: int = 0
    """The first step it strikes."""
    every: int = 1
    """It strikes every so many steps."""

    def strikes(self, rank: int, step: int) -> bool:
        """Whether the fault is there, on this rank in this step."""
        mine = self.rank in (-1, rank)
        return mine and step >= self.onset and (step - self.onset) % self.every == 0


def to_words(setup: Setup, plant: Plant) -> list[str]:
    """The script's arguments; what is as usual is left out."""
    words = []
    for record in (setup, plant):
        for field in fields(record):
            value = getattr(record, field.name)
            if value == field.default:
                continue
            words.append(f"--{field.name.replace('_', '-')}")
            if value is not True:
                words.append(str(value))
    return words


def from_words(words: list[str] | None = None) -> tuple[Setup, Plant]:
    """Read the arguments back."""
    parser = argparse.ArgumentParser(description="Train a small model, maybe with a fault in it.")
    for record in (Setup, Plant):
        for field in fields(record):
            _add(parser, field.name, field.default)
    values = vars(parser.parse_args(words))
    return _filled(Setup, values), _filled(Plant, values)


def _add(parser: argparse.ArgumentParser, name: str, default: Any) -> None:
    assert default is not MISSING, f"{name} needs a default: arguments as usual are left out"
    flag = f"--{name.replace('_', '-')}"
    if isinstance(default, bool):
        parser.add_argument(flag, action="store_true")
    else:
        parser.add_argument(flag, type=type(default), default=default)


def _filled(record: Any, values: dict[str, Any]) -> Any:
    return record(**{field.name: values[field.name] for field in fields(record)})
