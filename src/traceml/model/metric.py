"""The catalogue of metrics: the numbers of a summary's sections, and everything said of each.

The keys of the summary, where their values come from, units, the rows of a comparison, the words of
`traceml compare --metric`, table columns and the reference pages derive from it. Each phase of
`model/phase.py` is a metric by itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType

from traceml.model.evidence import EvidenceUnit as Unit
from traceml.model.evidence import unit_by_name
from traceml.model.finding import Section
from traceml.model.phase import (
    BETWEEN,
    COMPUTE,
    COMPUTE_PART,
    IN_RESIDUAL_MS,
    PHASES,
    Phase,
    Within,
)
from traceml.model.record_layout import IDLE_CAUSES
from traceml.model.run_time import RUN_PARTS, RunPart

_SCALES = {Unit.MILLISECONDS: 1e3, Unit.PERCENT: 100.0}
"""Facts count in seconds and in shares of one."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One number of a section."""

    section: Section
    key: str
    """In files; it stays what it is, and its end says the unit."""
    source: str
    """The attribute that holds it in the facts of its section (`summaries/sections.py`); empty for
    a phase, and for what follows from other metrics, which only comparisons have."""
    doc: str
    """What it is, for the reference pages."""
    phase: Phase | None = None
    """The phase whose mean it is."""
    label: str = ""
    """What it is called in tables, tiles and verdicts; empty where it is in none."""
    short: str = ""
    """Its name where a line of text has it beside others."""
    note: str = ""
    """What a tile says of it besides."""
    row: str = ""
    """Its name as a row of a comparison; empty where it is none."""
    depth: int = 0
    """How far the row is indented: it is a part of one above."""
    is_headline: bool = False
    """Whether the row is there even where it did not move: the verdict is read against it."""
    is_tile: bool = False
    """Whether a comparison's page has a tile of it, as it has of headlines."""
    word: str = ""
    """What `--metric` calls it; of several with one word the first that both sides have counts."""
    more_is_better: bool = False
    varies_as_steps_do: bool = False
    """Whether it differs from run to run as the step time does; a phase may differ more."""
    any_clock: bool = False
    """Whether it means the same whichever clock a run was diagnosed by."""
    on_host: str = ""
    """The key under which the host's clock has the same, whichever clock this one is on."""
    may_be_negative: bool = False
    """Whether it is what a subtraction leaves."""

    @property
    def unit(self) -> Unit:
        """What it counts."""
        return unit_by_name(self.key)

    @property
    def scale(self) -> float:
        """How many of its unit are one of what the facts count in."""
        return _SCALES.get(self.unit, 1.0)

    @property
    def is_in_summary(self) -> bool:
        """Whether summaries have it, and not only comparisons."""
        return bool(self.source) or self.phase is not None


_step = partial(Metric, Section.STEP_TIME)
_memory = partial(Metric, Section.STEP_MEMORY)
_process = partial(Metric, Section.PROCESS)
_system = partial(Metric, Section.SYSTEM)
_stability = partial(Metric, Section.STABILITY)


def _of_phase(phase: Phase) -> Metric:
    """The mean of a phase, by its entry in the other catalogue."""
    entry = PHASES[phase]
    is_rest = entry.within is Within.REST
    return _step(
        entry.metric,
        # As the shared schema has it: body without copies and compute.
        "residual_with_communication_s" if is_rest else "",
        entry.doc,
        phase=phase,
        label=f"{entry.label} of the step" if is_rest else entry.label,
        row=entry.short.capitalize(),
        depth=2 if phase in COMPUTE else 1,
        is_headline=phase is Phase.INPUT,
        word=phase.value,
        on_host="dataloader_fetch_cpu_ms" if phase is Phase.INPUT else "",
        may_be_negative=is_rest,
    )


_IDLE_WHEN = {
    "compile": ("during compiling", "while the host compiled"),
    "gc": ("during garbage collection", "while the host collected garbage"),
    "logging": ("during logging", "while the host logged"),
    "sync": ("after waits for the device", "after the host had waited for it"),
    "python": (
        "during the script's own code",
        "while the host ran the script's own code; at most, where that launches work",
    ),
    "launching": (
        "during launches",
        "while the host launched the work of a phase; at most, since it may have worked",
    ),
}
"""Each of `IDLE_CAUSES` in words: short, and as the end of a sentence."""
GPU_IDLE = tuple(
    _step(
        f"gpu_idle_{cause}_ms",
        f"idle_{cause}_s",
        f"the GPU was idle {_IDLE_WHEN[cause][1]}",
        short=_IDLE_WHEN[cause][0],
    )
    for cause in IDLE_CAUSES
)
"""The GPU's idle time by what the host did then, besides input, copies and communication."""

