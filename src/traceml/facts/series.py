"""The distribution, autocorrelation and slowdowns of a run's step times."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from traceml.facts.step_table import Floats, StepTable
from traceml.facts.sums import block_length
from traceml.model.phase import Phase

PERCENTILES = (1, 5, 25, 50, 75, 95, 99)
MAX_LAGS = 12
SLOWDOWN_RATIO = 1.10
"""A smaller shift is not worth reporting."""
SLOWDOWN_ERRORS = 6.0
"""Standard errors. The best of all splits of pure noise reaches about four."""
MIN_SEGMENT_SHARE = 0.05
"""A segment has at least this share of the steps, and …"""
MIN_SEGMENT_STEPS = 5
"""… at least this many steps."""


@dataclass(frozen=True, slots=True)
class StepTimeSeries:
    """The step times of a run, reduced to what a comparison needs."""

    count: int
    mean_s: float
    stdev_s: float
    quantiles_s: dict[int, float]
    autocorrelation: tuple[float, ...]
    """At lags 1, 2, 4, 8, …"""
    effective_count: float
    """The number of independent steps with the same uncertainty of the mean."""
    block_steps: int
    block_means_s: tuple[float, ...]
    part_block_means_s: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """The block means of each part of the step. A part that is timed only now and then has fewer,
    longer blocks."""


@dataclass(frozen=True, slots=True)
class Slowdown:
    """From some step on, steps took clearly longer."""

    onset_step: int
    """The number of the first slow step, counted from 1."""
    before_s: float
    after_s: float
    core_wait_s: tuple[float, float] | None = None
    """How long per step the training threads were ready to run but waited for a core, before and
    afterwards; `None` where it is not known."""
    attempt: int | None = None
    """The number of the attempt that began with the first slow step: the ranks were started again;
    `None` where none did."""

    @property
    def ratio(self) -> float:
        """The mean step time afterwards divided by the mean before."""
        return self.after_s / self.before_s


def describe_series(
    step_s: Floats, parts: Mapping[str, tuple[float, ...]] | None = None
) -> StepTimeSeries:
    """Reduce a series of step times without gaps; at least one."""
    steps = len(step_s)
    correlation = _autocorrelation(step_s)
    lags = [1 << power for power in range(MAX_LAGS) if (1 << power) <= steps // 4]
    block_steps = block_length(steps)
    blocks = steps // block_steps
    means = step_s[: blocks * block_steps].reshape(blocks, block_steps).mean(axis=1)
    quantiles = np.percentile(step_s, PERCENTILES).tolist()
    return StepTimeSeries(
        count=steps,
        mean_s=float(step_s.mean()),
        stdev_s=float(step_s.std(ddof=1)) if steps > 1 else 0.0,
        quantiles_s=dict(zip(PERCENTILES, quantiles, strict=True)),
        autocorrelation=tuple(float(correlation[lag]) for lag in lags),
        effective_count=_effective_count(steps, correlation),
        block_steps=block_steps,
        block_means_s=tuple(means.tolist()),
        part_block_means_s=parts or {},
    )


def find_slowdown(step_s: Floats, numbers: npt.NDArray[np.int64]) -> Slowdown | None:
    """Returns the onset of a lasting slowdown; `None` where there is no clear one.

    The steps are split into two segments at the best place. The split counts if the means differ by
    many standard errors and the medians differ too, so that a few long stalls are no slowdown.
    """
    steps = len(step_s)
    shortest = max(MIN_SEGMENT_STEPS, math.ceil(steps * MIN_SEGMENT_SHARE))
    if steps < 2 * shortest:
        return None
    sizes = np.arange(1, steps)
    sums = np.cumsum(step_s)
    gaps = (sums[-1] - sums[:-1]) / (steps - sizes) - sums[:-1] / sizes
    explained = gaps * np.sqrt(sizes * (steps - sizes))
    position = shortest + int(np.argmax(explained[shortest - 1 : steps - shortest]))
    before, after = step_s[:position], step_s[position:]
    found = Slowdown(int(numbers[position]), float(before.mean()), float(after.mean()))
    if found.before_s <= 0 or found.ratio < SLOWDOWN_RATIO:
        return None
    error = math.sqrt(_mean_variance(before) + _mean_variance(after))
    median_ratio = float(np.median(after) / max(float(np.median(before)), 1e-12))
    lasting = median_ratio - 1 >= (found.ratio - 1) / 2
    clear = found.after_s - found.before_s > SLOWDOWN_ERRORS * error
    return found if lasting and clear else None


def _mean_variance(step_s: Floats) -> float:
    return float(step_s.var(ddof=1)) / _effective_count(len(step_s), _autocorrelation(step_s))


def _autocorrelation(step_s: Floats) -> Floats:
    """Returns the autocorrelation by lag, from 0 to half the length; empty for a constant
    series."""
    steps = len(step_s)
    lags = steps // 2 + 1
    centred = step_s - step_s.mean()
    size = 1 << (2 * steps - 1).bit_length()
    spectrum = np.fft.rfft(centred, size)
    covariance = np.fft.irfft(spectrum * np.conj(spectrum), size)[:lags]
    if covariance[0] <= (1e-9 * abs(float(step_s.mean()))) ** 2 * steps:
        return np.concatenate((np.ones(1), np.zeros(lags - 1)))
    found: Floats = covariance / covariance[0]
    return found


def _effective_count(steps: int, correlation: Floats) -> float:
    """Returns the effective number of steps, from the leading positive autocorrelations; at least
    one."""
    below = np.flatnonzero(correlation[1:] <= 0)
    leading = correlation[1:] if not len(below) else correlation[1 : 1 + below[0]]
    return max(1.0, steps / (1 + 2 * float(leading.sum())))


def growth_by_phase(table: StepTable, onset_step: int) -> dict[Phase, float]:
    """Returns how many seconds longer each phase takes from a step on, as a mean over ranks and
    steps."""
    later = table.numbers >= onset_step
    grown = {}
    for phase in Phase:
        phase_s = table.phase(phase)
        before_s, after_s = _mean(phase_s[:, ~later]), _mean(phase_s[:, later])
        if before_s is not None and after_s is not None:
            grown[phase] = after_s - before_s
    return grown


def _mean(phase_s: Floats) -> float | None:
    known = phase_s[np.isfinite(phase_s)]
    return float(known.mean()) if len(known) else None
