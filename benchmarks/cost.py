"""What tracing adds to a step: our own time by a clock around our code, and the wall clock's word.

The wall clock's differences drown in host noise on shared machines, so both are reported. The own
time is taken in real steps, with the caches as a real step leaves them.
"""

from __future__ import annotations

import gc
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean, median
from time import perf_counter_ns
from typing import Any

import torch
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter

import traceml
from benchmarks.figure import Figure
from benchmarks.meter import Meter, Place
from benchmarks.stats import median_interval, quantile
from benchmarks.workloads import Workload, small, transformer
from traceml.trace import current
from traceml.trace.current import begin
from traceml.trace.verbs import trace_step

WARMUP_STEPS = 20
"""At the head of every block, not counted: the session finds the model, the ring is made."""
TRANSFORMER_MS = 9.0

ALONE: list[Place] = [
    ("trace_step, enter", trace_step, "__enter__"),
    ("trace_step, exit", trace_step, "__exit__"),
]


def places(model: type) -> list[Place]:
    """The functions of torch that our hooks wrap in these workloads."""
    return [
        ("fetch", _BaseDataLoaderIter, "__next__"),
        ("start of an epoch", DataLoader, "__iter__"),
        ("forward", model, "__call__"),
        ("backward", torch.autograd, "backward"),
        ("copy to device", torch.Tensor, "to"),
    ]


@contextmanager
def ring_folder() -> Iterator[Path]:
    """A folder where rings live in production: on tmpfs, where there is one."""
    shared = Path("/dev/shm")
    folder = Path(
        tempfile.mkdtemp(prefix="traceml-bench-", dir=shared if shared.is_dir() else None)
    )
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


@contextmanager
def tracing(folder: Path) -> Iterator[None]:
    """All hooks in place, as `traceml run` sets them, and out again."""
    current.start(folder, folder, None)
    begin()
    try:
        yield
    finally:
        current.end()
        for ring in folder.glob("*.ring"):
            ring.unlink()


@contextmanager
def clocked(workload: Workload, folder: Path) -> Iterator[Meter]:
    """Tracing with a clock around every hook; the first steps have been taken."""
    meter = Meter(places(workload.model))
    meter.before_install()
    try:
        meter.calibrate(workload.plain)
        with tracing(folder):
            for _ in range(WARMUP_STEPS):
                workload.traced()
            meter.after_install(ALONE)
            try:
                yield meter
            finally:
                meter.remove_outer()
    finally:
        meter.remove_inner()


# Our own time


def own_time(workload: Workload, steps: int, blocks: int) -> dict[str, Any]:
    """Our time per step in microseconds: block by block, and hook by hook."""
    medians, every = [], []
    hooks: dict[str, list[float]] = {}
    with ring_folder() as folder:
        for _ in range(blocks):
            with clocked(workload, folder) as meter:
                taken = _own_steps(workload, meter, steps)
                for name, hook in meter.hooks.items():
                    if hook.calls:
                        hooks.setdefault(name, []).append(hook.own_ns() / steps / 1e3)
            medians.append(median(taken))
            every += taken
    every.sort()
    return {
        "block_medians_us": medians,
        "mean_us": fmean(every),
        "p99_us": quantile(every, 0.99),
        "hooks_us": {name: median(values) for name, values in hooks.items()},
    }


def _own_steps(workload: Workload, meter: Meter, steps: int) -> list[float]:
    taken = []
    hooks = tuple(meter.hooks.values())
    before = sum(hook.own_ns() for hook in hooks)
    for _ in range(steps):
        workload.traced()
        now = sum(hook.own_ns() for hook in hooks)
        taken.append((now - before) / 1e3)
        before = now
    workload.settle()
    return taken


# The wall clock


def wall_difference(workload: Workload, steps: int, pairs: int) -> dict[str, Any]:
    """Step times in microseconds with hooks and without, in pairs of blocks in random order."""
    order = random.Random(0)
    with ring_folder() as folder:

        def on() -> list[float]:
            with tracing(folder):
                return _block(workload, workload.traced, steps)

        def off() -> list[float]:
            return _block(workload, workload.plain, steps)

        off()  # the process itself warms up
        blocks: dict[str, list[list[float]]] = {"on": [], "off": []}
        for _ in range(pairs):
            for name, run in order.sample([("on", on), ("off", off)], 2):
                blocks[name].append(run())
    together = list(zip(blocks["on"], blocks["off"], strict=True))
    return {
        "step_us": median(median(off) for _, off in together),
        "by_median_us": [median(on) - median(off) for on, off in together],
        "by_mean_us": [fmean(on) - fmean(off) for on, off in together],
    }


