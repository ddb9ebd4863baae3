"""Memory creep: memory grows with the steps and goes on growing.

On the GPU, in the training process, or in the processes below it; each rank is judged by itself, so
that a leak on one rank is seen. Silent where memory was not read often enough to have a trend.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median_low

from traceml.diagnose.exhausted_memory import limit_words
from traceml.diagnose.leaking_modules import explains, growth_remedy, growth_words
from traceml.diagnose.rule import Doc, Rule, Symptom
from traceml.facts.facts import Facts, RankFacts
from traceml.facts.layer_growth import LayerGrowth
from traceml.facts.memory import MemoryOwner, ProcessLimit
from traceml.facts.trend import Growth, Trend
from traceml.model.evidence import Evidence, as_number, as_words, in_bytes, in_s
from traceml.model.finding import Finding, Kind, Section, Severity, StepSpan
from traceml.model.layer_names import MODEL
from traceml.model.quantities import count, duration, memory

KIND = Kind.CREEP_CONFIRMED

MIN_STEPS = 50  # before that, caches and optimizer state are still being built
MIN_RISE_BYTES = {
    # Two of the allocator's blocks for large tensors come and go anyway.
    MemoryOwner.GPU: 32 << 20,
    # Python, its allocator and torch's caches grow by a few MB on their own.
    MemoryOwner.HOST: 32 << 20,
    # Several processes together, read only once a second.
    MemoryOwner.WORKERS: 64 << 20,
}
MIN_RISE_SHARE = 0.03  # of what was held before: less takes a run longer to fill than to end
MIN_MODULE_SHARE = 0.3  # of the growth: a module that keeps less is not the leak, or not alone
SMALLER_BATCH = 0.75  # of the present one: what a person would try first
CRITICAL_S = 24 * 3600.0  # a run that is full within a day does not end by itself

_WHOSE = {
    MemoryOwner.GPU: "GPU memory",
    MemoryOwner.HOST: "host memory",
    MemoryOwner.WORKERS: "memory of the workers",
}


@dataclass(frozen=True, slots=True)
class _Creep:
    """One kind of memory that grows, on one or more ranks."""

    owner: MemoryOwner
    growing: tuple[tuple[RankFacts, Trend], ...]
    """The fastest first."""
    full_s: float | None
    """Seconds from the end of the window until the memory is full; `None` where the capacity is not
    known, or memory ran out."""
    limit: ProcessLimit | None = None
    """The limit of a rank's own process, if that is reached before the machine's memory is full."""

    @property
    def worst(self) -> Trend:
        return self.growing[0][1]

    @property
    def kind(self) -> Kind:
        steady = any(trend.growth is Growth.STEADY for _, trend in self.growing)
        return Kind.CREEP_CONFIRMED if steady else Kind.CREEP_EARLY

    @property
    def severity(self) -> Severity:
        soon = self.full_s is not None and self.full_s < CRITICAL_S
        certain = self.kind is Kind.CREEP_CONFIRMED
        return Severity.CRITICAL if certain and soon else Severity.WARNING


def check(facts: Facts) -> Finding | None:
    """Fires when a rank's memory has risen by something that matters and still rises."""
    found = [creep for owner in MemoryOwner if (creep := _creep(facts, owner)) is not None]
    if not found:
        return None
    creep = min(found, key=lambda one: (-one.severity.weight, one.full_s or float("inf")))
    trend = creep.worst
    rises = [
        other.rise_bytes
        for rank in facts.ranks
        if (other := rank.memory.trends.get(creep.owner)) is not None
    ]
    module = _growing_module(facts, creep)
    return Finding(
        kind=creep.kind,
        section=Section.STEP_MEMORY,
        severity=creep.severity,
        claim=_claim(facts, creep) + ("" if module is None else f" {growth_words(module)}"),
        action=_next_step(facts, creep),
        ranks=tuple(sorted(rank.rank.rank for rank, _ in creep.growing)),
        steps=StepSpan(trend.onset_step),
        evidence=Evidence(
            as_words("place", creep.owner.value),
            in_bytes("per_1000_steps_bytes", trend.per_step_bytes * 1e3),
            in_bytes("per_hour_bytes", trend.per_s_bytes * 3600),
            as_number("onset_step", trend.onset_step),
            in_bytes("start_bytes", trend.start_bytes),
            in_bytes("end_bytes", trend.end_bytes),
            in_bytes("worst_rise_bytes", trend.rise_bytes),
            in_bytes("median_rise_bytes", median_low(rises)),
            in_s("full_in_s", creep.full_s),
            as_number("full_in_steps", _full_steps(facts, creep)),
            as_words("limited_by", None if creep.limit is None else creep.limit.name),
            as_number("readings", trend.readings),
            as_words("module", None if module is None else module.name or MODEL),
            as_words("module_attribute", None if module is None else module.attribute),
            in_bytes("module_per_step_bytes", None if module is None else module.per_step_bytes),
        ),
    )


