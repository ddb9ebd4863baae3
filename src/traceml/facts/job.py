"""How long a step takes the whole job: ranks that train together wait for the slowest of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from traceml.facts.step_table import MAJORITY, Floats, StepTable
from traceml.facts.times import StepTimes
from traceml.model.parallel_place import ParallelPlace, peer_groups
from traceml.model.phase import Phase
from traceml.store.records import DdpStatistics, RankRecords

MIN_STEPS = 8
"""With fewer steps timed on all ranks, the ranks' means say more than single steps."""
LOCKSTEP_SHARE = 0.01
"""Ranks that wait for each other take the same total time, up to this share …"""
LOCKSTEP_STEPS = 2.0
"""… or up to about this many steps at the two ends of the run."""
HIDDEN_GAPS = 0.5
"""Of the GPU's idle time while the host launches: what a host that works ahead would hide. It hides
the gaps that its own delays make, and none of those between any two kernels; the GPU's counters
tell only both together, so the middle is taken."""


@dataclass(frozen=True, slots=True)
class Job:
    """The ranks of a run as one job."""

    table: StepTable
    waits: bool
    """Whether the ranks wait for each other in every step."""
    communication_measured: bool
    peers: tuple[tuple[int, ...], ...] = ()
    """The rows of the table by which ranks do the same work; empty where all of them do."""
    extra_work_s: Floats | None = None
    """By rank and step: how much longer a rank worked for having more to work on than its peers;
    `None` where their work is even, or was not counted."""

    @property
    def peer_groups(self) -> tuple[tuple[int, ...], ...]:
        """Returns the rows of the ranks that can be compared with each other; at least one
        group."""
        return self.peers or (tuple(range(len(self.table.ranks))),)

    def peers_of(self, row: int) -> tuple[int, ...]:
        """Returns the rows of the ranks that do the same work as this one, with its own."""
        return next(group for group in self.peer_groups if row in group)

    @property
    def wait_is_hidden(self) -> bool:
        """Whether the waiting was not measured and is part of backward, where gradients are
        exchanged."""
        return self.waits and not self.communication_measured and len(self.table.ranks) > 1

    def own_s(self) -> Floats:
        """Returns each rank's own time in each step; without backward where that hides waiting."""
        own_s = self.table.own()
        if self.wait_is_hidden:
            own_s = own_s - np.nan_to_num(self.table.phase(Phase.BACKWARD))
        return own_s

    def even_own_s(self) -> Floats:
        """Returns the same as if each rank had as much to work on as its peers have on average."""
        own_s = self.own_s()
        return own_s if self.extra_work_s is None else own_s - self.extra_work_s

    def own_wall_s(self) -> Floats:
        """Returns the same including the time between steps, on the host's clock."""
        own_s = self.table.field("wall_ns") - np.nan_to_num(self.table.field("communication_ns"))
        if self.wait_is_hidden:
            own_s = own_s - np.nan_to_num(self.table.field("backward_ns"))
        return own_s

    def saved_s(self, removed_s: Floats, taken_s: Floats | None = None) -> float:
        """Returns how much shorter a mean step would be without this time of each rank and step.

        Where ranks wait for each other, only the slowest rank of each step counts. `taken_s`
        replaces the ranks' own time where the removed time is not part of the step.
        """
        before_s = self.own_s() if taken_s is None else taken_s
        after_s = np.maximum(before_s - np.maximum(np.nan_to_num(removed_s), 0.0), 0.0)
        mean_s = self._mean_of_slowest if self.waits else self._mean_of_all
        return max(0.0, mean_s(before_s) - mean_s(after_s))

    def saved_in_each_step_s(self, removed_s: Mapping[int, float]) -> float:
        """Returns how much shorter a mean step would be if some ranks, by number, took that much
        less in each of their steps."""
        removed = np.array([removed_s.get(rank, 0.0) for rank in self.table.ranks])
        return self.saved_s(np.broadcast_to(removed[:, None], self.own_s().shape))

    def host_waits_s(self) -> float:
        """What the host waits for the device in a mean step, its copies to it aside."""
        return float(np.nan_to_num(self.table.field("sync_ns")).mean())

    def saved_by_working_ahead_s(
        self, launching_s: float = 0.0, copies_too: bool = False
    ) -> float | None:
        """How much shorter a mean step would be if the host never waited for the GPU.

        The host would queue its work ahead, and a step take as long as the GPU's work or the host's
        own, whichever is longer: what the GPU now idles between its phases would be hidden, and
        some of what it idles while the host launches (`launching_s`). `copies_too` says that the
        copies to the device, which make the host wait, are gone as well. `None` where the GPU's
        work was not timed.
        """
        if self.table.clock != "gpu":
            return None
        gpu_s = self.table.step() - self.table.idle_for_the_host() - HIDDEN_GAPS * launching_s
        host_s = np.nan_to_num(self.table.field("input_ns")) + self.table.field("body_ns")
        host_s = host_s - np.nan_to_num(self.table.field("sync_ns"))
        if copies_too:
            gpu_s = gpu_s - np.nan_to_num(self.table.phase(Phase.H2D))
            host_s = host_s - np.nan_to_num(self.table.field("h2d_ns"))
        mean_by_rank = self.table.mean_by_rank
        left_s = np.maximum(mean_by_rank(gpu_s), mean_by_rank(host_s))
        step_s = mean_by_rank(self.table.step())
        if self.waits:
            return float(step_s.max() - left_s.max())
        return float(step_s.mean() - left_s.mean())

    def transfer_s(self) -> float:
        """Returns the exposed communication that is not waiting: what the last rank to arrive still
        needs."""
        exposed_s = self.table.phase(Phase.COMMUNICATION)
        together = timed_together(exposed_s)
        if together is None:
            return float(self.table.mean_by_rank(exposed_s).min())
        return self._mean_of(exposed_s.min(axis=0), together)

    def _mean_of_slowest(self, table_s: Floats) -> float:
        together = timed_together(table_s)
        if together is None:
            return float(self.table.mean_by_rank(table_s).max())
        return self._mean_of(table_s.max(axis=0), together)

    def _mean_of_all(self, table_s: Floats) -> float:
        return float(self.table.mean_by_rank(table_s).mean())

    def _mean_of(self, step_s: Floats, chosen: npt.NDArray[np.bool_]) -> float:
        """Returns the mean over some steps that were timed on every rank."""
        return float(np.average(step_s[chosen], weights=self.table.weights_of(chosen)))


