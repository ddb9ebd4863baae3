"""Ranks that get more to work on than their peers, and what of their time follows from that.

A rank that is slow because its sequences are longer, or because its experts get more tokens, has no
slow machine. How long an element takes is learnt from each rank's own steps, in which it has now
more and now less; so a slow rank that always has more is not excused for being slow. Where a rank's
work never changes, the ranks are compared with each other, and an element is taken to cost no more
than its share of the compute.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from traceml.facts.job import MIN_STEPS, Job
from traceml.facts.step_table import Floats
from traceml.model.phase import Phase

BATCHES, EXCHANGES = "batch_elements", "received_elements"
"""What is counted: elements of the batches, and of what `all_to_all` brings to a rank."""
UNEVEN = 0.05
"""Of the mean: ranks whose work differs by less have equal work, and a rank whose work changes by
less in its own steps tells nothing about what an element costs."""
MIN_CORRELATION = 0.5
"""Of work and time, over ranks and steps: with less, something else makes the times differ."""
MAX_LAG = 1
"""Some loaders fetch a batch one step before it is worked on."""
WORKED_ON = {BATCHES: 1.0, EXCHANGES: 0.5}
"""The share of the counted elements that is worked on: what experts send back is counted too."""


@dataclass(frozen=True, slots=True)
class UnevenWork:
    """How the work of the ranks differs from that of their peers."""

    source: str
    """`BATCHES` or `EXCHANGES`."""
    by_rank: Floats
    """The mean elements per step of each rank, in the order of the job's table."""
    extra_s: Floats
    """By rank and step: how much longer the rank worked for having more than its peers' mean;
    negative where it had less, 0 where that is not known, NaN in a step that was not timed."""
    correlation: float
    """Of the elements and the rank's own time, both against its peers in the same step: over all
    ranks and steps, or in each rank's own steps, whichever is more."""
    largest: float
    """In a mean step, the elements of the rank that has the most, as a multiple of the mean."""

    def rows_with_most(self, job: Job) -> tuple[int, ...]:
        """Returns the rows that have more than their peers throughout; empty where the ranks take
        turns."""
        beyond = np.zeros(len(self.by_rank))
        for group in job.peer_groups:
            rows = list(group)
            mean = self.by_rank[rows].mean()
            beyond[rows] = self.by_rank[rows] / mean - 1 if mean > 0 else 0.0
        most = float(beyond.max())
        if most < (self.largest - 1) / 2:
            return ()
        return tuple(int(row) for row in np.flatnonzero(beyond >= most / 2))


def uneven_work(job: Job) -> UnevenWork | None:
    """Returns the uneven work that explains the ranks' times best; `None` where their work is even,
    was not counted, or does not go with their times."""
    found = []
    for source, lags in ((BATCHES, MAX_LAG + 1), (EXCHANGES, 1)):
        elements = job.table.field(source) * 1e9
        elements[:, job.table.numbers == 1] = np.nan  # tracing began in the middle of it
        if _largest(job, elements) < 1 + UNEVEN:  # as nearly always, or not counted
            continue
        own_s = job.own_s()
        compared = [_compare(job, _delayed(elements, lag), own_s) for lag in range(lags)]
        found += [_judge(job, source, each) for each in compared if each is not None]
    known = [work for work in found if work is not None]
    return max(known, key=lambda work: work.correlation, default=None)


def _delayed(elements: Floats, steps: int) -> Floats:
    """Returns what was fetched so many steps before each step."""
    if not steps:
        return elements
    before = np.roll(elements, steps, axis=1)
    before[:, :steps] = np.nan
    return before


def _largest(job: Job, elements: Floats) -> float:
    """Returns the elements of the rank that has the most in a mean step, as a multiple of its
    peers' mean; 0 where they were not counted on all of them."""
    ratios = []
    for group in job.peer_groups:
        rows = elements[list(group)]
        counted = rows[:, np.isfinite(rows).all(axis=0)]
        if len(rows) > 1 and counted.shape[1]:
            ratios.append(counted.max(axis=0) / np.maximum(counted.mean(axis=0), 1.0))
    return float(np.concatenate(ratios).mean()) if ratios else 0.0