def _growing_module(facts: Facts, creep: _Creep) -> LayerGrowth | None:
    """Returns the module that keeps much of what grows on its rank, and no more than grows; `None`
    where the deep profile saw none."""
    if creep.owner is MemoryOwner.WORKERS:
        return None
    by_rank = {rank.rank.rank: trend.per_step_bytes for rank, trend in creep.growing}
    return next(
        (
            each
            for each in facts.layers.growth
            if each.rank in by_rank
            and explains(each.per_step_bytes, by_rank[each.rank], MIN_MODULE_SHARE)
        ),
        None,
    )


def _creep(facts: Facts, owner: MemoryOwner) -> _Creep | None:
    growing = [
        (rank, trend)
        for rank in facts.ranks
        if (trend := rank.memory.trends.get(owner)) is not None and _matters(owner, trend)
    ]
    growing.sort(key=lambda one: (-one[1].per_step_bytes, one[0].rank.rank))
    if not growing:
        return None
    full_s, limit = _full_s(facts, owner, growing)
    return _Creep(owner, tuple(growing), full_s, limit)


def _matters(owner: MemoryOwner, trend: Trend) -> bool:
    return (
        trend.growth is not Growth.NONE
        and trend.last_step - trend.first_step + 1 >= MIN_STEPS
        and trend.rise_bytes >= MIN_RISE_BYTES[owner]
        and trend.rise_bytes >= MIN_RISE_SHARE * trend.start_bytes
    )


def _full_s(
    facts: Facts, owner: MemoryOwner, growing: list[tuple[RankFacts, Trend]]
) -> tuple[float | None, ProcessLimit | None]:
    """Returns when the memory is full, and the limit of a process that is met first: a GPU is
    filled by its own rank, the host by all ranks, what a process may have by itself.

    `None` also where it ran out already: then it was less than the machine's, or full by then.
    """
    failure = facts.stability.failure
    if failure is not None and failure.kind is Kind.OUT_OF_MEMORY:
        return None, None
    if owner is MemoryOwner.GPU:
        known = [
            max(0.0, rank.rank.device_total_bytes - trend.end_bytes) / trend.per_s_bytes
            for rank, trend in growing
            if rank.rank.device_total_bytes is not None
        ]
        return min(known, default=None), None
    free_bytes = facts.host.ram_free_bytes
    full_s = None
    if free_bytes is not None:
        full_s = free_bytes / sum(trend.per_s_bytes for _, trend in growing)
    met = [
        (rank.memory.limit.free_bytes / trend.per_s_bytes, rank.memory.limit)
        for rank, trend in growing
        if owner is MemoryOwner.HOST and rank.memory.limit is not None
    ]
    first = min(met, key=lambda each: each[0], default=None)
    if first is None or (full_s is not None and full_s <= first[0]):
        return full_s, None
    return first


def _claim(facts: Facts, creep: _Creep) -> str:
    trend, ranks = creep.worst, len(creep.growing)
    if ranks > 1:
        whose = f"of {'all' if ranks == len(facts.ranks) else ranks} ranks"
    else:
        whose = f"of rank {creep.growing[0][0].rank.rank}"
        whose += " alone" if len(facts.ranks) > 1 else ""
    began = (
        "from the start"
        if trend.onset_step == trend.first_step
        else f"since step {count(trend.onset_step)}"
    )
    each = " on the fastest of them" if ranks > 1 else ""
    claim = (
        f"The {_WHOSE[creep.owner]} {whose} grows {began}, by "
        f"{memory(trend.per_step_bytes * 1e3)} per 1,000 steps{each} "
        f"({memory(trend.per_s_bytes * 3600)} an hour)"
    )
    if creep.full_s is None:
        return f"{claim}."
    steps = _full_steps(facts, creep)
    about = "" if steps is None else f", after about {count(steps, 'more step')}"
    what = "memory is full"
    if creep.limit is not None:
        what = f"the {limit_words(creep.limit.name, creep.limit.limit_bytes)} are full"
    return f"{claim}; at this rate {what} in {duration(creep.full_s)}{about}."


def _full_steps(facts: Facts, creep: _Creep) -> int | None:
    """Returns how many more steps there is memory for; `None` where that is not known."""
    wall_s = facts.mean.wall_s
    return None if creep.full_s is None or not wall_s else int(creep.full_s / wall_s)


def _smaller_batch(facts: Facts, creep: _Creep) -> tuple[int, int, int] | None:
    """Returns a smaller batch, the present one, and for how many more steps the activations that it
    saves make room; `None` where the deep profile did not count them."""
    found, mean = facts.layers.memory, facts.mean
    if creep.owner is not MemoryOwner.GPU or found is None or not found.saved_bytes:
        return None
    if mean.samples_per_s is None or mean.wall_s is None:
        return None
    samples = round(mean.samples_per_s * mean.wall_s)
    smaller = int(samples * SMALLER_BATCH)
    if smaller < 1:
        return None
    less_bytes = found.saved_bytes * (samples - smaller) / samples
    return smaller, samples, int(less_bytes / creep.worst.per_step_bytes)


