"""Wait heavy: time that is neither the model's work nor a measured wait.

*Meaning.* Part of the step's body is neither copies to the device nor forward, backward, optimizer
or communication. On the GPU's clock it is the part of that in which the [GPU was
idle](explanation.md#every-idle-gap-of-the-gpu-has-one-cause); work of the GPU's outside the model's
phases (the loss, clipping, an EMA) is no loss, and only named. Records without that account have
both in one. Or a good part of the wall time passes between steps, and is neither evaluation nor a
checkpoint: outside `trace_step`, where a generator makes the next batch, say, or from an
evaluation's last batch to the next one for training. Then `phase` is `null`, and the share is one
of the wall time. Of the two the larger is told, and the other named.

*Evidence.* `wait_share`, `rest_ms`, `gpu_idle_ms` (of it), `unexplained_ms`, `main_part`,
`main_part_ms`, `device_wait_ms` (of the rest), `launching_ms` (what the GPU idled besides, while
the host launched work), `residual_ms`, `wait_ms`, `step_time_ms`, `diagnosis_clock`; between steps
`outside_share`, `outside_steps_ms`, `wall_step_ms`, `main_part`, `main_part_ms`.

*Thresholds.* A share of 10 % warns from 1 ms on: any Python loop costs up to that. 20 % is
critical from 3 ms on. A loop in which no fetch was seen may make its batches here: there those
20 % and 3 ms only warn, and beyond that it is judged by what is known of it, measured or named.
Where the rest is the largest part of a step too short for any of this, it is a remark. Between
steps 20 % of the wall time warns from 3 ms on, and is never critical: a script may mean to leave
it out.

*What to do.* What is inside is told apart where it can be seen: garbage collection, logging,
compiling, waiting for the device, the regions named with `traceml.trace_time`, and the [functions
and lines](explanation.md#which-line-takes-the-time) in which the training thread was seen
(`code_looks`, `code_1`, `code_1_share` with its 95 % interval …). The largest of them is named if
it is 30 % of the rest or more, and the action is the one for it. What nothing explains is said to
be unexplained: name a suspect with `traceml.trace_time`. What passes between steps is measured as
what it is where the batch is fetched inside `trace_step` or from a DataLoader.

*Silent* when a part of compute was not measured: that part would look like waiting.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from traceml.diagnose import outside_steps
from traceml.diagnose.all_rules import all_rules
from traceml.diagnose.host_time import idle_in_rest_s, waited_for
from traceml.diagnose.one_off_stalls import few_steps_of, stalled
from traceml.diagnose.rule import GPU_IDLE, CodeScope, Doc, Remedy, RestPart, Rule, Symptom, Turn
from traceml.diagnose.thresholds import Threshold, most_severe, severity_of
from traceml.diagnose.time_account import is_largest, outside_steps_s, unexplained_s
from traceml.diagnose.user_code import rest_parts
from traceml.diagnose.what_if import evidence_s
from traceml.facts.facts import Facts, share
from traceml.facts.job import Job
from traceml.model.evidence import Evidence, as_share, as_words, in_ms
from traceml.model.finding import Finding, Kind, Section, Severity
from traceml.model.phase import Phase
from traceml.model.quantities import duration, percent
from traceml.model.rank import REGIONS_OUTSIDE_STEPS

KIND = Kind.WAIT_HEAVY

WARN = Threshold(0.10, 0.001)  # zero_grad, the loss and a progress bar cost less in any Python loop
CRITICAL = Threshold(0.20, 0.003)  # a fifth of the step, and enough to see in a progress bar
WARN_WITHOUT_FETCHES = CRITICAL  # … and a loop without a DataLoader makes its batches besides
NEARLY_ALL = 0.90  # of the rest: what is left of it is not worth a word
MAIN_PART = 0.30  # of the rest: a smaller part is not the answer, and what is unknown may be
MIN_LEFT_SHARE = 0.01  # of the rest: less that is unexplained is not worth a word
MOSTLY_WAITING = 0.50  # of the rest: without that, the host works ahead of the GPU
LOOP_OVERHEAD_S = 0.0005  # zero_grad, the loss and a progress bar stay in any Python loop

NOTHING_KNOWN = RestPart("", 0.0, "")


def check(facts: Facts) -> Finding | None:
    """Fires when a noticeable part of the time is neither work nor a measured wait."""
    inside, outside = _inside(facts), outside_steps.finding_of(facts, KIND)
    if inside is None or outside is None:
        return inside or outside
    more, less = sorted((inside, outside), key=lambda one: -(one.lost_s_per_step or 0.0))
    return replace(more, claim=f"{more.claim} Besides: {less.claim}")


def _inside(facts: Facts) -> Finding | None:
    """Returns the unexplained time inside the steps; `None` where it is not known."""
    times = facts.mean
    whole_s = unexplained_s(times)
    if whole_s is None or not times.step_s:
        return None
    idle_s = idle_in_rest_s(facts)
    rest_s = whole_s if idle_s is None else idle_s
    worked_s = whole_s - rest_s
    measured = _measured(facts)
    measured_s = min(sum(part.mean_s for part in measured), rest_s)
    known = [*measured, *_regions(facts, rest_s)]
    found = _severity(facts, rest_s, max(measured_s, _main_part(known, rest_s).mean_s))
    if found is None:
        return _other_work(facts, worked_s)
    lines = rest_parts(facts, rest_s)
    main = _main_part([*known, *lines], rest_s)
    explained_s = max(measured_s, main.mean_s)
    if facts.gpu_idle is None:  # else what is left is said to be the script's code, as lines are
        explained_s = max(explained_s, min(sum(line.mean_s for line in lines), rest_s))
    finding = Finding(
        kind=KIND,
        section=Section.STEP_TIME,
        severity=found,
        claim=_claim(facts, rest_s, worked_s, main, explained_s),
        action=main.action or _next_step(facts),
        phase=Phase.RESIDUAL,
        share=rest_s / times.step_s,
        ranks=tuple(
            rank.rank.rank
            for rank in facts.ranks_used
            if (unexplained_s(rank.times) or 0.0) >= WARN.share * (rank.times.step_s or 0.0)
        ),
        lost_s_per_step=rest_s,
        evidence=Evidence(
            as_share("wait_share", rest_s / times.step_s),
            in_ms("rest_ms", whole_s),
            in_ms("gpu_idle_ms", idle_s),
            in_ms("unexplained_ms", rest_s - explained_s),
            in_ms("residual_ms", times.residual_with_communication_s or 0.0),
            in_ms("wait_ms", times.wait_s),
            in_ms("step_time_ms", times.step_s),
            in_ms("launching_ms", None if facts.gpu_idle is None else facts.gpu_idle.launching_s),
            in_ms("device_wait_ms", waited_for(facts)["sync"].in_rest_s or None),
            as_words("main_part", main.words or None),
            in_ms("main_part_ms", main.mean_s if main.words else None),
            as_words("diagnosis_clock", facts.clock),
        ),
    )
    few = few_steps_of(facts, Phase.RESIDUAL)
    return stalled(finding, few, WARN, _where(main, rest_s)) or finding


def _where(main: RestPart, rest_s: float) -> str:
    """Returns what the rest of a few steps is, in words."""
    if main.mean_s >= NEARLY_ALL * rest_s:
        return f"in {main.words}"
    outside = "outside data, copies and the model's work"
    part = f", {percent(main.mean_s / rest_s)} of that in {main.words}" if main.words else ""
    return f"{outside}{part}"


def _severity(facts: Facts, rest_s: float, known_s: float) -> Severity | None:
    """Returns the severity.

    A script without a DataLoader may make its batches in this time, which is work: that alone only
    warns, and from a higher threshold on.
    """
    step_s, largest = facts.mean.step_s or 0.0, is_largest(facts, Phase.RESIDUAL)
    if facts.mean.input_s is not None:
        return severity_of(rest_s, step_s, WARN, (CRITICAL,), largest)
    found = severity_of(rest_s, step_s, WARN_WITHOUT_FETCHES, (), largest)
    known = severity_of(known_s, step_s, WARN, (CRITICAL,))
    return most_severe(found, known)


def _other_work(facts: Facts, worked_s: float) -> Finding | None:
    """Returns a remark where work of the GPU's that is not the model's is the largest part of the
    step: that is no time lost, but nothing else says where it goes."""
    step_s = facts.mean.step_s or 0.0
    if worked_s < WARN.share * step_s or not is_largest(facts, Phase.RESIDUAL):
        return None
    return Finding(
        kind=KIND,
        section=Section.STEP_TIME,
        severity=Severity.INFO,
        claim=(
            f"{percent(worked_s / step_s)} of a mean step ({duration(worked_s)} of "
            f"{duration(step_s)}) is spent by the GPU on other work than forward, backward and "
            "optimizer."
        ),
        action=(
            "Look at what runs on the GPU besides the model: the loss, gradient clipping, metrics, "
            "an average of the weights; torch.profiler shows its kernels."
        ),
        phase=Phase.RESIDUAL,
        share=worked_s / step_s,
        ranks=tuple(rank.rank.rank for rank in facts.ranks_used),
        lost_s_per_step=0.0,
        evidence=Evidence(
            in_ms("rest_ms", facts.mean.residual_s),
            in_ms("gpu_idle_ms", idle_in_rest_s(facts)),
            in_ms("step_time_ms", step_s),
            as_words("diagnosis_clock", facts.clock),
        ),
    )


def _main_part(known: Sequence[RestPart], rest_s: float) -> RestPart:
    """Returns the largest known part, if it is large enough to explain the residual."""
    main = max(known, key=lambda part: part.mean_s, default=NOTHING_KNOWN)
    return main if main.mean_s and main.mean_s >= MAIN_PART * rest_s else NOTHING_KNOWN


def _measured(facts: Facts) -> list[RestPart]:
    """Returns the parts of the residual that other rules measure."""
    parts = (rule.part_of_rest(facts) for rule in all_rules().checks if rule.part_of_rest)
    return [part for part in parts if part is not None]


def _regions(facts: Facts, rest_s: float) -> list[RestPart]:
    """Returns the named regions that fit into the residual: a longer one contains phases, and one
    whose calls take longer than any step is not inside steps."""
    steps = max(1, facts.window.steps_taken * len(facts.ranks_used))
    longest_s = None if facts.step_table is None else facts.step_table.longest_body_s()
    return [
        RestPart(
            f"the region '{region.name}'",
            region.host_s / steps,
            f"Look into the region '{region.name}' first "
            f"({duration(region.host_s / max(region.calls, 1))} a call): do it less often, or "
            "outside the step.",
        )
        for region in facts.regions
        if region.host_s / steps <= rest_s
        and (longest_s is None or region.host_s / max(region.calls, 1) <= longest_s)
        and region.name not in REGIONS_OUTSIDE_STEPS
    ]


def _claim(facts: Facts, rest_s: float, worked_s: float, main: RestPart, known_s: float) -> str:
    step_s = facts.mean.step_s or 0.0
    claim = (
        f"{percent(rest_s / step_s)} of a mean step ({duration(rest_s)} of {duration(step_s)}) "
        f"{_what(facts)}"
    )
    other = ""
    if worked_s >= MIN_LEFT_SHARE * step_s:
        other = f" For another {duration(worked_s)} the GPU did other work than the model's."
    left_share = max(0.0, 1 - known_s / rest_s)
    left = percent(left_share)
    if main.words:
        claim += f": {main.words} is {percent(main.mean_s / rest_s)} of it"
        unknown = "unexplained" if facts.gpu_idle is None else "the script's own code"
        claim += f", {left} is {unknown}" if left_share >= MIN_LEFT_SHARE else ""
    elif facts.gpu_idle is not None:
        claim += f": it ran the script's own code for {left} of it"
    elif facts.mean.input_s is not None:
        claim += f"; {left} of it is unexplained: no measurement covers it"
    if facts.mean.input_s is None:
        claim += "; this includes making batches, since no DataLoader was seen"
    return f"{claim}.{other}"


def _what(facts: Facts) -> str:
    """Returns in words what the residual is."""
    if facts.clock != "gpu":
        return "is spent outside data loading, copies and the model"
    if facts.gpu_idle is None:
        return "is time in which the GPU was idle or did other work than the model's"
    return "is time in which the GPU was idle because of what the host did between the phases"


def _without_rest(job: Job, finding: Finding) -> float:
    """Returns the saving without the residual, except for the overhead of any loop.

    Where the residual is mostly waiting for the device, whichever line of the script does that, the
    host works ahead without it, and the GPU hides that overhead.
    """
    saved_s = job.saved_s(job.table.phase(Phase.RESIDUAL) - LOOP_OVERHEAD_S)
    if not _is_mostly_waiting(job, finding):
        return saved_s
    launching_s = evidence_s(finding, "launching_ms")
    return max(saved_s, job.saved_by_working_ahead_s(launching_s) or 0.0)


def _is_mostly_waiting(_: Job, finding: Finding) -> bool:
    """Returns whether the host would work ahead without the residual: it is mostly waiting for the
    device."""
    lost_s = finding.lost_s_per_step or 0.0
    return lost_s > 0 and evidence_s(finding, "device_wait_ms") >= MOSTLY_WAITING * lost_s


def _without_outside(job: Job, _: Finding) -> float:
    """Returns the saving without the unmeasured time between steps, on every rank."""
    return job.saved_s(job.table.outside(), job.own_wall_s())


def _share_now(facts: Facts, finding: Finding) -> float | None:
    if finding.is_between_steps:
        return share(outside_steps_s(facts.mean), facts.mean.wall_s)
    whole_s, idle_s = unexplained_s(facts.mean), idle_in_rest_s(facts)
    if whole_s is None or idle_s is None:
        return share(whole_s, facts.mean.step_s)
    is_idle = "wait_share" in finding.evidence
    return share(idle_s if is_idle else whole_s - idle_s, facts.mean.step_s)


def _next_step(facts: Facts) -> str:
    if facts.gpu_idle is not None:
        return (
            "Look at what the loop does between the model's phases in every step: make it cheaper, "
            "do it less often, or beside the training thread; name a suspect with "
            "traceml.trace_time."
        )
    if facts.clock == "gpu":
        return (
            "Look for what keeps the host from launching work between the phases: .item(), .cpu(), "
            "printing and logging in every step."
        )
    if facts.mean.input_s is None:
        return (
            "If the loop makes its batches from stored data, a DataLoader with workers makes them "
            "ahead; if they come from an environment or a simulation, run several of those side "
            "by side. Else look at metrics and the loss, and name a suspect with "
            "traceml.trace_time."
        )
    if len(facts.ranks_used) > 1:
        return "Look at synchronisation between ranks, then at metrics in every step."
    return (
        "Look at what the loop does besides the model: metrics, the loss, copies, locks; "
        "name a suspect with traceml.trace_time."
    )


RULE = Rule(
    kind=KIND,
    section=Section.STEP_TIME,
    check=check,
    explains=GPU_IDLE,
    yields_to=(Kind.WAIT_STRAGGLER, Kind.STRAGGLER),
    turn=Turn.PHASE,
    what_if=Remedy("without the rest", _without_rest, frees_host=_is_mostly_waiting),
    what_if_between=Remedy(
        "of wall time without what passes between steps", _without_outside, between=True
    ),
    measure=_share_now,
    code=CodeScope.REST,
    doc=Doc(
        "info, warn, crit",
        "time goes neither into the model's work nor into a measured wait",
        __doc__,
        symptoms=(
            Symptom.IDLE_GPU,
            Symptom.SLOW_CPU,
            Symptom.STUTTER,
            Symptom.LONG_BETWEEN_STEPS,
        ),
    ),
)
