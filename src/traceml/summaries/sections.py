"""The sections of a summary: step time, step memory, system, process, stability."""

from __future__ import annotations

from collections.abc import Sequence

from traceml.facts.facts import Facts, RankFacts, share
from traceml.facts.gpu_use import GpuUse
from traceml.facts.memory import NO_MEMORY, Place
from traceml.facts.sensors import GpuFacts, HostFacts, ProcessFacts
from traceml.facts.times import StepTimes
from traceml.model.evidence import Value
from traceml.model.finding import Finding
from traceml.model.phase import PHASES
from traceml.model.rank import Rank
from traceml.summaries.record import (
    FactSummary,
    GpuRow,
    Identity,
    Issue,
    SectionMetadata,
    SectionSummary,
    SystemSummary,
    Window,
)
from traceml.summaries.tables import TableRow, groups, number, over_all

_MILLISECONDS = {
    "input_wait_ms": "input_s",
    "step_time_ms": "step_s",
    "traced_step_time_ms": "body_s",
    "step_time_cpu_ms": "cpu_step_s",
    "step_time_gpu_ms": "gpu_step_s",
    "traced_step_time_cpu_ms": "cpu_body_s",
    "traced_step_time_gpu_ms": "gpu_body_s",
    "dataloader_fetch_cpu_ms": "cpu_input_s",
    "h2d_ms": "h2d_s",
    "compute_ms": "compute_s",
    "residual_ms": "residual_with_communication_s",
    "forward_ms": "forward_s",
    "backward_ms": "backward_s",
    "optimizer_ms": "optimizer_s",
    "communication_ms": "communication_s",
    "wait_ms": "wait_s",
    "between_ms": "between_s",
    "evaluation_ms": "evaluation_s",
    "checkpoint_ms": "checkpoint_s",
    "wall_step_ms": "wall_s",
    "step_time_p50_ms": "p50_s",
    "step_time_p95_ms": "p95_s",
    "step_time_p99_ms": "p99_s",
    "step_time_stdev_ms": "stdev_s",
    "step_time_mad_ms": "mad_s",
}
_RATES = ("steps_per_s", "samples_per_s")
STEP_TIME = (*_MILLISECONDS, *_RATES)
_PEAKS = ("peak_allocated_bytes", "peak_reserved_bytes", "peak_rss_bytes")
_RISES = {
    "allocated_rise_bytes": Place.GPU,
    "rss_rise_bytes": Place.HOST,
    "workers_rss_rise_bytes": Place.WORKERS,
}
STEP_MEMORY = (*_PEAKS, *_RISES)


def mode(nodes: int) -> str:
    """How the run was laid out, in the file's words."""
    return "multi_node" if nodes > 1 else "single_node"


def step_time(facts: Facts, issues: Sequence[Issue], nodes: int) -> SectionSummary:
    """Where the time of a step went."""
    used = facts.ranks_used
    rows = [
        TableRow(rank.rank.rank, _identity(rank.rank), _step_metrics(rank.times)) for rank in used
    ]
    window = _step_window(facts, facts.clock)
    return _section(
        issues,
        metadata=SectionMetadata(
            mode=mode(nodes) if used else "no_data",
            duration_s=number(max((rank.loop_s for rank in facts.ranks), default=None)),
            samples=facts.window.steps_analyzed,
            global_ranks_seen=len(facts.ranks),
            global_ranks_used=len(used),
            training_total_steps=facts.window.steps_taken,
            training_latest_step=facts.window.steps_taken,
            section_metric_names=STEP_TIME,
        ),
        rows=rows,
        window=window,
        average=_step_metrics(facts.mean),
        units={"time": "ms", "throughput": "1/s"},
    )


def step_memory(facts: Facts, issues: Sequence[Issue], nodes: int) -> SectionSummary:
    """How much memory the ranks needed at most."""
    rows = [
        TableRow(rank.rank.rank, _identity(rank.rank), _memory_metrics(rank))
        for rank in facts.ranks
        if rank.memory != NO_MEMORY
    ]
    return _section(
        issues,
        metadata=SectionMetadata(
            mode=mode(nodes) if rows else "no_data",
            samples=facts.window.steps_analyzed if rows else 0,
            global_ranks_seen=len(facts.ranks),
            global_ranks_used=len(rows),
            training_total_steps=facts.window.steps_taken,
            training_latest_step=facts.window.steps_taken,
            section_metric_names=STEP_MEMORY,
        ),
        rows=rows,
        window=_step_window(facts, None),
        units={"memory": "bytes"},
    )


