"""Copy bound: the step's time goes into copying data to the device.

*Meaning.* Part of the step goes into copying data from the host to the device.

*Evidence.* `h2d_share`, `h2d_ms`, `step_time_ms`, `launching_ms` (what the GPU idled besides, while
the host launched work), `pinned` (whether the loader pins its batches), `diagnosis_clock`.

*Thresholds.* A share of 10 % warns from 1 ms on, 20 % is critical from 3 ms on. Where they are
the largest part of a shorter step it is a remark.

*What to do.* `pin_memory=True` and `non_blocking=True`; where batches are pinned already, copy
them ahead of the step on a stream of their own. Then copy less: smaller types, and data that
every step uses kept on the device.

*Silent* when no copy was seen, as on a CPU, or where all of them run beside the step on a CUDA
stream of their own.
"""

from __future__ import annotations

from traceml.diagnose.one_off_stalls import few_steps_of, stalled
from traceml.diagnose.rule import GPU_IDLE, Doc, Remedy, Rule, Symptom, Turn
from traceml.diagnose.thresholds import Threshold, severity_of
from traceml.diagnose.time_account import is_largest
from traceml.diagnose.what_if import evidence_s, without_phase
from traceml.facts.facts import Facts, share
from traceml.facts.job import Job
from traceml.model.evidence import Evidence, as_share, as_words, in_ms
from traceml.model.finding import Finding, Kind, Section
from traceml.model.phase import Phase
from traceml.model.quantities import duration, percent

KIND = Kind.H2D_BOUND

WARN = Threshold(0.10, 0.001)  # a smaller share, or less than a millisecond, is what copying costs
CRITICAL = Threshold(0.20, 0.003)  # a fifth of the step, and enough to see in a progress bar
MAX_OTHER_WAITS_S = 0.0001  # per step: a host that also waits elsewhere cannot work ahead


def check(facts: Facts) -> Finding | None:
    """Fires when cheaper copies would shorten the step noticeably."""
    copy_s, step_s = facts.mean_s(Phase.H2D), facts.mean.step_s
    if copy_s is None or not step_s:
        return None
    found = severity_of(copy_s, step_s, WARN, (CRITICAL,), is_largest(facts, Phase.H2D))
    if found is None:
        return None
    finding = Finding(
        kind=KIND,
        section=Section.STEP_TIME,
        severity=found,
        claim=(
            f"Copies to the device take {percent(copy_s / step_s)} of a mean step "
            f"({duration(copy_s)} of {duration(step_s)})."
        ),
        action=_next_step(facts),
        phase=Phase.H2D,
        share=copy_s / step_s,
        ranks=tuple(
            rank.rank.rank
            for rank in facts.ranks_used
            if (share(rank.times.phase(Phase.H2D), rank.times.step_s) or 0.0) >= WARN.share
        ),
        lost_s_per_step=copy_s,
        evidence=Evidence(
            as_share("h2d_share", copy_s / step_s),
            in_ms("h2d_ms", copy_s),
            in_ms("step_time_ms", step_s),
            in_ms("launching_ms", None if facts.gpu_idle is None else facts.gpu_idle.launching_s),
            as_words(
                "pinned", None if facts.loader.pinned is None else str(facts.loader.pinned).lower()
            ),
            as_words("diagnosis_clock", facts.clock),
        ),
    )
    few = few_steps_of(facts, Phase.H2D)
    return stalled(finding, few, WARN, "in copies to the device") or finding


def _next_step(facts: Facts) -> str:
    less = (
        "copy less: smaller types (uint8 images, converted on the device), and data that every "
        "step uses kept on the device"
    )
    if facts.loader.pinned:
        return (
            "The loader pins its batches already: copy them with non_blocking=True and ahead of "
            f"the step, on a stream of their own; then {less}."
        )
    reason = (
        "The loader does not pin its batches: "
        if facts.loader.pinned is False
        else "Where batches are not pinned: "
    )
    return f"{reason}set pin_memory=True and copy with non_blocking=True; then {less}."


def _frees_host(job: Job, _: Finding) -> bool:
    """Returns whether nothing but copies makes the host wait."""
    return job.host_waits_s() <= MAX_OTHER_WAITS_S


def _without_copies(job: Job, finding: Finding) -> float:
    """Saves the copies; and where nothing else makes the host wait, it then works ahead."""
    saved_s = without_phase(Phase.H2D)(job, finding)
    if not _frees_host(job, finding):
        return saved_s
    ahead_s = job.saved_by_working_ahead_s(evidence_s(finding, "launching_ms"), copies_too=True)
    return max(saved_s, ahead_s or 0.0)


RULE = Rule(
    kind=KIND,
    section=Section.STEP_TIME,
    check=check,
    explains=GPU_IDLE,
    yields_to=(Kind.H2D_STRAGGLER, Kind.STRAGGLER),
    turn=Turn.PHASE,
    what_if=Remedy("without the copies", _without_copies, frees_host=_frees_host),
    measure=lambda facts, _: facts.mean_share(Phase.H2D),
    doc=Doc(
        "info, warn, crit",
        "the step's time goes into copies to the device",
        __doc__,
        symptoms=(Symptom.IDLE_GPU,),
    ),
)
