"""Trainings that fail: by an exception, a kill, a hang, or a loss that makes no sense."""

from __future__ import annotations

from benchmarks.faults.scenario import Scenario, Truth
from benchmarks.faults.training.plan import Plant, Setup

DDP2 = Setup("small_tabular", 200, device_ms=15)
HANG_S = 40.0
"""How long a user looks at a training that stands still, here."""


def _ending(
    kind: str, rank: int, step: int, phase: str | None = None, module: str | None = None
) -> Truth:
    return Truth(
        (kind,),
        ranks=(rank,),
        phase=phase,
        step=step,
        module=module,
        live=False,
        what_if=False,
        exits_well=False,
    )


FAILURES = (
    Scenario(
        "exception_in_block",
        Setup("conv", 200),
        _ending("EXCEPTION", 0, 120, "forward", "blocks.1"),
        Plant("raises", onset=120),
    ),
    Scenario(
        "exception_in_block_ddp2_rank1",
        DDP2,
        _ending("EXCEPTION", 1, 100, "forward", "blocks.1"),
        Plant("raises", rank=1, onset=100),
        ranks=2,
    ),
    Scenario(
        "killed", Setup("transformer", 300), _ending("KILLED", 0, 200), Plant("killed", onset=200)
    ),
    Scenario(
        "killed_ddp2_rank1",
        DDP2,
        _ending("KILLED", 1, 120),
        Plant("killed", rank=1, onset=120),
        ranks=2,
    ),
    Scenario(
        "hang_ddp2_rank1",
        DDP2,
        Truth(("HANG",), ranks=(1,), step=120, what_if=False, exits_well=False),
        Plant("hangs", rank=1, onset=120),
        ranks=2,
        gives_up_after_s=HANG_S,
    ),
    Scenario(
        "loss_not_finite",
        Setup("tabular", 400),
        Truth(("NON_FINITE_LOSS",), what_if=False),
        Plant("bad_batch", onset=200),
    ),
    Scenario(
        "loss_spike",
        Setup("transformer", 300),
        Truth(("LOSS_SPIKE",), what_if=False),
        Plant("spikes", onset=200),
    ),
)
