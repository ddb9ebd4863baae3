"""The sections of a summary: step time, step memory, system, process, stability."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter, methodcaller
from types import SimpleNamespace
from typing import Any

from traceml.facts.facts import Facts, RankFacts, share
from traceml.facts.goodput import Goodput
from traceml.facts.memory import NO_MEMORY, RankMemory
from traceml.facts.nodes import NodeFacts
from traceml.facts.sensors import GpuFacts, ProcessFacts
from traceml.model.evidence import Value
from traceml.model.finding import Finding, Section, StepSpan
from traceml.model.metric import GPU_COUNTERS, GPU_LEVELS, Metric, in_summary
from traceml.model.parallel_place import NO_PLACE, ParallelPlace
from traceml.model.phase import PHASES
from traceml.model.rank import Rank
from traceml.summaries.record import (
    FactSummary,
    GpuRow,
    Identity,
    Issue,
    NodeSummary,
    SectionMetadata,
    SectionSummary,
    SystemSummary,
    Window,
)
from traceml.summaries.tables import TableRow, groups, number, over_all

_Read = Callable[[Any], "float | None"]


def _reader(metric: Metric, source: str) -> tuple[str, _Read, float]:
    """The key of a metric, how it is read from the facts, and what it is multiplied by."""
    if source:
        return metric.key, attrgetter(source), metric.scale
    return metric.key, methodcaller("phase", metric.phase), metric.scale


_READERS = {
    section: tuple(_reader(metric, metric.source) for metric in in_summary(section))
    for section in Section
}
_GPU_READERS = tuple(
    _reader(metric, metric.source.removeprefix("gpu_")) for metric in (*GPU_COUNTERS, *GPU_LEVELS)
)
"""Of one GPU: its facts have no prefix."""


def _names(section: Section) -> tuple[str, ...]:
    """The keys of a section's metrics."""
    return tuple(key for key, _, _ in _READERS[section])


def _metrics(facts: object, readers: Sequence[tuple[str, _Read, float]]) -> dict[str, float | None]:
    """The metrics that the facts hold: of a step, of a rank's memory, of a machine …"""
    return {
        key: None if (value := read(facts)) is None else value * scale
        for key, read, scale in readers
    }


@dataclass(frozen=True, slots=True)
class _RankProcess:
    """A rank's process beside what there is for it."""

    process: ProcessFacts
    memory: RankMemory
    gpu_bytes: int | None
    """The memory of its GPU."""
    cores: float | None
    """Those that the job may use."""

    @property
    def capacity_share(self) -> float | None:
        """Of the cores."""
        return share(self.process.cpu_cores.mean, self.cores)

    @property
    def reserved_share(self) -> float | None:
        """Of the GPU's memory."""
        return share(self.memory.peak_reserved_bytes, self.gpu_bytes)

    @property
    def headroom_bytes(self) -> float | None:
        """What it left free of it."""
        reserved = self.memory.peak_reserved_bytes
        return None if reserved is None or self.gpu_bytes is None else self.gpu_bytes - reserved


def mode(nodes: int) -> str:
    """Returns how the run was laid out, as the file names it."""
    return "multi_node" if nodes > 1 else "single_node"


def step_time(facts: Facts, issues: Sequence[Issue], nodes: int) -> SectionSummary:
    """Returns the section on where the time of a step went."""
    used, readers = facts.ranks_used, _READERS[Section.STEP_TIME]
    rows = [
        TableRow(rank.rank.rank, _identity(rank.rank, rank.place), _metrics(rank.times, readers))
        for rank in used
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
            section_metric_names=_names(Section.STEP_TIME),
        ),
        rows=rows,
        window=window,
        average=_metrics(facts.mean, readers),
        units={"time": "ms", "throughput": "1/s"},
    )


def step_memory(facts: Facts, issues: Sequence[Issue], nodes: int) -> SectionSummary:
    """Returns the section on the ranks' peak memory."""
    readers = _READERS[Section.STEP_MEMORY]
    rows = [
        TableRow(rank.rank.rank, _identity(rank.rank, rank.place), _metrics(rank.memory, readers))
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
            section_metric_names=_names(Section.STEP_MEMORY),
        ),
        rows=rows,
        window=_step_window(facts, None),
        units={"memory": "bytes"},
    )


