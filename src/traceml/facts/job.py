"""How long a step takes the whole job: ranks that train together wait for the slowest of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from traceml.facts.step_table import MAJORITY, Floats, StepTable
from traceml.facts.times import StepTimes
from traceml.model.phase import Phase
from traceml.store.records import DdpStatistics, RankRecords

MIN_STEPS = 8  # with fewer steps timed on all ranks at once, the ranks' means say more
LOCKSTEP_SHARE = 0.01  # ranks that wait for each other cannot drift apart: only their ends differ …
LOCKSTEP_STEPS = 2.0  # … by about a step


@dataclass(frozen=True, slots=True)
class Job:
    """The ranks of a run as one job."""

    table: StepTable
    waits: bool
    """The ranks wait for each other in every step."""
    communication_measured: bool

    @property
    def wait_is_hidden(self) -> bool:
        """The waiting was not measured: it lies in backward, where gradients are exchanged."""
        return self.waits and not self.communication_measured and len(self.table.ranks) > 1

    def own_s(self) -> Floats:
        """What each rank itself took in each step; without backward where that hides waiting."""
        own_s = self.table.own()
        if self.wait_is_hidden:
            own_s = own_s - np.nan_to_num(self.table.phase(Phase.BACKWARD))
        return own_s

    def own_wall_s(self) -> Floats:
        """The same with what lies between the steps, on the host's clock."""
        own_s = self.table.field("wall_ns") - np.nan_to_num(self.table.field("communication_ns"))
        if self.wait_is_hidden:
            own_s = own_s - np.nan_to_num(self.table.field("backward_ns"))
        return own_s

    def saved_s(self, removed_s: Floats, taken_s: Floats | None = None) -> float:
        """How much shorter a mean step would be without this part of each rank's step.

        Where the ranks wait for each other only the slowest one's time counts, step by step.
        `taken_s` stands in for the ranks' own work where the part is not one of the step.
        """
        before_s = self.own_s() if taken_s is None else taken_s
        after_s = np.maximum(before_s - np.maximum(np.nan_to_num(removed_s), 0.0), 0.0)
        mean_s = _mean_of_slowest if self.waits else _mean_of_all
        return max(0.0, mean_s(before_s) - mean_s(after_s))

    def transfer_s(self) -> float:
        """The exposed communication that is no waiting: what the last to arrive still needs."""
        exposed_s = self.table.phase(Phase.COMMUNICATION)
        together = timed_together(exposed_s)
        if together is None:
            return float(row_means(exposed_s).min())
        return float(exposed_s[:, together].min(axis=0).mean())


def job_of(table: StepTable, times: Sequence[StepTimes]) -> Job:
    """The job that these ranks make up; `times` has an entry per rank."""
    measured = sum(each.communication_s is not None for each in times) > MAJORITY * len(times)
    return Job(table, measured or _in_lockstep(times, len(table.numbers)), measured)


def timed_together(table_s: Floats) -> npt.NDArray[np.bool_] | None:
    """The steps that were timed on every rank; `None` where they are too few to stand for all."""
    complete = np.asarray(np.isfinite(table_s).all(axis=0))
    enough = min(MIN_STEPS, table_s.shape[1])
    return complete if np.count_nonzero(complete) >= enough else None


def row_means(table_s: Floats) -> Floats:
    """Each rank's mean over the steps in which it was timed; zero where it never was."""
    timed = np.isfinite(table_s)
    sums = np.where(timed, table_s, 0.0).sum(axis=1)
    return np.asarray(sums / np.maximum(timed.sum(axis=1), 1))


def _mean_of_slowest(table_s: Floats) -> float:
    together = timed_together(table_s)
    if together is None:
        return float(row_means(table_s).max())
    return float(table_s[:, together].max(axis=0).mean())


def _mean_of_all(table_s: Floats) -> float:
    return float(row_means(table_s).mean())


def _in_lockstep(times: Sequence[StepTimes], steps: int) -> bool:
    walls_s = [each.wall_s for each in times if each.wall_s is not None]
    if len(walls_s) < len(times) or not steps:
        return False
    most = max(LOCKSTEP_SHARE, LOCKSTEP_STEPS / steps)
    return max(walls_s) - min(walls_s) <= most * max(walls_s)


def ddp_facts(ranks: Sequence[RankRecords]) -> DdpStatistics | None:
    """The mean over the ranks that know; their models are the same."""
    known = [rank.ddp for rank in ranks if rank.ddp is not None]
    if not known:
        return None
    return DdpStatistics(
        communication_s=float(np.mean([each.communication_s for each in known])),
        overlap_s=float(np.mean([each.overlap_s for each in known])),
        gradient_bytes=known[0].gradient_bytes,
        buckets=known[0].buckets,
        has_hook=known[0].has_hook,
    )
