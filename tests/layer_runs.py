"""Makes the records of a deep profile."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from traceml.store.layer_records import KernelStep, KernelTime, LayerRecords
from traceml.store.records import RunRecords


def layer_records(
    pid=0, steps=4, clock="host", forward_ms=None, backward_ms=None, held=None, noise=0.0, **more
):
    """Layers by their own milliseconds: `{"": 1.0, "block": 0.0, "block.slow": 20.0}`."""
    names = tuple(forward_ms)
    numbers = np.random.default_rng(0)

    def table(values_ms):
        rows = np.tile([values_ms[name] * 1e6 for name in names], (steps, 1))
        return rows * (1 + noise * numbers.standard_normal(rows.shape))

    times = {f"{clock}_forward": table(forward_ms)}
    if backward_ms is not None:
        times[f"{clock}_backward"] = table(backward_ms)
    return LayerRecords(
        pid=pid,
        names=names,
        kinds=tuple("Module" for _ in names),
        steps=tuple(range(5, 5 + steps)),
        calls=np.ones((steps, len(names)), np.int64),
        times_ns=times,
        held_bytes={key: np.asarray(values, np.int64) for key, values in (held or {}).items()},
        **more,
    )


def kernel_step(busy_ms, by_kernel, layer_busy_ms, kernels=10):
    return KernelStep(
        step=9,
        busy_ns=int(busy_ms * 1e6),
        kernels=kernels,
        copies_ns=0,
        communication_ns=0,
        communication_alone_ns=0,
        by_kernel=tuple(KernelTime(*each) for each in by_kernel),
        layer_busy_ns=np.asarray([each * 1e6 for each in layer_busy_ms], np.int64),
        layer_kernels=np.ones(len(layer_busy_ms), np.int64),
    )


def with_layers(run: RunRecords, *layers: LayerRecords) -> RunRecords:
    return replace(run, layers=layers)