@dataclass(frozen=True, slots=True)
class _WorkAndTime:
    """The ranks' work and time, by rank and step."""

    elements: Floats
    own_s: Floats
    more: Floats
    """Elements beyond the peers' mean in the same step; 0 where that is not known."""
    longer_s: Floats
    """Own time beyond the peers' mean in the same step; 0 where that is not known."""
    is_known: npt.NDArray[np.bool_]
    """Whether both were measured on a rank and on all its peers."""

    @property
    def correlation(self) -> float:
        """Over all ranks and steps, or in each rank's own steps: beside a slow rank, those of all
        ranks together say little."""
        over_all = _correlation(self.more[self.is_known], self.longer_s[self.is_known])
        in_steps = (_centred(table, self.is_known) for table in (self.more, self.longer_s))
        return max(over_all, _correlation(*in_steps))


def _compare(job: Job, elements: Floats, own_s: Floats) -> _WorkAndTime | None:
    """Returns the ranks' work and time beside their peers'; `None` with too few steps."""
    known = np.isfinite(elements) & np.isfinite(own_s)
    is_known = np.zeros_like(known)
    more, longer_s = np.zeros_like(own_s), np.zeros_like(own_s)
    for group in job.peer_groups:
        steps = np.flatnonzero(known[list(group)].all(axis=0))
        if len(group) > 1 and len(steps) >= MIN_STEPS:
            place = np.ix_(np.array(group), steps)
            is_known[place] = True
            more[place] = elements[place] - elements[place].mean(axis=0)
            longer_s[place] = own_s[place] - own_s[place].mean(axis=0)
    return _WorkAndTime(elements, own_s, more, longer_s, is_known) if is_known.any() else None


def _judge(job: Job, source: str, compared: _WorkAndTime) -> UnevenWork | None:
    """Returns what follows from uneven work; `None` where the ranks' times do not go with it."""
    correlation = compared.correlation
    if correlation < MIN_CORRELATION:
        return None
    elements, own_s, is_known = compared.elements, compared.own_s, compared.is_known
    cost_s = _learnt_cost_s(elements, own_s, is_known)
    if cost_s is None:
        most_s = _share_of_compute_s(job, elements, is_known) / WORKED_ON[source]
        cost_s = min(_slope(compared.more[is_known], compared.longer_s[is_known]), most_s)
    if cost_s <= 0:
        return None
    return UnevenWork(
        source=source,
        by_rank=job.table.mean_by_rank(elements),
        extra_s=np.where(np.isfinite(own_s), cost_s * compared.more, np.nan),
        correlation=correlation,
        largest=_largest(job, elements),
    )


def _learnt_cost_s(
    elements: Floats, own_s: Floats, is_known: npt.NDArray[np.bool_]
) -> float | None:
    """Returns what an element costs by each rank's own steps; `None` where its work hardly changes
    in them."""
    rows = [row[chosen] for row, chosen in zip(elements, is_known, strict=True) if chosen.any()]
    low, high = np.percentile(np.concatenate([row - np.median(row) for row in rows]), (25, 75))
    if high - low < UNEVEN * elements[is_known].mean():  # whatever a few odd steps have
        return None
    return _slope(_centred(elements, is_known), _centred(own_s, is_known))


def _share_of_compute_s(job: Job, elements: Floats, is_known: npt.NDArray[np.bool_]) -> float:
    """Returns the time of forward and backward per element."""
    compute_s = np.nan_to_num(job.table.phase(Phase.FORWARD))
    compute_s = compute_s + np.nan_to_num(job.table.phase(Phase.BACKWARD))
    return float(compute_s[is_known].sum() / elements[is_known].sum())


def _centred(table: Floats, is_known: npt.NDArray[np.bool_]) -> Floats:
    """Returns each rank's values in these steps minus their mean, rank after rank."""
    rows = [row[chosen] for row, chosen in zip(table, is_known, strict=True) if chosen.any()]
    return np.concatenate([row - row.mean() for row in rows])


def _slope(work: Floats, took_s: Floats) -> float:
    """Returns by how much the time grows per element, by least squares; both have a mean of 0."""
    return float((work * took_s).sum() / (work**2).sum())


def _correlation(one: Floats, other: Floats) -> float:
    spread = float(one.std() * other.std())
    return float((one * other).mean()) / spread if spread > 0 else 0.0