def system(facts: Facts, issues: Sequence[Issue], nodes: int, gpus_observed: int) -> SystemSummary:
    """Returns the section on each machine and its GPUs."""
    rows = _node_rows(facts) if facts.nodes else _machine_row(facts)
    section = _section(
        issues,
        metadata=SectionMetadata(
            mode=mode(nodes) if rows else "no_data",
            duration_s=number(facts.host.duration_s),
            samples=facts.host.samples,
            nodes_expected=nodes,
            nodes_observed=len(rows),
            gpus_observed=gpus_observed,
            section_metric_names=_names(Section.SYSTEM),
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
        gpus=tuple(_gpu_row(gpu, node.name) for node in facts.nodes for gpu in node.host.by_gpu)
        if facts.nodes
        else tuple(map(_gpu_row, facts.host.by_gpu)),
    )


def _machine_row(facts: Facts) -> list[TableRow]:
    """The row of the one machine; none where it was not sampled."""
    if not facts.host.samples:
        return []
    first = facts.ranks[0].rank if facts.ranks else None
    identity = Identity(node_rank=0) if first is None else _identity(first)
    metrics = _metrics(facts.host, _READERS[Section.SYSTEM])
    return [TableRow(identity.node_rank or 0, identity, metrics)]


def _node_rows(facts: Facts) -> list[TableRow]:
    """A row for each machine of several that was sampled, by its number in the job."""
    rows, taken = [], set()
    for place, node in enumerate(facts.nodes):
        number = place if node.node_rank is None else node.node_rank
        while number in taken:  # nodes without ranks, and those of a job that was started anew
            number += len(facts.nodes)
        taken.add(number)
        if node.host.samples:
            name, size = node.hostname or node.name, len(node.ranks)
            identity = Identity(node_rank=number, hostname=name, local_world_size=size)
            metrics = _metrics(node.host, _READERS[Section.SYSTEM])
            rows.append(TableRow(number, identity, metrics))
    return rows


_NODE_TIMES: tuple[tuple[str, _Read, float], ...] = (
    ("step_time_ms", attrgetter("step_s"), 1e3),
    ("own_time_ms", attrgetter("own_s"), 1e3),
    ("slowest_own_time_ms", attrgetter("slowest_own_s"), 1e3),
    ("communication_ms", attrgetter("communication_s"), 1e3),
    ("round_trip_ms", attrgetter("round_trip_s"), 1e3),
    ("arrival_late_ms", lambda node: node.arrival and node.arrival.late_s, 1e3),
    ("arrival_uncertainty_ms", lambda node: node.arrival and node.arrival.uncertainty_s, 1e3),
)
_NODE_SENSORS = tuple(
    reader
    for reader in _READERS[Section.SYSTEM]
    if reader[0]
    in (
        "cpu_percent",
        "ram_bytes",
        "ram_percent",
        "gpu_util_percent",
        "gpu_mem_bytes",
        "gpu_mem_percent",
        "gpu_clock_percent",
    )
)
"""Of a node's sensors, those that tables show; `system.groups.rows` has all of them."""


def _node_metrics(node: NodeFacts) -> dict[str, float | None]:
    return {**_metrics(node, _NODE_TIMES), **_metrics(node.host, _NODE_SENSORS)}


def node_rows(facts: Facts) -> tuple[NodeSummary, ...]:
    """Returns the machines of a run over several, the head first."""
    return tuple(
        NodeSummary(
            name=node.name,
            hostname=node.hostname or None,
            ranks=node.ranks,
            way=node.way.value,
            is_complete=node.is_complete,
            clock_offset_s=node.clock_offset_s,
            clock_uncertainty_s=node.clock_uncertainty_s,
            version=node.version or None,
            missing=node.missing,
            node_rank=node.node_rank,
            slowest_rank=node.slowest_rank,
            metrics={name: number(value) for name, value in _node_metrics(node).items()},
        )
        for node in facts.nodes
    )


def _gpu_row(gpu: GpuFacts, node: str | None = None) -> GpuRow:
    return GpuRow(
        node=node,
        index=gpu.index,
        uuid=gpu.uuid,
        name=gpu.name,
        metrics={name: number(value) for name, value in _metrics(gpu, _GPU_READERS).items()},
    )


def process(facts: Facts, issues: Sequence[Issue], nodes: int) -> SectionSummary:
    """Returns the section on what each rank's process used."""
    known = {rank.rank.rank: rank for rank in facts.ranks}
    rows = [
        TableRow(
            found.rank,
            Identity(global_rank=found.rank) if rank is None else _identity(rank.rank, rank.place),
            _metrics(_rank_process(found, rank, facts.host.cores), _READERS[Section.PROCESS]),
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
            section_metric_names=_names(Section.PROCESS),
        ),
        rows=rows,
        window=_sample_window(samples),
        units={"memory": "bytes", "cpu": "%"},
    )


def stability(facts: Facts, issues: Sequence[Issue], nodes: int) -> SectionSummary:
    """Returns the section on how the run ended and how its loss developed."""
    loss = facts.stability.loss
    average = None if facts.goodput is None else _goodput_metrics(facts.goodput)
    return _section(
        issues,
        metadata=SectionMetadata(
            mode=mode(nodes) if facts.ranks else "no_data",
            samples=0 if loss is None else loss.values,
            global_ranks_seen=len(facts.ranks),
            training_total_steps=facts.window.steps_taken,
            training_latest_step=facts.window.steps_taken,
            section_metric_names=_names(Section.STABILITY),
        ),
        rows=(),
        window=_step_window(facts, None),
        average=average,
        units={"share": "%"},
    )


def _goodput_metrics(goodput: Goodput) -> dict[str, float | None]:
    shares = {part.value: goodput.share_of(part) for part in goodput.parts_s}
    numbers = SimpleNamespace(share=goodput.share, **shares)
    return _metrics(numbers, _READERS[Section.STABILITY])


def issue(finding: Finding, since_step: int | None = None) -> Issue:
    """Returns a finding as the file lists it; `since_step` is used unless the finding has its
    own."""
    steps = finding.steps
    if steps is None and since_step is not None:
        steps = StepSpan(since_step)
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
        nodes=finding.nodes,
        evidence=evidence(finding),
        facts=facts_of(finding),
        since_step=None if steps is None else steps.first,
        until_step=None if steps is None else steps.last,
    )