STEP_TIME = (
    _step(
        "step_time_ms",
        "step_s",
        "input wait + body",
        label="Step time",
        row="Total step",
        is_headline=True,
        word="step_time",
        varies_as_steps_do=True,
        any_clock=True,
        on_host="step_time_cpu_ms",
    ),
    _of_phase(Phase.INPUT),
    _step(
        "traced_step_time_ms",
        "body_s",
        "body: the step without its input wait",
        on_host="traced_step_time_cpu_ms",
    ),
    _of_phase(Phase.H2D),
    _step(
        "compute_ms",
        "compute_s",
        "forward + backward + optimizer + replays of CUDA graphs that hold more than one of them; "
        "`null` where one was not measured",
        label="Compute",
        row="Compute",
        depth=1,
        is_headline=True,
        word=COMPUTE_PART,
    ),
    *map(_of_phase, COMPUTE),
    _step("wait_ms", "wait_s", "body − compute", may_be_negative=True),
    _step("wait_share_percent", "", "`wait_ms` as a share of the step"),
    _of_phase(Phase.RESIDUAL),
    *map(_of_phase, IN_RESIDUAL_MS),
    _step(
        "between_ms",
        "between_s",
        "between steps: evaluation, checkpoints, and what an explicit step leaves outside",
        label="Time between steps",
        row="Between steps",
        word=BETWEEN,
        any_clock=True,
    ),
    _step("evaluation_ms", "evaluation_s", "the part of it spent in evaluation", any_clock=True),
    _step("checkpoint_ms", "checkpoint_s", "the part of it spent saving", any_clock=True),
    _step(
        "wall_step_ms",
        "wall_s",
        "step + between, on the host's clock: these sum to the loop's wall time",
        label="Wall time per step",
        word="wall_step_time",
        any_clock=True,
    ),
    _step("step_time_cpu_ms", "cpu_step_s", "step time on the host's clock", any_clock=True),
    _step("step_time_gpu_ms", "gpu_step_s", "step time on the GPU's clock"),
    _step("traced_step_time_cpu_ms", "cpu_body_s", "body on the host's clock", any_clock=True),
    _step("traced_step_time_gpu_ms", "gpu_body_s", "body on the GPU's clock"),
    _step(
        "dataloader_fetch_cpu_ms", "cpu_input_s", "input wait on the host's clock", any_clock=True
    ),
    *GPU_IDLE,
    _step(
        "step_time_p50_ms", "p50_s", "median step", label="Median step time", word="step_time_p50"
    ),
    *(
        _step(
            f"step_time_p{nth}_ms",
            f"p{nth}_s",
            f"{nth}th percentile",
            label=f"{nth}th percentile of the step time",
            word=f"step_time_p{nth}",
        )
        for nth in (95, 99)
    ),
    _step("step_time_stdev_ms", "stdev_s", "standard deviation"),
    _step("step_time_mad_ms", "mad_s", "median absolute deviation from the median"),
    _step(
        "sample_time_ms",
        "",
        "step time per sample; chosen automatically where batch sizes differ",
        label="Time per sample",
        word="sample_time",
        varies_as_steps_do=True,
    ),
    _step("samples_per_step", "", "samples in a step of one rank"),
    _step(
        "samples_per_s",
        "samples_per_s",
        "samples a second of wall time, per rank, where the batch size is visible",
        label="Throughput",
        is_tile=True,
        word="throughput",
        more_is_better=True,
        any_clock=True,
    ),
    _step(
        "steps_per_s",
        "steps_per_s",
        "steps a second of wall time",
        word="throughput",
        more_is_better=True,
        any_clock=True,
    ),
)

