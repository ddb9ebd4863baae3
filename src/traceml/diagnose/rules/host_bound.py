"""Host bound: the GPU's queue runs dry because the host cannot launch work fast enough.

On the clock compute "dominates", but the GPU's phases are stretched by gaps between small kernels.
Needs the GPU's own clock and a look at its queue; silent where most of the step is not compute.
"""

from __future__ import annotations

from traceml.diagnose import advice
from traceml.facts.facts import Facts
from traceml.model.finding import Finding, Kind, Section, Severity
from traceml.model.quantities import duration, percent

KIND = Kind.HOST_BOUND

DRY_SHARE = 0.80  # of the watched steps: a queue that runs dry now and then is no pattern
HOST_SHARE = 0.80  # of the GPU's step: a host that needs less time is not what it waits for
COMPUTE_SHARE = 0.50  # of the step: below, the GPU waits for something else than launches
LOW_UTILISATION = 0.50  # more than half of the GPU is unused
CRITICAL_STEP_S = 0.003  # a shorter step is a toy, for which nobody needs the GPU


def check(facts: Facts) -> Finding | None:
    """Fires when launching takes the host as long as the GPU's whole step."""
    times, dry_share = facts.mean, facts.queue_dry_share
    if facts.clock != "gpu" or dry_share is None or dry_share < DRY_SHARE:
        return None
    if times.cpu_body_s is None or not times.step_s or times.compute_at_least_s is None:
        return None
    host_s = times.cpu_body_s - (times.sync_s or 0.0)
    if host_s < HOST_SHARE * times.step_s:
        return None
    if times.compute_at_least_s < COMPUTE_SHARE * times.step_s:
        return None
    utilisation = _utilisation(facts)
    low = utilisation is not None and utilisation < LOW_UTILISATION
    used = "" if utilisation is None else f"; the GPU was in use {percent(utilisation)} of the time"
    return Finding(
        kind=KIND,
        section=Section.STEP_TIME,
        severity=(
            Severity.CRITICAL if low and times.step_s >= CRITICAL_STEP_S else Severity.WARNING
        ),
        claim=(
            f"The GPU waits for the host to launch its work: its queue was empty in "
            f"{percent(dry_share)} of the steps, and the host needs {duration(host_s)} for a step "
            f"of {duration(times.step_s)}{used}."
        ),
        action=_next_step(facts),
        share=host_s / times.step_s,
        ranks=tuple(rank.rank.rank for rank in facts.ranks_used),
        lost_s_per_step=None if utilisation is None else (1 - utilisation) * times.step_s,
        evidence={
            "queue_dry_share": dry_share,
            "host_ms": host_s * 1e3,
            "step_time_ms": times.step_s * 1e3,
            "gpu_utilisation": utilisation,
            "diagnosis_clock": facts.clock,
        },
    )


def _next_step(facts: Facts) -> str:
    options = advice.listed(
        (
            advice.cuda_graphs(facts.settings),
            advice.fused_optimizer(facts.settings),
            advice.larger_batch(facts),
        )
    )
    fewer = f"Launch fewer and larger kernels: {options}; keep" if options else "Keep"
    return f"{fewer} Python work out of the model and the loop."


def _utilisation(facts: Facts) -> float | None:
    """The mean over the run's GPUs; `None` where they cannot be told from those of others."""
    known = [gpu.utilisation.mean for gpu in facts.gpus_used or ()]
    means = [mean for mean in known if mean is not None]
    return sum(means) / len(means) if means else None
