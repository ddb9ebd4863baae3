"""By how much two runs of one command may differ because of the machine, from what they recorded of
it.

Each source of noise has a measure of how much longer a run's steps may have taken because of it, as
a logarithm. What the slower run had more of it than the faster can explain all of their difference
(a bias); where the faster had more, it explains nothing. What both had of it will not be exactly
the same in the next run either (a scatter).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from traceml.compare.pace_drift import drift_reach, spread_of_parts
from traceml.compare.run_conditions import Conditions
from traceml.model.quantities import memory

BUSY_NEIGHBOUR_LOG = 0.5
"""Times the busy share of the cores. Two programs on the two hyperthreads of one core run at about
60 % of their speed each; with free cores, shared caches, memory and clocks cost less."""
SCATTER_SHARE = 0.2
"""Of what a run lost to the machine: samples once per second are no more precise than that."""
MIN_CORES = 0.01
"""The kernel counts CPU time in ticks of 10 ms: less than one per second counts as none."""
NEVER_WAITED_SHARE = 0.05
"""Every thread waits for a core now and then; up to this share it got all it wanted."""
STARVED_SHARE = 0.2
"""From here on the available CPU limits a run; the rule CPU_STARVED uses the same value."""
NEIGHBOUR_ON_GPU_LOG = math.log(1.25)
"""A sleeping process on the same GPU costs nothing, a computing one up to half of the GPU; how much
it computed is not recorded."""
NEIGHBOUR_BYTES = 2 << 30
"""The run's own contexts and libraries use up to this much GPU memory outside torch."""
VIRTUAL_CPU_LOG = 0.31
"""33 runs of two scripts within an hour, on an otherwise idle virtual machine, differed by 11 %
(standard deviation) with no reason visible inside it: 95 of 100 pairs stay within this."""
MAX_SHARE = 0.95
"""A larger share of lost time is treated as this one, because its logarithm diverges."""
MAX_SOURCE_LOG = -math.log1p(-MAX_SHARE)
"""No source explains more than this, whatever a damaged or foreign file says."""
MIN_SHOWN_LOG = 0.01
"""A smaller source is not worth mentioning."""

MIN_UNLIKE_LOG = 0.05
"""A smaller difference between the hosts of two groups is not worth a warning."""


class SourceKind(str, Enum):
    """The sources of noise."""

    CPU_WAIT = "cpu_wait"
    HOST_LOAD = "host_load"
    CPU_STEAL = "cpu_steal"
    CPU_QUOTA = "cpu_quota"
    GPU_CLOCK = "gpu_clock"
    GPU_NEIGHBOURS = "gpu_neighbours"
    UNSTEADY = "unsteady"
    VIRTUAL_CPU = "virtual_cpu"


@dataclass(frozen=True, slots=True)
class SourceEstimate:
    """One source of noise: what each side recorded of it, and what it may explain."""

    kind: SourceKind
    lhs: float
    rhs: float
    bias_log: float
    """How much more of it the slower side had than the faster."""
    scatter_log: float
    """How much it may differ between two runs that both had it: a 95 % limit."""
    summary: str

    @property
    def share(self) -> float:
        """The difference between two equal runs that it can explain."""
        return math.expm1(self.bias_log + self.scatter_log)


@dataclass(frozen=True, slots=True)
class MachineNoise:
    """Every source that is worth mentioning, the largest first."""

    sources: tuple[SourceEstimate, ...] = ()

    def without(self, kind: SourceKind) -> MachineNoise:
        """Returns the noise without a source that is better known from elsewhere."""
        return MachineNoise(tuple(source for source in self.sources if source.kind is not kind))

    def widen(self, base_log: float) -> float:
        """Returns the noise of quiet runs combined with that of the machine."""
        bias = math.fsum(source.bias_log for source in self.sources)
        scatter = math.hypot(base_log, *(source.scatter_log for source in self.sources))
        return bias + scatter


NO_NOISE = MachineNoise()


@dataclass(frozen=True, slots=True)
class _MachineOfSides:
    """The conditions of the two runs, and which of them took longer."""

    a: Conditions
    b: Conditions
    b_is_slower: bool

    @property
    def both(self) -> tuple[Conditions, Conditions]:
        return self.a, self.b

    @property
    def slower(self) -> Conditions:
        return self.b if self.b_is_slower else self.a

    @property
    def faster(self) -> Conditions:
        return self.a if self.b_is_slower else self.b

    @property
    def host_dependence(self) -> float:
        return max(self.a.host_dependence, self.b.host_dependence)

    @property
    def gpu_dependence(self) -> float:
        return max(self.a.gpu_dependence, self.b.gpu_dependence)

    def pair(self, fact: Callable[[Conditions], float | None]) -> tuple[float, float] | None:
        """Returns one fact of both runs; `None` where one did not record it."""
        lhs, rhs = fact(self.a), fact(self.b)
        return None if lhs is None or rhs is None else (lhs, rhs)

    def bias(self, losses: Sequence[float]) -> float:
        """Returns how much more the slower run lost than the faster; `losses` are those of A and
        B."""
        more_in_b = losses[1] - losses[0]
        return max(more_in_b if self.b_is_slower else -more_in_b, 0.0)


