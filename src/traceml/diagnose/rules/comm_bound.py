"""Comm bound: the ranks wait for their data to travel.

*Meaning.* Part of the step is exposed communication: the ranks do nothing but wait for gradients,
parameters or other tensors to travel. Communication that goes on while backward computes is
hidden and costs nothing.

*Measured.* Time in the collectives of `torch.distributed` and in `Work.wait`; in DDP the time
from a rank's own last gradient to the end of backward, and the broadcast of buffers before
forward. On a GPU the same between marks on its timeline. Of each step counts what the rank that
waited least has waited: for it nobody was late. What other ranks wait beyond that is the late
rank's doing, a [straggler](#straggler). In a pipeline, what even its longest stage waits while the
pipeline fills and drains is not counted.

*Evidence.* `communication_share`, `transfer_ms` (what every rank waits), `exposed_ms` (the mean
wait of a rank, for late ranks too), `hidden_ms` and `gradient_bytes` (from DDP's own statistics),
`step_time_ms`, `diagnosis_clock`.

*Thresholds.* A share of 10 % warns from 1 ms on, 20 % is critical from 3 ms on: a toy's steps are
short beside any collective. Where more ranks share a machine than it has cores, or a rank waits for
a core as long as the transfer takes, a collective also waits for their turns to run: then 20 %
warns, and nothing is critical.

*What to do.* The action says over how many micro-batches to accumulate gradients (under
`no_sync()`) for the transfer to fall below 10 %, counted from the accumulation in use, at most
16, and what is left of it then. In DDP also, from 1 MiB of gradients on: a smaller
`bucket_cap_mb` where they all travel in one bucket, else `bf16_compress_hook` unless a hook is
registered already or gradients have 16 bits. With tensor parallelism: whether ranks that share
layers lie on several machines, fewer ranks per layer, overlapping exchanges. For FSDP: larger
blocks, parameters that stay gathered, a larger batch. For collectives that the script calls itself:
start them with `async_op=True`, join small ones, call them less often.

*Silent* with one rank, and where communication was not seen: the first FSDP (not `fully_shard`)
over NCCL gathers on streams of its own.
"""

from __future__ import annotations

import math

from traceml.diagnose import settings_advice
from traceml.diagnose.rule import GPU_IDLE, Doc, Remedy, Rule, Symptom, Turn
from traceml.facts.facts import Facts, share
from traceml.facts.job import Job
from traceml.model.evidence import Evidence, as_share, as_words, in_bytes, in_ms
from traceml.model.finding import Finding, Kind, Section, Severity
from traceml.model.parallel_place import TENSOR
from traceml.model.phase import Phase
from traceml.model.quantities import duration, memory, percent
from traceml.model.settings import Settings
from traceml.store.records import DdpStatistics

KIND = Kind.COMM_BOUND

WARN_SHARE = 0.10  # below this, a faster network would not be noticed
CRITICAL_SHARE = 0.20
NOTICEABLE_S = 0.001  # a collective takes this long on any network that is not a GPU's own
CRITICAL_S = 0.003  # a toy's steps are short beside any collective
MAX_MICRO_BATCHES = 16  # accumulating more changes the training itself
SMALL_BYTES = 1 << 20  # so much travels in a millisecond over any network people train on
PIECES = 4  # buckets, of which all but the last can travel while backward goes on


