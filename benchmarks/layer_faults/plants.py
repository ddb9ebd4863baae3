"""Faults that are planted into one layer of a model, whatever model it is.

A layer gets a class of its own above the one it has: its name, its parameters and its place in the
model stay as their author wrote them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn


class Planted:
    """What a planted layer knows: how large its fault is, and from which step on it is there."""

    def __init__(self, size: float, onset: int) -> None:
        self.size, self.onset = size, onset
        self.step = 0

    @property
    def is_on(self) -> bool:
        """Whether the fault is there in the present step; the first is step 1."""
        return self.step >= self.onset


def wait(milliseconds: float, like: torch.Tensor) -> None:
    """Take time, on the device that a tensor is on."""
    if like.is_cuda:
        torch.cuda._sleep(int(milliseconds * 1.5e6))
    else:
        time.sleep(milliseconds / 1e3)


class _WaitBackward(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, outputs: torch.Tensor, milliseconds: float) -> torch.Tensor:
        context.milliseconds = milliseconds
        return outputs.clone()

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        wait(context.milliseconds, gradient)
        return gradient, None


class _SaveMore(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, outputs: torch.Tensor, copies: int) -> torch.Tensor:
        context.save_for_backward(*(outputs.clone() for _ in range(copies)))
        return outputs.clone()

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradient + 0 * context.saved_tensors[0], None


class _TimesBackward(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, outputs: torch.Tensor, factor: float) -> torch.Tensor:
        context.factor = factor
        return outputs.clone()

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradient * context.factor, None


class _AllocateBackward(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, outputs: torch.Tensor, size: int) -> torch.Tensor:
        context.size = size
        context.save_for_backward(outputs)
        return outputs.clone()

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        torch.empty(context.size, dtype=torch.uint8, device=gradient.device)
        return gradient, None


# What a planted layer does with what it would have returned


def slow_forward(layer: Any, outputs: torch.Tensor, fault: Planted) -> torch.Tensor:
    """Takes `size` milliseconds more in forward."""
    wait(fault.size, outputs)
    return outputs


def slow_backward(layer: Any, outputs: torch.Tensor, fault: Planted) -> Any:
    """Takes `size` milliseconds more in backward."""
    return _WaitBackward.apply(outputs, fault.size)


def heavy_activations(layer: Any, outputs: torch.Tensor, fault: Planted) -> Any:
    """Keeps its outputs `size` times over for backward."""
    return _SaveMore.apply(outputs, int(fault.size))


def keeps_outputs(layer: Any, outputs: torch.Tensor, fault: Planted) -> torch.Tensor:
    """Appends its outputs to a list of its own in every step."""
    layer.__dict__.setdefault("history", []).append(outputs)
    return outputs


KEPT: list[torch.Tensor] = []


def kept_by_script(layer: Any, outputs: torch.Tensor, fault: Planted) -> torch.Tensor:
    """Its outputs are appended to a list of the script's, as a careless hook does."""
    KEPT.append(outputs)
    return outputs


def adds_modules(layer: Any, outputs: torch.Tensor, fault: Planted) -> torch.Tensor:
    """Adds a module of `size` numbers to a list of its own in every step."""
    if not hasattr(layer, "experts"):
        layer.experts = nn.ModuleList()
    layer.experts.append(nn.Linear(int(fault.size), 1))
    return outputs


def nan_forward(layer: Any, outputs: torch.Tensor, fault: Planted) -> torch.Tensor:
    """Takes the logarithm of negative numbers."""
    return torch.log(outputs - outputs.detach().max() - 1) if fault.is_on else outputs * 1.0


def overflows_half(layer: Any, outputs: torch.Tensor, fault: Planted) -> torch.Tensor:
    """Overflows in float16."""
    factor = 1e6 if fault.is_on else 1.0
    return ((outputs + 1.0).half() * factor).to(outputs.dtype)


def overflows_bfloat16(layer: Any, outputs: torch.Tensor, fault: Planted) -> torch.Tensor:
    """Overflows in bfloat16."""
    factor = 3e38 if fault.is_on else 1.0
    return ((outputs.abs() + 2.0).bfloat16() * factor).to(outputs.dtype)


def nan_backward(layer: Any, outputs: torch.Tensor, fault: Planted) -> torch.Tensor:
    """Takes a root at zero: fine in forward, not a number in backward."""
    return outputs + torch.sqrt((outputs * (0.0 if fault.is_on else 1.0)).abs())


def explodes(layer: Any, outputs: torch.Tensor, fault: Planted) -> Any:
    """Its gradient is larger by a factor in every step."""
    factor = fault.size ** max(0, fault.step - fault.onset)
    return _TimesBackward.apply(outputs, factor)


def full_in_forward(layer: Any, outputs: torch.Tensor, fault: Planted) -> torch.Tensor:
    """Asks for more memory than there is, in forward of training."""
    if fault.is_on and layer.training:
        torch.empty(int(fault.size), dtype=torch.uint8, device=outputs.device)
    return outputs


def full_in_backward(layer: Any, outputs: torch.Tensor, fault: Planted) -> Any:
    """Asks for more memory than there is, in backward."""
    return _AllocateBackward.apply(outputs, int(fault.size) if fault.is_on else 0)


def full_in_validation(layer: Any, outputs: torch.Tensor, fault: Planted) -> torch.Tensor:
    """Asks for more memory than there is, when it is evaluated."""
    if fault.is_on and not layer.training:
        torch.empty(int(fault.size), dtype=torch.uint8, device=outputs.device)
    return outputs


FAULTS: dict[str, Callable[[Any, Any, Planted], Any]] = {
    each.__name__: each
    for each in (
        slow_forward,
        slow_backward,
        heavy_activations,
        keeps_outputs,
        kept_by_script,
        adds_modules,
        nan_forward,
        overflows_half,
        overflows_bfloat16,
        nan_backward,
        explodes,
        full_in_forward,
        full_in_backward,
        full_in_validation,
    )
}


def plant(layer: nn.Module, name: str, size: float, onset: int) -> Planted:
    """Plants a fault into a layer, in place; what is returned is to be told each step's number."""
    fault, act, kind = Planted(size, onset), FAULTS[name], type(layer)

    def forward(self: Any, *arguments: Any, **options: Any) -> Any:
        return act(self, kind.forward(self, *arguments, **options), fault)

    layer.__class__ = type(f"Planted{kind.__name__}", (kind,), {"forward": forward})
    return fault
