"""How far two runs of one command are taken to differ by themselves."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from traceml.compare.measured import Observed
from traceml.compare.sides import Sides
from traceml.compare.student import quantile
from traceml.compare.terms import History, Terms
from traceml.model.finding import Section

WITH_DISTRIBUTION = 0.03
"""Two quiet runs of one command stay within this, where both show how their steps spread."""
BARE_MEAN = 0.25
"""A mean alone says nothing of its spread; a foreign one includes warm-up besides. Single phases
differ more from run to run than the whole step: what one gains another may lose."""
MEMORY = 0.05
"""Peaks hardly depend on chance, but on where the allocator's blocks fall."""
LEAST_LEARNED = 0.01
"""However alike earlier runs were: the next one meets another neighbour on the machine."""
FEWEST_EARLIER_RUNS = 4


@dataclass(frozen=True, slots=True)
class Allowance:
    """A share by which two runs alike may differ, and where it is from."""

    share: float
    source: str
    log_spread: float
    """From run to run, on one side."""


def allowance_for(found: Observed, sides: Sides, terms: Terms) -> Allowance:
    """What holds for an endpoint of these runs."""
    change = found.change
    if sides.several and change and change.log_spread is not None and change.freedom:
        return _learned(History(change.log_spread, change.freedom), "runs", least=0.0)
    if found.endpoint.section is Section.STEP_MEMORY:
        return _assumed(MEMORY)
    if terms.history is not None and found.endpoint.of_steps:
        return _learned(terms.history, "history", LEAST_LEARNED)
    is_known = change is not None and found.endpoint.of_steps
    return _assumed(WITH_DISTRIBUTION if is_known else BARE_MEAN)


def learn(groups: Sequence[Sequence[float]]) -> History | None:
    """The spread of earlier runs, group by group of the same command; `None` of too few."""
    logs = [[math.log(time) for time in group if time > 0] for group in groups]
    if sum(map(len, logs)) < FEWEST_EARLIER_RUNS:
        return None
    freedom = sum(len(group) - 1 for group in logs if group)
    if freedom < FEWEST_EARLIER_RUNS - 1:
        return None
    means = [math.fsum(group) / len(group) if group else 0.0 for group in logs]
    squares = math.fsum(
        (x - mean) ** 2 for group, mean in zip(logs, means, strict=True) for x in group
    )
    return History(math.sqrt(squares / freedom), freedom)


def _learned(history: History, source: str, least: float) -> Allowance:
    """The 95 % reach of the difference of two runs."""
    reach = quantile(history.freedom) * history.log_spread * math.sqrt(2)
    return Allowance(max(math.expm1(min(reach, 50.0)), least), source, history.log_spread)


def _assumed(share: float) -> Allowance:
    return Allowance(share, "default", math.log1p(share) / (quantile(1e9) * math.sqrt(2)))