STEP_MEMORY = (
    _memory(
        "peak_allocated_bytes",
        "peak_allocated_bytes",
        "the most that tensors occupied on the GPU, by torch's allocator",
        label="Peak GPU memory",
        row="Peak allocated",
        is_tile=True,
        word="peak_memory",
    ),
    _memory(
        "peak_reserved_bytes",
        "peak_reserved_bytes",
        "the most that the allocator held",
        row="Peak reserved",
        word="peak_memory",
    ),
    _memory(
        "peak_rss_bytes",
        "peak_rss_bytes",
        "the most that the rank's process held in the host's memory",
        label="Peak host memory",
        is_tile=True,
        word="host_memory",
    ),
    _memory(
        "allocated_rise_bytes",
        "allocated_rise_bytes",
        "how far the floor of the GPU's allocated memory rose from the first third of the run to "
        "the last",
        may_be_negative=True,
    ),
    _memory(
        "rss_rise_bytes", "rss_rise_bytes", "the same for the rank's process", may_be_negative=True
    ),
    _memory(
        "workers_rss_rise_bytes",
        "workers_rss_rise_bytes",
        "the same for the processes below it together",
        may_be_negative=True,
    ),
)

PROCESS = (
    _process(
        "cpu_percent",
        "process.cpu_cores.mean",
        "cores the rank's own process kept busy, 100 per core",
        label="CPU",
        row="Process CPU",
    ),
    _process(
        "cpu_capacity_percent",
        "capacity_share",
        "the same as a share of the cores that the job may use",
    ),
    _process(
        "ram_bytes",
        "process.rss_bytes.mean",
        "resident memory",
        label="Memory",
        row="Process memory",
    ),
    _process("ram_percent", "process.rss_share.mean", "the same as a share of the host's"),
    _process("ram_peak_bytes", "process.rss_bytes.peak", "its highest sample", label="Peak memory"),
    _process("gpu_mem_used_bytes", "memory.peak_allocated_bytes", "peak allocated by the rank"),
    _process(
        "gpu_mem_reserved_bytes",
        "memory.peak_reserved_bytes",
        "peak reserved by the rank",
        label="GPU memory",
    ),
    _process("gpu_mem_reserved_percent", "reserved_share", "the same as a share of the device"),
    _process(
        "gpu_mem_headroom_bytes", "headroom_bytes", "what the rank left free", may_be_negative=True
    ),
    _process("threads", "process.threads.peak", "most threads", label="Threads"),
    _process(
        "workers",
        "process.workers.peak",
        "most worker processes below the rank, of a DataLoader or of the script's own making; not "
        "the compilers, trackers and programs that it starts",
        label="Workers",
    ),
    _process(
        "workers_cpu_percent",
        "process.workers_cpu_cores.mean",
        "cores that all processes below the rank kept busy together, 100 per core",
        label="Workers' CPU",
    ),
    _process(
        "workers_ram_bytes", "process.workers_rss_bytes.mean", "resident memory of all workers"
    ),
    _process(
        "runqueue_percent",
        "process.runqueue_share.mean",
        "time in which the main thread was ready to run but waited for a CPU core",
        label="Waiting for a core",
    ),
    _process(
        "workers_runqueue_percent",
        "process.workers_runqueue_share.mean",
        "of the worker that had to wait for a core most, what `runqueue_percent` is of the rank",
    ),
    _process(
        "major_faults_per_s",
        "process.major_faults_per_s.mean",
        "pages that the rank's process had to read back from a disk",
    ),
)

GPU_COUNTERS = (
    _system(
        "gpu_busy_share",
        "gpu_use.busy_share",
        "time in which a kernel was resident, as a fraction; `gpu_util_percent` is the same in "
        "percent",
        label="In use",
    ),
    _system(
        "sm_share",
        "gpu_use.sm_share",
        "multiprocessors (SMs) that had work, averaged over all of them",
        label="SMs at work",
        short="SM",
        note="while steps ran",
        row="GPU SMs at work",
    ),
    _system(
        "occupancy",
        "gpu_use.occupancy",
        "warps that were active, of the most that the SMs can hold",
    ),
    _system(
        "tensor_share",
        "gpu_use.tensor_share",
        "time in which the tensor cores computed",
        label="Tensor cores",
        short="tensor",
        note="computed, while steps ran",
        row="GPU tensor cores",
    ),
    _system(
        "fp32_share",
        "gpu_use.fp32_share",
        "time in which the FP32 units computed",
        label="FP32 units",
        short="FP32",
        note="computed, while steps ran",
        row="GPU FP32 units",
    ),
    _system(
        "dram_share",
        "gpu_use.dram_share",
        "bandwidth of the GPU's memory, of the highest there is",
        label="Memory bandwidth",
        short="DRAM",
        note="of the highest, while steps ran",
        row="GPU bandwidth",
    ),
    _system(
        "gpu_counter_samples",
        "gpu_use.counted",
        "how many intervals these are from; with too few they are `null`",
    ),
)
"""Over the time in which steps ran."""

