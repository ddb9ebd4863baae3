"""Whether `compare` is as sure as it says: false verdicts, coverage and power on known truths.

Synthetic runs: each has a speed of its own (the run-to-run spread), and steps that hang together,
drift, stall now and then or come in bursts around it. What is asked is the comparison itself, from
summaries to verdict.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from benchmarks.figure import Figure
from traceml.compare.allowance import learn
from traceml.compare.pair import compare_groups
from traceml.compare.terms import EarlierSpread, Terms
from traceml.facts.series import describe_series
from traceml.summaries.record import (
    PRODUCER,
    Global,
    Producer,
    SectionSummary,
    StepSeries,
    Summary,
)

Floats = npt.NDArray[np.float64]

STEPS = 500
STEP_MS = 100.0
RUN_SPREADS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.2)
TRIALS = 4000
"""Of a share of 5 % they leave an interval of 4.4 to 5.7 %."""
DECIDED = ("IMPROVEMENT", "REGRESSION", "MIXED")
NO_CHANGE = "NO CHANGE"
MISSED = 1.02
"""A true change of twice the tolerance: to call it none would be wrong."""
INPUT_MS = 20.0
"""Of a step, where phases are told apart."""
MENDED = 0.1
"""What is left of the input wait once somebody has mended it."""
EARLIER_RUNS = 9
CURVE_TRIALS = 1000

_random = np.random.default_rng(20_261_115)


# Step series around a mean of one


def independent(steps: int) -> Floats:
    """Plain noise."""
    noise: Floats = 1 + 0.05 * _random.standard_normal(steps)
    return noise


def dependent(correlation: float) -> Callable[[int], Floats]:
    """Each step like the one before."""

    def series(steps: int) -> Floats:
        shocks = _random.standard_normal(steps) * math.sqrt(1 - correlation**2)
        shocks[0] = _random.standard_normal()
        return 1 + 0.05 * _smoothed(shocks, correlation)

    return series


def _smoothed(shocks: Floats, correlation: float) -> Floats:
    found = np.empty_like(shocks)
    last = 0.0
    for place, shock in enumerate(shocks):
        last = correlation * last + shock
        found[place] = last
    return found


def heavy_tailed(steps: int) -> Floats:
    """Mostly short steps, a few very long ones."""
    sigma = 0.5
    found: Floats = np.exp(sigma * _random.standard_normal(steps) - sigma**2 / 2)
    return found


def bursty(steps: int) -> Floats:
    """Quiet stretches, and stretches of steps that take half as long again."""
    found = np.empty(steps)
    slow = _random.random() < 0.2
    for place in range(steps):
        slow = _random.random() < (0.9 if slow else 0.025)
        found[place] = (1.5 if slow else 1.0) / 1.1
    return found * (1 + 0.02 * _random.standard_normal(steps))


def drifting(steps: int) -> Floats:
    """Slower and slower, by as much as a tenth: no stationary series."""
    trend = np.linspace(-0.05, 0.05, steps) * _random.random()
    found: Floats = 1 + trend + 0.05 * _random.standard_normal(steps)
    return found


STATIONARY: dict[str, Callable[[int], Floats]] = {
    "independent": independent,
    "correlated 0.5": dependent(0.5),
    "correlated 0.9": dependent(0.9),
    "correlated 0.98": dependent(0.98),
    "heavy-tailed": heavy_tailed,
    "bursty": bursty,
}
SERIES = {
    "correlated 0.9": STATIONARY["correlated 0.9"],
    "drifting": drifting,
    "heavy-tailed": heavy_tailed,
    "bursty": bursty,
}


# Runs


@dataclass(frozen=True, slots=True)
class Noise:
    """What a run is made of: its steps, and how far its own speed is off."""

    series: Callable[[int], Floats]
    run_spread: float
    steps: int = STEPS


def make_run(noise: Noise, ratio: float = 1.0) -> Summary:
    """One run's summary, `ratio` times as slow as the others on average."""
    speed = ratio * math.exp(noise.run_spread * _random.standard_normal())
    step_ms = STEP_MS * speed * noise.series(noise.steps)
    found = describe_series(step_ms)
    return Summary(
        producer=Producer(PRODUCER),
        step_time=SectionSummary(global_=Global(average={"step_time_ms": float(step_ms.mean())})),
        steps=StepSeries(
            count=found.count,
            stdev_ms=found.stdev_s,
            effective_count=found.effective_count,
            block_steps=found.block_steps,
            block_means_ms=found.block_means_s,
        ),
    )


