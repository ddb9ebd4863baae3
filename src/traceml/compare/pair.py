"""Compares two runs, or two groups of runs, metric by metric, and gives the verdict."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from msgspec import structs

from traceml.compare import comparable, verdict_words
from traceml.compare.allowance import BARE_MEAN, Allowance
from traceml.compare.host_time_changes import host_time_changes
from traceml.compare.layer_changes import layer_changes
from traceml.compare.logged_metrics import (
    LOGGED,
    endpoint_named,
    left_out_runs,
    logged_deltas,
    observe_logged,
    unlike_steps,
)
from traceml.compare.logged_words import LoggedChanges
from traceml.compare.machine_noise import unlike_hosts
from traceml.compare.measured import (
    Observed,
    delta_of,
    deltas,
    factor_between,
    observe,
    section_of,
)
from traceml.compare.ranks import rank_changes
from traceml.compare.record import (
    Comparison,
    ComparisonVerdict,
    Delta,
    DiagnosisChange,
    LoggedDelta,
    Noise,
    NoiseSource,
    Overview,
    SectionComparison,
)
from traceml.compare.run_conditions import conditions
from traceml.compare.segment_changes import most_changed, segment_changes
from traceml.compare.sides import Sides, pair_up
from traceml.compare.statistics import holm
from traceml.compare.terms import PEAK_MEMORY, SAMPLE_TIME, Endpoint, Terms
from traceml.compare.verdict import Judgement, are_identical, gate, judge
from traceml.compare.waterfall import moved, waterfall_ms
from traceml.model.finding import Section
from traceml.summaries.record import Issue, PrimaryDiagnosis, Summary


def compare(
    a: Summary, b: Summary, names: tuple[str, str], terms: Terms | None = None
) -> Comparison:
    """Returns what changed from run A to run B; `names` are their display names."""
    return compare_groups((a,), (b,), names, terms)


def compare_groups(
    a: Sequence[Summary], b: Sequence[Summary], names: tuple[str, str], terms: Terms | None = None
) -> Comparison:
    """Returns what changed from the runs of A to those of B; with several runs, the run is the
    unit."""
    terms = terms or Terms()
    measured, clock_note = comparable.on_one_clock(pair_up(a, b))
    endpoint, samples_differ = comparable.fair_endpoint(measured)
    if terms.metric is not None:
        endpoint = endpoint_named(terms.metric, measured, terms.higher_is_better)
    judged = endpoint.metrics[0] if endpoint.section is None else None
    if judged is None:
        main = observe(endpoint, measured, terms.confidence)
    else:
        main = observe_logged(endpoint, measured, terms.confidence)
    logged = logged_deltas(measured, judged, terms.higher_is_better)
    segments = segment_changes(logged, measured.several)
    sections = _sections(measured, main, most_changed(logged, judged))
    if not measured.several and are_identical(measured):
        sections = {name: _without_intervals(section) for name, section in sections.items()}
    memory = _peak_memory(measured, sections) if terms.metric is None else None
    step_time = _metrics(sections, Section.STEP_TIME)
    waterfall = None if clock_note else waterfall_ms(step_time)
    found = judge(main, memory, measured, terms)
    notes = (
        clock_note,
        _samples_note(samples_differ, endpoint),
        _hosts_note(measured),
        unlike_steps(logged, measured),
        left_out_runs(logged, measured),
    )
    return Comparison(
        a=names[0],
        b=names[1],
        a_runs=_names(measured.a),
        b_runs=_names(measured.b),
        paired_by=measured.paired_by,
        verdict=_verdict(found, measured, terms, waterfall, LoggedChanges(logged, segments)),
        gate=gate(found, terms),
        overview=_overview(measured),
        waterfall_ms=waterfall,
        moved=moved(waterfall, step_time, partial(_is_shown, several=measured.several)),
        ranks=rank_changes(measured),
        sections=sections,
        segments=segments,
        layers=layer_changes(measured, found.allowance.share),
        host_time=host_time_changes(measured),
        lineage=comparable.lineage(measured),
        warnings=(*filter(None, notes), *comparable.differences(measured)),
    )


def _without_intervals(section: SectionComparison) -> SectionComparison:
    """Returns the section of a run and itself: there is no doubt about a difference of nothing."""
    metrics = {
        name: structs.replace(delta, interval=None) for name, delta in section.metrics.items()
    }
    return structs.replace(section, metrics=metrics)


def _samples_note(differ: str | None, endpoint: Endpoint) -> str | None:
    if differ is None:
        return None
    return f"{differ}{'; the time per sample is judged' if endpoint is SAMPLE_TIME else ''}."


def _hosts_note(sides: Sides) -> str | None:
    """Returns a warning about unlike hosts for several runs per side; for one run each the
    allowance covers it."""
    if not sides.several:
        return None
    a, b = ([conditions(run) for run in side] for side in (sides.a, sides.b))
    return unlike_hosts(a, b)


def _verdict(
    found: Judgement,
    sides: Sides,
    terms: Terms,
    waterfall: Mapping[str, float] | None,
    logged: LoggedChanges,
) -> ComparisonVerdict:
    main, further = found.main, found.further_runs
    change, ranks = main.change, main.rank_test
    primary = _most_common([_primary(run) for run in sides.b])
    return ComparisonVerdict(
        status=found.status.value,
        why=verdict_words.why(found, sides, terms, waterfall, logged),
        next=verdict_words.next_step(found, sides, waterfall, primary, logged),
        identical=found.identical,
        metric=main.endpoint.word,
        allowance_pct=round(100 * found.allowance.share, 6),
        allowance_from=found.allowance.source,
        noise=_noise(found.allowance),
        tolerance_pct=round(100 * terms.tolerance, 6),
        max_regression_pct=None
        if terms.max_regression is None
        else round(100 * terms.max_regression, 6),
        ratio=change.ratio if change else None,
        ratio_interval=(change.low, change.high) if change else None,
        confidence=change.confidence if change else None,
        method=change.method if change else main.method,
        p=change.p if change else (main.delta.p if main.method else None),
        rank_test=ranks[0] if ranks else None,
        rank_test_p=ranks[1] if ranks else None,
        further_runs=None if further is None else further.high,
        further_runs_range=None if further is None else (further.low, further.high),
    )


def _noise(allowance: Allowance) -> Noise:
    return Noise(
        share=allowance.share,
        base_share=allowance.base_share,
        sources=tuple(
            NoiseSource(source.kind.value, source.lhs, source.rhs, source.share, source.summary)
            for source in allowance.noise.sources
        ),
    )


def _is_shown(change: Delta, several: bool) -> bool:
    """Returns whether a phase's change is more than chance: by the runs, or by the steps if it is
    also beyond the run-to-run allowance."""
    if several:
        return change.significant is True
    if change.interval is not None and change.interval[0] <= 0 <= change.interval[1]:
        return False
    factor = factor_between(change.lhs, change.rhs)
    return bool(change.delta) if factor is None else factor > 1 + BARE_MEAN


def _peak_memory(sides: Sides, sections: Mapping[str, SectionComparison]) -> Observed:
    """Returns the change of peak memory, with its p-value corrected for multiple comparisons."""
    found = observe(PEAK_MEMORY, sides)
    return replace(found, delta=_metrics(sections, Section.STEP_MEMORY).get(found.metric, Delta()))


def _sections(
    sides: Sides, main: Observed, logged: Mapping[str, LoggedDelta]
) -> dict[str, SectionComparison]:
    """Returns every section that a run has, and what the scripts logged; the judged metric keeps
    its p-value, the others of TraceML's are corrected together."""
    metrics = {
        section: deltas(section, sides)
        for section in Section
        if any(section_of(run, section) for run in sides.every_run)
    }
    rest = {
        (section.value, name): delta.p
        for section, found in metrics.items()
        for name, delta in found.items()
        if delta.p is not None
        and delta.interval != (0, 0)  # the same in every run: nothing to ask
        and (section, name) != (main.endpoint.section, main.metric)
    }
    for (section_name, name), p in holm(rest).items():
        found = metrics[Section(section_name)]
        found[name] = found[name].judged(p)
    if main.endpoint.section is not None and main.endpoint.section in metrics:
        metrics[main.endpoint.section][main.metric] = main.delta
    found_sections = {
        section.value: SectionComparison(_section_diagnosis(section, sides), dict(found))
        for section, found in metrics.items()
    }
    if logged:
        found_sections[LOGGED] = SectionComparison(DiagnosisChange(), dict(logged))
    return found_sections


