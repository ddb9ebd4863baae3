"""Faults of a training on its own: its input, its waiting, its memory, its machine."""

from __future__ import annotations

from benchmarks.faults.scenario import Scenario, Truth
from benchmarks.faults.training.plan import Plant, Setup

MEMORY = ("CREEP_CONFIRMED", "CREEP_EARLY")


def _input(share: float) -> Truth:
    return Truth(("INPUT_BOUND",), phase="input", share=share)


def _wait(share: float, *also: str) -> Truth:
    return Truth(("WAIT_HEAVY",), phase="residual", share=share, also=also)


INPUT = (
    Scenario("input_slow_item", Setup("conv", 150), _input(0.65), Plant("slow_item", 30)),
    Scenario(
        "input_slow_item_explicit",
        Setup("lstm", 150, explicit=True),
        _input(0.53),
        Plant("slow_item", 20),
    ),
    Scenario(
        "input_from_onset",
        Setup("transformer", 300),
        _input(0.63),
        Plant("slow_item", 30, onset=100),
    ),
    Scenario(
        "input_slow_collate", Setup("transformer", 150), _input(0.70), Plant("slow_collate", 30)
    ),
    Scenario(
        "input_too_few_workers",
        Setup("conv", 120, workers=1),
        _input(0.65),
        Plant("slow_item", 50),
    ),
    Scenario(
        "input_slow_storage_workers",
        Setup("transformer", 150, workers=2),
        _input(0.70),
        Plant("slow_item", 80),
    ),
    Scenario(
        "input_stall_every_20th",
        Setup("conv", 200),
        _input(0.52),
        Plant("slow_item", 400, every=20),
    ),
    Scenario(
        "input_accumulation",
        Setup("tabular", 100, accumulate=3),
        _input(0.65),
        Plant("slow_item", 36),
    ),
)

WAITING = (
    Scenario(
        "wait_sleep_after_backward",
        Setup("conv", 150),
        _wait(0.54),
        Plant("sleep_after_backward", 20),
    ),
    Scenario(
        "wait_from_onset_explicit",
        Setup("transformer", 300, explicit=True),
        _wait(0.50),
        Plant("sleep_after_backward", 20, onset=100),
    ),
    Scenario("wait_heavy_metrics", Setup("conv", 150), _wait(0.56), Plant("heavy_metrics", 20)),
    Scenario(
        "wait_slow_logging",
        Setup("transformer", 200),
        _wait(0.55, "LOGGING_HEAVY"),
        Plant("slow_logging", 16),
    ),
    Scenario(
        "wait_garbage_collection",
        Setup("transformer", 120),
        _wait(0.75, "GC_PAUSES"),
        Plant("collects_garbage", every=3),
    ),
)

COMPUTING = (
    Scenario(
        "compute_heavy",
        Setup("heavy", 150),
        Truth(("COMPUTE_BOUND",), phase="backward", share=0.93, what_if=False),
    ),
    Scenario(
        "recompiling",
        Setup("tabular", 150, batch=48),
        Truth(("WAIT_HEAVY", "RECOMPILING"), phase="residual", share=0.7, also=("RECOMPILING",)),
        Plant("changing_shapes", every=5),
        baseline=Plant("changing_shapes_uncompiled", every=5),
    ),
    Scenario(
        "cpu_starved",
        Setup("conv", 120),
        Truth(("CPU_STARVED", "COMPUTE_BOUND"), also=("CPU_STARVED",), what_if=False),
        Plant("pinned"),
        crowding=3,
    ),
)

BETWEEN = (
    Scenario(
        "checkpoint_heavy",
        Setup("tabular", 150, checkpoint_every=2, checkpoint_mb=60),
        Truth(("CHECKPOINT_HEAVY",), what_if=False),
    ),
    Scenario(
        "evaluation_heavy",
        Setup("lstm", 80, evaluate_every=10, evaluate_batches=80),
        Truth(("EVALUATION_HEAVY",), what_if=False),
    ),
)

LEAKING = (
    Scenario(
        "memory_kept_tensors",
        Setup("conv", 350),
        Truth(MEMORY, what_if=False),
        Plant("keeps_tensors", 2),
    ),
    Scenario(
        "memory_kept_tensors_ddp2_rank1",
        Setup("small_tabular", 250, device_ms=30),
        Truth((*MEMORY, "IMBALANCE"), ranks=(1,), what_if=False),
        Plant("keeps_tensors", 3, rank=1),
        ranks=2,
    ),
    Scenario(
        "memory_leaky_worker",
        Setup("small_tabular", 700, workers=1, device_ms=20),
        Truth(MEMORY, what_if=False),
        Plant("leaky_worker", 3),
    ),
)

ONE_RANK = (*INPUT, *WAITING, *COMPUTING, *BETWEEN, *LEAKING)
