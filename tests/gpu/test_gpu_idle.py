"""Gaps planted on purpose: the GPU's idle time has the cause that let it idle, and its length."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from gpu_programs import gpu_turn
from traceml.model.record_layout import IDLE_CAUSES, NO_STEP

pytestmark = pytest.mark.gpu

STEPS = 30
SETTLING = 8
"""Steps at the beginning that load kernels and fill the allocator's pools."""
MOST = 0.7
"""Of the idle time: what a cause must hold that was planted alone."""

Pause = Callable[[torch.Tensor], object]
Steps = Callable[[], Any]


def nothing(_: torch.Tensor) -> None:
    """No gap is planted here."""


def wide() -> nn.Module:
    """Takes an H200 about 20 ms per step, which the host launches in 2 ms."""
    return nn.Sequential(*(nn.Linear(4096, 4096) for _ in range(6))).cuda()


def tiny(layers: int = 4) -> nn.Module:
    return nn.Sequential(*(nn.Linear(32, 32) for _ in range(layers))).cuda()


def train(
    model: nn.Module,
    batch: torch.Tensor,
    after_forward: Pause = nothing,
    after_step: Pause = nothing,
    loader: DataLoader[torch.Tensor] | None = None,
) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    batches = [batch] * STEPS if loader is None else loader
    for inputs in batches:
        loss = model(inputs.cuda()).square().mean()
        after_forward(loss)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        after_step(loss)
    torch.cuda.synchronize()


def median_ms(steps: Any, *fields: str) -> float:
    """The median over steps of the sum of these fields."""
    whole = steps[(steps["flags"] & int(NO_STEP)) == 0][SETTLING:-1]
    timed = whole[whole["gpu_body_ns"] >= 0]
    assert len(timed) >= 10
    return float(np.median(sum(np.maximum(timed[field], 0) for field in fields))) / 1e6


def idle_ms(steps: Any) -> dict[str, float]:
    """The median step's idle time by cause, with what it waited for data."""
    found = {cause: median_ms(steps, f"gpu_idle_{cause}_ns") for cause in IDLE_CAUSES}
    return {"data": median_ms(steps, "gpu_input_ns"), **found}


def check(found: dict[str, float], cause: str, expected_ms: float) -> None:
    """A cause holds most of the idle time, launching aside, which is an upper limit."""
    others = sum(found.values()) - found["launching"]
    if cause != "launching":
        assert found[cause] >= MOST * others, found
    assert found[cause] == pytest.approx(expected_ms, rel=0.3, abs=0.5), found


def big(rows: int = 2048) -> torch.Tensor:
    return torch.randn(rows, 4096, device="cuda")


def test_a_script_that_sleeps_between_steps(traced: Steps) -> None:
    with gpu_turn.turn():
        train(tiny(), torch.randn(8, 32, device="cuda"), after_step=lambda _: time.sleep(0.02))
    check(idle_ms(traced()), "python", 20)


def test_a_sleep_in_the_optimizers_closure(traced: Steps) -> None:
    """It is the script's own code, on the GPU's clock as well."""
    model, batch = tiny(), torch.randn(8, 32, device="cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        time.sleep(0.02)
        loss = model(batch).square().mean()
        loss.backward()
        return loss

    with gpu_turn.turn():
        for _ in range(STEPS):
            optimizer.step(closure)
        torch.cuda.synchronize()
    steps = traced()
    check(idle_ms(steps), "python", 20)
    assert median_ms(steps, "gpu_optimizer_ns") < 20


def test_a_sleep_that_the_gpu_hides_in_part(traced: Steps) -> None:
    """The longer the GPU works, the less of 60 ms it idles."""
    with gpu_turn.turn():
        model, batch = wide(), big()
        train(model, batch, after_step=lambda _: time.sleep(0.06))
    steps = traced()
    worked_ms = median_ms(steps, "gpu_forward_ns", "gpu_backward_ns", "gpu_optimizer_ns")
    check(idle_ms(steps), "python", median_ms(steps, "gpu_body_ns") - worked_ms)


def test_a_loss_that_is_read_after_forward(traced: Steps) -> None:
    def read(loss: torch.Tensor) -> None:
        loss.item()
        time.sleep(0.004)

    with gpu_turn.turn():
        train(wide(), big(4096), after_forward=read)
    check(idle_ms(traced()), "sync", 4)


class SlowSamples(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return STEPS

    def __getitem__(self, place: int) -> torch.Tensor:
        time.sleep(0.02)
        return torch.zeros(32)


def test_batches_that_come_late(traced: Steps) -> None:
    """The loss is read in every step as well: still the data is to blame."""
    with gpu_turn.turn():
        loader = DataLoader(SlowSamples(), batch_size=1)
        train(tiny(), torch.empty(0), after_step=lambda loss: loss.item(), loader=loader)
    check(idle_ms(traced()), "data", 20)


def test_garbage_that_is_collected(traced: Steps) -> None:
    heap = [[number] for number in range(300_000)]
    took_s: list[float] = []

    def collect(_: torch.Tensor) -> None:
        began_s = time.perf_counter()
        gc.collect()
        took_s.append(time.perf_counter() - began_s)

    with gpu_turn.turn():
        train(tiny(), torch.randn(8, 32, device="cuda"), after_step=collect)
    assert heap
    check(idle_ms(traced()), "gc", 1e3 * float(np.median(took_s[SETTLING:])))


def test_many_small_kernels(traced: Steps) -> None:
    with gpu_turn.turn():
        train(tiny(150), torch.randn(8, 32, device="cuda"))
    steps = traced()
    found, step_ms = idle_ms(steps), median_ms(steps, "gpu_body_ns")
    assert MOST * step_ms <= found["launching"] <= step_ms, (found, step_ms)
    assert sum(found.values()) <= 1.05 * step_ms


def test_a_host_that_is_ahead_lets_nothing_idle(traced: Steps) -> None:
    """Though it sleeps a little, and the GPU works on something else between the phases."""

    def work(_: torch.Tensor) -> None:
        time.sleep(0.002)
        torch.mm(batch, batch)

    with gpu_turn.turn():
        batch = big(4096)
        train(wide(), batch, after_step=work)
    steps = traced()
    found, step_ms = idle_ms(steps), median_ms(steps, "gpu_body_ns")
    assert sum(found.values()) - found["launching"] <= 0.05 * step_ms, (found, step_ms)
