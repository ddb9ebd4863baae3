"""Input bound: the step waits for data.

*Meaning.* Before each step the training loop stood still until its next batch was there. On the
GPU's clock that is what the [GPU was
idle](explanation.md#every-idle-gap-of-the-gpu-has-one-cause) for: a wait that it does not notice,
because it still has work, costs nothing.

*Evidence.* Input wait ÷ step time, means after warm-up: `input_bound_share`, `input_wait_ms`,
`step_time_ms`, `traced_step_time_ms`, `workers`, `loader_empty_share` (fetches that found no
batch ready), `collate_share` and `blocked_share` (of the fetch: spent collating; at least so much
without computing), `rare_share` (of the wait, in the tenth of the steps that waited longest),
`disk_busy_share`, `diagnosis_clock`.

*Thresholds.* A share of 10 % warns from 1 ms of wait on: any fetch costs up to that.
20 % is critical from 3 ms on, and 50 % from 1 ms on. Where it is the largest part of a shorter
step it is a remark. So is a single long wait that passed within 10 s
([why](explanation.md#claims-fit-the-account-of-time)).

*What to do.* The action follows from what was seen:

- the disk was busy 80 % of the time or more: it sets the pace, and more workers will not help;
- 80 % of the wait or more lies in a tenth of the steps: workers that start anew each epoch, or a
  few slow samples;
- no worker: enough of them that one batch is ready per step body; where collating takes 50 % of
  the fetch or more, a cheaper `collate_fn`;
- workers, and no batch was ready in less than 5 % of the fetches: the transfer to the main process
  takes the time (and it is never critical); where workers spend less CPU time on a batch than 70 %
  of the wait, none at all would be faster;
- workers that are busy and cannot keep up: more of them, in proportion, as far as there are cores;
- workers that were ready to run but waited for a core: more cores, or cheaper samples; more workers
  will not help;
- workers that use less than 0.7 of a core each, on a machine with cores to spare, wait for storage
  or a network themselves. Such waits overlap and take little of a core: as many workers as the
  cores can take at that share, which may be more than there are cores;
- the same without workers, where the training process and its children kept no core busy for half
  of the fetch or more;
- more than 32 would be needed: make each sample cheaper first, or read faster;
- on a GPU, with `pin_memory` off: switch it on as well.

*Silent* when no fetch was seen, for example in a loop over tensors that are already in memory.
"""

from __future__ import annotations

import math

from traceml.diagnose.one_off_stalls import few_steps_of, stalled
from traceml.diagnose.rule import GPU_IDLE, CodeScope, Doc, Remedy, Rule, Symptom, Turn
from traceml.diagnose.thresholds import Threshold, less_severe, severity_of
from traceml.diagnose.time_account import is_largest
from traceml.diagnose.what_if import without_phase
from traceml.facts.facts import Facts, share
from traceml.model.evidence import Evidence, as_number, as_share, as_words, in_ms
from traceml.model.finding import Finding, Kind, Section, Severity
from traceml.model.phase import Phase
from traceml.model.quantities import count, duration, percent

KIND = Kind.INPUT_BOUND

WARN = Threshold(0.10, 0.001)  # a smaller share goes unnoticed; any fetch takes up to 1 ms
CRITICAL = (
    Threshold(0.20, 0.003),  # a fifth of the step, and enough to see in a progress bar
    Threshold(0.50, 0.001),  # or half of even a short step
)
BUSY_DISK = 0.80  # of the time: a disk with so little rest is at its limit
SELDOM_EMPTY = 0.05  # of the fetches; many workers that are all late leave it empty only at times
MOSTLY_EMPTY = 0.50  # of the fetches: below that most batches were there in time
MOSTLY_COLLATE = 0.50  # of the fetch: collating costs more than the samples themselves
MOSTLY_RARE = 0.80  # of the wait, in a tenth of the steps: the other steps are well supplied
BUSY_WORKER = 0.7  # of a core: the worker computes rather than waits for storage
MOSTLY_QUEUED = 0.3  # of a worker's time: it waits for a core rather than for storage
MOSTLY_BLOCKED = 0.50  # of the fetch: it waits for something rather than computes
FULL_CPU = 0.90  # of all cores: who is idle there may also be waiting for a core
CHEAP_TO_MAKE = 0.7  # of the wait: what workers spend on a batch, handing it over included
MAX_WORKERS = 32  # each is a process with memory of its own

