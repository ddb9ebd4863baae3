"""A run over its whole length in few points, for charts.

Tables have a row per rank and a column per bucket of steps; NaN means "not measured".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from traceml.facts.loss_values import LossScale, is_divided
from traceml.facts.metric_history import NOT_FINITE, MetricHistory, Stretch, neighbours
from traceml.facts.step_table import choose_clock
from traceml.facts.sums import Sums
from traceml.facts.times import part_means
from traceml.model.phase import Phase
from traceml.store.buckets import CLOCKS, PEAKS, SUMMED, RankBuckets
from traceml.store.sample_follower import GPU, HOST, PROCESS, NodeSamples

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

BEHIND_S = 10.0
"""A rank whose newest step is this much older than that of another rank has stopped: it is not
waited for."""
NEARLY_ALL = 0.9
"""Of the buckets: buckets are merged until this share of them holds a step timed on the GPU …"""
MIN_BUCKETS = 16
"""… but not into fewer buckets than this."""


MAX_NODE_MOMENTS = 10_000
"""Moments of all nodes together that sensors are drawn at: with more than 16 nodes there are fewer
of each."""
MAX_SAMPLE_AGE_S = 2.0
"""Where nothing says how often a node is sampled."""


@dataclass(frozen=True, slots=True)
class StepHistory:
    """The steps of a run in buckets of equal length, oldest first; warm-up is included."""

    ranks: tuple[int, ...]
    bucket_steps: int
    first_steps: Ints
    """The number of each bucket's first step, counted from 1."""
    began_s: Floats
    """When each bucket began, in seconds since the run started."""
    step_s: Floats
    """The mean step time (input wait and body) by rank."""
    longest_s: Floats
    """The longest step by rank."""
    phase_s: Mapping[Phase, Floats]
    """The mean of each phase by rank, with the residual, on the run's clock."""
    between_s: Floats
    """The time between steps (evaluation, checkpoints) per step, by rank."""
    allocated_bytes: Floats
    """The highest GPU memory in use by rank."""
    reserved_bytes: Floats
    rss_bytes: Floats
    """The highest resident memory of the training process by rank."""
    loss: Floats
    """The last loss of each bucket, by rank …"""
    loss_scale: LossScale = LossScale.AS_GIVEN
    """… and whether it was multiplied by the number of micro-batches."""
    bad_losses: tuple[Stretch, ...] = ()
    """Where the loss of any rank was NaN or infinite."""
    graph_s: Floats | None = None
    """Replays of CUDA graphs by rank: compute that belongs to no single phase; `None` without
    any."""

    def over_ranks(self, part_s: Floats) -> Floats:
        """Returns the mean of a part over the ranks that were timed; a rank without it counts as
        zero.

        The summary computes it the same way: a part that a rank never measured is in its residual.
        """
        timed = np.isfinite(self.phase_s.get(Phase.RESIDUAL, part_s)).sum(axis=0)
        sums = np.nan_to_num(part_s).sum(axis=0)
        return np.where(timed > 0, sums / np.maximum(timed, 1), np.nan)


@dataclass(frozen=True, slots=True)
class SensorHistory:
    """What the agent sampled, thinned; every array has one value per moment."""

    at_s: Floats
    """Seconds since the run started."""
    hosts: Mapping[str, Mapping[str, Floats]]
    """By node, the head first; then by field name of `HostSample`."""
    processes: Mapping[int, Mapping[str, Floats]]
    """By rank, then by field name of `ProcessSample`."""
    gpus: Mapping[int, Mapping[str, Floats]]
    """By place (the GPU's index on one machine), then by field name of `GpuSample`."""
    gpu_names: Mapping[int, str] = field(default_factory=dict)
    """The model of each GPU, by place."""
    gpu_labels: Mapping[int, str] = field(default_factory=dict)
    """Which one it is, by place: its index, with its node's name where there are several."""

    @property
    def host(self) -> Mapping[str, Floats]:
        """What was sampled of the head's machine, or of the only one, by field name."""
        return next(iter(self.hosts.values()))


@dataclass(frozen=True, slots=True)
class History:
    """Everything that charts show over time."""

    steps: StepHistory | None = None
    """`None` before the first step."""
    sensors: SensorHistory | None = None
    metrics: tuple[MetricHistory, ...] = ()


