"""Pages of made runs: their history by hand, their summary by the real road."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from factories import STARTED_UNIX_S
from traceml.facts.history import History, SensorHistory, StepHistory
from traceml.figures.page import Figure, Heatmap, Lines, Page, Part, RunPage, RunsPage
from traceml.figures.run_page import RunStanding, run_page
from traceml.model.phase import Phase
from traceml.model.run import Manifest
from traceml.store.records import RunRecords
from traceml.summaries.build import build

Floats = npt.NDArray[np.float64]

STARTED = Manifest(
    "made", STARTED_UNIX_S - 2, command=("python", "train.py"), hostname="host-a", nodes=1
)
_TIMED = ("h2d", "forward", "backward", "optimizer", "communication")


def page_of(run: RunRecords, standing: RunStanding | None = None, bucket_steps: int = 1) -> RunPage:
    """The page of a run that is over, with everything there is to draw."""
    summary = build(run, 0.0, "0")
    return run_page(summary, standing or standing_of(), history_of(run, bucket_steps))


def standing_of(state: Any = "finished", exit_status: int | None = 0, **fields: Any) -> RunStanding:
    """How a run stands a minute after its start."""
    known = {
        "manifest": STARTED,
        "now_unix_s": STARTED_UNIX_S + 60,
        "output": ("step 1", "step 2"),
        "notes": (),
    }
    return RunStanding(state=state, exit_status=exit_status, **{**known, **fields})


def history_of(run: RunRecords, bucket_steps: int = 1) -> History:
    """The history of a run whose ranks took the same number of steps."""
    return History(steps=step_history(run, bucket_steps), sensors=sensor_history(run))


def step_history(run: RunRecords, bucket_steps: int = 1) -> StepHistory | None:
    """Means over buckets of so many steps, straight from the records."""
    if not run.ranks:
        return None
    buckets = -(-len(run.ranks[0].steps) // bucket_steps)

    def seconds(field: str) -> Floats:
        return _over(run, field, bucket_steps, np.nanmean) * 1e-9

    phases = {Phase(name): seconds(f"{name}_ns") for name in ("input", *_TIMED)}
    inside = sum(np.nan_to_num(phases[Phase(name)]) for name in _TIMED)
    body = seconds("body_ns")
    phases[Phase.RESIDUAL] = body - inside
    step = body + np.nan_to_num(phases[Phase.INPUT])
    first_steps = np.arange(buckets, dtype=np.int64) * bucket_steps + 1
    return StepHistory(
        ranks=tuple(rank.rank.rank for rank in run.ranks),
        bucket_steps=bucket_steps,
        first_steps=first_steps,
        began_s=first_steps * 0.04,
        step_s=step,
        longest_s=_over(run, "wall_ns", bucket_steps, np.nanmax) * 1e-9,
        phase_s=phases,
        between_s=np.maximum(seconds("wall_ns") - step, 0.0),
        allocated_bytes=_over(run, "allocated_bytes", bucket_steps, np.nanmax),
        reserved_bytes=_over(run, "reserved_bytes", bucket_steps, np.nanmax),
        rss_bytes=_over(run, "rss_bytes", bucket_steps, np.nanmax),
        loss=np.tile(np.geomspace(2.0, 0.5, buckets), (len(run.ranks), 1)),
    )


def sensor_history(run: RunRecords) -> SensorHistory | None:
    """What was sampled, field by field."""
    if not run.samples:
        return None
    hosts = [sample.host for sample in run.samples]
    ranks = [process.rank for process in run.samples[0].processes]
    gpus = [gpu.index for gpu in run.samples[0].gpus]
    return SensorHistory(
        at_s=np.array([sample.unix_s - STARTED_UNIX_S for sample in run.samples]),
        host={name: _values(hosts, name) for name in ("cpu_share", *_RAM)},
        processes={
            rank: {
                name: _values([sample.processes[row] for sample in run.samples], name)
                for name in ("cpu_cores", "rss_bytes")
            }
            for row, rank in enumerate(ranks)
        },
        gpus={
            index: {
                name: _values([sample.gpus[row] for sample in run.samples], name)
                for name in ("utilisation", "memory_used_bytes", "memory_total_bytes", "power_w")
            }
            for row, index in enumerate(gpus)
        },
        gpu_names={gpu.index: gpu.name for gpu in run.samples[0].gpus},
    )


def part(page: RunPage, name: str) -> Part:
    """A part of a page by its id."""
    (found,) = [each for each in page.parts if each.id == name]
    return found


def figure(page: RunPage, name: str) -> Any:
    """A figure of a page by its id."""
    (found,) = [each for each in figures(page) if each.id == name]
    return found


def figures(page: Page) -> Iterator[Figure]:
    """All figures of a page."""
    assert not isinstance(page, RunsPage)
    for each in page.parts:
        yield from each.figures


def lengths_agree(drawn: Figure) -> bool:
    """Whether every series has a value, or a gap, for every place."""
    if isinstance(drawn, Lines):
        return {len(series.values) for series in drawn.series} == {len(drawn.at)}
    if isinstance(drawn, Heatmap):
        is_even = {len(row) for row in drawn.values} == {len(drawn.at)}
        return is_even and len(drawn.rows) == len(drawn.values)
    return True


_RAM = ("ram_used_bytes", "ram_total_bytes")


def _over(run: RunRecords, field: str, bucket_steps: int, reduce: Any) -> Floats:
    rows = []
    for rank in run.ranks:
        values = rank.steps[field].astype(np.float64)
        values[values < 0] = np.nan
        starts = range(0, len(values), bucket_steps)
        buckets = [values[start : start + bucket_steps] for start in starts]
        rows.append([reduce(b) if np.isfinite(b).any() else np.nan for b in buckets])
    return np.array(rows)


def _values(samples: Sequence[Any], name: str) -> Floats:
    found = [getattr(sample, name) for sample in samples]
    return np.array([np.nan if value is None else float(value) for value in found])