def facts_of(finding: Finding) -> tuple[FactSummary, ...]:
    """Returns label and unit of the evidence that people see."""
    return tuple(
        FactSummary(piece.key, piece.label, piece.unit.value)
        for piece in finding.evidence.pieces
        if piece.is_told
    )


def evidence(finding: Finding) -> dict[str, Value]:
    """Returns the numbers behind a finding, as they are written to the file."""
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
    attempts = facts.window.attempts
    return Window(
        kind="step_window",
        alignment="common_steps",
        steps_analyzed=facts.window.steps_analyzed,
        start_step=facts.window.first_step,
        end_step=facts.window.last_step,
        completed_step=facts.window.last_step,
        warmup_steps=facts.window.warmup_steps,
        diagnosis_clock=clock,
        attempts=None if attempts is None else attempts.numbers,
        steps_left_out=None if attempts is None else attempts.steps_left_out,
    )


def _sample_window(samples: int) -> Window:
    return Window(kind="sample_window", alignment="none", samples=samples)


def _identity(rank: Rank, place: ParallelPlace = NO_PLACE) -> Identity:
    return Identity(
        global_rank=rank.rank,
        local_rank=rank.local_rank,
        node_rank=rank.node_rank,
        hostname=rank.hostname,
        local_world_size=rank.local_world_size,
        world_size=rank.world_size,
        mesh={each.name: each.coordinate for each in place.dimensions} or None,
        pipeline_stages=place.stages or None,
    )


def _rank_process(
    process: ProcessFacts, rank: RankFacts | None, cores: float | None
) -> _RankProcess:
    if rank is None:
        return _RankProcess(process, NO_MEMORY, None, cores)
    return _RankProcess(process, rank.memory, rank.rank.device_total_bytes, cores)
