"""How far two runs of one command are taken to differ by themselves."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from traceml.compare.machine_noise import NO_NOISE, MachineNoise, SourceKind, machine_noise
from traceml.compare.measured import Observed
from traceml.compare.run_conditions import conditions
from traceml.compare.sides import Sides
from traceml.compare.student import quantile
from traceml.compare.terms import EarlierSpread, Terms
from traceml.model.finding import Section
from traceml.summaries.record import PRODUCER

WITH_DISTRIBUTION = 0.03
"""Two quiet runs of one command stay within this, where both show how their steps spread."""
ON_CPU = 0.075
"""The same for steps timed on the CPU: runs of one script on an otherwise quiet shared machine had
a standard deviation of 2.7 %, so that 95 of 100 pairs stay within this. Clocks, caches and who has
the other half of the core are not on record."""
BARE_MEAN = 0.25
"""A mean alone says nothing of its spread; a foreign one includes warm-up besides. Single phases
differ more from run to run than the whole step: what one gains another may lose."""
MEMORY = 0.05
"""Peaks hardly depend on chance, but on where the allocator's blocks fall."""
MIN_LEARNED_ALLOWANCE = 0.01
"""However alike earlier runs were: the next one meets another neighbour on the machine."""
MIN_EARLIER_RUNS = 4
MAX_LOG = 50.0
"""Nothing is that noisy; beyond, an exponential is no number."""


@dataclass(frozen=True, slots=True)
class Allowance:
    """A share by which two runs alike may differ, and where it is from."""

    share: float
    source: str
    log_spread: float
    """From run to run, on one side."""
    freedom: float | None = None
    """How well that spread is known; `None`: it is assumed."""
    base_share: float = 0.0
    """The same share between runs on a quiet machine."""
    either_way_share: float = 0.0
    """The same whichever run is the slower: what a change that does not show may be hidden by."""
    noise: MachineNoise = NO_NOISE
    """What widened it."""


def allowance_for(found: Observed, sides: Sides, terms: Terms) -> Allowance:
    """What holds for an endpoint of these runs."""
    change = found.change
    if sides.several and change and change.log_spread is not None and change.freedom:
        return _learned(EarlierSpread(change.log_spread, change.freedom), "runs", least=0.0)
    if found.endpoint.section is Section.STEP_MEMORY:
        return _assumed(MEMORY)
    if terms.history is not None and found.endpoint.of_steps:
        base = _learned(terms.history, "history", MIN_LEARNED_ALLOWANCE)
    else:
        is_known = change is not None and found.endpoint.of_steps
        base = _assumed(_of_quiet_runs(sides) if is_known else BARE_MEAN)
    # A bare mean has the allowance of one, whatever else its file says.
    return base if sides.several or change is None else _widened(base, sides, found.got_worse)


def _of_quiet_runs(sides: Sides) -> float:
    on_cpu = any(
        run.step_time is not None and run.step_time.global_.window.diagnosis_clock == "cpu"
        for run in sides.every_run
    )
    return ON_CPU if on_cpu else WITH_DISTRIBUTION


def _widened(base: Allowance, sides: Sides, b_is_slower: bool) -> Allowance:
    """With room for what one run each recorded about its machine, where we recorded it."""
    if any(run.producer.name != PRODUCER for run in sides.every_run):
        return base
    base_log = math.log1p(base.share)
    noise = _noise(sides, base, b_is_slower)
    reach = noise.widen(base_log)
    other_way = _noise(sides, base, not b_is_slower).widen(base_log)
    return Allowance(
        share=_share_of(reach),
        source=base.source,
        log_spread=reach / (quantile(1e9) * math.sqrt(2)) if noise.sources else base.log_spread,
        freedom=None if noise.sources else base.freedom,
        base_share=base.share,
        either_way_share=_share_of(max(reach, other_way)),
        noise=noise,
    )


def _noise(sides: Sides, base: Allowance, b_is_slower: bool) -> MachineNoise:
    noise = machine_noise(conditions(sides.a[0]), conditions(sides.b[0]), b_is_slower)
    if base.source == "history":  # those runs had the same invisible neighbours
        noise = noise.without(SourceKind.VIRTUAL_CPU)
    return noise


def learn(groups: Sequence[Sequence[float]]) -> EarlierSpread | None:
    """The spread of earlier runs, group by group of the same command; `None` of too few."""
    logs = [[math.log(time) for time in group if time > 0] for group in groups]
    if sum(map(len, logs)) < MIN_EARLIER_RUNS:
        return None
    freedom = sum(len(group) - 1 for group in logs if group)
    if freedom < MIN_EARLIER_RUNS - 1:
        return None
    means = [math.fsum(group) / len(group) if group else 0.0 for group in logs]
    squares = math.fsum(
        (x - mean) ** 2 for group, mean in zip(logs, means, strict=True) for x in group
    )
    return EarlierSpread(math.sqrt(squares / freedom), freedom)


def _learned(history: EarlierSpread, source: str, least: float) -> Allowance:
    """The 95 % reach of the difference of two runs."""
    reach = quantile(history.freedom) * history.log_spread * math.sqrt(2)
    share = max(_share_of(reach), least)
    return Allowance(share, source, history.log_spread, history.freedom, share, share)


def _assumed(share: float) -> Allowance:
    spread = math.log1p(share) / (quantile(1e9) * math.sqrt(2))
    return Allowance(share, "default", spread, base_share=share, either_way_share=share)


def _share_of(reach_log: float) -> float:
    return math.expm1(min(reach_log, MAX_LOG))