def step_history(
    ranks: Sequence[RankBuckets], started_unix_s: float, is_live: bool = False
) -> StepHistory | None:
    """Returns the steps of all ranks by bucket; `None` where no step was taken.

    The clock is the one that a summary of the same steps would use. Of short steps only some are
    timed on the GPU: buckets are merged until nearly all of them hold a timed step. While the run
    is live, the newest buckets are left out until every rank has reached them.
    """
    if not any(rank.steps.any() for rank in ranks):
        return None
    seen: Ints = np.flatnonzero(np.any([rank.steps for rank in ranks], axis=0))
    if is_live:
        seen = seen[seen <= _last_common(ranks)]
        if not len(seen):
            return None
    timed, taken = _counted(ranks, "gpu_body_ns"), _counted(ranks, "body_ns")
    clocks = choose_clock(timed.sum(axis=1), taken.sum(axis=1))
    merged = _groups(timed, taken, seen) if clocks.means != clocks.steps else 1
    groups = _BucketGroups(ranks, seen, merged)
    sums = groups.sums()
    totals = sums.in_all()
    parts = part_means(sums, totals, clocks.means)
    phases = {phase: parts[phase.value] for phase in Phase}
    grid = ranks[0].grid
    scale = _loss_scale(ranks, seen)
    return StepHistory(
        ranks=tuple(rank.rank.rank for rank in ranks),
        bucket_steps=grid.length * merged,
        first_steps=grid.first + groups.numbers * grid.length * merged + 1,
        began_s=groups.began_unix_s() - started_unix_s,
        step_s=parts[f"{clocks.steps}_step"],
        longest_s=groups.largest("longest_ns", CLOCKS.index(clocks.steps)) * 1e-9,
        phase_s={phase: table for phase, table in phases.items() if np.isfinite(table).any()},
        between_s=parts["between"],
        allocated_bytes=groups.largest("peaks", PEAKS.index("allocated_bytes")),
        reserved_bytes=groups.largest("peaks", PEAKS.index("reserved_bytes")),
        rss_bytes=groups.largest("peaks", PEAKS.index("rss_bytes")),
        loss=groups.last_loss(scale),
        loss_scale=scale,
        bad_losses=_bad_losses(ranks, seen),
        graph_s=parts["undivided"] if np.nan_to_num(parts["undivided"]).any() else None,
    )


def _last_common(ranks: Sequence[RankBuckets]) -> int:
    """Returns the last bucket that every rank has reached, but for ranks that take no steps any
    more: those whose last bucket began long before the newest one."""
    lasts = [int(np.flatnonzero(rank.steps)[-1]) for rank in ranks if rank.steps.any()]
    reached = [_reached_unix_s(rank) for rank in ranks if rank.steps.any()]
    newest = max(reached)
    return min(last for last, at in zip(lasts, reached, strict=True) if at >= newest - BEHIND_S)


def _reached_unix_s(rank: RankBuckets) -> float:
    """Returns when the rank's last bucket ended, as far as it is known: one bucket after it
    began."""
    began = rank.began_unix_s[np.flatnonzero(rank.steps)]
    return float(began[-1] + (began[-1] - began[-2] if len(began) > 1 else 0.0))


def _bad_losses(ranks: Sequence[RankBuckets], seen: Ints) -> tuple[Stretch, ...]:
    """Returns where losses were NaN or infinite; neighbouring buckets are one stretch."""
    counts = np.add.reduce([rank.bad_losses[seen] for rank in ranks])
    places = np.flatnonzero(counts)
    if not len(places):
        return ()
    grid = ranks[0].grid
    first = grid.first + seen * grid.length + 1
    groups = [places[part] for part in neighbours(places)]
    return tuple(
        Stretch(
            int(first[group[0]]),
            int(first[group[-1]]) + grid.length - 1,
            NOT_FINITE,
            int(counts[group].sum()),
        )
        for group in groups
    )


def _loss_scale(ranks: Sequence[RankBuckets], seen: Ints) -> LossScale:
    """Returns whether the script divides its loss by the micro-batches of a step, judged by the
    first rank."""
    first = ranks[0]
    divided = is_divided(first.loss[seen], first.loss_backwards[seen].astype(np.int64))
    return LossScale.DIVIDED if divided else LossScale.AS_GIVEN


def _counted(ranks: Sequence[RankBuckets], name: str) -> Floats:
    column = SUMMED.index(name)
    return np.stack([rank.counts[:, column] for rank in ranks])


