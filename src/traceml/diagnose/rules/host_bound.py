"""Host bound: the GPU's queue runs dry because the host cannot launch work fast enough.

*Meaning.* The GPU's queue runs dry: the host cannot launch work as fast as the GPU does it. On
the clock compute fills the step, but its phases are stretched by gaps between small kernels.

*Evidence.* `queue_dry_share` (steps in which the GPU had caught up when the optimizer's work was
queued), `host_ms` (the body on the host's clock, without waiting for the device), `step_time_ms`,
`gpu_utilisation`, `sm_share` and `gpu_samples` ([how they are measured](#gpu-counters); not known
where too few samples were taken while steps ran), `launching_ms` (of the [account of the GPU's idle
time](explanation.md#every-idle-gap-of-the-gpu-has-one-cause)), `not_predicted` (why there is no
predicted step time), `diagnosis_clock`. With the deep profile `gpu_busy_ms` (how long the GPU
worked in a step, by its own record of every kernel) and `recorded_steps`.

*Thresholds.* The queue was dry in 80 % of the watched steps, the host needs 80 % of the GPU's
step or more, and compute is at least 50 % of it. Critical where the GPU was in use less than 50 %
of the time and a step takes 3 ms or more. What it costs is the time in which the GPU had no
kernel, less what it was idle for any other cause, and never more than the time for which it had
caught up with the host while that launched work; where that is known and less than 10 % of the
step, there is no finding. Two steps or more whose kernels the deep profile recorded say exactly how
long the GPU works in a step; then that counts, beside the time of the steps that were not recorded,
and not the GPU's counters.

A step time is predicted only where it is known to 15 %; from recorded kernels it is. The counters
take a GPU between two small kernels for one in use, so a step without gaps may be shorter than they
say by the time in which the GPU was in use and its multiprocessors were not. Where that is more
than 15 % of such a step, `not_predicted` says so instead; kernels that are launched together, or
fused, may then save far more than `launching_ms`.

*What to do.* `torch.compile(mode='reduce-overhead')` or CUDA graphs, a larger batch, fused or
foreach optimizers, less Python inside the model; only what is not on already.

*Silent* without the GPU's own clock or a look at its queue.
"""

from __future__ import annotations

from traceml.diagnose import settings_advice
from traceml.diagnose.rule import GPU_IDLE, CodeScope, Doc, Remedy, Rule, Symptom, Turn, Where
from traceml.facts.facts import Facts
from traceml.facts.gpu_idle import RecordedBusy, idle_in_compute_s
from traceml.facts.gpu_use import GpuUse
from traceml.facts.job import Job
from traceml.model.evidence import Evidence, as_number, as_share, as_words, in_ms
from traceml.model.finding import Finding, Kind, Section, Severity
from traceml.model.quantities import count, duration, percent

KIND = Kind.HOST_BOUND

DRY_SHARE = 0.80  # of the watched steps: a queue that runs dry now and then is no pattern
HOST_SHARE = 0.80  # of the GPU's step: a host that needs less time is not what it waits for
COMPUTE_SHARE = 0.50  # of the step: below, the GPU waits for something else than launches
LOW_UTILISATION = 0.50  # more than half of the GPU is unused
MIN_LOST_SHARE = 0.10  # of the step: with less to win, launching is not what holds the GPU up
CRITICAL_STEP_S = 0.003  # a shorter step is a toy, for which nobody needs the GPU
MAX_PREDICTION_ERROR = 0.15  # of the step: a number that may be further off is none


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
    use, recorded = facts.gpu_use, facts.recorded_busy
    busy_share = use.busy_share if recorded is None else recorded.busy_s / times.step_s
    lost_s = _lost_s(facts)
    at_most_s = lost_s
    if lost_s is None and facts.gpu_idle is not None:
        at_most_s = facts.gpu_idle.launching_at_most_s
    if at_most_s is not None and at_most_s < MIN_LOST_SHARE * times.step_s:
        return None
    low = busy_share is not None and busy_share < LOW_UTILISATION
    unknown = None
    if recorded is None:
        unknown = _why_not_predicted(use, times.step_s, lost_s or 0.0)
    return Finding(
        kind=KIND,
        section=Section.STEP_TIME,
        severity=(
            Severity.CRITICAL if low and times.step_s >= CRITICAL_STEP_S else Severity.WARNING
        ),
        claim=(
            f"The GPU waits for the host to launch its work: its queue was empty in "
            f"{percent(dry_share)} of the steps, and the host needs {duration(host_s)} for a step "
            f"of {duration(times.step_s)}{_worked(recorded) or _used(use)}.{_said(unknown)}"
        ),
        action=_next_step(facts),
        share=host_s / times.step_s,
        ranks=tuple(rank.rank.rank for rank in facts.ranks_used),
        lost_s_per_step=lost_s,
        evidence=Evidence(
            as_share("queue_dry_share", dry_share),
            in_ms("host_ms", host_s),
            in_ms("step_time_ms", times.step_s),
            as_share("gpu_utilisation", use.busy_share),
            as_share("sm_share", use.sm_share),
            as_number("gpu_samples", use.samples),
            in_ms("launching_ms", None if facts.gpu_idle is None else lost_s),
            in_ms("gpu_busy_ms", None if recorded is None else recorded.busy_s),
            as_number("recorded_steps", None if recorded is None else recorded.steps),
            as_words("not_predicted", unknown),
            as_words("diagnosis_clock", facts.clock),
        ),
    )