def job_of(
    table: StepTable, times: Sequence[StepTimes], places: Sequence[ParallelPlace] = ()
) -> Job:
    """Returns these ranks as a job; `times` has one entry per rank, and so has `places` where the
    ranks' places in a device mesh are known."""
    measured = sum(each.communication_s is not None for each in times) > MAJORITY * len(times)
    peers = peer_groups(places)
    return Job(
        table,
        waits=measured or _in_lockstep(times, len(table.numbers)),
        communication_measured=measured,
        peers=peers if len(peers) > 1 else (),
    )


def timed_together(table_s: Floats) -> npt.NDArray[np.bool_] | None:
    """Returns which steps were timed on every rank; `None` where they are too few to be
    representative."""
    complete = np.asarray(np.isfinite(table_s).all(axis=0))
    enough = min(MIN_STEPS, table_s.shape[1])
    return complete if np.count_nonzero(complete) >= enough else None


def _in_lockstep(times: Sequence[StepTimes], steps: int) -> bool:
    walls_s = [each.wall_s for each in times if each.wall_s is not None]
    if len(walls_s) < len(times) or not steps:
        return False
    most = max(LOCKSTEP_SHARE, LOCKSTEP_STEPS / steps)
    return max(walls_s) - min(walls_s) <= most * max(walls_s)


def ddp_facts(ranks: Sequence[RankRecords]) -> DdpStatistics | None:
    """Returns the mean of what the ranks' DDP wrappers measured; `None` where no rank knows it."""
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