def system(facts: Facts, issues: Sequence[Issue], nodes: int, gpus_observed: int) -> SystemSummary:
    """What the machine was doing meanwhile, and each of its GPUs."""
    metrics = _host_metrics(facts.host)
    first = facts.ranks[0].rank if facts.ranks else None
    identity = Identity(node_rank=0) if first is None else _identity(first)
    rows = [TableRow(identity.node_rank or 0, identity, metrics)] if facts.host.samples else []
    section = _section(
        issues,
        metadata=SectionMetadata(
            mode=mode(nodes) if rows else "no_data",
            duration_s=number(facts.host.duration_s),
            samples=facts.host.samples,
            nodes_expected=nodes,
            nodes_observed=len(rows),
            gpus_observed=gpus_observed,
            section_metric_names=tuple(metrics),
        ),
        rows=rows,
        window=_sample_window(facts.host.samples),
        by="node_rank",
        units={
            "memory": "bytes",
            "temperature": "C",
            "power": "W",
            "util": "%",
            "share": "fraction",
        },
    )
    return SystemSummary(
        **{name: getattr(section, name) for name in section.__struct_fields__},
        gpus=tuple(map(_gpu_row, facts.host.by_gpu)),
    )


def _gpu_row(gpu: GpuFacts) -> GpuRow:
    metrics = {
        **_use_metrics(gpu.use),
        "gpu_mem_bytes": gpu.memory_bytes.mean,
        "gpu_mem_percent": _percent(gpu.memory_share.mean),
        "gpu_temp_c": gpu.temperature_c.mean,
        "gpu_power_w": gpu.power_w.mean,
        "gpu_clock_percent": _percent(gpu.clock_share.mean),
    }
    return GpuRow(
        index=gpu.index,
        uuid=gpu.uuid,
        name=gpu.name,
        metrics={name: number(value) for name, value in metrics.items()},
    )


def _use_metrics(use: GpuUse) -> dict[str, float | None]:
    """What the counters say of the time in which steps ran, as fractions."""
    return {
        "gpu_busy_share": use.busy_share,
        "sm_share": use.sm_share,
        "occupancy": use.occupancy,
        "tensor_share": use.tensor_share,
        "fp32_share": use.fp32_share,
        "dram_share": use.dram_share,
        "gpu_counter_samples": use.samples or None,
    }


def process(facts: Facts, issues: Sequence[Issue], nodes: int) -> SectionSummary:
    """What each rank's process used of the machine."""
    known = {rank.rank.rank: rank for rank in facts.ranks}
    rows = [
        TableRow(
            found.rank,
            _identity(rank.rank) if rank is not None else Identity(global_rank=found.rank),
            _process_metrics(found, rank, facts.host.cores),
        )
        for found in facts.processes
        for rank in [known.get(found.rank)]
    ]
    samples = max((found.samples for found in facts.processes), default=0)
    return _section(
        issues,
        metadata=SectionMetadata(
            mode=mode(nodes) if rows else "no_data",
            duration_s=number(facts.host.duration_s),
            samples=samples,
            global_ranks_seen=max(len(rows), len(known)),
            global_ranks_used=len(rows),
            section_metric_names=tuple(_process_metrics(ProcessFacts(0, 0), None)),
        ),
        rows=rows,
        window=_sample_window(samples),
        units={"memory": "bytes", "cpu": "%"},
    )


def stability(facts: Facts, issues: Sequence[Issue], nodes: int) -> SectionSummary:
    """Whether the run came to its end, and how its loss went."""
    loss = facts.stability.loss
    return _section(
        issues,
        metadata=SectionMetadata(
            mode=mode(nodes) if facts.ranks else "no_data",
            samples=0 if loss is None else loss.values,
            global_ranks_seen=len(facts.ranks),
            training_total_steps=facts.window.steps_taken,
            training_latest_step=facts.window.steps_taken,
        ),
        rows=(),
        window=_step_window(facts, None),
        units={},
    )


def issue(finding: Finding, since_step: int | None = None) -> Issue:
    """A finding as the file lists it; many know themselves since when they hold."""
    onset = finding.evidence.get("onset_step")
    return Issue(
        kind=finding.kind.value,
        status=finding.kind.status,
        severity=finding.severity.value,
        summary=finding.claim,
        action=finding.action,
        metric=finding.phase and PHASES[finding.phase].metric.removesuffix("_ms"),
        phase=finding.phase and finding.phase.value,
        score=number(finding.share),
        share_pct=number(finding.share),
        skew_pct=number(finding.skew),
        ranks=finding.ranks,
        evidence=evidence(finding),
        facts=facts_of(finding),
        since_step=onset if since_step is None and isinstance(onset, int) else since_step,
    )


def facts_of(finding: Finding) -> tuple[FactSummary, ...]:
    """What the pieces of evidence that people see are called, and their units."""
    return tuple(
        FactSummary(piece.key, piece.label, piece.unit.value)
        for piece in finding.evidence.pieces
        if piece.is_told
    )


def evidence(finding: Finding) -> dict[str, Value]:
    """The numbers behind a finding, as they are written."""
    return {
        name: number(value) if isinstance(value, float) else value
        for name, value in finding.evidence.items()
    }


def _section(
    issues: Sequence[Issue],
    *,
    metadata: SectionMetadata,
    rows: Sequence[TableRow],
    window: Window,
    units: dict[str, str],
    by: str = "global_rank",
    average: dict[str, float | None] | None = None,
) -> SectionSummary:
    return SectionSummary(
        metadata=metadata,
        diagnosis=issues[0] if issues else None,
        issues=tuple(issues),
        global_=over_all(by, metadata.section_metric_names, rows, window, average),
        groups=groups(by, rows),
        units=units,
    )