def _groups(timed: Floats, taken: Floats, seen: Ints) -> int:
    """Returns how many neighbouring buckets to merge so that nearly all of them hold a timed
    step."""
    merged = 1
    while len(seen) // merged > MIN_BUCKETS:
        starts = np.flatnonzero(np.diff(seen // merged, prepend=-1))
        has_timed, has_any = (
            np.add.reduceat(table[:, seen], starts, axis=1) > 0 for table in (timed, taken)
        )
        if np.count_nonzero(has_timed) >= NEARLY_ALL * np.count_nonzero(has_any):
            break
        merged *= 2
    return merged


class _BucketGroups:
    """Tables over merged buckets: a row per rank, a column per merged bucket that holds any
    step."""

    def __init__(self, ranks: Sequence[RankBuckets], seen: Ints, merged: int) -> None:
        self._ranks = ranks
        self._seen = seen
        self._starts = np.flatnonzero(np.diff(seen // merged, prepend=-1))
        self._is_plain = len(self._starts) == len(seen)
        self.numbers: Ints = seen[self._starts] // merged

    def sums(self) -> Sums:
        """Returns the sums of every field, by rank and merged bucket."""
        sums, counts = (
            np.stack([getattr(rank, name)[self._seen] for rank in self._ranks])
            for name in ("sums", "counts")
        )
        if not self._is_plain:
            sums, counts = (np.add.reduceat(t, self._starts, axis=1) for t in (sums, counts))
        return Sums(sums, counts, SUMMED)

    def largest(self, table: str, column: int) -> Floats:
        """Returns the largest value of a column, by rank and merged bucket; NaN where not
        measured."""
        found = np.stack([getattr(rank, table)[self._seen, column] for rank in self._ranks])
        if not self._is_plain:
            found = np.maximum.reduceat(found, self._starts, axis=1)
        return np.where(found < 0, np.nan, found)

    def began_unix_s(self) -> Floats:
        """Returns when the first rank began each merged bucket."""
        first = np.minimum.reduce([rank.began_unix_s[self._seen] for rank in self._ranks])
        return np.asarray(np.minimum.reduceat(first, self._starts))

    def last_loss(self, scale: LossScale) -> Floats:
        """Returns the last loss, by rank and merged bucket; NaN where none was read."""
        found = np.stack([rank.loss[self._seen] for rank in self._ranks])
        if scale is LossScale.DIVIDED:
            times = np.stack([rank.loss_backwards[self._seen] for rank in self._ranks])
            found = found * np.maximum(times, 1)
        if self._is_plain:
            return found
        places = np.where(np.isnan(found), 0, np.arange(found.shape[1]))
        latest = np.maximum.reduceat(places, self._starts, axis=1)
        return np.take_along_axis(found, np.maximum(latest, self._starts), axis=1)


def sensor_history(
    nodes: Sequence[NodeSamples], numbers: Mapping[int, int], started_unix_s: float
) -> SensorHistory | None:
    """Returns what was sampled on all nodes at the moments of the one with the most; `None` without
    samples. `numbers` maps a process id to its final rank."""
    if not nodes:
        return None
    unix_s = max((each.table.unix_s for each in nodes), key=len)
    if len(unix_s) * len(nodes) > MAX_NODE_MOMENTS:
        unix_s = unix_s[:: -(-len(unix_s) * len(nodes) // MAX_NODE_MOMENTS)]
    hosts: dict[str, Mapping[str, Floats]] = {}
    processes: dict[int, Floats] = {}
    gpus: dict[int, tuple[str, str, Floats]] = {}
    for node, table in nodes:
        at = _Moments(table.unix_s, unix_s)
        hosts[node] = _columns(HOST, at.rows(table.host))
        for pid, (sampled_as, values) in table.processes.items():
            rank, values = numbers.get(pid, sampled_as), at.rows(values)
            earlier = processes.get(rank)
            processes[rank] = values if earlier is None else _either(values, earlier)
        for index, (name, values) in sorted(table.gpus.items()):
            place, label = index, f"GPU {index}"
            if len(nodes) > 1:
                place, label = len(gpus), f"{node} {label}"
            gpus[place] = label, name, at.rows(values)
    return SensorHistory(
        at_s=unix_s - started_unix_s,
        hosts=hosts,
        processes={rank: _columns(PROCESS, processes[rank]) for rank in sorted(processes)},
        gpus={place: _columns(GPU, values) for place, (_, _, values) in gpus.items()},
        gpu_names={place: name for place, (_, name, _) in gpus.items()},
        gpu_labels={place: label for place, (label, _, _) in gpus.items()},
    )


class _Moments:
    """Samples of a node at the moments of another one: each time the sample before it, as long as
    that is no older than two of them are apart."""

    def __init__(self, sampled_unix_s: Floats, wanted_unix_s: Floats) -> None:
        self._is_same = sampled_unix_s is wanted_unix_s
        if self._is_same:
            return
        both = (sampled_unix_s, wanted_unix_s)
        gaps_s = [float(np.median(np.diff(each))) for each in both if len(each) > 1]
        max_age_s = 2.0 * max(gaps_s, default=MAX_SAMPLE_AGE_S)
        # One that was taken in the same round, a little later, belongs to the moment too.
        until = wanted_unix_s + max_age_s / 4
        self._places = np.searchsorted(sampled_unix_s, until, side="right") - 1
        known = self._places >= 0
        self._is_known = known & (until - sampled_unix_s[np.maximum(self._places, 0)] <= max_age_s)

    def rows(self, values: Floats) -> Floats:
        """Returns a row for each moment; NaN where there is no sample of that time."""
        if self._is_same:
            return values
        return np.where(self._is_known[:, None], values[np.maximum(self._places, 0)], np.nan)


def _either(values: Floats, other: Floats) -> Floats:
    return np.where(np.isnan(values), other, values)


def _columns(names: Sequence[str], table: Floats) -> dict[str, Floats]:
    """Returns the columns that hold any measured value, by name."""
    columns = {name: table[:, place] for place, name in enumerate(names)}
    return {name: values for name, values in columns.items() if np.isfinite(values).any()}
