"""Host bound: the GPU's queue runs dry because the host cannot launch work fast enough.

On the clock compute "dominates", but the GPU's phases are stretched by gaps between small kernels.
Needs the GPU's own clock and a look at its queue; silent where most of the step is not compute, and
where the GPU's counters say that it was busy all the same, or idle for want of input. How much
could be won is said only where those counters were read often enough while steps ran.
"""

from __future__ import annotations

from traceml.diagnose import advice
from traceml.diagnose.rule import GPU_IDLE, CodeScope, Doc, Remedy, Rule, Turn, Where, lost
from traceml.facts.facts import Facts
from traceml.facts.times import StepTimes
from traceml.model.evidence import Evidence, as_number, as_share, as_words, in_ms
from traceml.model.finding import Finding, Kind, Section, Severity
from traceml.model.quantities import duration, percent

KIND = Kind.HOST_BOUND

DRY_SHARE = 0.80  # of the watched steps: a queue that runs dry now and then is no pattern
HOST_SHARE = 0.80  # of the GPU's step: a host that needs less time is not what it waits for
COMPUTE_SHARE = 0.50  # of the step: below, the GPU waits for something else than launches
LOW_UTILISATION = 0.50  # more than half of the GPU is unused
MIN_LOST_SHARE = 0.10  # of the step: with less to win, launching is not what holds the GPU up
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
    use = facts.gpu_use
    busy_share = use.busy_share
    lost_s = None if busy_share is None else _lost_s(times, busy_share)
    if lost_s is not None and lost_s < MIN_LOST_SHARE * times.step_s:
        return None
    low = busy_share is not None and busy_share < LOW_UTILISATION
    used = "" if busy_share is None else f"; the GPU was in use {percent(busy_share)} of the time"
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
        lost_s_per_step=lost_s,
        evidence=Evidence(
            as_share("queue_dry_share", dry_share),
            in_ms("host_ms", host_s),
            in_ms("step_time_ms", times.step_s),
            as_share("gpu_utilisation", busy_share),
            as_number("gpu_samples", use.samples),
            as_words("diagnosis_clock", facts.clock),
        ),
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


def _lost_s(times: StepTimes, busy_share: float) -> float:
    """Returns the GPU's idle time per step, without waiting for input and copies.

    At most the phases of compute: this finding is about the gaps in them.
    """
    idle_s = (1 - busy_share) * (times.step_s or 0.0)
    elsewhere_s = (times.input_s or 0.0) + (times.h2d_s or 0.0)
    return max(0.0, min(idle_s - elsewhere_s, times.compute_at_least_s or 0.0))


RULE = Rule(
    kind=KIND,
    section=Section.STEP_TIME,
    check=check,
    explains=GPU_IDLE,
    where=Where.ON_THE_HOST,
    turn=Turn.GPU_IDLE,
    what_if=Remedy("with a GPU that is always in use", lost),
    code=CodeScope.WHOLE_STEP,
    doc=Doc(
        severities="info, warn, crit",
        says="the GPU waits for the host to launch its work",
        text="""
*Meaning.* The GPU's queue runs dry: the host cannot launch work as fast as the GPU does it. On
the clock compute fills the step, but its phases are stretched by gaps between small kernels.

*Evidence.* `queue_dry_share` (steps in which the GPU had caught up when the optimizer's work was
queued), `host_ms` (the body on the host's clock, without waiting for the device), `step_time_ms`,
`gpu_utilisation` and `gpu_samples` ([how it is measured](#gpu-counters); not known where too few
samples were taken while steps ran), `diagnosis_clock`.

*Thresholds.* The queue was dry in 80 % of the watched steps, the host needs 80 % of the GPU's
step or more, and compute is at least 50 % of it. Critical where the GPU was in use less than 50 %
of the time and a step takes 3 ms or more. What could be won is the time in which the GPU had no
kernel, without what it waited for input and copies, and never more than the phases of compute
hold; where that is known and less than 10 % of the step, there is no finding.

What it costs is the GPU's idle time, less what other findings explain of that already.

*What to do.* `torch.compile(mode='reduce-overhead')` or CUDA graphs, a larger batch, fused or
foreach optimizers, less Python inside the model; only what is not on already.

*Silent* without the GPU's own clock or a look at its queue.
""",
    ),
)
