"""Compute bound: the model's own work is where the time goes.

*Meaning.* The model's own work is where the time goes. That is how a healthy job looks, so it is
a remark. It warns where a job on the CPU hardly used a core meanwhile: then a phase waits (a
sleep, a lock, files, the network) rather than computes.

*Evidence.* `compute_share`, `compute_ms`, `step_time_ms`, `largest_phase`, `largest_phase_ms`,
`busy_cores` (of the training process in these steps, on a CPU), `waiting_share` (of the step:
compute in which it kept no core busy, at least), `diagnosis_clock`; `phase` names the largest of
forward, backward, optimizer; `code_1` … where it waits.

*Thresholds.* 80 % of the step, by the parts that were measured. It waits where the process kept
less than 0.3 cores busy. A part of it waits where compute with no core busy is 30 % of the
step or more. Neither is said where it was kept from running (10 % of the time in the run queue,
throttled, or stolen by the hypervisor). It warns from 3 samples on.

*What to do.* Where it waits: look for what it waits for;
[lines](explanation.md#which-line-takes-the-time), and the longest layer, are named where they are
known. Else what its first cause says, where the [GPU's counters](#gpu-counters) show one. Else
what is not on yet (see [`settings`](summary.md#settings)). On a GPU: bfloat16 autocast or TF32,
`torch.compile`, for convolutions channels_last, and a larger batch where less than 50 % of the
device's memory was reserved. Where the optimizer is the largest part: a fused one, or a larger
batch so that it runs less often. On a CPU: a GPU, unused cores (where the training thread waits
for a core in 10 % of the time, it needs cores first), bfloat16, or a smaller model. Where a
micro-batch computes for less than 3 ms, fewer or larger operations are advised instead: a larger
batch, `torch.compile`.
"""

from __future__ import annotations

from typing import NamedTuple

from traceml.diagnose import settings_advice
from traceml.diagnose.rule import CodeScope, Doc, Rule, Symptom
from traceml.diagnose.slow_layers import shown_layer
from traceml.diagnose.user_code import BLOCKED_SHARE, MAIN_SHARE
from traceml.facts.facts import Facts, share
from traceml.model.evidence import Evidence, as_number, as_share, as_words, in_ms
from traceml.model.finding import Finding, Kind, Section, Severity
from traceml.model.phase import COMPUTE, Phase
from traceml.model.quantities import duration, percent

KIND = Kind.COMPUTE_BOUND

SHARE = 0.80  # with at most a fifth elsewhere, nothing but the model can speed the step up much
WAITING_CORES = 0.30  # of one: arithmetic on the CPU keeps at least a core busy
MIN_SAMPLES = 3  # of the process, one a second: a single second may be unusual
NEGLIGIBLE = 1e-6  # of compute: rounding
SHORT_S = 0.003  # per micro-batch: some hundred operations, whose launches take 5 to 10 µs each
STARVED_SHARE = 0.10  # of the time: a process that may not run shows a low load as well


class Waiting(NamedTuple):
    """How much of compute on a CPU is waiting."""

    cores: float | None = None
    """What the training process kept busy; `None` where it is not known."""
    share: float = 0.0
    """Of the step: compute in which it kept no core busy, at least; 0 where that is too little to
    tell of."""

    @property
    def is_all(self) -> bool:
        """Whether next to nothing computes."""
        return self.cores is not None and self.cores < WAITING_CORES

    @property
    def words(self) -> str:
        """A sentence about it, without its full stop."""
        what = (
            "It waits there rather than computes"
            if self.is_all
            else f"At least {percent(self.share)} of the step is waiting"
        )
        return f"{what}: the process kept {self.cores:.2f} cores busy"


