"""The allowance: by how much two runs of the same command may differ without any change."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from traceml.compare.logged_metrics import ASSUMED_NOISE
from traceml.compare.machine_noise import NO_NOISE, MachineNoise, SourceKind, machine_noise
from traceml.compare.measured import Observed
from traceml.compare.run_conditions import conditions
from traceml.compare.sides import Sides
from traceml.compare.students_t import quantile
from traceml.compare.terms import EarlierSpread, Terms
from traceml.model.finding import Section
from traceml.summaries.record import PRODUCER

WITH_DISTRIBUTION = 0.03
"""For two quiet runs of one command whose summaries both hold the distribution of their steps."""
ON_CPU = 0.075
"""The same for steps timed on the CPU: runs of one script on a quiet shared machine had a standard
deviation of 2.7 %, so 95 of 100 pairs stay within this. Clocks, caches and the other hyperthread of
the core are not recorded."""
BARE_MEAN = 0.25
"""For a mean without a distribution, which in foreign files also includes warm-up. Single phases
vary more from run to run than the whole step."""
MEMORY = 0.05
"""Peak memory hardly varies, except for where the allocator's blocks fall."""
MIN_LEARNED_ALLOWANCE = 0.01
"""However similar earlier runs were: the next one may meet other load on the machine."""
MIN_EARLIER_RUNS = 4
MAX_REACH_LOG = 50.0
"""Nothing is that noisy; a larger exponent would overflow."""


@dataclass(frozen=True, slots=True)
class Allowance:
    """A share by which two equal runs may differ, and where it comes from."""

    share: float
    source: str
    log_spread: float
    """Standard deviation of the logarithm from run to run, on one side."""
    freedom: float | None = None
    """The degrees of freedom of that spread; `None` where it is assumed."""
    base_share: float = 0.0
    """The allowance for runs on a quiet machine."""
    either_way_share: float = 0.0
    """The allowance regardless of which run is slower: how large a hidden change could be."""
    noise: MachineNoise = NO_NOISE
    """The noise of the machine that widened it."""


def allowance_for(found: Observed, sides: Sides, terms: Terms) -> Allowance:
    """Returns the allowance for an endpoint of these runs."""
    change = found.change
    if found.endpoint.section is None:
        return _of_logged(found, sides)
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


def _of_logged(found: Observed, sides: Sides) -> Allowance:
    """Returns the allowance for a metric that the script logged: what the runs show, relative to
    A's value."""
    spread, lhs = found.run_spread, found.delta.lhs
    if sides.several and spread is not None and lhs:
        size = spread.size / abs(lhs)
        share = quantile(spread.freedom) * size * math.sqrt(2)
        return Allowance(share, "runs", size, spread.freedom, share, share)
    return _assumed(ASSUMED_NOISE)


def _of_quiet_runs(sides: Sides) -> float:
    on_cpu = any(
        run.step_time is not None and run.step_time.global_.window.diagnosis_clock == "cpu"
        for run in sides.every_run
    )
    return ON_CPU if on_cpu else WITH_DISTRIBUTION


def _widened(base: Allowance, sides: Sides, b_is_slower: bool) -> Allowance:
    """Returns the allowance widened by the machine noise of one run per side, where it was
    recorded."""
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
    """Returns the spread of earlier runs, from groups of the same command; `None` with too few
    runs."""
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
    """Returns the allowance from earlier runs: the 95 % limit of the difference of two runs."""
    reach = quantile(history.freedom) * history.log_spread * math.sqrt(2)
    share = max(_share_of(reach), least)
    return Allowance(share, source, history.log_spread, history.freedom, share, share)


def _assumed(share: float) -> Allowance:
    spread = math.log1p(share) / (quantile(1e9) * math.sqrt(2))
    return Allowance(share, "default", spread, base_share=share, either_way_share=share)


def _share_of(reach_log: float) -> float:
    return math.expm1(min(reach_log, MAX_REACH_LOG))