MAKE_CHEAPER = "make each sample cheaper"
READ_FASTER = "read faster (fewer and larger files, a copy nearby)"


def check(facts: Facts) -> Finding | None:
    """Fires when faster input would shorten the step noticeably."""
    wait_s, step_s = facts.mean_s(Phase.INPUT), facts.mean.step_s
    if wait_s is None or not step_s:
        return None
    found = severity_of(wait_s, step_s, WARN, CRITICAL, is_largest(facts, Phase.INPUT))
    if found is None:
        return None
    loader = facts.loader
    if _workers_keep_up(facts):
        # The data was there: the step waits for something else.
        found = less_severe(found, Severity.WARNING)
    finding = Finding(
        kind=KIND,
        section=Section.STEP_TIME,
        severity=found,
        claim=(
            f"Waiting for data takes {percent(wait_s / step_s)} of a mean step "
            f"({duration(wait_s)} of {duration(step_s)})."
        ),
        action=_next_step(facts, wait_s, step_s - wait_s) + _pinning(facts),
        phase=Phase.INPUT,
        share=wait_s / step_s,
        ranks=tuple(
            rank.rank.rank
            for rank in facts.ranks_used
            if (share(rank.times.phase(Phase.INPUT), rank.times.step_s) or 0.0) >= WARN.share
        ),
        lost_s_per_step=wait_s,
        evidence=Evidence(
            as_share("input_bound_share", wait_s / step_s),
            in_ms("input_wait_ms", wait_s),
            in_ms("step_time_ms", step_s),
            in_ms("traced_step_time_ms", step_s - wait_s),
            as_number("workers", loader.workers),
            as_share("loader_empty_share", loader.empty_share),
            as_share("collate_share", loader.collate_share),
            as_share("blocked_share", None if loader.workers else _blocked_share(facts)),
            as_share("rare_share", loader.rare_share),
            as_share("disk_busy_share", facts.host.disk_busy_share.mean),
            as_words("diagnosis_clock", facts.clock),
        ),
    )
    few = few_steps_of(facts, Phase.INPUT)
    return stalled(finding, few, WARN, "waiting for data") or finding


def _next_step(facts: Facts, wait_s: float, body_s: float) -> str:
    """Returns what to try first, from how the batches are made and how long the rest of a step
    takes."""
    workers, disk_share = facts.loader.workers, facts.host.disk_busy_share.mean
    if disk_share is not None and disk_share >= BUSY_DISK:
        return (
            f"The disk was busy {percent(disk_share)} of the time and sets the pace: keep the data "
            "in memory or on a faster disk, read fewer and larger files, compress them; more "
            "workers will not help."
        )
    rare_share = facts.loader.rare_share
    if rare_share is not None and rare_share >= MOSTLY_RARE:
        return (
            f"{percent(rare_share)} of the wait lies in a tenth of the steps: {_ahead(facts)}look "
            "for a few samples or files that take far longer."
        )
    if workers is None:
        return "Give the DataLoader more workers, make each sample cheaper, or speed up storage."
    if workers == 0:
        return _without_workers(facts, wait_s, body_s)
    return _with_workers(facts, workers, wait_s, body_s)


def _ahead(facts: Facts) -> str:
    """Recommends prefetching; empty without workers."""
    if facts.loader.workers == 0:
        return ""
    persistent = facts.settings.persistent_workers
    alive = "" if persistent else "keep workers alive between epochs (persistent_workers=True) and "
    return f"{alive}let workers run ahead (a larger prefetch_factor); else "


def _without_workers(facts: Facts, wait_s: float, body_s: float) -> str:
    """Recommends as many workers as are needed to make a batch during the rest of the step."""
    making_s = facts.mean.cpu_input_s or wait_s
    needed = _workers_for(making_s, body_s)
    collate_share = facts.loader.collate_share
    if collate_share is not None and collate_share >= MOSTLY_COLLATE:
        return _ask_for(
            facts,
            needed,
            f"Collating takes {percent(collate_share)} of each fetch "
            f"({duration(collate_share * making_s)}), in the training process itself",
            "make collate_fn cheaper (stack whole tensors, no Python loop over samples)",
        )
    samples = (
        "" if collate_share is None else f", {percent(1 - collate_share)} of it in __getitem__"
    )
    reason = f"Batches are made in the training process itself{samples}"
    blocked_share = _blocked_share(facts)
    if blocked_share is not None and blocked_share >= MOSTLY_BLOCKED:
        reason += f", which waits {percent(blocked_share)} of that time or more without computing"
        return _ask_for(facts, needed, reason, READ_FASTER, 1 - blocked_share)
    return _ask_for(facts, needed, reason)