def _next_step(facts: Facts, creep: _Creep) -> str:
    module = _growing_module(facts, creep)
    if module is not None:
        return f"{growth_remedy(module)}{_until_then(facts, creep)}"
    left = f"Each step leaves {memory(creep.worst.per_step_bytes)} behind"
    if creep.owner is MemoryOwner.WORKERS:
        return (
            f"{left} in the workers: look at what they keep from batch to batch, such as caches "
            "in __getitem__ or collate_fn, open files, or a long Python list in the dataset "
            f"(forked workers copy it page by page; an array stays shared).{_each_epoch(facts)}"
        )
    caches = "caches"
    if creep.owner is MemoryOwner.HOST and facts.loader.workers == 0:
        caches = "caches in __getitem__"
    return (
        f"{left}: look for losses or outputs kept with their graph (keep loss.item() or "
        f"loss.detach() instead), growing lists, {caches}.{_until_then(facts, creep)}"
    )


def _until_then(facts: Facts, creep: _Creep) -> str:
    """Returns how much longer a smaller batch lets the run go on; empty where that is not known."""
    found = _smaller_batch(facts, creep)
    if found is None:
        return ""
    smaller, samples, steps = found
    return (
        f" Until then a batch of {smaller:,} instead of {samples:,} makes room for about "
        f"{count(steps, 'more step')}."
    )


def _each_epoch(facts: Facts) -> str:
    """Recommends workers that end with their epoch and free their memory; empty where they do
    already."""
    if facts.settings.persistent_workers is False:
        return ""
    return " Until then persistent_workers=False frees it each epoch."


RULE = Rule(
    kind=KIND,
    section=Section.STEP_MEMORY,
    check=check,
    doc=Doc(
        severities="warn, crit",
        says="memory leaks: where, how fast, since when",
        text="""
*Meaning.* Memory grows with the steps and goes on growing: on the GPU (`allocated_bytes` in the
steps), in the training process (its resident memory), or in the processes below it (DataLoader
workers, sampled once a second). Each rank is judged by itself; the claim says which ranks leak,
how much per 1,000 steps and per hour, since which step, and when memory is full at this rate: the
GPU's, the host's (the machine's, or what a cgroup allows), or what RLIMIT_AS or RLIMIT_DATA allows
the process, whichever is first.

*Evidence.* `place` (`gpu`, `host`, `workers`), `per_1000_steps_bytes`, `per_hour_bytes`,
`onset_step`, `start_bytes`, `end_bytes`, `worst_rise_bytes`, `median_rise_bytes`, `full_in_s`,
`full_in_steps`, `limited_by` (the process's own limit, where that is met first), `readings`; with
the deep profile `module`, `module_attribute` and `module_per_step_bytes`: the module of the model
that keeps at least 30 % of what grows and no more than 1.5 times as much, or whose outputs are
kept, in which of its attributes, and how fast.

*Thresholds.* The readings of a rank (at least 8, over at least 50 steps) are taken together in 12
blocks. The first is left out, and of each the lowest quarter counts, so that evaluation peaks and
garbage collected now and then do not. Head against tail:

- every block of the last third lies above every block of the first, by at least 4 times the
  scatter;
- lately memory grows at no less than 0.75 times the speed of the whole rise: a warm-up or a
  logarithm levels off;
- it still grows within the last third, at 0.4 times that speed: a stair has ended;
- 75 % of the blocks since the onset rise (three blocks for CREEP_EARLY).

The rise from the first third to the last is at least 3 % and 32 MiB (64 MiB for workers): Python,
its allocator and torch's caches grow by a few MB on their own. It is critical when memory would
be full within 24 hours, else it warns.

*What to do.* Look for what outlives its step: losses or outputs appended with their graph (keep
`loss.item()` or `loss.detach()`), growing lists, caches in `__getitem__`. In workers also a long
Python list in the dataset, which forked workers copy page by page: an array stays shared. With the
deep profile the action says for how many more steps a smaller batch makes room on the GPU, by the
activations that were counted.

*Silent* where memory was not read often enough.
""",
        symptoms=(
            Symptom.SLOWER_LATER,
            Symptom.MEMORY,
        ),
    ),
    also={
        Kind.CREEP_EARLY: Doc(
            severities="warn",
            says="memory seems to leak",
            text="""
*Meaning.* Memory rose and still rises, and what is known about it fits a leak; it is not yet
steady enough, or not seen for long enough, to be sure.

*Evidence.* As for CREEP_CONFIRMED.

*Thresholds.* See CREEP_CONFIRMED; at least three blocks rise. It only warns.

*What to do.* Watch the next few hundred steps, and look at what CREEP_CONFIRMED names.
""",
            symptoms=(
                Symptom.SLOWER_LATER,
                Symptom.MEMORY,
            ),
        ),
    },
)
