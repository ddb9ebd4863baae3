"""A pipeline's stages: how long each works and waits, and what of the waiting is which.

With `m` micro-batches a step takes one pass through all stages, and after it `m − 1` more turns of
the longest stage. Per step and with each stage's work as `w`, that is
`((m − 1)·max(w) + sum(w)) / m`. Beyond the mean work, a step therefore holds two losses: the
stages' imbalance, `(m − 1)/m·(max(w) − mean(w))`, and the filling and draining of the pipeline,
`(p − 1)/m·mean(w)` with `p` stages. Where ranks hold `v` stages each and interleave them, `w` is
what a rank works in all of them, and filling and draining take a `v`-th of that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from traceml.facts.job import Job, timed_together
from traceml.facts.step_table import Floats
from traceml.facts.times import StepTimes
from traceml.model.parallel_place import ParallelPlace


@dataclass(frozen=True, slots=True)
class StageWork:
    """One stage of the pipeline, or those that the same ranks hold."""

    stages: tuple[int, ...]
    """Their numbers, from 0; empty where only the ranks' models tell the stages apart."""
    ranks: tuple[int, ...]
    own_s: float
    """The work of its typical rank per step, without waiting."""
    waits_s: float
    """How long its ranks wait for other stages, and for data to travel, as a mean per step."""

    @property
    def label(self) -> str:
        """In words: `stage 2`, `stages 0 and 4`."""
        numbers = " and ".join(str(stage) for stage in self.stages)
        return f"stage{'s' if self.is_several else ''} {numbers}"

    @property
    def is_several(self) -> bool:
        """Whether its ranks hold more than one stage."""
        return len(self.stages) > 1


@dataclass(frozen=True, slots=True)
class Pipeline:
    """The stages of a pipeline, in order."""

    stages: tuple[StageWork, ...]
    longest_share: float
    """The share of the steps in which the stage that is longest on average is the longest, 0–1."""
    micro_batches: int | None
    """Of one step; `None` where they were not counted, or the stages have no names."""

    @property
    def longest(self) -> StageWork:
        """The stage that works longest."""
        return max(self.stages, key=lambda stage: stage.own_s)

    @property
    def mean_s(self) -> float:
        """The work of a mean stage: what each would have if they were balanced."""
        return sum(stage.own_s for stage in self.stages) / len(self.stages)

    @property
    def imbalance_s(self) -> float:
        """How much shorter a step would be with equally long stages."""
        turns = 1.0 if self.micro_batches is None else 1 - 1 / self.micro_batches
        return turns * (self.longest.own_s - self.mean_s)

    @property
    def filling_s(self) -> float | None:
        """How long a mean stage waits for the pipeline to fill and drain; `None` without a count of
        micro-batches."""
        if self.micro_batches is None:
            return None
        return (len(self.stages) - 1) / self._turns(self.micro_batches) * self.mean_s

    @property
    def least_wait_s(self) -> float:
        """How long even the longest stage waits while the pipeline fills and drains; 0 without a
        count of micro-batches."""
        if self.micro_batches is None:
            return 0.0
        others_s = sum(stage.own_s for stage in self.stages) - self.longest.own_s
        return others_s / self._turns(self.micro_batches)

    @property
    def is_interleaved(self) -> bool:
        """Whether each rank holds several stages."""
        return self.stages[0].is_several

    @property
    def is_named(self) -> bool:
        """Whether the ranks say which stages they hold. Else their models differ, and that these
        are the stages of one pipeline is not known."""
        return bool(self.stages[0].stages)

    def _turns(self, micro_batches: int) -> int:
        """How often a rank's turn comes in a step: for each micro-batch, in each of its stages."""
        return micro_batches * len(self.stages[0].stages)


def pipeline_of(
    job: Job | None, times: Sequence[StepTimes], places: Sequence[ParallelPlace]
) -> Pipeline | None:
    """Returns the pipeline that these ranks form; `None` where they form none, or where their
    waiting was not measured.

    Where no rank names its stage, those whose models differ are taken for one. `times` and `places`
    have an entry per rank.
    """
    is_named = any(place.pipeline for place in places)
    keys = [place.pipeline if is_named else place.model for place in places]
    rows_by_stage: dict[tuple[int, ...], list[int]] = {}
    for row, key in enumerate(keys):
        rows_by_stage.setdefault(key, []).append(row)
    if job is None or len(rows_by_stage) < 2 or () in rows_by_stage:
        return None
    own, waits = (
        np.array([getattr(each, name) for each in times], dtype=np.float64)
        for name in ("own_s", "communication_s")
    )
    if not (np.isfinite(own).all() and np.isfinite(waits).all()):
        return None
    ordered = sorted(rows_by_stage.items(), key=lambda each: each if is_named else each[1])
    stages = tuple(
        StageWork(
            stages=key if is_named else (),
            ranks=tuple(job.table.ranks[row] for row in rows),
            own_s=float(_typical(own[rows])),
            waits_s=float(waits[rows].mean()),
        )
        for key, rows in ordered
    )
    return Pipeline(
        stages,
        longest_share=_longest_share(job, [rows for _, rows in ordered]),
        micro_batches=_micro_batches(job, len(ordered[0][0])) if is_named else None,
    )


def _micro_batches(job: Job, stages_of_a_rank: int) -> int | None:
    """Returns how many micro-batches a step has; `None` where no backward pass was seen.

    Each rank has a backward pass per micro-batch and stage.
    """
    passes = int(np.median(job.table.rank_steps[0].columns["micro_batches"]))
    return passes // stages_of_a_rank or None


def _typical(values: Floats) -> Floats:
    """Returns the lower median of the rows: one late rank of two does not make its stage long."""
    return np.asarray(np.sort(values, axis=0)[(len(values) - 1) // 2])


def _longest_share(job: Job, rows_by_stage: Sequence[Sequence[int]]) -> float:
    """Returns in how many of the steps the stage with the most work has the most; 1 where too few
    steps were timed on all ranks."""
    own_s = job.own_s()
    together = timed_together(own_s)
    if together is None:
        return 1.0
    by_stage = np.stack([_typical(own_s[list(rows)][:, together]) for rows in rows_by_stage])
    longest = int(by_stage.mean(axis=1).argmax())
    return float((by_stage.argmax(axis=0) == longest).mean())