def check(facts: Facts) -> Finding | None:
    """Fires when a noticeable part of the step is exposed transfer between ranks."""
    transfer_s, step_s = exposed_transfer_s(facts), facts.mean.step_s
    if transfer_s is None or not step_s:
        return None
    transfer_share = transfer_s / step_s
    crowded = _is_crowded(facts, transfer_s)
    if transfer_share < (CRITICAL_SHARE if crowded else WARN_SHARE) or transfer_s < NOTICEABLE_S:
        return None
    critical = transfer_share >= CRITICAL_SHARE and transfer_s >= CRITICAL_S and not crowded
    hidden_s = facts.hidden_communication_s
    beside = "" if not hidden_s else f"; {duration(hidden_s)} more is hidden behind backward"
    return Finding(
        kind=KIND,
        section=Section.STEP_TIME,
        severity=Severity.CRITICAL if critical else Severity.WARNING,
        claim=(
            f"Every rank waits {percent(transfer_share)} of a mean step "
            f"({duration(transfer_s)} of {duration(step_s)}) for data to travel between the "
            f"ranks{beside}."
        ),
        action=_next_step(facts, transfer_s, max(step_s - transfer_s, 1e-9)),
        phase=Phase.COMMUNICATION,
        share=transfer_share,
        ranks=tuple(rank.rank.rank for rank in facts.ranks_used),
        lost_s_per_step=transfer_s,
        evidence=Evidence(
            as_share("communication_share", transfer_share),
            in_ms("transfer_ms", transfer_s),
            in_ms("exposed_ms", facts.mean.communication_s or 0.0),
            in_ms("hidden_ms", hidden_s),
            in_bytes("gradient_bytes", None if facts.ddp is None else facts.ddp.gradient_bytes),
            in_ms("step_time_ms", step_s),
            as_words("diagnosis_clock", facts.clock),
        ),
    )


def exposed_transfer_s(facts: Facts) -> float | None:
    """Returns how long every rank waits for transfers per step; `None` with one rank or no
    measurement."""
    job = facts.job
    if job is None or not job.communication_measured or len(facts.ranks_used) < 2:
        return None
    filling_s = 0.0 if facts.pipeline is None else facts.pipeline.least_wait_s
    return max(0.0, job.transfer_s() - filling_s)


def _without_transfer(job: Job, finding: Finding) -> float | None:
    """Returns the saving without the transfer that the last rank to arrive still needs; waiting for
    that rank is not part of it."""
    if not job.communication_measured:
        return None
    return job.transfer_s() if finding.lost_s_per_step is None else finding.lost_s_per_step


def _is_crowded(facts: Facts, transfer_s: float) -> bool:
    """Returns whether ranks wait for cores: there are more of them, or one waits as long as the
    transfer takes, which then waits for its turns to run."""
    if facts.clock != "cpu":
        return False
    if any(thread.wait_s >= transfer_s for thread in facts.threads.values()):
        return True
    ranks = max(rank.rank.local_world_size for rank in facts.ranks_used)
    return facts.host.cores is not None and ranks > facts.host.cores


def _next_step(facts: Facts, transfer_s: float, rest_s: float) -> str:
    """Returns what to try first, by how the ranks share their work and what they accumulate
    already."""
    kinds, ddp = facts.settings.parallelism, facts.ddp
    if any(rank.place.tensor_slice for rank in facts.ranks_used):
        return _with_tensor_parallelism(facts)
    if kinds and "FSDP" in kinds:
        return _with_fsdp(facts)
    if kinds and "DeepSpeed" in kinds:
        return (
            "In DeepSpeed's configuration, set overlap_comm and larger buckets, use a lower ZeRO "
            "stage if memory allows, or accumulate over more micro-batches."
        )
    if ddp is None and kinds != "DDP":
        return _with_own_collectives(facts, transfer_s, rest_s)
    smaller = "" if ddp is None else _smaller(ddp, facts.settings)
    return f"{_accumulate(facts, transfer_s, rest_s)} {smaller}".strip()


def _times_more(transfer_s: float, rest_s: float) -> int:
    """Returns how many times more work between two exchanges makes the wait negligible."""
    return max(2, math.ceil(transfer_s * (1 - WARN_SHARE) / (WARN_SHARE * rest_s)))


def _accumulate(facts: Facts, transfer_s: float, rest_s: float) -> str:
    """Recommends fewer gradient exchanges, counted from the accumulation in use."""
    now = facts.settings.accumulation_steps
    most = MAX_MICRO_BATCHES // (now or 1)
    times = min(_times_more(transfer_s, rest_s), most)
    after = percent(transfer_s / (times * rest_s + transfer_s))
    room = settings_advice.larger_batch(facts)
    batch = f", or make the batch {times} times as large" if room else ""
    if now is None:
        return (
            f"Accumulate gradients over {times} times as many micro-batches as now, all but the "
            f"last under no_sync(), which brings the wait down to {after}{batch}."
        )
    if now == 1:
        return (
            f"Accumulate gradients over {times} micro-batches under no_sync(), which brings the "
            f"wait down to {after}{batch}."
        )
    first = (
        f"Of the {now} micro-batches of a step only the last has to communicate: run the others "
        "under no_sync(), if they do not."
    )
    if times < 2:
        return f"{first} More accumulation than that would change the training itself."
    return (
        f"{first} {now * times} micro-batches instead of {now} bring the wait down to "
        f"{after}{batch}."
    )


