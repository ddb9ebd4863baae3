"""Faults that need a CUDA device."""

from __future__ import annotations

from benchmarks.faults.scenario import HEALTHY, Scenario, Truth
from benchmarks.faults.training.plan import Plant, Setup

ON_GPU = (
    Scenario("gpu_healthy_large", Setup("large", 300, batch=2048, cuda=True), HEALTHY, gpu=True),
    Scenario(
        "gpu_compute_bound",
        Setup("large", 200, batch=4096, cuda=True),
        Truth(("COMPUTE_BOUND",), what_if=False),
        gpu=True,
    ),
    Scenario(
        "gpu_host_bound",
        Setup("many_kernels", 400, batch=64, cuda=True),
        Truth(("HOST_BOUND",), what_if=False),
        gpu=True,
    ),
    Scenario(
        "gpu_h2d_bound",
        Setup("large", 200, batch=512, cuda=True),
        Truth(("H2D_BOUND",), phase="h2d"),
        Plant("copies_to_device", 200),
        gpu=True,
    ),
    Scenario(
        "gpu_memory_kept_tensors",
        Setup("large", 300, batch=512, cuda=True),
        Truth(("CREEP_CONFIRMED", "CREEP_EARLY"), what_if=False),
        Plant("keeps_tensors", 20),
        gpu=True,
    ),
    Scenario(
        "gpu_out_of_memory",
        Setup("large", 300, batch=512, cuda=True),
        Truth(
            ("OUT_OF_MEMORY",),
            ranks=(0,),
            phase="forward",
            module="blocks.1",
            live=False,
            what_if=False,
            exits_well=False,
        ),
        Plant("out_of_memory", 4000, onset=60),
        gpu=True,
    ),
    Scenario(
        "gpu_host_sync",
        Setup("large", 300, batch=512, cuda=True),
        Truth(("WAIT_HEAVY", "HOST_SYNC"), also=("HOST_SYNC",)),
        Plant("reads_items"),
        gpu=True,
    ),
)