def _step_window(facts: Facts, clock: str | None) -> Window:
    return Window(
        kind="step_window",
        alignment="common_steps",
        steps_analyzed=facts.window.steps_analyzed,
        start_step=facts.window.first_step,
        end_step=facts.window.last_step,
        completed_step=facts.window.last_step,
        warmup_steps=facts.window.warmup_steps,
        diagnosis_clock=clock,
    )


def _sample_window(samples: int) -> Window:
    return Window(kind="sample_window", alignment="none", samples=samples)


def _identity(rank: Rank) -> Identity:
    return Identity(
        global_rank=rank.rank,
        local_rank=rank.local_rank,
        node_rank=rank.node_rank,
        hostname=rank.hostname,
        local_world_size=rank.local_world_size,
        world_size=rank.world_size,
    )


def _step_metrics(times: StepTimes) -> dict[str, float | None]:
    return {
        name: None if (seconds := getattr(times, field)) is None else seconds * 1e3
        for name, field in _MILLISECONDS.items()
    } | {name: getattr(times, name) for name in _RATES}


def _memory_metrics(rank: RankFacts) -> dict[str, float | None]:
    trends = rank.memory.trends
    return {name: getattr(rank.memory, name) for name in _PEAKS} | {
        name: trends[place].rise_bytes if place in trends else None
        for name, place in _RISES.items()
    }


def _percent(part: float | None) -> float | None:
    return None if part is None else part * 100


def _host_metrics(host: HostFacts) -> dict[str, float | None]:
    return {
        "cpu_percent": _percent(host.cpu_share.mean),
        "ram_bytes": host.ram_bytes.mean,
        "ram_percent": _percent(host.ram_share.mean),
        "gpu_util_percent": _percent(host.gpu_use.busy_share),
        "gpu_mem_bytes": host.gpu_memory_bytes.mean,
        "gpu_mem_percent": _percent(host.gpu_memory_share.mean),
        "gpu_temp_c": host.gpu_temperature_c.mean,
        "gpu_power_w": host.gpu_power_w.mean,
        "gpu_headroom_bytes": host.gpu_headroom_bytes.mean,
        "cpu_peak_percent": _percent(host.cpu_share.peak),
        "cpu_other_percent": _percent(host.cpu_other_share.mean),
        "cpu_steal_percent": _percent(host.cpu_steal_share.mean),
        "cpu_throttled_percent": _percent(host.cpu_throttled_share.mean),
        "ram_peak_bytes": host.ram_bytes.peak,
        "swap_peak_bytes": host.swap_bytes.peak,
        "swap_bytes_per_s": host.swap_bytes_per_s.mean,
        "oom_kills": host.oom_kills,
        "disk_read_bytes_per_s": host.disk_read_bytes_per_s.mean,
        "disk_write_bytes_per_s": host.disk_write_bytes_per_s.mean,
        "disk_busy_percent": _percent(host.disk_busy_share.mean),
        "network_received_bytes_per_s": host.network_received_bytes_per_s.mean,
        "network_sent_bytes_per_s": host.network_sent_bytes_per_s.mean,
        "gpu_mem_peak_bytes": host.gpu_memory_bytes.peak,
        "gpu_temp_peak_c": host.gpu_temperature_c.peak,
        "gpu_clock_percent": _percent(host.gpu_clock_share.mean),
        **_use_metrics(host.gpu_use),
    }


def _process_metrics(
    process: ProcessFacts, rank: RankFacts | None, cores: float | None = None
) -> dict[str, float | None]:
    allocated = reserved = total = None
    if rank is not None:
        allocated, reserved = rank.memory.peak_allocated_bytes, rank.memory.peak_reserved_bytes
        total = rank.rank.device_total_bytes
    full = share(reserved, total)
    headroom = None if reserved is None or total is None else total - reserved
    return {
        "cpu_percent": _percent(process.cpu_cores.mean),
        "cpu_capacity_percent": _percent(share(process.cpu_cores.mean, cores)),
        "ram_bytes": process.rss_bytes.mean,
        "ram_percent": _percent(process.rss_share.mean),
        "gpu_mem_used_bytes": allocated,
        "gpu_mem_reserved_bytes": reserved,
        "gpu_mem_reserved_percent": _percent(full),
        "gpu_mem_headroom_bytes": headroom,
        "ram_peak_bytes": process.rss_bytes.peak,
        "threads": process.threads.peak,
        "runqueue_percent": _percent(process.runqueue_share.mean),
        "major_faults_per_s": process.major_faults_per_s.mean,
        "workers": process.workers.peak,
        "workers_cpu_percent": _percent(process.workers_cpu_cores.mean),
        "workers_runqueue_percent": _percent(process.workers_runqueue_share.mean),
        "workers_ram_bytes": process.workers_rss_bytes.mean,
    }