def _with_own_collectives(facts: Facts, transfer_s: float, rest_s: float) -> str:
    times = min(_times_more(transfer_s, rest_s), MAX_MICRO_BATCHES)
    after = percent(transfer_s / (times * rest_s + transfer_s))
    sharded = (
        " With FSDP, wrap larger blocks, so that fewer and larger gathers run ahead of the compute."
        if facts.settings.parallelism is None
        else ""
    )
    return (
        "Start collectives with async_op=True and wait for them where their result is needed, "
        f"join small tensors into one call, or communicate {times} times less often, which brings "
        f"the wait down to {after}.{sharded}"
    )


def _with_tensor_parallelism(facts: Facts) -> str:
    """Recommends what helps ranks that exchange parts of every layer, within each step."""
    groups: dict[tuple[object, ...], set[str]] = {}
    for rank in facts.ranks_used:
        rest = [each for each in rank.place.dimensions if each.name.lower() not in TENSOR]
        groups.setdefault((*rest, *rank.place.stages), set()).add(rank.rank.hostname)
    spanning = any(len(hosts) > 1 for hosts in groups.values())
    first = (
        "Ranks that share layers lie on several machines: let each such group lie within one, so "
        "that every layer's exchange stays on its fast links. Then use"
        if spanning
        else "Every layer's exchange of tensor parallelism waits for all its ranks: use"
    )
    return (
        f"{first} fewer ranks per layer if memory allows, sequence parallelism, a larger batch, or "
        "exchanges that overlap with the matrix products (async tensor parallelism)."
    )


def _with_fsdp(facts: Facts) -> str:
    """Recommends what helps FSDP, which gathers for every block and cannot exchange less often."""
    half = "" if settings_advice.is_half(facts.settings) else "gathers and reductions in bfloat16"
    options = settings_advice.listed(
        (
            "larger wrapped blocks, so that fewer and larger gathers run ahead of the compute",
            "parameters that stay gathered between forward and backward "
            "(reshard_after_forward=False, or SHARD_GRAD_OP) if memory allows",
            half,
            settings_advice.larger_batch(facts),
        ),
        "or",
    )
    return f"Try {options}; across machines, shard within each of them alone (HYBRID_SHARD)."


def _smaller(ddp: DdpStatistics, settings: Settings) -> str:
    """Recommends what else shortens the transfer itself, or hides it."""
    size = memory(ddp.gradient_bytes)
    if ddp.gradient_bytes < SMALL_BYTES:
        return f"With {size} of gradients it is not their size that takes the time."
    cap = max(1, ddp.gradient_bytes // PIECES >> 20)
    if ddp.buckets == 1 and cap < (settings.ddp_bucket_cap_mb or math.inf):
        return (
            f"All {size} of gradients travel in one bucket when backward is over: with "
            f"bucket_cap_mb={cap} most of them travel during it."
        )
    if ddp.has_hook or settings.parameter_dtype in settings_advice.HALF:
        return ""
    return f"bf16_compress_hook halves the {size} of gradients on their way."


RULE = Rule(
    kind=KIND,
    section=Section.STEP_TIME,
    check=check,
    explains=GPU_IDLE,
    turn=Turn.TRANSFER,
    what_if=Remedy("with communication hidden behind compute", _without_transfer),
    measure=lambda facts, _: share(exposed_transfer_s(facts), facts.mean.step_s),
    doc=Doc(
        "warn, crit",
        "the ranks wait for data to travel between them",
        __doc__,
        symptoms=(Symptom.BAD_SCALING,),
    ),
)