def check(facts: Facts) -> Finding | None:
    """Fires when forward, backward and optimizer fill the step."""
    times = facts.mean
    if times.compute_at_least_s is None or not times.step_s:
        return None
    compute_share = times.compute_at_least_s / times.step_s
    if compute_share < SHARE:
        return None
    parts: dict[Phase | None, float] = {
        phase: part for phase in COMPUTE if (part := facts.mean_s(phase)) is not None
    }
    replayed_s = times.compute_at_least_s - sum(parts.values())
    if len(parts) < len(COMPUTE) or replayed_s > NEGLIGIBLE * times.compute_at_least_s:
        parts[None] = replayed_s  # of CUDA graphs: one launch cannot be told apart
    largest = max(parts, key=lambda phase: parts[phase])
    waiting = _waiting(facts, compute_share)
    beside = f". {waiting.words}" if waiting.share else ""
    name = _name(largest)
    warns = waiting.is_all and facts.host.samples >= MIN_SAMPLES
    return Finding(
        kind=KIND,
        section=Section.STEP_TIME,
        severity=Severity.WARNING if warns else Severity.INFO,
        claim=(
            f"Compute takes {percent(compute_share)} of a mean step; "
            f"{name} is the largest part "
            f"({duration(parts[largest])}, {percent(parts[largest] / times.step_s)}){beside}."
        ),
        action=_next_step(facts, largest, waiting),
        phase=largest,
        share=compute_share,
        ranks=tuple(rank.rank.rank for rank in facts.ranks_used),
        evidence=Evidence(
            as_share("compute_share", compute_share),
            in_ms("compute_ms", times.compute_at_least_s),
            in_ms("step_time_ms", times.step_s),
            as_words("largest_phase", "cuda_graph" if largest is None else largest.value),
            in_ms("largest_phase_ms", parts[largest]),
            as_number("busy_cores", waiting.cores),
            as_share("waiting_share", waiting.share or None),
            as_words("diagnosis_clock", facts.clock),
        ),
    )


def _name(phase: Phase | None) -> str:
    return "the replay of CUDA graphs" if phase is None else phase.value


def _next_step(facts: Facts, largest: Phase | None, waiting: Waiting) -> str:
    reasons = (
        "look {}for sleeps, locks, files, the network or another process inside "
        f"{_name(largest)}{_longest_layer(facts, largest)}"
    )
    if waiting.is_all:
        return (
            f"Nothing computes there: {reasons.format('')}; py-spy dump --pid shows where it is, "
            "and traceml.trace_time names a suspect."
        )
    if waiting.share:
        return (
            f"Part of that is waiting: {reasons.format('first ')}; for the arithmetic itself, try "
            f"{_options_on_host(facts)}."
        )
    if largest is Phase.OPTIMIZER:
        return _faster_optimizer(facts)
    if _is_on_host(facts):
        return _faster_on_host(facts)
    return _faster_on_gpu(facts)


def _faster_optimizer(facts: Facts) -> str:
    settings = facts.settings
    fused = settings_advice.fused_optimizer(settings)
    seldom = settings_advice.larger_batch(facts) or "gradient accumulation"
    if fused:
        return f"Try {fused}, or {seldom}, so that it runs less often."
    name = settings.optimizer or "The optimizer"
    state = "can be fused no further" if " + " in name else "has no fused form"
    if settings.optimizer_is_fused:
        state = "is fused already"
    return f"{name} {state}: {seldom} makes it run less often."


def _longest_layer(facts: Facts, phase: Phase | None) -> str:
    """Returns in brackets in which layer a phase spends the most; empty where none stands out."""
    if phase is None or not facts.layers.steps:
        return ""
    own_s = {layer.name: layer.own_s.get(phase.value, 0.0) for layer in facts.layers.layers}
    longest = max(own_s, key=lambda name: own_s[name], default=None)
    if longest is None or own_s[longest] < MAIN_SHARE * (facts.mean_s(phase) or 0.0):
        return ""
    return f" (its longest layer is {shown_layer(longest)}, {duration(own_s[longest])})"


def _compute_of_micro_batch_s(facts: Facts) -> float:
    return (facts.mean.compute_at_least_s or 0.0) / (facts.settings.accumulation_steps or 1)