def make_phased_run(noise: Noise, input_ratio: float = 1.0) -> Summary:
    """A run whose steps wait for input and compute, each with a noise of its own."""
    speed = math.exp(noise.run_spread * _random.standard_normal())
    parts_ms = {
        "input": INPUT_MS * input_ratio * speed * noise.series(noise.steps),
        "forward": (STEP_MS - INPUT_MS) * speed * noise.series(noise.steps),
    }
    blocks = {name: describe_series(part_ms).block_means_s for name, part_ms in parts_ms.items()}
    average = {f"{name}_ms": float(part_ms.mean()) for name, part_ms in parts_ms.items()}
    step_ms = sum(average.values())
    average = {"step_time_ms": step_ms, "input_wait_ms": average.pop("input_ms"), **average}
    totals = tuple(map(sum, zip(*blocks.values(), strict=True)))
    return Summary(
        producer=Producer(PRODUCER),
        step_time=SectionSummary(global_=Global(average=dict(average))),
        steps=StepSeries(
            count=noise.steps, block_means_ms=totals, part_block_means_ms=dict(blocks)
        ),
    )


def judged(
    noise: Noise, runs: int, ratio: float = 1.0, terms: Terms | None = None
) -> tuple[str, tuple[float, float] | None]:
    """The verdict on so many runs per side, and the interval of the ratio."""
    a = [make_run(noise) for _ in range(runs)]
    b = [make_run(noise, ratio) for _ in range(runs)]
    verdict = compare_groups(a, b, ("a", "b"), terms).verdict
    return verdict.status, verdict.ratio_interval


def decided_share(
    noise: Noise, runs: int, ratio: float = 1.0, trials: int = TRIALS, terms: Terms | None = None
) -> float:
    """How often the comparison says that something changed."""
    return sum(judged(noise, runs, ratio, terms)[0] in DECIDED for _ in range(trials)) / trials


def missed_share(noise: Noise, runs: int, trials: int = TRIALS) -> float:
    """How often a true change of +2 % is called none."""
    return sum(judged(noise, runs, MISSED)[0] == NO_CHANGE for _ in range(trials)) / trials


def coverage(noise: Noise, runs: int, trials: int = TRIALS) -> float:
    """How often the interval holds the truth, which is one."""
    held = 0
    for _ in range(trials):
        interval = judged(noise, runs)[1]
        held += interval is not None and interval[0] <= 1 <= interval[1]
    return held / trials


def difference_coverage(
    noise: Noise, runs: int, metric: str, input_ratio: float, trials: int = TRIALS
) -> float:
    """How often a metric's own interval holds the true difference once input was mended so."""
    truth_ms = INPUT_MS * (input_ratio - 1)
    held = 0
    for _ in range(trials):
        a = [make_phased_run(noise) for _ in range(runs)]
        b = [make_phased_run(noise, input_ratio) for _ in range(runs)]
        found = compare_groups(a, b, ("a", "b")).sections["step_time"].metrics[metric].interval
        held += found is not None and found[0] <= truth_ms <= found[1]
    return held / trials


# Figures


def run() -> list[Figure]:
    """Everything, a line each; a few minutes."""
    return [
        *_coverage(),
        *_false_verdicts(),
        *_missed(),
        *_one_run_curve(),
        *_power(),
        *_difference_coverage(),
    ]


def _coverage() -> list[Figure]:
    """Of the intervals: from the steps of one run per side, and from several runs."""
    asked = {
        f"interval of one run per side, {name} steps: coverage": (Noise(series, 0.0), 1)
        for name, series in STATIONARY.items()
    } | {
        f"interval of {runs} + {runs} runs: coverage": (Noise(independent, 0.01, 64), runs)
        for runs in (3, 5, 10)
    }
    return [
        _share(what, "93–97 %", coverage(noise, runs), TRIALS)
        for what, (noise, runs) in asked.items()
    ]


