"""Makes the records of a deep profile."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from traceml.store.layer_records import KernelStep, Launches, LayerNumbers, LayerRecords
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


def with_norms(record, norms, steps=None):
    """The same layers with the norm of each one's gradient over steps, by name."""
    rows = np.array([norms[name] for name in record.names], float).T
    return replace(record, norms=LayerNumbers(tuple(steps or range(1, len(rows) + 1)), rows))


def burst_records(pid=0, bursts=14, own_ms=None, slow=None, slow_from=0, noise=0.03, device=1.0):
    """Layers as they are timed in bursts of two steps, with noise in every layer and burst.

    `slow` multiplies a layer's time, from a burst on; `device` that of all layers.
    """
    own_ms = own_ms or {f"blocks.{n}.{part}": 2.0 for n in range(6) for part in ("attn", "mlp")}
    random = np.random.default_rng(pid)
    found = layer_records(pid=pid, steps=2 * bursts, forward_ms=own_ms)
    times = found.times_ns["host_forward"]
    times *= device * np.exp(noise * random.standard_normal(times.shape))
    for name, factor in (slow or {}).items():
        times[2 * slow_from :, found.names.index(name)] *= factor
    steps = tuple(5 + 13 * burst + step for burst in range(bursts) for step in (0, 1))
    return replace(found, steps=steps)


def kernel_step(busy_ms, by_kernel, layer_busy_ms, kernels=10, step=9, copies_ms=(0.0, 0.0)):
    names, calls, took, layers = zip(*by_kernel, strict=True) if by_kernel else ((),) * 4
    return KernelStep(
        step=step,
        busy_ns=int(busy_ms * 1e6),
        kernels=kernels,
        copies_ns=int(copies_ms[0] * 1e6),
        copies_alone_ns=None if copies_ms[1] is None else int(copies_ms[1] * 1e6),
        communication_ns=0,
        communication_alone_ns=0,
        launches=Launches(names, np.array(layers)),
        calls=np.array(calls, float),
        ns=np.array(took, float),
        layer_busy_ns=np.asarray([each * 1e6 for each in layer_busy_ms], np.int64),
        layer_kernels=np.ones(len(layer_busy_ms), np.int64),
    )


def with_layers(run: RunRecords, *layers: LayerRecords) -> RunRecords:
    return replace(run, layers=layers)
