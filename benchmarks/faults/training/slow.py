"""Faults that take time: in the input, in compute, between the phases."""

from __future__ import annotations

import gc
import logging
import time
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from benchmarks.faults.training.data import Collate, Delayed, Sample, SlowCollate
from benchmarks.faults.training.fault import Fault, Struck, strike
from benchmarks.faults.training.models import InBlocks, Off
from benchmarks.faults.training.plan import Plant

GARBAGE_OBJECTS = 50_000
"""Objects in cycles that a full collection has to walk: torch's own come on top."""


def _delay_s(plant: Plant, rank: int, batch: int, step: int) -> float:
    return plant.size / 1e3 / batch if plant.strikes(rank, step) else 0.0


class SlowItem(Fault):
    """Each sample of a batch takes its part of the delay."""

    def data(self, samples: Dataset[Sample]) -> Dataset[Sample]:
        per_step = self.setup.batch * self.setup.accumulate
        return Delayed(samples, per_step, partial(_delay_s, self.plant, self.rank, per_step))


class SlowCollating(Fault):
    """Putting samples together takes long."""

    def collate(self) -> Collate:
        return SlowCollate(self.size_s)


class SleepsInForward(Struck):
    def struck(self, x: Tensor) -> Tensor:
        time.sleep(self.fault.size_s)
        return self.inner(x)


class SleepsInBackward(Struck):
    def struck(self, x: Tensor) -> Tensor:
        return Off.apply(self.inner(x), 0.0, self.fault.size_s)


class SlowForward(Fault):
    """A block of the model takes long."""

    def model(self, model: InBlocks) -> nn.Module:
        return strike(model, SleepsInForward, self)


class SlowBackward(Fault):
    """The gradient of a block takes long."""

    def model(self, model: InBlocks) -> nn.Module:
        return strike(model, SleepsInBackward, self)


class SlowItemAndForward(SlowItem):
    """Half the delay in the samples, half in the model."""

    @property
    def size_s(self) -> float:
        return super().size_s / 2

    def data(self, samples: Dataset[Sample]) -> Dataset[Sample]:
        per_step = 2 * self.setup.batch * self.setup.accumulate
        delay_s = partial(_delay_s, self.plant, self.rank, per_step)
        return Delayed(samples, per_step // 2, delay_s)

    def model(self, model: InBlocks) -> nn.Module:
        return strike(model, SleepsInForward, self)


class SlowOptimizerClass(Fault):
    """The user's own optimizer takes long."""

    def optimizer(self, kind: type[torch.optim.Optimizer]) -> type[torch.optim.Optimizer]:
        fault = self

        class Slow(kind):  # type: ignore[misc, valid-type]
            def step(self, *arguments: Any, **options: Any) -> Any:
                if fault.strikes():
                    time.sleep(fault.size_s)
                return super().step(*arguments, **options)

        return Slow


class SlowOptimizerHook(Fault):
    """A hook before the optimizer's step takes long."""

    def optimizer_made(self, optimizer: torch.optim.Optimizer) -> None:
        optimizer.register_step_pre_hook(self._wait)

    def _wait(self, *_: Any) -> None:
        if self.strikes():
            time.sleep(self.size_s)


class SlowFirstStep(Fault):
    """The first step takes seconds, as a model that is being compiled: no fault at all."""

    def after_backward(self) -> None:
        if self.step == 0:
            time.sleep(self.size_s)


class SleepAfterBackward(Fault):
    """Something waits between backward and the optimizer."""

    def after_backward(self) -> None:
        if self.strikes():
            time.sleep(self.size_s)


class SleepBeforeFetch(Fault):
    """Something waits between the optimizer and the next fetch."""

    def after_optimizer(self, output: Tensor) -> None:
        if self.strikes():
            time.sleep(self.size_s)


class HeavyMetrics(Fault):
    """Ranks the classes of every sample in Python, over and over: a metric written the slow way."""

    def after_optimizer(self, output: Tensor) -> None:
        if not self.strikes():
            return
        ends = time.perf_counter() + self.size_s
        while time.perf_counter() < ends:
            for row in output.detach().tolist():
                sorted(range(len(row)), key=row.__getitem__)


class SlowHandler(logging.Handler):
    """Where each record is sent far away before the next line runs."""

    def __init__(self, delay_s: float) -> None:
        super().__init__()
        self.delay_s = delay_s

    def emit(self, record: logging.LogRecord) -> None:
        time.sleep(self.delay_s)


class SlowLogging(Fault):
    """Each step logs a line, and the handler is slow."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.log = logging.getLogger("training")
        self.log.setLevel(logging.INFO)
        self.log.propagate = False
        self.log.addHandler(SlowHandler(self.size_s))

    def after_optimizer(self, output: Tensor) -> None:
        if self.strikes():
            self.log.info("step %d: mean %.3f", self.step, float(output.detach().mean()))


class Link:
    """A part of a cycle."""

    def __init__(self) -> None:
        self.me = self


class CollectsGarbage(Fault):
    """Collects garbage in each step, over a large heap that holds none."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.heap = [Link() for _ in range(GARBAGE_OBJECTS)]

    def after_optimizer(self, output: Tensor) -> None:
        if self.strikes():
            gc.collect()


class ChangingShapes(Fault):
    """Each step has another shape, and the compiled model is compiled again for it."""

    def model(self, model: InBlocks) -> nn.Module:
        import torch._dynamo

        # The usual limit of eight would end the fault, silently, after eight steps.
        torch._dynamo.config.recompile_limit = 100_000
        torch._dynamo.config.accumulated_recompile_limit = 100_000
        return torch.compile(model, backend="eager", dynamic=False)  # type: ignore[return-value]

    def batch(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        if not self.strikes():
            return x, y
        count = 2 + self.step // self.plant.every % (self.setup.batch - 2)
        return x[:count], y[:count]


class ChangingShapesUncompiled(ChangingShapes):
    """The same shapes without a compiler: what compiling over and over is held against."""

    def model(self, model: InBlocks) -> nn.Module:
        return model