def _blocked_share(facts: Facts) -> float | None:
    """Returns the least share of the fetch in which nothing of the training process computed or
    waited for a core: as if the training thread had been blocked in all the rest of the step, and
    its other threads and child processes had computed in the fetch alone.

    `None` where that is unknown. The smallest of all ranks counts.
    """
    if _cpu_is_full(facts):
        return None
    processes = {process.rank: process for process in facts.processes}
    shares = []
    for rank in facts.ranks_used:
        thread, times = facts.threads.get(rank.rank.rank), rank.times
        process = processes.get(rank.rank.rank)
        if thread is None or process is None or times.wall_s is None or not times.cpu_input_s:
            return None
        cores, children = process.cpu_cores.mean, process.workers_cpu_cores.mean or 0.0
        if cores is None:
            return None
        helpers_s = max(0.0, cores * times.wall_s - thread.cpu_s) + children * times.wall_s
        blocked_s = times.wall_s - thread.cpu_s - thread.wait_s - helpers_s
        elsewhere_s = times.wall_s - times.cpu_input_s
        shares.append((blocked_s - elsewhere_s) / times.cpu_input_s)
    return min(max(0.0, min(shares)), 1.0) if shares else None


def _cpu_is_full(facts: Facts) -> bool:
    return (facts.host.cpu_share.mean or 0.0) >= FULL_CPU


def _with_workers(facts: Facts, workers: int, wait_s: float, body_s: float) -> str:
    empty_share = facts.loader.empty_share
    busy_cores = _busy_cores(facts)
    if _workers_keep_up(facts):
        return _cheaper_transfer(facts, empty_share or 0.0, busy_cores, wait_s, body_s)
    # Workers that cannot keep up make a batch in as many steps as there are workers.
    needed = max(workers + 1, _workers_for(workers * (wait_s + body_s), body_s))
    queued_share = _queued_share(facts)
    if queued_share is not None and queued_share >= MOSTLY_QUEUED:
        return (
            f"A worker is ready to run but waits for a CPU core {percent(queued_share)} of the "
            f"time: {MAKE_CHEAPER}, keep other jobs off these cores or train where there are more; "
            "more workers will not help."
        )
    is_idle = busy_cores is not None and busy_cores + (queued_share or 0.0) < BUSY_WORKER
    if busy_cores is not None and is_idle and not _cpu_is_full(facts):
        awaited = (
            "storage, a network or the transfer of batches"
            if empty_share is None
            else "storage or a network"
        )
        idle = f"{_all_workers(workers)} mostly idle ({busy_cores:.2f} cores each), waiting for"
        return _ask_for(facts, needed, f"{idle} {awaited}", READ_FASTER, busy_cores)
    if empty_share is None or empty_share < SELDOM_EMPTY:
        return _ask_for(facts, needed, f"{count(workers, 'worker')} cannot keep up")
    without = f"no batch was ready in {percent(empty_share)} of the fetches"
    if empty_share < MOSTLY_EMPTY and not (busy_cores and busy_cores >= BUSY_WORKER):
        return _ask_for(facts, needed, without[0].upper() + without[1:])
    return _ask_for(facts, needed, f"{count(workers, 'worker')} cannot keep up ({without})")


def _cheaper_transfer(
    facts: Facts, empty_share: float, busy_cores: float | None, wait_s: float, body_s: float
) -> str:
    """Recommends what makes handing over a batch cheaper, or not handing it over at all."""
    ready = f"A batch was ready in {percent(1 - empty_share)} of the fetches"
    workers = facts.loader.workers or 0
    making_s = None if busy_cores is None else workers * busy_cores * (wait_s + body_s)
    if making_s is not None and making_s < CHEAP_TO_MAKE * wait_s:
        return (
            f"{ready}, and workers spend only {duration(making_s)} of CPU time on one: the "
            "transfer to the main process costs more. Unless they wait for storage, num_workers=0 "
            "or larger batches are faster."
        )
    return (
        f"{ready}: the cost is transferring it to the training process. Keep a core free for it, "
        "send a few tensors instead of lists and Python objects, and large images as uint8."
    )