def _block(workload: Workload, step: Callable[[], Any], steps: int) -> list[float]:
    for _ in range(WARMUP_STEPS):
        step()
    workload.settle()
    gc.collect()
    times = []
    last = perf_counter_ns()
    for _ in range(steps):
        step()
        now = perf_counter_ns()
        times.append((now - last) / 1e3)
        last = now
    workload.settle()
    return times


# Logging


def log_five(step: int) -> None:
    """Five values, as a script logs them."""
    loss = 1.0 / (step + 1)
    values = {"loss": loss, "lr": 3e-4, "norm": loss * 3, "accuracy": 1 - loss, "epoch": 2}
    traceml.log_metrics(values, step=step)


def logging_time(calls: int = 2000, apart: bool = True) -> list[float]:
    """What `log_five` takes, in microseconds: between real training steps, or call upon call."""
    workload = small(explicit=True)
    taken = []
    with ring_folder() as folder, tracing(folder):
        clock = median(-perf_counter_ns() + perf_counter_ns() for _ in range(1000))
        for step in range(WARMUP_STEPS + calls):
            if apart:
                workload.traced()
            began = perf_counter_ns()
            log_five(step)
            taken.append((perf_counter_ns() - began - clock) / 1e3)
    return taken[WARMUP_STEPS:]


# The figures


def run() -> list[Figure]:
    """Every row of the table that is about the cost of a step."""
    torch.set_num_threads(1)
    figures = []
    for what, target, explicit in (
        ("added per step, CPU, all phases, explicit", 12, True),
        ("added per step, CPU, zero code", 15, False),
    ):
        figures += _figures(small(explicit), what, f"≤ {target} µs", None, (500, 30), (500, 60))
    figures.append(_logging_figure())
    if torch.cuda.is_available():
        figures += cuda_figures("cuda")
    return figures


def cuda_figures(device: str) -> list[Figure]:
    """The launch-bound transformer."""
    workload = _about_nine_ms(device)
    what = "added per step, launch-bound 4-layer transformer, zero code"
    return _figures(workload, what, "≤ 50 µs", "≤ 1 %", (100, 15), (100, 40))


def _about_nine_ms(device: str) -> Workload:
    """The transformer whose step comes nearest to nine milliseconds: more heads, more launches."""
    found = []
    for heads in (1, 2, 4, 8, 16, 32):
        workload = transformer(device, heads)
        step_ms = median(_block(workload, workload.plain, 30)) / 1e3
        found.append((abs(step_ms - TRANSFORMER_MS), heads))
        if step_ms > TRANSFORMER_MS:
            break
    return transformer(device, min(found)[1])


def _figures(
    workload: Workload,
    what: str,
    own_target: str,
    wall_target: str | None,
    own_size: tuple[int, int],
    wall_size: tuple[int, int],
) -> list[Figure]:
    own = own_time(workload, *own_size)
    wall = wall_difference(workload, *wall_size)
    own_us, own_low, own_high = median_interval(own["block_medians_us"])
    added_us, low, high = median_interval(wall["by_median_us"])
    step_us = wall["step_us"]
    by_mean = "{:.1f} ({:.1f} … {:.1f})".format(*median_interval(wall["by_mean_us"]))
    return [
        Figure(
            f"{what}: own time",
            own_target,
            own_us,
            "µs",
            own_low,
            own_high,
            "95 % of the median",
            f"mean {own['mean_us']:.1f}, p99 {own['p99_us']:.0f} µs",
            own,
        ),
        Figure(
            f"{what}: wall A/B",
            wall_target or "–",
            added_us,
            "µs",
            low,
            high,
            f"95 %, {wall_size[1]} pairs",
            f"step {step_us / 1e3:.2f} ms: {added_us / step_us:+.1%}; by block means {by_mean} µs",
            wall,
        ),
    ]


def _logging_figure() -> Figure:
    taken = logging_time()
    ordered = sorted(taken)
    chunks = [median(taken[start : start + 100]) for start in range(0, len(taken), 100)]
    middle, low, high = median_interval(chunks)
    return Figure(
        "log_metrics, five values",
        "≤ 8 µs",
        middle,
        "µs",
        low,
        high,
        "95 % of the median",
        f"between real steps: mean {fmean(taken):.1f}, p99 {quantile(ordered, 0.99):.0f} µs; "
        f"call upon call {median(logging_time(apart=False)):.1f} µs",
    )


def breakdown(figures: list[Figure]) -> str:
    """Where our own time goes, hook by hook."""
    lines = []
    for figure in figures:
        hooks = figure.details.get("hooks_us")
        if hooks:
            lines.append(f"\n{figure.what}, µs per step by hook (mean over a block, its median):")
            for name, value in sorted(hooks.items(), key=lambda pair: -pair[1]):
                lines.append(f"  {name:<22}{value:7.2f}")
    return "\n".join(lines)