GPU_LEVELS = (
    _system("gpu_mem_bytes", "gpu_memory_bytes.mean", "GPU memory in use", row="GPU memory"),
    _system("gpu_mem_percent", "gpu_memory_share.mean", "the same as a share"),
    _system("gpu_temp_c", "gpu_temperature_c.mean", "temperature", row="GPU temperature"),
    _system("gpu_power_w", "gpu_power_w.mean", "power", row="GPU power"),
    _system(
        "gpu_clock_percent",
        "gpu_clock_share.mean",
        "clock of the multiprocessors, of the highest there is",
    ),
)
"""Over all of training; like the counters they are known of each GPU, too."""

GOODPUT = (
    _stability(
        "goodput_percent",
        "share",
        "wall time in productive steps, of all",
        label="Goodput",
        row="Goodput",
        word="goodput",
        more_is_better=True,
        any_clock=True,
    ),
    *(
        _stability(
            f"{part.value}_percent",
            part.value,
            f"of the wall time: {entry.doc}",
            row=entry.label,
            depth=1,
            any_clock=True,
        )
        for part, entry in RUN_PARTS.items()
        if part is not RunPart.STEPS
    ),
)
"""What the wall time of a run went to."""

METRICS = (
    *STEP_TIME,
    _system(
        "gpu_util_percent",
        "gpu_use.busy_share",
        "time in which a kernel was resident: resident, not busy",
        row="GPU utilization",
    ),
    *GPU_COUNTERS,
    *GOODPUT,
    *STEP_MEMORY,
    *PROCESS,
    _system("cpu_percent", "cpu_share.mean", "busy share of all cores", row="Host CPU"),
    _system("cpu_peak_percent", "cpu_share.peak", "its highest sample"),
    _system(
        "cpu_other_percent",
        "cpu_other_share.mean",
        "of all cores, what others than this run's processes kept busy, steal included",
    ),
    _system(
        "cpu_steal_percent",
        "cpu_steal_share.mean",
        "of all cores' time, what the hypervisor gave to other machines",
    ),
    _system(
        "cpu_throttled_percent",
        "cpu_throttled_share.mean",
        "share of time that the cgroup's CPU quota held the job back",
    ),
    _system("ram_bytes", "ram_bytes.mean", "memory in use", row="Host memory"),
    _system("ram_percent", "ram_share.mean", "the same as a share of all memory"),
    _system("ram_peak_bytes", "ram_bytes.peak", "its highest sample"),
    _system("swap_peak_bytes", "swap_bytes.peak", "most swap in use"),
    _system("swap_bytes_per_s", "swap_bytes_per_s.mean", "moved to and from swap"),
    _system(
        "oom_kills", "oom_kills", "processes that the kernel killed for want of memory meanwhile"
    ),
    _system("disk_read_bytes_per_s", "disk_read_bytes_per_s.mean", "read from disks"),
    _system("disk_write_bytes_per_s", "disk_write_bytes_per_s.mean", "written to disks"),
    _system("disk_busy_percent", "disk_busy_share.mean", "time in which the busiest disk had work"),
    _system("network_received_bytes_per_s", "network_received_bytes_per_s.mean", "received"),
    _system("network_sent_bytes_per_s", "network_sent_bytes_per_s.mean", "sent"),
    *GPU_LEVELS,
    _system("gpu_mem_peak_bytes", "gpu_memory_bytes.peak", "highest sample of `gpu_mem_bytes`"),
    _system("gpu_temp_peak_c", "gpu_temperature_c.peak", "highest sample of `gpu_temp_c`"),
    _system(
        "gpu_headroom_bytes",
        "gpu_headroom_bytes.mean",
        "GPU memory still free",
        may_be_negative=True,
    ),
)
"""In the order in which a comparison lists them."""

BY_KEY: Mapping[tuple[Section, str], Metric] = MappingProxyType(
    {(metric.section, metric.key): metric for metric in METRICS}
)


def in_summary(section: Section) -> tuple[Metric, ...]:
    """The metrics that a section of a summary has."""
    return tuple(each for each in METRICS if each.section is section and each.is_in_summary)