def _options_on_host(facts: Facts) -> str:
    compiling = settings_advice.compiling(facts.settings)
    if _compute_of_micro_batch_s(facts) < SHORT_S:
        return settings_advice.listed(("a larger batch", compiling), "or")
    return settings_advice.listed(
        (
            "a GPU",
            _more_threads(facts),
            settings_advice.lower_precision(facts.settings, tf32=False),
            compiling,
            "a smaller model",
        ),
        "or",
    )


def _faster_on_host(facts: Facts) -> str:
    options, compute_s = _options_on_host(facts), _compute_of_micro_batch_s(facts)
    if compute_s < SHORT_S:
        return (
            f"In {duration(compute_s)}, launching many small operations usually takes longer than "
            f"their arithmetic: try {options}. A GPU would hardly be faster at this size."
        )
    if _kept_from_running_share(facts) >= STARVED_SHARE:
        return (
            "Part of that is waiting for a CPU core: see first that the process gets the cores it "
            f"asks for; for the arithmetic itself, try {options}."
        )
    return f"The CPU's arithmetic is the limit: try {options}."


def _more_threads(facts: Facts) -> str:
    """Recommends more threads for torch where it leaves cores unused, and other jobs do so too."""
    threads, cores = facts.settings.cpu_threads, facts.host.cores
    if threads is None or cores is None or _kept_from_running_share(facts) >= STARVED_SHARE:
        return ""
    fair = int(cores // max(1, max(rank.rank.local_world_size for rank in facts.ranks_used)))
    return f"torch.set_num_threads({fair}) instead of {threads}" if fair > threads else ""


def _faster_on_gpu(facts: Facts) -> str:
    settings = facts.settings
    filled = settings_advice.filled_share(facts)
    room = (
        f" Memory is {percent(filled)} used: a larger batch fits."
        if filled is not None and filled < settings_advice.ROOM_SHARE
        else ""
    )
    options = settings_advice.listed(
        (
            settings_advice.lower_precision(settings),
            settings_advice.compiling(settings),
            settings_advice.convolutions(settings),
        )
    )
    if options:
        return f"To go faster, try {options}.{room}"
    return (
        "16-bit arithmetic and torch.compile are on already: a profile (torch.profiler) shows "
        f"which kernels take the time; what is left is a faster GPU or a smaller model.{room}"
    )


def _is_on_host(facts: Facts) -> bool:
    return all(rank.rank.device.startswith("cpu") for rank in facts.ranks_used)


def _waiting(facts: Facts, compute_share: float) -> Waiting:
    cores = _busy_cores(facts)
    if cores is None:
        return Waiting()
    waiting_share = compute_share - cores - _kept_from_running_share(facts)
    return Waiting(cores, waiting_share if waiting_share >= BLOCKED_SHARE else 0.0)


def _busy_cores(facts: Facts) -> float | None:
    """Returns the cores that the busiest rank kept busy; `None` with too few samples, or where
    something other than the script may have kept it from running."""
    if not _is_on_host(facts):
        return None
    if len(facts.ranks_used) > 1 and facts.mean.communication_s is None:
        return None  # it may wait for the other ranks there
    if _kept_from_running_share(facts) >= STARVED_SHARE:
        return None
    known = [p.steps_cpu_cores for p in facts.processes if p.steps_cpu_cores is not None]
    return max(known) if len(known) == len(facts.processes) and known else None


def _kept_from_running_share(facts: Facts) -> float:
    """Returns the share of the time in which the worst rank had no core, as far as is known."""
    host = facts.host
    starved = [process.runqueue_share.mean or 0.0 for process in facts.processes]
    return max(host.cpu_throttled_share.mean or 0.0, host.cpu_steal_share.mean or 0.0, *starved)


RULE = Rule(
    kind=KIND,
    section=Section.STEP_TIME,
    check=check,
    measure=lambda facts, _: share(facts.mean.compute_at_least_s, facts.mean.step_s),
    code=CodeScope.WAITING_PHASE,
    doc=Doc(
        "info, warn",
        "forward, backward and optimizer fill the step",
        __doc__,
        symptoms=(
            Symptom.SLOW_BUSY_GPU,
            Symptom.SLOW_CPU,
        ),
    ),
)
