"""How much memory a model holds: parameters, gradients, optimizer state, and the allocator's
totals.

Measured once, when an allocation has failed.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Footprint:
    """What a training process keeps from step to step."""

    parameter_bytes: int | None = None
    gradient_bytes: int | None = None
    optimizer_bytes: int | None = None
    device: str = "cpu"

    def held(self) -> dict[str, int | None]:
        """By name, as a report of a failure has them."""
        return {
            "parameter_bytes": self.parameter_bytes,
            "gradient_bytes": self.gradient_bytes,
            "optimizer_bytes": self.optimizer_bytes,
        }

    def allocator(self, is_host: bool) -> dict[str, int]:
        """What torch's allocator holds on the device, without touching the device."""
        torch: Any = sys.modules.get("torch")
        if is_host or not self.device.startswith("cuda"):
            return {}
        return {
            "allocated_bytes": int(torch.cuda.memory_allocated(self.device)),
            "reserved_bytes": int(torch.cuda.memory_reserved(self.device)),
        }


def footprint(models: Iterable[Any], optimizers: Iterable[Any]) -> Footprint:
    """Add up what models and optimizers hold; a tensor that several share counts once."""
    parameters = {id(each): each for model in models for each in model.parameters()}.values()
    if not parameters:
        return Footprint()
    from traceml.trace.tensor_memory import gradient_of  # by now torch is there

    gradients = [each for each in map(gradient_of, parameters) if each is not None]
    return Footprint(
        parameter_bytes=_bytes(parameters),
        gradient_bytes=_bytes(gradients),
        optimizer_bytes=_bytes(
            value
            for optimizer in optimizers
            for state in optimizer.state.values()
            if isinstance(state, dict)
            for value in state.values()
            if hasattr(value, "element_size")
        ),
        device=str(next(iter(parameters)).device),
    )


def _bytes(tensors: Iterable[Any]) -> int:
    from traceml.trace.tensor_memory import tensor_bytes  # by now torch is there

    return sum(map(tensor_bytes, tensors))