def _difference_coverage() -> list[Figure]:
    """Of the table's intervals, after a change so large that they are not those of the ratio."""
    asked = {
        f"{kind} of one run per side, input to a tenth, {name} steps": (
            Noise(series, 0.0),
            1,
            metric,
        )
        for name, series in (
            ("independent", independent),
            ("correlated 0.9", STATIONARY["correlated 0.9"]),
            ("bursty", bursty),
        )
        for kind, metric in (("phase", "input_wait_ms"), ("step", "step_time_ms"))
    } | {
        f"{kind} of 3 + 3 runs, input to a tenth": (Noise(independent, 0.01, 64), 3, metric)
        for kind, metric in (("phase", "input_wait_ms"), ("step", "step_time_ms"))
    }
    return [
        _share(
            f"interval of the difference, {what}: coverage",
            "93–97 %",
            difference_coverage(noise, runs, metric, MENDED),
            TRIALS,
        )
        for what, (noise, runs, metric) in asked.items()
    ]


def _false_verdicts() -> list[Figure]:
    """The worst of all run spreads, for each kind of series."""
    return [
        _worst_of_spreads(
            f"false verdicts from 3 + 3 runs, {name} steps",
            [decided_share(Noise(series, spread, 128), 3) for spread in RUN_SPREADS],
            TRIALS,
        )
        for name, series in SERIES.items()
    ]


def _missed() -> list[Figure]:
    """Of NO CHANGE: how often it is said of a change."""
    series = STATIONARY["correlated 0.5"]
    return [
        _worst_of_spreads(
            f"+2 % called NO CHANGE from {runs} + {runs} runs",
            [missed_share(Noise(series, spread), runs, CURVE_TRIALS) for spread in RUN_SPREADS],
            CURVE_TRIALS,
        )
        for runs in (1, 3)
    ]


def _worst_of_spreads(what: str, shares: list[float], trials: int) -> Figure:
    note = f"mean of all spreads {100 * float(np.mean(shares)):.1f} %"
    worst = _share(f"{what}, worst of spreads 0.1 … 20 %", "≤ 5 %", max(shares), trials, note)
    return replace(worst, details=dict(zip(map(str, RUN_SPREADS), shares, strict=True)))


def _one_run_curve() -> list[Figure]:
    """What one run per side is worth: a figure for each run spread."""
    found = []
    for spread in (0.001, 0.003, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2):
        noise = Noise(STATIONARY["correlated 0.5"], spread)
        learned = sum(
            judged(noise, 1, terms=Terms(history=_history(noise)))[0] in DECIDED
            for _ in range(CURVE_TRIALS)
        )
        share = 100 * learned / CURVE_TRIALS
        note = f"with {EARLIER_RUNS} earlier runs of the command: {share:.1f} %"
        what = f"false verdicts from 1 + 1 runs, spread {100 * spread:g} %"
        decided = decided_share(noise, 1, trials=CURVE_TRIALS)
        found.append(_share(what, "shown", decided, CURVE_TRIALS, note))
    return found


def _history(noise: Noise) -> EarlierSpread | None:
    """What as many earlier runs, made like those compared, teach."""
    runs = [make_run(noise) for _ in range(EARLIER_RUNS)]
    return learn([[step_ms(run) for run in runs]])


def step_ms(run: Summary) -> float:
    """A run's mean step time."""
    found = run.step_time and run.step_time.global_.average.get("step_time_ms")
    if not found:
        raise RuntimeError("a run without a step time")
    return found


def _power() -> list[Figure]:
    quiet = Noise(lambda steps: 1 + 0.005 * _random.standard_normal(steps), 0.0005, 400)
    return [
        _share(
            "+1.16 % at run spread 0.05 %, from 3 + 3 runs: found",
            "found",
            decided_share(quiet, 3, 1.0116),
            TRIALS,
        ),
        _share(
            "+5 % at run spread 1 %, from 3 + 3 runs: found",
            "≥ 90 %",
            decided_share(Noise(independent, 0.01), 3, 1.05),
            TRIALS,
        ),
    ]


def _share(what: str, target: str, share: float, trials: int, note: str = "") -> Figure:
    """A share of trials, with the interval that so many trials leave (Wilson)."""
    low, high = wilson(share, trials)
    spread = f"95 % interval, {trials:,} trials"
    return Figure(what, target, 100 * share, "%", 100 * low, 100 * high, spread, note)


def wilson(share: float, trials: int) -> tuple[float, float]:
    """The interval of a share seen in so many trials."""
    z = 1.96
    middle = (share + z * z / (2 * trials)) / (1 + z * z / trials)
    reach = z / (1 + z * z / trials)
    reach *= math.sqrt(share * (1 - share) / trials + z * z / (4 * trials * trials))
    return max(0.0, middle - reach), min(1.0, middle + reach)
