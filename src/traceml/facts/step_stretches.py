"""When training steps ran: only then do GPU counters say anything about training.

Start-up, warm-up steps, compilation, evaluation, checkpoints, the time between explicit steps and
everything after the last step are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from traceml.facts.step_table import Ints, RankSteps
from traceml.model.rank import Rank
from traceml.store.step_columns import StepColumns

Floats = npt.NDArray[np.float64]

NEGLIGIBLE_SHARE = 0.02
"""Of a step: less evaluation or checkpointing than this does not change what the counters say. A
step with more is left out, because it is not known at which end of it they were."""
COMPILING_SHARE = 0.5
"""Of a step: one that compiled for longer than this is not representative."""


@dataclass(frozen=True, slots=True)
class Stretches:
    """Intervals of wall-clock time, in order and without overlap."""

    begin_s: Floats
    end_s: Floats

    def overlap_s(self, begin_s: Floats, end_s: Floats) -> Floats:
        """Returns how much of each given interval lies inside the stretches."""
        if not len(self.begin_s):
            return np.zeros(len(begin_s))
        edges_s = np.stack([self.begin_s, self.end_s], axis=1).ravel()
        inside_s = np.cumsum(self.end_s - self.begin_s)
        before_s = np.stack([inside_s - (self.end_s - self.begin_s), inside_s], axis=1).ravel()
        return np.asarray(
            np.interp(end_s, edges_s, before_s) - np.interp(begin_s, edges_s, before_s)
        )


NO_STRETCHES = Stretches(np.zeros(0), np.zeros(0))


@dataclass(frozen=True, slots=True)
class StepStretches:
    """When one rank took complete steps."""

    every: Stretches
    analyzed: Stretches
    """Those from some step on: without warm-up."""


NO_STEPS = StepStretches(NO_STRETCHES, NO_STRETCHES)


def step_stretches(
    rank: Rank, steps: RankSteps, blocks: npt.NDArray[Any], first: int = 0
) -> StepStretches:
    """Returns when one rank took complete steps; step `first` (counted from 0) is the first that is
    analyzed.

    Of old steps merged into blocks, only blocks without evaluation, checkpoints or aborted steps
    count.
    """
    spans_ns, is_training = _step_spans(steps.columns)
    warmup = int(np.searchsorted(steps.index, first))
    warmup_ns, later_ns = (
        spans_ns[part][is_training[part]] for part in (slice(warmup), slice(warmup, None))
    )
    before_ns = _block_spans(blocks) if len(blocks) else later_ns[:0]

    def merged(*parts: Ints) -> Stretches:
        return _merged((np.concatenate(parts) + (rank.unix_ns - rank.monotonic_ns)) / 1e9)

    analyzed = merged(before_ns, later_ns)
    every = merged(before_ns, warmup_ns, later_ns) if len(warmup_ns) else analyzed
    return StepStretches(every, analyzed)


def together(parts: Sequence[Stretches]) -> Stretches:
    """Returns when any of several ranks took steps."""
    if not parts:
        return NO_STRETCHES
    return _merged(np.concatenate([np.stack([p.begin_s, p.end_s], axis=1) for p in parts]))


def _step_spans(columns: StepColumns) -> tuple[Ints, npt.NDArray[np.bool_]]:
    """Returns the beginning and end of each step, without the time before an explicit step, and
    whether the step was one of training."""
    start, wall, read = columns["start_ns"], columns["wall_ns"], columns.broadcastable
    other = np.maximum(read("evaluation_ns"), 0) + np.maximum(read("checkpoint_ns"), 0)
    step = np.maximum(read("input_ns"), 0) + read("body_ns")
    is_training = other <= NEGLIGIBLE_SHARE * wall
    is_training &= np.maximum(read("compile_ns"), 0) <= COMPILING_SHARE * wall
    spans: Ints = np.empty((len(start), 2), np.int64)
    spans[:, 0] = start + np.maximum(wall - step - other, 0)
    spans[:, 1] = start + wall
    return spans, is_training & (step > 0)


def _block_spans(blocks: npt.NDArray[Any]) -> Ints:
    step = blocks["input_ns_sum"] + blocks["body_ns_sum"]
    wall = blocks["wall_ns_sum"] + blocks["incomplete_wall_ns"]
    is_training = wall - step <= NEGLIGIBLE_SHARE * wall
    is_training &= blocks["compile_ns_sum"] <= COMPILING_SHARE * wall
    start = blocks["start_ns"]
    spans: Ints = np.stack([start, start + wall], axis=1)[is_training & (step > 0)]
    return spans


def _merged(spans: Floats) -> Stretches:
    """Returns the spans with neighbours and overlapping ones merged."""
    if not len(spans):
        return NO_STRETCHES
    if (spans[1:, 0] < spans[:-1, 0]).any():  # of one rank they are in order
        spans = spans[np.argsort(spans[:, 0], kind="stable")]
    reached = np.maximum.accumulate(spans[:, 1])
    is_first = np.append(True, spans[1:, 0] > reached[:-1])
    firsts = np.flatnonzero(is_first)
    lasts = np.append(firsts[1:], len(spans)) - 1
    return Stretches(spans[firsts, 0], reached[lasts])
