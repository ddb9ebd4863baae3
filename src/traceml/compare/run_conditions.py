"""What a summary says about the machine during the run: load, waiting, quota, GPU."""

from __future__ import annotations

from dataclasses import dataclass

from traceml.compare.measured import Values, section_of, values
from traceml.model.finding import Kind, Section
from traceml.summaries.record import Summary

MIN_HOST_DEPENDENCE = 0.1
"""Even a GPU that always has work gets it from the host, which may be late now and then."""

MAX_NUMBER = 1e30
MAX_RANKS = 10**7
"""A file with more ranks is damaged."""
HOST_KINDS = frozenset(
    kind.value for kind in (Kind.HOST_BOUND, Kind.HOST_SYNC, Kind.INPUT_BOUND, Kind.WAIT_HEAVY)
)
"""Findings by which the host limits a GPU run, however busy its GPU looks."""


@dataclass(frozen=True, slots=True)
class Conditions:
    """The machine during one run; shares in 0–1, `None` where it was not recorded."""

    busy: float | None = None
    """Of all cores, by any program."""
    busy_with_others: float | None = None
    """Of all cores, by programs other than this run, with steal."""
    stolen: float | None = None
    """Of all cores' time, by the hypervisor."""
    waited_for_others: float | None = None
    """The share of the time in which the process that limits the run was ready but other programs
    had the cores."""
    own_cores: float | None = None
    """Cores that the run's own processes kept busy together."""
    is_virtual: bool = False
    """Whether the machine is a virtual one."""
    throttled: float | None = None
    """Of the time, by the control group's CPU quota."""
    gpu_clock: float | None = None
    """Of the highest possible clock."""
    gpu_bytes_of_others: float | None = None
    """Memory on this run's GPUs that belongs to other processes."""
    block_means_ms: tuple[float, ...] = ()
    """Block means of the step time, in order."""
    host_dependence: float = 1.0
    """How much of a delay of the host delays the step; little while a busy GPU hides it."""
    gpu_dependence: float = 0.0
    """How much of a delay of the GPU delays the step."""


def conditions(run: Summary) -> Conditions:
    """Returns the conditions of one run, as far as its summary has them."""
    system, process = _numbers(Section.SYSTEM, run), _numbers(Section.PROCESS, run)
    busy = _share(system, "cpu_percent")
    others = _busy_with_others(run, system, process)
    host_dependence, gpu_dependence = _dependence(run, system)
    return Conditions(
        busy=busy,
        busy_with_others=others,
        stolen=_share(system, "cpu_steal_percent"),
        waited_for_others=_waited_for_others(run, process, busy, others),
        own_cores=_own_cores(run, process),
        is_virtual=bool(run.lineage and run.lineage.hardware and run.lineage.hardware.virtual),
        throttled=_share(system, "cpu_throttled_percent"),
        gpu_clock=_share(system, "gpu_clock_percent"),
        gpu_bytes_of_others=_gpu_bytes_of_others(run, system),
        block_means_ms=run.steps.block_means_ms if run.steps else (),
        host_dependence=host_dependence,
        gpu_dependence=gpu_dependence,
    )


def _numbers(section: Section, run: Summary) -> Values:
    """Returns a section's metrics; impossible values count as not recorded."""
    return {
        name: value
        for name, value in values(section, run).items()
        if value is not None and abs(value) < MAX_NUMBER
    }


def _share(found: Values, metric: str) -> float | None:
    percent = found.get(metric)
    return None if percent is None else min(max(percent / 100, 0.0), 1.0)


def _busy_with_others(run: Summary, system: Values, process: Values) -> float | None:
    """Returns the recorded value, or the busy share without the run's own processes."""
    recorded = _share(system, "cpu_other_percent")
    busy = _share(system, "cpu_percent")
    if recorded is not None or busy is None:
        return recorded
    own, cores = _own_cores(run, process), _machine_cores(run, process)
    return None if own is None or not cores else max(0.0, busy - own / cores)


def _own_cores(run: Summary, process: Values) -> float | None:
    """Returns the cores that the ranks and their workers kept busy together."""
    per_rank, of_workers = process.get("cpu_percent"), process.get("workers_cpu_percent")
    if per_rank is None or (of_workers is None and process.get("workers")):
        return None
    return _ranks(run) * (per_rank + (of_workers or 0.0)) / 100


def _ranks(run: Summary) -> int:
    section = section_of(run, Section.PROCESS)
    found = (section and section.metadata.global_ranks_used) or run.meta.world_size or 1
    return min(max(found, 1), MAX_RANKS)


def _machine_cores(run: Summary, process: Values) -> float | None:
    hardware = run.lineage and run.lineage.hardware
    if hardware and hardware.threads and 0 < hardware.threads < MAX_NUMBER:
        return float(hardware.threads)
    used, of_capacity = process.get("cpu_percent"), process.get("cpu_capacity_percent")
    return used / of_capacity if used and of_capacity else None


def _waited_for_others(
    run: Summary, process: Values, busy: float | None, others: float | None
) -> float | None:
    """Returns how long the process that limits the run waited because other programs had the cores.

    That process is the rank's main thread, or the worker that it waits for, weighted by the share
    of input wait in the step. Waiting for the run's own processes is not noise.
    """
    main = _share(process, "runqueue_percent")
    if main is None:
        return None
    worker = _share(process, "workers_runqueue_percent")
    input_share = _input_share(run)
    waited = main if worker is None else (1 - input_share) * main + input_share * worker
    return max(waited, main) * _others_share(run, process, busy, others)


def _others_share(run: Summary, process: Values, busy: float | None, others: float | None) -> float:
    """Returns the share of others among all that competes with a thread of this run; 1 where
    unknown."""
    own = _own_cores(run, process)
    if busy is None or others is None or not own:
        return 1.0
    rank_cores = (process.get("cpu_percent") or 0.0) / 100
    own_share = max(0.0, busy - others)
    rivals = others + own_share * max(0.0, 1 - min(rank_cores, 1.0) / own)
    return others / rivals if rivals > 0 else 0.0


def _input_share(run: Summary) -> float:
    step_time = _numbers(Section.STEP_TIME, run)
    step_ms, input_ms = step_time.get("step_time_ms"), step_time.get("input_wait_ms")
    return min(max(input_ms / step_ms, 0.0), 1.0) if step_ms and input_ms else 0.0


def _dependence(run: Summary, system: Values) -> tuple[float, float]:
    """Returns how much of a delay of the host, and of the GPU, delays the step."""
    clock = run.step_time.global_.window.diagnosis_clock if run.step_time else None
    if clock != "gpu":
        return 1.0, 0.0
    in_use = _share(system, "gpu_util_percent")
    if in_use is None:
        return 1.0, 1.0  # nobody knows which of the two sets the pace
    kinds = {issue.kind for issue in run.step_time.issues} if run.step_time else set()
    if kinds & HOST_KINDS:
        return 1.0, in_use
    return max(1 - in_use, _input_share(run), MIN_HOST_DEPENDENCE), in_use


def _gpu_bytes_of_others(run: Summary, system: Values) -> float | None:
    """Returns others' memory on the run's GPUs; only where every GPU belongs to a rank."""
    section = section_of(run, Section.PROCESS)
    gpus, used = run.meta.gpus_observed, system.get("gpu_mem_bytes")
    own = _numbers(Section.PROCESS, run).get("gpu_mem_reserved_bytes")
    if section is None or not gpus or gpus != _ranks(run) or used is None or own is None:
        return None
    return max(0.0, gpus * (used - own))