def _all_workers(workers: int) -> str:
    return "The worker is" if workers == 1 else f"The {workers} workers are"


def _workers_keep_up(facts: Facts) -> bool:
    """Returns whether workers had a batch ready nearly whenever one was asked for.

    Batches that lie ready while the workers compute all the time came out of order: the next one in
    turn is still missing.
    """
    empty_share, busy_cores = facts.loader.empty_share, _busy_cores(facts)
    if not facts.loader.workers or empty_share is None or empty_share >= SELDOM_EMPTY:
        return False
    return busy_cores is None or busy_cores < BUSY_WORKER


def _busy_cores(facts: Facts) -> float | None:
    """Returns the cores that each worker of the busiest rank kept busy while steps were taken."""
    processes = [each for each in facts.processes if each.is_worker_load_of_steps]
    busy = [mean for each in processes if (mean := each.workers_cpu_cores.mean)]
    return max(busy) / facts.loader.workers if busy and facts.loader.workers else None


def _queued_share(facts: Facts) -> float | None:
    """Returns the share of its time that the worker which waited most for a core was waiting."""
    shares = [process.workers_runqueue_share.mean for process in facts.processes]
    return max((share for share in shares if share is not None), default=None)


def _workers_for(making_s: float, body_s: float) -> int:
    """Returns how many workers have a batch ready each time the rest of the step is done."""
    return max(1, math.ceil(making_s / max(body_s, 1e-9)))


def _ask_for(
    facts: Facts,
    needed: int,
    reason: str,
    cheaper: str = MAKE_CHEAPER,
    cores_each: float = 1.0,
) -> str:
    """Recommends the number of workers that is needed, or as many as the cores can take if each
    keeps `cores_each` of them busy; else what is `cheaper`."""
    if needed > MAX_WORKERS:
        return f"{reason}: {cheaper} first, more workers alone will not hide it."
    cores, workers = _cores_per_rank(facts), facts.loader.workers or 0
    limit = None if cores is None else math.floor(cores / max(cores_each, cores / MAX_WORKERS))
    if limit is not None and needed > limit:
        here = f"this machine has {count(cores, 'core')} for each rank"
        if workers >= limit:
            return f"{reason}, and {here}: {cheaper}, or train where there are more cores."
        return f"{reason}: num_workers={limit} would help, and {here}; then {cheaper}."
    if cores_each <= MOSTLY_BLOCKED:
        return (
            f"{reason}. Such waits overlap and need few cores: num_workers={needed} would hide "
            f"them unless the storage itself is at its limit; else {cheaper}."
        )
    return f"{reason}: num_workers={needed} would hide the wait if cores are free; else {cheaper}."


def _cores_per_rank(facts: Facts) -> int | None:
    """Returns how many cores there are for a rank and its workers; `None` where it is not known."""
    if facts.host.cores is None or not facts.ranks_used:
        return None
    ranks = max(rank.rank.local_world_size for rank in facts.ranks_used)
    return max(1, int(facts.host.cores // max(1, ranks)))


def _pinning(facts: Facts) -> str:
    on_gpu = any(rank.rank.device.startswith("cuda") for rank in facts.ranks_used)
    if not on_gpu or facts.loader.pinned is not False:
        return ""
    return " Pinned memory is off: pin_memory=True makes the copies to the GPU faster as well."


RULE = Rule(
    kind=KIND,
    section=Section.STEP_TIME,
    check=check,
    explains=GPU_IDLE,
    yields_to=(Kind.INPUT_STRAGGLER, Kind.STRAGGLER),
    turn=Turn.PHASE,
    what_if=Remedy("without the input wait", without_phase(Phase.INPUT)),
    measure=lambda facts, _: facts.mean_share(Phase.INPUT),
    code=CodeScope.FETCHES,
    doc=Doc(
        "info, warn, crit",
        "the step waits for data",
        __doc__,
        symptoms=(
            Symptom.IDLE_GPU,
            Symptom.SLOW_CPU,
            Symptom.STUTTER,
        ),
    ),
)
