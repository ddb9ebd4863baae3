"""FSDP2 over NCCL: what the computing stream waits for its gathers is communication."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402

from gpu_programs import gpu_turn  # noqa: E402

pytestmark = pytest.mark.gpu

STEPS, SETTLING = 24, 6
WAIT_MS = 8.0
"""Per gather, planted: far more than the copies of these small layers take."""
BLOCKS = 3


@pytest.fixture
def group(tmp_path: Any) -> Iterator[None]:
    meeting = f"file://{tmp_path}/meeting"
    dist.init_process_group("nccl", init_method=meeting, rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def train(steps: int = STEPS) -> list[float]:
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(512, 512) for _ in range(BLOCKS))).cuda()
    for block in model:
        fully_shard(block)
    fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    losses = []
    for _ in range(steps):
        loss = model(torch.randn(256, 512, device="cuda")).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return [float(loss) for loss in losses]


def cycles_of(milliseconds: float) -> int:
    """How long `torch.cuda._sleep` has to be told to sleep, as this GPU counts."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(1000)
    begin.record()
    torch.cuda._sleep(10_000_000)
    end.record()
    end.synchronize()
    return round(10_000_000 * milliseconds / begin.elapsed_time(end))


def delay_gathers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the computing stream wait for another one wherever it needs gathered parameters."""
    from torch.distributed.fsdp import fully_shard  # noqa: F401 - loads the module below
    from torch.distributed.fsdp._fully_shard import _fsdp_param_group as module

    cycles, side = cycles_of(WAIT_MS), torch.cuda.Stream()
    wait_for_unshard = module.FSDPParamGroup.wait_for_unshard

    def late(group: Any) -> Any:
        if group._all_gather_result is not None:
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                torch.cuda._sleep(cycles)
            torch.cuda.current_stream().wait_stream(side)
        return wait_for_unshard(group)

    monkeypatch.setattr(module.FSDPParamGroup, "wait_for_unshard", late)


def test_waiting_for_gathers_is_communication_on_the_gpus_clock(
    group: None, monkeypatch: pytest.MonkeyPatch, traced: Any
) -> None:
    with gpu_turn.turn():
        delay_gathers(monkeypatch)
        train()
    steps = traced()[SETTLING:STEPS]
    timed = steps[steps["gpu_body_ns"] >= 0]
    assert len(timed) >= 10
    exposed_ms = timed["gpu_communication_ns"] / 1e6
    # In forward every block is gathered, and in backward once more, but for what stays gathered.
    assert (exposed_ms >= 0.8 * BLOCKS * WAIT_MS).all(), exposed_ms
    compute_ns = timed["gpu_forward_ns"] + timed["gpu_backward_ns"] + timed["gpu_optimizer_ns"]
    assert (compute_ns / 1e6 < WAIT_MS).all(), compute_ns
    assert (timed["gpu_communication_ns"] + compute_ns <= timed["gpu_body_ns"]).all()


def test_waiting_for_gathers_is_in_the_time_of_no_layer(
    group: None, monkeypatch: pytest.MonkeyPatch, begin_deep: Any
) -> None:
    with gpu_turn.turn():
        written = begin_deep()
        delay_gathers(monkeypatch)
        train()
    found = written()
    blocks = [found.names.index(str(block)) for block in range(BLOCKS)]
    waits_ms = np.median(found.times_ns["gpu_communication"], axis=0)[blocks] / 1e6
    forward_ms = np.median(found.times_ns["gpu_forward"], axis=0)[blocks] / 1e6
    assert (waits_ms >= 0.8 * WAIT_MS).all(), waits_ms
    assert (forward_ms < 0.5 * WAIT_MS).all(), forward_ms


def test_gathers_that_nothing_waits_for_hardly_count(group: None, traced: Any) -> None:
    with gpu_turn.turn():
        train()
    steps = traced()[SETTLING:STEPS]
    timed = steps[steps["gpu_body_ns"] >= 0]
    assert (timed["gpu_communication_ns"] >= 0).all()
    assert timed["gpu_communication_ns"].mean() / 1e6 < WAIT_MS


def test_what_is_learnt_is_the_same_without_tracing(group: None, traced: Any) -> None:
    from traceml.trace import current

    with_tracing = train(8)
    current.end()
    assert train(8) == with_tracing
