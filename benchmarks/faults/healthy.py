"""Trainings with nothing wrong: whatever is said of them above a remark is a false alarm."""

from __future__ import annotations

from benchmarks.faults.scenario import HEALTHY, Scenario
from benchmarks.faults.training.plan import Plant, Setup

HEALTHY_SCENARIOS = (
    Scenario("healthy_conv", Setup("conv", 250), HEALTHY),
    Scenario("healthy_transformer_explicit", Setup("transformer", 300, explicit=True), HEALTHY),
    Scenario("healthy_lstm_workers", Setup("lstm", 200, workers=1), HEALTHY),
    Scenario("healthy_tabular", Setup("tabular", 400), HEALTHY),
    Scenario("healthy_tabular_explicit", Setup("tabular", 400, explicit=True), HEALTHY),
    Scenario("healthy_accumulation", Setup("transformer", 100, accumulate=4), HEALTHY),
    Scenario("healthy_epochs", Setup("conv", 240, epochs=4), HEALTHY),
    Scenario(
        "healthy_evaluation",
        Setup("lstm", 200, evaluate_every=50, evaluate_batches=10),
        HEALTHY,
    ),
    Scenario(
        "healthy_checkpoints",
        Setup("conv", 250, checkpoint_every=50, checkpoint_mb=20),
        HEALTHY,
    ),
    Scenario("healthy_noisy_neighbour", Setup("conv", 250), HEALTHY, neighbours=1),
    Scenario(
        "healthy_slow_first_step",
        Setup("transformer", 300),
        HEALTHY,
        Plant("slow_first_step", size=2000),
    ),
    Scenario("healthy_cache_fills", Setup("tabular", 500), HEALTHY, Plant("fills_cache", size=6)),
    Scenario("healthy_sawtooth", Setup("conv", 300), HEALTHY, Plant("sawtooth", size=4)),
    Scenario("healthy_ddp2", Setup("conv", 150, device_ms=30), HEALTHY, ranks=2),
    Scenario(
        "healthy_ddp2_torchrun_explicit",
        Setup("transformer", 150, explicit=True, device_ms=30),
        HEALTHY,
        ranks=2,
        launcher="torchrun",
    ),
    Scenario(
        "healthy_ddp2_accumulation_workers",
        Setup("small_tabular", 100, accumulate=2, workers=1, device_ms=30),
        HEALTHY,
        ranks=2,
    ),
    Scenario(
        "healthy_fsdp2",
        Setup("small_tabular", 80, engine="fsdp", device_ms=90),
        HEALTHY,
        ranks=2,
    ),
    Scenario("healthy_ddp4", Setup("small_tabular", 90, device_ms=90), HEALTHY, ranks=4),
)