def machine_noise(a: Conditions, b: Conditions, b_is_slower: bool) -> MachineNoise:
    """Returns what may have made one of two runs slower; empty where a side recorded nothing."""
    sides = _MachineOfSides(a, b, b_is_slower)
    found = [_bounded(source) for find in _SOURCES if (source := find(sides)) is not None]
    shown = [each for each in found if each.bias_log + each.scatter_log >= MIN_SHOWN_LOG]
    return MachineNoise(tuple(sorted(shown, key=lambda source: -source.share)))


def _bounded(source: SourceEstimate) -> SourceEstimate:
    return replace(
        source,
        bias_log=min(source.bias_log, MAX_SOURCE_LOG),
        scatter_log=min(source.scatter_log, MAX_SOURCE_LOG),
    )


def _cpu_wait(sides: _MachineOfSides) -> SourceEstimate | None:
    found = sides.pair(lambda run: run.waited_for_others)
    if found is None:
        return None
    losses = [
        _lost(share) * run.host_dependence for share, run in zip(found, sides.both, strict=True)
    ]
    words = (
        "the training was ready to run but waited for a CPU core {} of the time in A and {} in B"
    )
    source = _slowing(SourceKind.CPU_WAIT, found, sides.bias(losses), losses, words)
    return replace(source, bias_log=max(source.bias_log, _less_of_the_cpu(sides)))


def _less_of_the_cpu(sides: _MachineOfSides) -> float:
    """Returns how much longer the slower run takes because it got less CPU time than it wanted.

    A run that never waits for a core uses what it needs: a different CPU use is then a change of
    the run itself, not noise.
    """
    slower, faster = sides.slower, sides.faster
    if slower.own_cores is None or faster.own_cores is None:
        return 0.0
    ratio = max(faster.own_cores, MIN_CORES) / max(slower.own_cores, MIN_CORES)
    starved = (slower.waited_for_others or 0.0) - NEVER_WAITED_SHARE
    starved /= STARVED_SHARE - NEVER_WAITED_SHARE
    return max(math.log(ratio), 0.0) * sides.host_dependence * min(max(starved, 0.0), 1.0)


def _host_load(sides: _MachineOfSides) -> SourceEstimate | None:
    """Returns the noise of other programs' CPU load; from the whole load where a run's own part is
    unknown."""
    busy = sides.pair(lambda run: run.busy)
    found = sides.pair(lambda run: run.busy_with_others)
    if busy is None:
        return None
    words = f"the host's CPU was {_percent(busy[0])} busy in A and {_percent(busy[1])} in B"
    if found is None:
        bias = sides.bias(_load_losses(busy, sides))
        return SourceEstimate(SourceKind.HOST_LOAD, *busy, bias, 0.0, words)
    losses = _load_losses(found, sides)
    words += " (by other programs: {} and {})"
    return _slowing(SourceKind.HOST_LOAD, found, sides.bias(losses), losses, words)


def _load_losses(shares: tuple[float, float], sides: _MachineOfSides) -> list[float]:
    return [_lost_by_load(share, run) for share, run in zip(shares, sides.both, strict=True)]


def _cpu_steal(sides: _MachineOfSides) -> SourceEstimate | None:
    found = sides.pair(lambda run: run.stolen)
    if found is None:
        return None
    losses = [_lost_by_steal(run) for run in sides.both]
    words = "the hypervisor took {} of the CPU in A and {} in B"
    return _slowing(SourceKind.CPU_STEAL, found, sides.bias(losses), losses, words)


def _cpu_quota(sides: _MachineOfSides) -> SourceEstimate | None:
    found = sides.pair(lambda run: run.throttled)
    if found is None:
        return None
    losses = [_lost_by_quota(run) for run in sides.both]
    words = "the CPU quota held the training back {} of the time in A and {} in B"
    return _slowing(SourceKind.CPU_QUOTA, found, sides.bias(losses), losses, words)


def _gpu_clock(sides: _MachineOfSides) -> SourceEstimate | None:
    """Returns the noise of a lower GPU clock: slower in proportion, as far as the GPU limits the
    run."""
    found = sides.pair(lambda run: run.gpu_clock)
    if found is None or min(found) <= 0:
        return None
    bias = sides.bias([-math.log(clock) for clock in found]) * sides.gpu_dependence
    words = "the GPU's clock was at {} of its maximum in A and at {} in B"
    return SourceEstimate(SourceKind.GPU_CLOCK, *found, bias, 0.0, _filled(words, found))


def _gpu_neighbours(sides: _MachineOfSides) -> SourceEstimate | None:
    found = sides.pair(lambda run: run.gpu_bytes_of_others)
    if found is None or sides.gpu_dependence == 0:
        return None
    # On one side alone: a bias; a neighbour on both may do as it likes.
    losses = [NEIGHBOUR_ON_GPU_LOG if held >= NEIGHBOUR_BYTES else 0.0 for held in found]
    words = (
        f"other programs held {memory(found[0])} of the GPUs' memory in A and "
        f"{memory(found[1])} in B"
    )
    return SourceEstimate(SourceKind.GPU_NEIGHBOURS, *found, sides.bias(losses), min(losses), words)


