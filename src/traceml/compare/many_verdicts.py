"""The verdicts of several comparisons with one baseline, corrected for their number.

Each is at 95 % by itself: of a dozen groups that are all alike, one would soon be a regression by
chance.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import structs

from traceml.compare.record import SIGNIFICANT, Comparison, Delta, Status
from traceml.compare.statistics import holm
from traceml.compare.terms import PEAK_MEMORY, Terms
from traceml.compare.verdict import MEMORY_BYTES, fails_on
from traceml.model.finding import Section
from traceml.model.quantities import count

_CHANGED = (Status.REGRESSION.value, Status.IMPROVEMENT.value, Status.MIXED.value)


def corrected_verdicts(comparisons: Sequence[Comparison], terms: Terms) -> tuple[Comparison, ...]:
    """Returns the comparisons; those whose change is not significant any more once all of them are
    taken together are inconclusive.

    Only repeated runs have such a test: one run per side is judged by its allowance for noise.
    """
    several = [place for place, each in enumerate(comparisons) if _has_repetitions(each)]
    if len(several) < 2:
        return tuple(comparisons)
    asked = {place: p for place in several if (p := comparisons[place].verdict.p) is not None}
    memory_asked = {
        place: p for place in several if (p := _memory(comparisons[place]).p) is not None
    }
    main, memory = holm(asked), holm(memory_asked)
    found = list(comparisons)
    for place, p in main.items():
        each = comparisons[place]
        is_lost = each.verdict.status in _CHANGED and p >= SIGNIFICANT
        by_memory = terms.metric is None and memory.get(place, 0.0) < SIGNIFICANT
        if is_lost and not (by_memory and _uses_more_memory(each)):
            found[place] = _inconclusive(each, p, len(asked), terms)
    return tuple(found)


def _has_repetitions(comparison: Comparison) -> bool:
    return len(comparison.a_runs) + len(comparison.b_runs) > 2 and not comparison.verdict.identical


def _memory(comparison: Comparison) -> Delta:
    section = comparison.sections.get(Section.STEP_MEMORY.value)
    known = section.metrics if section else {}
    return next((known[key] for key in PEAK_MEMORY.metrics if key in known), Delta())


def _uses_more_memory(comparison: Comparison) -> bool:
    return (_memory(comparison).delta or 0.0) > MEMORY_BYTES


def _inconclusive(comparison: Comparison, p: float, tests: int, terms: Terms) -> Comparison:
    """Returns the comparison without its verdict, and says why."""
    status = Status.INCONCLUSIVE.value
    verdict = structs.replace(
        comparison.verdict,
        status=status,
        why=f"{comparison.verdict.why.removesuffix('.')}; of {count(tests, 'comparison')} one can "
        f"look like this by chance (p = {p:.2g}, corrected).",
        next="Repeat both groups with more seeds, or compare just the two that were planned.",
    )
    gate = comparison.gate
    if gate is not None:
        gate = structs.replace(gate, failed=fails_on(status, terms) or bool(gate.unmeasured))
    return structs.replace(comparison, verdict=verdict, gate=gate)
