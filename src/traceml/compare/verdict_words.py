"""The sentences of a verdict: why, and what to do next."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from traceml.compare.further_runs import MAX_RUNS, FurtherRuns
from traceml.compare.logged_metrics import quality_changes
from traceml.compare.logged_words import (
    LoggedChanges,
    logged_sentence,
    next_for_logged,
    quality_clause,
)
from traceml.compare.machine_noise import SourceKind
from traceml.compare.measured import Observed
from traceml.compare.record import Delta, Moved, RankChanges, Status
from traceml.compare.segment_changes import harmed
from traceml.compare.sides import Sides
from traceml.compare.statistics import RatioEstimate
from traceml.compare.terms import Terms
from traceml.compare.verdict import Judgement, is_beyond, noise_with_steps
from traceml.compare.waterfall import grouped_ms
from traceml.model.evidence import EvidenceUnit as Unit
from traceml.model.metric import BY_KEY
from traceml.model.phase import COMPUTE_PART, PHASES, Phase
from traceml.model.printable import one_line
from traceml.model.quantities import (
    NOT_MEASURED,
    count,
    duration,
    memory,
    milliseconds,
    ms_decimals,
    written,
)
from traceml.summaries.record import Issue, PrimaryDiagnosis

SHOWN_SHARE = 0.01
"""Of the change: a phase that explains less is included in the rest."""


def why(
    found: Judgement,
    sides: Sides,
    terms: Terms,
    waterfall: Mapping[str, float] | None,
    logged: LoggedChanges,
) -> str:
    """Returns the sentence that supports the verdict, and what became of the logged metrics."""
    if found.identical:
        return "The two summaries hold the same measurements."
    if found.main.endpoint.section is None:
        return logged_sentence(found.main, found.main_status, sides, terms, logged)
    sentence = _main_sentence(found, sides, terms, waterfall)
    if found.memory is not None:
        sentence = f"{sentence[:-1]}; {_memory_words(found.memory)}."
    quality = quality_clause(logged, found.status, sides)
    return f"{sentence[:-1]}; {quality}." if quality else sentence


def _main_sentence(
    found: Judgement, sides: Sides, terms: Terms, waterfall: Mapping[str, float] | None
) -> str:
    main, status = found.main, found.main_status
    delta, name = main.delta, main.endpoint.name
    if delta.delta is None:
        missing = " and ".join(
            side for side, value in (("A", delta.lhs), ("B", delta.rhs)) if value is None
        )
        return f"{name} was not measured in {missing}, so there is nothing to judge by."
    said = _change_words(main)
    if status is Status.NO_CHANGE:
        return f"{said}, {_limit_words(main, terms)}."
    if status is Status.INCONCLUSIVE:
        return f"{said}{_unclear_words(found, sides, terms)}."
    parts = parts_words(waterfall, delta.delta) if main.metric == "step_time_ms" else ""
    return f"{said}: {parts}." if parts else f"{said}."


def _change_words(found: Observed) -> str:
    delta, name = found.delta, found.endpoint.name
    if not delta.delta:
        return f"{name} is the same{_share_words(delta, found.change, same=True)}"
    verb = "fell" if delta.delta < 0 else "rose"
    amount = quantity(abs(delta.delta), _unit(found))
    return f"{name} {verb} by {amount}{_share_words(delta, found.change)}"


def _unit(found: Observed) -> Unit:
    section = found.endpoint.section
    return Unit.NUMBER if section is None else BY_KEY[section, found.metric].unit


def _share_words(delta: Delta, change: RatioEstimate | None, same: bool = False) -> str:
    said = []
    if delta.pct_change is not None and not same:
        said.append(f"{delta.pct_change:+,.1f}%")
    if change is not None:
        low, high = (100 * (limit - 1) for limit in (change.low, change.high))
        decimals = 1 if max(abs(low), abs(high)) >= 0.5 else 2
        level = f"{100 * change.confidence:.3g}% interval"
        said.append(f"{level} {low:+,.{decimals}f}% to {high:+,.{decimals}f}%")
    return f" ({', '.join(said)})" if said else ""


_FORMATS: Mapping[Unit, Callable[[float], str]] = {
    Unit.MILLISECONDS: milliseconds,
    Unit.SECONDS: duration,
    Unit.BYTES: memory,
    Unit.BYTES_PER_SECOND: lambda value: f"{memory(value)}/s",
    Unit.PERCENT: lambda value: f"{value:,.1f}%",
    Unit.CELSIUS: lambda value: f"{value:,.1f} °C",
    Unit.WATTS: lambda value: f"{value:,.1f} W",
    Unit.PER_SECOND: lambda value: f"{value:,.4g} /s",
}


def quantity(value: float | None, unit: Unit) -> str:
    """Returns a number of a comparison in words, with its unit."""
    if value is None:
        return NOT_MEASURED
    return _FORMATS[unit](value) if unit in _FORMATS else written(value, ",.4g")


def _limit_words(main: Observed, terms: Terms) -> str:
    if terms.max_regression is not None and main.got_worse:
        return f"within the {_pct(terms.max_regression)} allowed"
    return f"within the tolerance of {_pct(terms.tolerance)}"


def _unclear_words(found: Judgement, sides: Sides, terms: Terms) -> str:
    main = found.main
    if main.factor is None:
        return " from or to nothing, which no share can express"
    beyond = is_beyond(main, found.allowance.share)
    real = main.change is None or main.change.excludes_none
    if terms.max_regression is not None and main.got_worse and real and (beyond or sides.several):
        allowed = _pct(terms.max_regression)
        return f": a change, but not shown to keep within the {allowed} allowed"
    if sides.several:
        return f": {_runs(sides)} are too few to tell"
    if beyond:
        return _vary_words(found)
    said = f", within the assumed {noise_words(found.allowance.share)}"
    sources = found.allowance.noise.sources
    if sources and is_beyond(main, found.allowance.base_share):
        said += f": {sources[0].summary}; a difference of this size can come from that"
    return said


def _vary_words(found: Judgement) -> str:
    """Returns words for a change beyond the run-to-run noise that the steps leave uncertain."""
    change = found.main.change
    if change is None or not change.excludes_none:
        return ", and the steps of each run vary as much"
    return within_both_words(noise_with_steps(change, found.allowance))


def within_both_words(share: float) -> str:
    """Returns words for a change that step-to-step variation and run-to-run noise can make."""
    both = f"the {reach_words(share)}" if share < 1 else reach_words(share)
    return f", within {both} of step-to-step variation and run-to-run noise together"


def _runs(sides: Sides) -> str:
    return f"{len(sides.a)} + {len(sides.b)} runs"


def reach_words(share: float) -> str:
    """Returns the size of noise in words: ±7.5%, or a factor of 5.9 where it may halve a time."""
    return f"±{_pct(share)}" if share < 1 else f"a factor of {1 + share:.3g}"


def noise_words(share: float) -> str:
    """Returns the size of run-to-run noise in words, with its name."""
    if share < 1:
        return f"{reach_words(share)} run-to-run noise"
    return f"run-to-run noise of {reach_words(share)}"


def _pct(share: float) -> str:
    return f"{100 * share:.3g}%"


def parts_words(waterfall: Mapping[str, float] | None, total_ms: float) -> str:
    """Returns the phases worth naming, largest first; rounded so that they add up to the shown
    total."""
    if not waterfall:
        return ""
    parts = grouped_ms(waterfall)
    parts.pop(Phase.RESIDUAL.value)
    decimals = ms_decimals(total_ms)
    rest_ms = round(total_ms, decimals)
    shown = []
    for name, part_ms in sorted(parts.items(), key=lambda item: -abs(item[1])):
        rounded_ms = round(part_ms, decimals)
        if rounded_ms and abs(part_ms) >= SHOWN_SHARE * abs(total_ms):
            rest_ms -= rounded_ms
            words = name if name == COMPUTE_PART else PHASES[Phase(name)].short
            shown.append(f"{words} {rounded_ms:+,.{decimals}f} ms")
    rest_ms = round(rest_ms, decimals)
    if rest_ms or not shown:
        shown.append(f"rest {rest_ms:+,.{decimals}f} ms")
    return ", ".join(shown)


def _memory_words(peak: Observed) -> str:
    delta = peak.delta
    verb = "fell" if (delta.delta or 0) < 0 else "rose"
    share = _share_words(delta, peak.change)
    return f"peak memory {verb} from {memory(delta.lhs)} to {memory(delta.rhs)}{share}"


def moved_words(moved: Moved | None) -> str | None:
    """Returns a sentence where work moved to another phase instead of disappearing; else an empty
    text."""
    if moved is None or not moved.moved:
        return None
    return (
        f"Work was moved rather than removed: some phases lost {milliseconds(-moved.removed_ms)} "
        f"per step, others gained {milliseconds(moved.added_ms)}."
    )


def rank_words(ranks: RankChanges) -> list[str]:
    """Returns sentences on new stragglers and on those that are gone."""
    said = []
    for stragglers, opening in ((ranks.new, "New in B"), (ranks.gone, "Gone in B")):
        for straggler in stragglers:
            shown = ", ".join(map(str, straggler.ranks[:8])) + ("…" if straggler.ranks[8:] else "")
            noun = "rank" if len(straggler.ranks) == 1 else "ranks"
            said.append(f"{opening}: {straggler.status} ({noun} {shown}).")
    return said


def next_step(
    found: Judgement,
    sides: Sides,
    waterfall: Mapping[str, float] | None,
    diagnosis: PrimaryDiagnosis | Issue | None,
    logged: LoggedChanges,
) -> str:
    """Returns what to do next."""
    status, main_status = found.status, found.main_status
    said = _next_by_logged(found, sides, logged)
    if said is not None:
        return said
    if status is Status.MIXED:
        return "Decide whether the step time gained is worth the memory, or the reverse."
    if status is Status.REGRESSION and main_status is Status.REGRESSION:
        if waterfall and found.main.metric == "step_time_ms":
            return f"Look at {_culprit(waterfall)} in B first: it grew most."
        return f"Find what changed the {found.main.endpoint.name.lower()} between A and B."
    if status is Status.REGRESSION:
        return "Find what grew between A and B: model, batch, or what is kept between steps."
    if status is Status.INCONCLUSIVE and main_status is None:
        return _measure_first(sides, logged)
    if status is Status.INCONCLUSIVE:
        return _more_runs(found, sides)
    if status is Status.IMPROVEMENT and diagnosis and diagnosis.status and diagnosis.action:
        return f"B is {diagnosis.status}: {diagnosis.action}"
    return "Nothing to do."


def _next_by_logged(found: Judgement, sides: Sides, logged: LoggedChanges) -> str | None:
    """Returns what to do where a logged metric decides, or is the price of an improvement."""
    if found.main.endpoint.section is None:
        return next_for_logged(found.status, found.main.endpoint.name, sides)
    moved = quality_changes(logged.deltas, sides.several)
    worse = [f"{name} is worse" for name, delta in moved.items() if not delta.is_better]
    worse += [
        f"{name} is worse for {logged.segments[name].worst}" for name in harmed(logged.segments)
    ]
    if found.status is Status.IMPROVEMENT and worse:
        return f"Decide whether what was gained is worth it: {one_line(worse[0], 120)}."
    return None


def _measure_first(sides: Sides, logged: LoggedChanges) -> str:
    """Returns what to do where a side has no steps: fix what ended it, if that is known."""
    for name, runs in (("A", sides.a), ("B", sides.b)):
        for run in runs:
            if run.failure is not None and run.failure.summary:
                return f"Fix {name} first, then compare again. {run.failure.summary}"
    both = [name for name, delta in logged.deltas.items() if delta.delta is not None]
    if both:
        return f"Judge by what both sides logged, for example with --metric {both[0]}."
    return "Compare runs that took at least a few training steps with tracing on."


def _more_runs(found: Judgement, sides: Sides) -> str:
    further = found.further_runs
    if not sides.several:
        mendable = [
            source
            for source in found.allowance.noise.sources
            if source.kind is not SourceKind.VIRTUAL_CPU
        ]
        state = " while the machine is otherwise idle" if mendable else ""
        said = (
            f"Run both sides again{state}: one run each can show only a change beyond "
            f"{reach_words(found.allowance.share)}"
        )
        how = "traceml compare --a … --b …"
        if further is None:
            return f"{said}; three or more per side show how much runs differ ({how})."
        return f"{said}; {_range_words(further)} ({how})."
    if found.too_noisy:
        return (
            f"Even {MAX_RUNS} runs per side would probably give no verdict: make the runs "
            "steadier, or allow a larger --tolerance."
        )
    if further is None:
        return "Add runs to both sides; how many it takes, these do not show."
    return f"Add runs to both sides: {_range_words(further)}."


def _range_words(further: FurtherRuns) -> str:
    if further.low == further.high:
        return f"{count(further.high, 'more run')} per side would be enough in 4 of 5 such cases"
    return (
        f"{further.low} to {further.high} more runs per side, by what these show: with "
        f"{further.low}, half of such cases or more have a verdict, with {further.high}, 4 of 5 or "
        "more"
    )


def _culprit(waterfall: Mapping[str, float]) -> str:
    name = max(waterfall, key=lambda phase: waterfall[phase])
    return "the compute phases" if name == COMPUTE_PART else PHASES[Phase(name)].culprit
