"""Host sync: the host waits for the device, and the device then waits for the host.

*Meaning.* `.item()`, `.cpu()` or a printed tensor makes the host wait for the device, and then
the device has nothing to do until the host has launched the next work.

*Evidence.* `lost_ms`, `host_ms`, `step_time_ms`, `steps_with` of `steps_seen`, `longest_ms`,
`launching_ms` (what the GPU idled besides, while the host launched work), `diagnosis_clock`. The
claim says how often the host waited per step where that was counted.

*Thresholds.* 10 % of the step warns from 1 ms per step on, 20 % is critical from 3 ms on. Counted
is the [idle time](explanation.md#every-idle-gap-of-the-gpu-has-one-cause) that follows a wait, up
to the length of the wait and 0.1 ms for each read; inside the model's phases those 0.1 ms alone.
A GPU that waits for a batch waits for the input, whatever the host read before.

Records without that account: what the rest of the step holds and working ahead would have saved
(the step less the host's own work or the GPU's, whichever takes longer), or 0.1 ms for each read.
From 20 reads a step on, where the queue is dry in 50 % of the steps and the rest has less than
10 µs for each of them, also inside the model's phases. It leads [HOST_BOUND](#host_bound)
where it holds half of what that costs.

*What to do.* Read values every so many steps; keep the loss as a detached tensor; copy with
`non_blocking=True` from pinned memory.

*Silent* where the GPU stays busy (waiting for work that has to be done anyway costs nothing), and
without the GPU's own clock.
"""

from __future__ import annotations

from dataclasses import replace

from traceml.diagnose.host_time import MANY_SYNCS, HostWork, finding_of, host_cause, spent_on
from traceml.diagnose.rule import CodeScope, Doc, Remedy, Symptom, Turn
from traceml.diagnose.thresholds import Threshold
from traceml.diagnose.what_if import evidence_s
from traceml.facts.facts import Facts
from traceml.facts.job import Job
from traceml.model.evidence import Evidence, in_ms
from traceml.model.finding import Finding, Kind
from traceml.model.quantities import duration

KIND = Kind.HOST_SYNC
WORDS = "waiting for the device"

WARN = Threshold(0.10, 0.001)  # reading one value leaves a small gap in any loop
MIN_NAMED_SYNCS = 1.5  # per step: how often is worth saying where it is more than once


def host_work(facts: Facts) -> HostWork | None:
    """Returns what waiting for the device cost per step; `None` on the host's clock."""
    spent = spent_on(facts, "sync") if facts.clock == "gpu" else None
    if spent is None:
        return None
    return HostWork(
        words=WORDS,
        spent=spent,
        detail=(
            f"the host waited in {spent.steps}, {_often(facts)}{duration(spent.host_s)} per step, "
            "and the GPU is idle until it has launched the next work"
        ),
        action=(
            f"{_loop(facts)}"
            "Move .item(), .cpu(), .tolist() and printed tensors out of the step, or do them "
            "every so many steps: keep the loss as a detached tensor and read it when you log it; "
            f"copy with non_blocking=True{_pinning(facts)}.{_scaler(facts)}"
        ),
    )


def _pinning(facts: Facts) -> str:
    return "" if facts.loader.pinned else " from pinned memory"


def _scaler(facts: Facts) -> str:
    """Explains that a GradScaler checks in every step, on the host, whether the gradients are
    finite."""
    if not facts.settings.has_grad_scaler:
        return ""
    return " The GradScaler waits once per step as well: bfloat16 needs none."


def _often(facts: Facts) -> str:
    """Returns in words how often the host waited, if more than once per step."""
    syncs = facts.syncs_per_step
    return "" if syncs is None or syncs < MIN_NAMED_SYNCS else f"{syncs:,.0f} times and "


def _loop(facts: Facts) -> str:
    """Returns what to do first about a loop that reads many values."""
    if (facts.syncs_per_step or 0.0) < MANY_SYNCS:
        return ""
    return (
        "So many reads look like a loop over parameters or samples: combine the values on the "
        "device and read the result once, as in torch.stack(values).sum().item(). "
    )


def check(facts: Facts) -> Finding | None:
    """Fires when synchronising leaves the GPU without work for a noticeable share of the step."""
    finding, idle = finding_of(host_work(facts), facts, KIND, WARN), facts.gpu_idle
    if finding is None or idle is None:
        return finding
    launching = in_ms("launching_ms", idle.launching_s)
    return replace(finding, evidence=Evidence(*finding.evidence.pieces, launching))


def _without_waits(job: Job, finding: Finding) -> float:
    """Returns the saving of a host that never waits: what the waits cost, or what it gains by
    working ahead."""
    ahead_s = job.saved_by_working_ahead_s(evidence_s(finding, "launching_ms"))
    return max(finding.lost_s_per_step or 0.0, ahead_s or 0.0)


RULE = host_cause(
    KIND,
    check,
    host_work,
    turn=Turn.HOST_WAITED,
    what_if=Remedy("without waiting for the device", _without_waits, frees_host=lambda *_: True),
    code=CodeScope.REST,
    doc=Doc(
        "info, warn, crit",
        "waiting for the device leaves it without work",
        __doc__,
        symptoms=(Symptom.IDLE_GPU,),
    ),
)
