"""Pages of made runs: their history and their summary by the real road, their sensors by hand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from factories import STARTED_UNIX_S, map_steps
from traceml.facts import history
from traceml.facts.history import History, SensorHistory, StepHistory
from traceml.facts.step_table import complete_steps
from traceml.figures.layer_record import LayerRows, LayerTree
from traceml.figures.page import Figure, Heatmap, Lines, Page, Part, RunPage
from traceml.figures.run_page import RunStanding, run_page
from traceml.model.record_layout import StepFlag
from traceml.model.run import Manifest
from traceml.store.buckets import Buckets, Grid, RankBuckets, together
from traceml.store.records import RankRecords, RunRecords
from traceml.store.step_records import is_incomplete
from traceml.summaries.build import build

Floats = npt.NDArray[np.float64]

LOSS_SEEN = np.uint32(StepFlag.LOSS_SEEN)

STARTED = Manifest(
    "made", STARTED_UNIX_S - 2, command=("python", "train.py"), hostname="host-a", nodes=1
)


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
    """The history of a run; one that has recorded no loss gets a falling one."""
    return History(steps=step_history(_with_losses(run), bucket_steps), sensors=sensor_history(run))


def _with_losses(run: RunRecords) -> RunRecords:
    if any((rank.steps["flags"] & LOSS_SEEN).any() for rank in run.ranks):
        return run

    def change(steps: npt.NDArray[Any], rank: int) -> None:
        steps["flags"] |= LOSS_SEEN
        steps["loss"] = np.geomspace(2.0, 0.5, len(steps))

    return map_steps(run, change)


def step_history(
    run: RunRecords, bucket_steps: int = 1, is_live: bool = False
) -> StepHistory | None:
    """The steps of a run in buckets of so many, as a follower of its folder adds them up."""
    longest = max((len(rank.steps) for rank in run.ranks), default=0)
    grid = Grid(0, bucket_steps, max(1, -(-longest // bucket_steps)))
    ranks = [_in_buckets(rank, grid) for rank in run.ranks]
    return history.step_history(ranks, run.manifest.started_unix_s, is_live)


def _in_buckets(rank: RankRecords, grid: Grid) -> RankBuckets:
    buckets = Buckets(grid)
    buckets.add_steps(rank.steps[~is_incomplete(rank.steps)], complete_steps(rank).index)
    return together(rank.rank, [(rank.rank, buckets)])


def sensor_history(run: RunRecords) -> SensorHistory | None:
    """What was sampled, field by field."""
    if not run.samples:
        return None
    hosts = [sample.host for sample in run.samples]
    ranks = [process.rank for process in run.samples[0].processes]
    gpus = [gpu.index for gpu in run.samples[0].gpus]
    return SensorHistory(
        at_s=np.array([sample.unix_s - STARTED_UNIX_S for sample in run.samples]),
        hosts={"": {name: _values(hosts, name) for name in ("cpu_share", *_RAM)}},
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
    for each in page.parts:
        yield from each.figures


def lengths_agree(drawn: Figure) -> bool:
    """Whether every series has a value, or a gap, for every place."""
    if isinstance(drawn, Lines):
        return {len(series.values) for series in drawn.series} == {len(drawn.at)}
    if isinstance(drawn, Heatmap):
        is_even = {len(row) for row in drawn.values} == {len(drawn.at)}
        return is_even and len(drawn.rows) == len(drawn.values)
    if isinstance(drawn, LayerTree):
        return all(_are_whole(rows) for rows in (drawn.single, drawn.grouped) if rows is not None)
    return True


def _are_whole(layers: LayerRows) -> bool:
    columns = [values for each in layers.columns for values in (each.whole, each.own)]
    return {len(values) for values in columns if values is not None} <= {len(layers.rows)}


_RAM = ("ram_used_bytes", "ram_total_bytes")


def _values(samples: Sequence[Any], name: str) -> Floats:
    found = [getattr(sample, name) for sample in samples]
    return np.array([np.nan if value is None else float(value) for value in found])