def _next_step(facts: Facts) -> str:
    options = settings_advice.listed(
        (
            settings_advice.cuda_graphs(facts.settings),
            settings_advice.fused_optimizer(facts.settings),
            settings_advice.larger_batch(facts),
        )
    )
    fewer = f"Launch fewer and larger kernels: {options}; keep" if options else "Keep"
    return f"{fewer} Python work out of the model and the loop."


def _worked(recorded: RecordedBusy | None) -> str:
    """Returns in words how long the GPU worked; empty where its kernels were not recorded."""
    if recorded is None:
        return ""
    return (
        f"; its kernels run for {duration(recorded.busy_s)} of that, as the GPU recorded in "
        f"{count(recorded.steps, 'step')}"
    )


def _used(use: GpuUse) -> str:
    """Returns in words how much of the GPU was in use."""
    if use.busy_share is None:
        return ""
    sms = "" if use.sm_share is None else f", its multiprocessors {percent(use.sm_share)}"
    return f"; the GPU was in use {percent(use.busy_share)} of the time{sms}"


def _said(unknown: str | None) -> str:
    return "" if unknown is None else f" How short a step could be is not known: {unknown}."


def _lost_s(facts: Facts) -> float | None:
    """Returns the GPU's idle time per step while the host launched work; `None`: not known.

    Without an account of its idle time, that is all idle time but for input and copies, and at most
    the phases of compute: this finding is about the gaps in them.
    """
    if facts.gpu_idle is not None:
        return facts.gpu_idle.launching_s
    times = facts.mean
    idle_s = idle_in_compute_s(times, facts.gpu_use.busy_share, facts.recorded_busy)
    return None if idle_s is None else min(idle_s, times.compute_at_least_s or 0.0)


def _why_not_predicted(use: GpuUse, step_s: float, lost_s: float) -> str | None:
    """Returns why no step time is predicted; `None` where one is.

    Without gaps a step takes at most what it takes less the idle time that the counters saw. It may
    take less by the time in which the GPU was in use but its multiprocessors were not: gaps between
    small kernels are in there. Where that is a large part of such a step, nobody knows.
    """
    if use.busy_share is None:
        return "the GPU's use was not measured"
    if use.sm_share is None:
        return "this GPU does not report how busy it was while it was in use"
    at_most_s = step_s - lost_s
    doubtful_s = max(0.0, use.busy_share - use.sm_share) * step_s
    if doubtful_s <= MAX_PREDICTION_ERROR * (at_most_s - doubtful_s):
        return None
    return (
        f"up to {duration(min(doubtful_s, at_most_s))} of what is left are gaps between small "
        "kernels too, which the GPU's counters take for work"
    )


def _without_gaps(job: Job, finding: Finding) -> float | None:
    """Returns the GPU's idle time, if a step without it is known well enough."""
    return None if finding.evidence.get("not_predicted") else finding.lost_s_per_step


def _is_at_least(finding: Finding) -> bool:
    """Returns whether there may be more gaps: the counters take short ones for work."""
    return finding.evidence.get("gpu_busy_ms") is None


RULE = Rule(
    kind=KIND,
    section=Section.STEP_TIME,
    check=check,
    explains=GPU_IDLE,
    where=Where.ON_THE_HOST,
    turn=Turn.GPU_IDLE,
    what_if=Remedy("with a GPU that is always in use", _without_gaps, saves_at_least=_is_at_least),
    code=CodeScope.WHOLE_STEP,
    doc=Doc(
        "info, warn, crit",
        "the GPU waits for the host to launch its work",
        __doc__,
        symptoms=(Symptom.IDLE_GPU,),
    ),
)
