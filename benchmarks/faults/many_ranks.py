"""Faults between ranks: communication, and one rank that keeps the others waiting."""

from __future__ import annotations

from benchmarks.faults.scenario import Scenario, Truth
from benchmarks.faults.training.plan import Plant, Setup

DDP2 = Setup("small_tabular", 200, device_ms=15)
"""Most of a step is off the CPU: the planted rank, not the scheduler, makes the difference."""
DDP2_COMPUTING = Setup("conv", 150)
DDP4 = Setup("small_tabular", 150, device_ms=20)
FSDP = Setup("small_tabular", 150, engine="fsdp", device_ms=20)
DELAY_MS = 40
DELAY_OF_FOUR_MS = 50


def _straggler(kind: str, rank: int, phase: str | None) -> Truth:
    return Truth((kind,), ranks=(rank,), phase=phase)


def _delayed(
    name: str, setup: Setup, ranks: int, fault: str, truth: Truth, onset: int = 0
) -> Scenario:
    assert truth.ranks is not None
    (rank,) = truth.ranks
    size = DELAY_OF_FOUR_MS if ranks > 2 else DELAY_MS
    plant = Plant(fault, size, rank, onset)
    return Scenario(f"{name}_rank{rank}", setup, truth, plant, ranks=ranks)


def _input(rank: int) -> Truth:
    return _straggler("INPUT_STRAGGLER", rank, "input")


def _compute(rank: int, phase: str) -> Truth:
    return _straggler("COMPUTE_STRAGGLER", rank, phase)


def _wait(rank: int) -> Truth:
    return _straggler("WAIT_STRAGGLER", rank, "residual")


def _mixed(rank: int) -> Truth:
    return _straggler("STRAGGLER", rank, None)


EXPLICIT2 = Setup("small_tabular", 200, device_ms=15, explicit=True)

STRAGGLERS = (
    _delayed("input_straggler_ddp2", DDP2_COMPUTING, 2, "slow_item", _input(1)),
    _delayed("input_straggler_ddp4", DDP4, 4, "slow_item", _input(2)),
    _delayed("input_straggler_fsdp2", FSDP, 2, "slow_item", _input(0)),
    _delayed("forward_straggler_ddp2", DDP2, 2, "slow_forward", _compute(0, "forward"), 80),
    _delayed("forward_straggler_ddp4", DDP4, 4, "slow_forward", _compute(3, "forward")),
    _delayed("forward_straggler_fsdp2", FSDP, 2, "slow_forward", _compute(1, "forward")),
    _delayed("backward_straggler_ddp2", DDP2, 2, "slow_backward", _compute(1, "backward")),
    _delayed(
        "backward_straggler_ddp2_explicit",
        EXPLICIT2,
        2,
        "slow_backward",
        _compute(0, "backward"),
        80,
    ),
    _delayed("backward_straggler_ddp4", DDP4, 4, "slow_backward", _compute(1, "backward"), 50),
    _delayed("backward_straggler_fsdp2", FSDP, 2, "slow_backward", _compute(0, "backward")),
    _delayed("optimizer_straggler_ddp2", DDP2, 2, "slow_optimizer_hook", _compute(1, "optimizer")),
    _delayed("optimizer_straggler_ddp4", DDP4, 4, "slow_optimizer_class", _compute(0, "optimizer")),
    _delayed("wait_straggler_ddp2", DDP2, 2, "sleep_after_backward", _wait(0)),
    _delayed("wait_straggler_ddp2_explicit", EXPLICIT2, 2, "sleep_before_fetch", _wait(1)),
    _delayed("wait_straggler_ddp4", DDP4, 4, "sleep_before_fetch", _wait(2), 50),
    _delayed("wait_straggler_fsdp2", FSDP, 2, "sleep_after_backward", _wait(1)),
    _delayed("wait_straggler_fsdp4", FSDP, 4, "sleep_after_backward", _wait(3)),
    _delayed("mixed_straggler_ddp2", DDP2, 2, "slow_item_and_forward", _mixed(1)),
    _delayed("mixed_straggler_ddp4", DDP4, 4, "slow_item_and_forward", _mixed(3)),
)

COMMUNICATION = (
    Scenario(
        "comm_large_gradients_ddp2",
        Setup("wide", 200, batch=8),
        Truth(("COMM_BOUND",), phase="communication", share=0.45),
        ranks=2,
        baseline=Plant("no_sync"),
    ),
    Scenario(
        "comm_all_reduce_ddp2",
        Setup("small_tabular", 150, device_ms=15),
        Truth(("COMM_BOUND",), phase="communication", share=0.50),
        Plant("reduces_each_step", 24),
        ranks=2,
    ),
    Scenario(
        "comm_all_reduce_ddp2_torchrun",
        Setup("small_tabular", 200, device_ms=15),
        Truth(("COMM_BOUND",), phase="communication", share=0.40),
        Plant("reduces_each_step", 24, onset=60),
        ranks=2,
        launcher="torchrun",
    ),
)

MANY_RANKS = (*STRAGGLERS, *COMMUNICATION)