def _overview(sides: Sides) -> Overview:
    duration = delta_of(
        [run.duration_s for run in sides.a], [run.duration_s for run in sides.b], sides
    )
    return Overview(
        primary_diagnosis=_diagnosis_change(
            _most_common([_primary(run) for run in sides.a]),
            _most_common([_primary(run) for run in sides.b]),
        ),
        duration_s=structs.replace(duration, p=None),
    )


def _names(runs: Sequence[Summary]) -> tuple[str, ...]:
    return tuple(run.meta.run_name or "" for run in runs)


def _metrics(sections: Mapping[str, SectionComparison], name: Section) -> Mapping[str, Delta]:
    section = sections.get(name.value)
    return section.metrics if section else {}


def _section_diagnosis(section: Section, sides: Sides) -> DiagnosisChange:
    a, b = (
        _most_common([found.diagnosis for run in side if (found := section_of(run, section))])
        for side in (sides.a, sides.b)
    )
    return _diagnosis_change(a, b)


def _primary(summary: Summary) -> PrimaryDiagnosis | Issue | None:
    """Returns the primary diagnosis; old summaries have only the one of step time."""
    primary = summary.primary_diagnosis
    if primary.kind or primary.status:
        return primary
    return summary.step_time.diagnosis if summary.step_time else None


def _most_common(
    found: Sequence[PrimaryDiagnosis | Issue | None],
) -> PrimaryDiagnosis | Issue | None:
    """Returns the diagnosis that most runs of a side have; the first one wins a tie."""
    known = [diagnosis for diagnosis in found if diagnosis is not None]
    if not known:
        return None
    kind = Counter(diagnosis.kind for diagnosis in known).most_common(1)[0][0]
    return next(diagnosis for diagnosis in known if diagnosis.kind == kind)


def _diagnosis_change(
    lhs: PrimaryDiagnosis | Issue | None, rhs: PrimaryDiagnosis | Issue | None
) -> DiagnosisChange:
    lhs, rhs = lhs or Issue(), rhs or Issue()
    changed = None
    if lhs.kind and rhs.kind:
        changed = lhs.kind != rhs.kind
    elif lhs.status and rhs.status:
        changed = lhs.status != rhs.status
    return DiagnosisChange(lhs.status or lhs.kind, rhs.status or rhs.kind, changed)
