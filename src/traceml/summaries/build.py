"""Builds the summary of a run from its records. The same records give the same summary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone

from msgspec import structs

from traceml.diagnose.engine import diagnose
from traceml.diagnose.user_code import host_s
from traceml.diagnose.what_if import WhatIf, predict
from traceml.facts.facts import Facts
from traceml.facts.gather import gather
from traceml.facts.stability import Failure
from traceml.facts.user_time import CodePlace
from traceml.model.finding import Finding, Section, Severity
from traceml.model.phase import COMPUTE, COMPUTE_PART, IN_RESIDUAL_MS, Phase
from traceml.model.quantities import count
from traceml.model.rank import Region
from traceml.model.settings import NOT_RECORDED
from traceml.store.records import RunRecords
from traceml.summaries import sections
from traceml.summaries.artifact_versions import artifact_summaries
from traceml.summaries.goodput import attempt_summaries, goodput_summary
from traceml.summaries.host_time import host_time_summary
from traceml.summaries.layers import layers_summary
from traceml.summaries.live_record import metric_summaries
from traceml.summaries.record import (
    FORMAT,
    PRODUCER,
    SCHEMA_VERSION,
    CodeSummary,
    FailureSummary,
    Issue,
    Meta,
    PhaseCodeSummary,
    PrimaryDiagnosis,
    Producer,
    RegionSummary,
    SectionSummary,
    Setting,
    StepSeries,
    Summary,
    TracerSummary,
    UserTimeSummary,
    WhatIfSummary,
)
from traceml.summaries.step_traces import kineto_summary
from traceml.summaries.tables import number

FLAT_PREFIX = "traceml/"
"""Of the keys of `flat_numbers`, so that they stand together in a tracker."""
LIVE_PREFIX = "traceml/live/"
"""Of the keys of `live_numbers`, which are of the last steps: another series than the means."""


@dataclass(frozen=True, slots=True)
class SummaryFindings:
    """The findings of a run, or of its last steps."""

    facts: Facts
    primary: Finding
    issues: Mapping[Section, tuple[Issue, ...]]
    """By section, the most severe first."""
    ended_by: Finding | None
    """What ended the run, or is about to."""
    what_if: tuple[WhatIf, ...]


def build(records: RunRecords, generated_unix_s: float, version: str) -> Summary:
    """Returns the whole summary without its text, which is made from it; `with_text` adds it."""
    facts = gather(records)
    diagnosis = diagnose(facts)
    found = diagnosis.sections
    told = SummaryFindings(
        facts=facts,
        primary=diagnosis.primary,
        issues={name: tuple(map(sections.issue, findings)) for name, findings in found.items()},
        ended_by=finding_of_failure(facts, found[Section.STABILITY]),
        what_if=predict(facts, found[Section.STEP_TIME]),
    )
    return assemble(records, told, generated_unix_s, version)


def finding_of_failure(facts: Facts, stability: Sequence[Finding]) -> Finding | None:
    """Returns the finding about what ended the run, even if a non-finite loss is more severe."""
    failure = facts.stability.failure
    return next((each for each in stability if failure and each.kind is failure.kind), None)


def assemble(
    records: RunRecords, told: SummaryFindings, generated_unix_s: float, version: str
) -> Summary:
    """Returns the summary of these records with these findings."""
    facts, issues = told.facts, told.issues
    nodes, gpus = max(records.manifest.nodes, len(records.nodes)), _gpus(facts)
    generated = datetime.fromtimestamp(generated_unix_s, tz=timezone.utc)
    return Summary(
        schema_version=SCHEMA_VERSION,
        generated_at=generated.isoformat(timespec="microseconds"),
        duration_s=_duration_s(records),
        producer=Producer(name=PRODUCER, version=version, format=FORMAT),
        meta=Meta(
            run_name=records.manifest.run_name,
            mode=sections.mode(nodes),
            world_size=_world_size(records),
            nodes_observed=max(len({r.rank.node_rank for r in facts.ranks}), len(records.nodes), 1),
            gpus_observed=gpus,
        ),
        exit_status=None if records.ending is None else records.ending.exit_status,
        primary_diagnosis=_primary(told.primary),
        step_time=sections.step_time(facts, issues[Section.STEP_TIME], nodes),
        step_memory=sections.step_memory(facts, issues[Section.STEP_MEMORY], nodes),
        process=sections.process(facts, issues[Section.PROCESS], nodes),
        system=sections.system(facts, issues[Section.SYSTEM], nodes, gpus),
        stability=sections.stability(facts, issues[Section.STABILITY], nodes),
        failure=None if told.ended_by is None else _failure(facts, told.ended_by),
        goodput=goodput_summary(facts.goodput, facts.attempts),
        attempts=attempt_summaries(facts.attempts, records.manifest.started_unix_s),
        steps=_series(facts),
        what_if=tuple(_what_if(each) for each in told.what_if),
        regions=tuple(_region(region) for region in facts.regions),
        user_time=_user_time(facts),
        host_time=host_time_summary(records, facts),
        layers=layers_summary(facts),
        kineto=kineto_summary(facts.step_traces),
        params=dict(records.params),
        param_sources=dict(records.param_sources),
        metrics=metric_summaries(records.metrics),
        artifacts=artifact_summaries(records.artifacts),
        settings=_settings(facts),
        lineage=records.lineage,
        nodes=sections.node_rows(facts),
        tracer=_tracer(records, facts),
    )


def with_text(summary: Summary, text: str) -> Summary:
    """Returns the summary with its text form."""
    return structs.replace(summary, text=text)


def _duration_s(records: RunRecords) -> float | None:
    if records.ending is None:
        return None
    return number(records.ending.unix_s - records.manifest.started_unix_s)


def _world_size(records: RunRecords) -> int:
    """Returns the number of ranks: as the ranks report it, else as the launcher expected it, else
    as many as were seen."""
    told = max((rank.rank.world_size for rank in records.ranks), default=0)
    return max(told, len(records.ranks)) or records.manifest.expected_world_size or 1


def _gpus(facts: Facts) -> int:
    used = {
        (rank.rank.hostname, rank.rank.device)
        for rank in facts.ranks
        if rank.rank.device.startswith("cuda")
    }
    sampled = sum(node.host.gpus for node in facts.nodes) if facts.nodes else facts.host.gpus
    return max(sampled, len(used))


def _primary(finding: Finding) -> PrimaryDiagnosis:
    return PrimaryDiagnosis(
        kind=finding.kind.value,
        status=finding.kind.status,
        severity=finding.severity.value,
        section=finding.section.value,
        summary=finding.claim,
        action=finding.action,
        evidence=sections.evidence(finding),
    )


def _failure(facts: Facts, finding: Finding) -> FailureSummary | None:
    """Returns what ended the run badly; `None` where it ended well or was asked to end."""
    failure = facts.stability.failure
    if failure is None or finding.kind is not failure.kind or finding.severity is Severity.INFO:
        return None
    report = failure.report
    return FailureSummary(
        kind=failure.kind.value,
        rank=failure.rank,
        step=failure.step,
        phase=None if report is None else report.phase,
        module=None if report is None else report.module,
        error=None if report is None else report.error,
        message=None if report is None else report.message,
        where=_where(failure),
        traceback=None if report is None else report.traceback,
        summary=finding.claim,
        action=finding.action,
        evidence=sections.evidence(finding),
        facts=sections.facts_of(finding),
    )


def _where(failure: Failure) -> str | None:
    if failure.report is not None:
        return failure.report.where
    return failure.culprits[0].where if failure.culprits else None


def _series(facts: Facts) -> StepSeries | None:
    series, slowdown = facts.series, facts.slowdown
    if series is None:
        return None
    return StepSeries(
        count=series.count,
        mean_ms=number(series.mean_s * 1e3),
        stdev_ms=number(series.stdev_s * 1e3),
        quantiles_ms={str(p): round(s * 1e3, 6) for p, s in series.quantiles_s.items()},
        autocorrelation=tuple(round(value, 6) for value in series.autocorrelation),
        effective_count=number(series.effective_count),
        block_steps=series.block_steps,
        block_means_ms=_milliseconds(series.block_means_s),
        part_block_means_ms={
            name: _milliseconds(means_s)
            for name, means_s in _as_in_the_file(series.part_block_means_s).items()
        },
        slowdown_step=None if slowdown is None else slowdown.onset_step,
        slowdown_ratio=None if slowdown is None else number(slowdown.ratio),
    )


def _as_in_the_file(parts: Mapping[str, Sequence[float]]) -> dict[str, Sequence[float]]:
    """Returns the parts of a step as the file has them, where communication is part of the
    residual.

    Where compute was not measured completely, the file has no residual.
    """
    found = dict(parts)
    rest = parts.get(Phase.RESIDUAL.value)
    if not (COMPUTE_PART in parts or all(phase.value in parts for phase in COMPUTE)):
        found.pop(Phase.RESIDUAL.value, None)
    elif rest is not None:
        more = [parts[phase.value] for phase in IN_RESIDUAL_MS if phase.value in parts]
        found[Phase.RESIDUAL.value] = [sum(each) for each in zip(rest, *more, strict=True)]
    return found


def _milliseconds(means_s: Sequence[float]) -> tuple[float, ...]:
    return tuple(round(mean_s * 1e3, 6) for mean_s in means_s)


def _what_if(found: WhatIf) -> WhatIfSummary:
    finding = found.finding
    return WhatIfSummary(
        kind=finding.kind.value,
        ranks=finding.ranks,
        phase=finding.phase and finding.phase.value,
        part_of=finding.part_of and finding.part_of.value,
        step_time_ms=number(found.step_s * 1e3),
        predicted_step_time_ms=number(found.predicted_s * 1e3),
        is_upper_bound=found.is_upper_bound,
        speedup=number(found.speedup),
        saved_ms=number(found.saved_s * 1e3),
        summary=found.summary,
    )


def _region(region: Region) -> RegionSummary:
    return RegionSummary(
        name=region.name,
        calls=region.calls,
        total_ms=round(region.host_s * 1e3, 6),
        mean_ms=round(region.host_s * 1e3 / max(region.calls, 1), 6),
        longest_ms=round(region.longest_s * 1e3, 6),
        gpu_total_ms=None if region.gpu_s is None else number(region.gpu_s * 1e3),
    )


def _settings(facts: Facts) -> dict[str, Setting] | None:
    if facts.settings == NOT_RECORDED:
        return None
    return {**facts.settings._asdict(), "differs_between_ranks": facts.uneven_settings}


def _user_time(facts: Facts) -> UserTimeSummary | None:
    seen = facts.user_time
    if not seen.taken:
        return None
    return UserTimeSummary(
        looks=seen.looks,
        taken=seen.taken,
        torn=seen.torn,
        by=seen.way,
        phases={
            phase: PhaseCodeSummary(
                looks=code.looks,
                places=tuple(_code(place, host_s(facts, phase)) for place in code.places),
            )
            for phase, code in sorted(seen.phases.items())
        },
    )


def _code(place: CodePlace, phase_s: float | None) -> CodeSummary:
    return CodeSummary(
        function=place.function,
        file=place.file,
        line=place.line,
        share=round(place.share, 6),
        share_low=round(place.low, 6),
        share_high=round(place.high, 6),
        looks=place.looks,
        per_step_ms=None if phase_s is None else number(place.share * phase_s * 1e3),
    )


def _tracer(records: RunRecords, facts: Facts) -> TracerSummary:
    health = [rank.health for rank in records.ranks]
    dropped = sum(each.regions_dropped for each in health)
    notes = [f"{dropped} named regions did not fit and were not timed"] if dropped else []
    stopped_after = facts.window.steps_taken if any(h.limit_reached for h in health) else None
    if stopped_after is not None:
        notes.append(
            f"traced the first {count(stopped_after, 'step')}, as asked (trace_max_steps); what "
            "the script did after them is in none of these figures"
        )
    return TracerSummary(
        steps_recorded=sum(rank.steps_taken for rank in facts.ranks),
        steps_lost=sum(each.steps_lost for each in health),
        steps_aborted=sum(rank.steps_aborted for rank in facts.ranks),
        failures=sum(each.failures for each in health),
        last_failure=next((each.last_failure for each in health if each.last_failure), None),
        messages_lost=sum(each.messages_lost for each in health),
        values_refused=sum(each.values_refused for each in health),
        stopped_after_steps=stopped_after,
        notes=(*records.notes, *notes),
    )


def flat_numbers(summary: Summary) -> dict[str, float]:
    """Returns the numbers of a summary as one flat dictionary; values that were not measured are
    left out.

    Step times are means over ranks; memory is that of the rank with the highest peak.
    """
    found: dict[str, float | None] = {"duration_s": summary.duration_s}
    if summary.goodput is not None:
        found["goodput_share"] = summary.goodput.share
    if summary.step_time is not None:
        found["steps"] = summary.step_time.metadata.training_total_steps
        found |= summary.step_time.global_.average
    if summary.step_memory is not None:
        worst = summary.step_memory.global_.worst
        found |= {name: place.value for name, place in worst.items()}
    for name, section in (("system", summary.system), ("process", summary.process)):
        found |= _averages(name, section)
    return {FLAT_PREFIX + name: value for name, value in found.items() if value is not None}


def live_numbers(summary: Summary) -> dict[str, float]:
    """Returns the step times, throughput and memory of a live summary, which is of the last steps,
    as one flat dictionary under names of their own."""
    found: dict[str, float | None] = {}
    if summary.step_time is not None:
        found |= summary.step_time.global_.average
    if summary.step_memory is not None:
        worst = summary.step_memory.global_.worst
        found |= {name: place.value for name, place in worst.items()}
    return {f"{LIVE_PREFIX}{name}": value for name, value in found.items() if value is not None}


def _averages(name: str, section: SectionSummary | None) -> dict[str, float | None]:
    if section is None:
        return {}
    return {f"{name}/{metric}": value for metric, value in section.global_.average.items()}