def _unsteady(sides: _MachineOfSides) -> SourceEstimate | None:
    a, b = (run.block_means_ms for run in sides.both)
    reach = drift_reach(a, b)
    if reach is None:
        return None
    found = spread_of_parts(a), spread_of_parts(b)
    words = (
        "the step time drifted within the runs (standard deviation between eighths of a run: {} in "
        "A, {} in B)"
    )
    return SourceEstimate(SourceKind.UNSTEADY, *found, 0.0, reach, _filled(words, found))


def _virtual_cpu(sides: _MachineOfSides) -> SourceEstimate | None:
    """Returns the noise of other virtual machines on the same hardware, which is invisible from
    inside.

    Where it makes the step time drift within the runs, it is counted there.
    """
    a, b = sides.both
    if not a.is_virtual and not b.is_virtual:
        return None
    depends = max(run.host_dependence for run in (a, b) if run.is_virtual)
    wandering = drift_reach(a.block_means_ms, b.block_means_ms) or 0.0
    scatter = math.sqrt(max(0.0, (VIRTUAL_CPU_LOG * depends) ** 2 - wandering**2))
    words = "they ran on a virtual machine, whose neighbours' load is not recorded"
    found = float(a.is_virtual), float(b.is_virtual)
    return SourceEstimate(SourceKind.VIRTUAL_CPU, *found, 0.0, scatter, words)


def _slowing(
    kind: SourceKind,
    found: tuple[float, float],
    bias_log: float,
    losses: Sequence[float],
    words: str,
) -> SourceEstimate:
    """Returns a source that can only slow a run down; `losses` are how much, as logarithms."""
    scatter = SCATTER_SHARE * math.hypot(*losses)
    return SourceEstimate(kind, *found, bias_log, scatter, _filled(words, found))


def _lost_by_waiting(run: Conditions) -> float:
    return _lost(run.waited_for_others or 0.0) * run.host_dependence


def _lost_by_load(busy: float, run: Conditions) -> float:
    """Returns what a run lost to other programs' load; steal is a source of its own."""
    return BUSY_NEIGHBOUR_LOG * max(0.0, busy - (run.stolen or 0.0)) * run.host_dependence


def _lost_by_steal(run: Conditions) -> float:
    """Returns what a run lost to steal, as a share of the time in which it wanted to run."""
    stolen = run.stolen or 0.0
    return _lost(stolen / max(run.busy or 1.0, stolen)) * run.host_dependence if stolen else 0.0


def _lost_by_quota(run: Conditions) -> float:
    return _lost(run.throttled or 0.0) * run.host_dependence


def _lost(share: float) -> float:
    """Returns how much longer the same work takes in the remaining share of the time, as a
    logarithm."""
    return -math.log1p(-min(max(share, 0.0), MAX_SHARE))


def lost_to_the_host(run: Conditions) -> float | None:
    """Returns how much longer a run may have taken because of everything else on its host, as a
    logarithm."""
    if run.busy_with_others is None:
        return None
    return math.fsum(
        (
            _lost_by_waiting(run),
            _lost_by_load(run.busy_with_others, run),
            _lost_by_steal(run),
            _lost_by_quota(run),
        )
    )


def unlike_hosts(a: Sequence[Conditions], b: Sequence[Conditions]) -> str | None:
    """Returns a warning where every run of one side had a busier host than any run of the other.

    Then the spread between the runs of a side does not show what the host does to the difference.
    """
    lost = [[lost_to_the_host(run) for run in side] for side in (a, b)]
    known = [[each for each in side if each is not None] for side in lost]
    if any(len(side) < len(runs) for side, runs in zip(known, (a, b), strict=True)):
        return None
    gap = max(min(known[0]) - max(known[1]), min(known[1]) - max(known[0]))
    if gap < MIN_UNLIKE_LOG:
        return None
    busy = [
        [run.busy_with_others for run in side if run.busy_with_others is not None]
        for side in (a, b)
    ]
    sides = ("A", "B") if min(known[0]) > max(known[1]) else ("B", "A")
    return (
        f"Every run of {sides[0]} had a busier host than any run of {sides[1]} (other programs "
        f"kept {_range(busy[0])} of its CPU busy in A and {_range(busy[1])} in B): "
        f"a difference of {_percent(math.expm1(gap))} or more in step time can come from that."
    )


def _range(shares: Sequence[float]) -> str:
    low, high = min(shares), max(shares)
    return (
        _percent(high) if _percent(low) == _percent(high) else f"{100 * low:.0f}–{_percent(high)}"
    )


def _filled(words: str, found: tuple[float, float]) -> str:
    return words.format(_percent(found[0]), _percent(found[1]))


def _percent(share: float) -> str:
    return f"{100 * share:.0f}%"


_SOURCES = (
    *(_cpu_wait, _host_load, _cpu_steal, _cpu_quota),
    *(_gpu_clock, _gpu_neighbours, _unsteady, _virtual_cpu),
)
