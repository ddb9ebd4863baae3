"""Goodput and the attempts of a run in words."""

from __future__ import annotations

from collections.abc import Iterator

from traceml.model.quantities import count, duration, percent
from traceml.model.run_time import RUN_PARTS, RunPart
from traceml.summaries.record import AttemptSummary, GoodputSummary, SectionSummary

NEAR_ALL = 0.95
"""Of the wall time in productive steps: what the rest went to is not worth a line."""
MIN_SHARE = 0.01
"""Of the wall time: a smaller part is not listed."""
MAX_ATTEMPTS = 6
"""Attempts that are told one by one; of more, the first and the last ones."""


def goodput_words(goodput: GoodputSummary | None) -> str:
    """Returns the share of productive steps in the wall time and, where that is not nearly all of
    it, what the rest went to; empty where it is not known."""
    if goodput is None or goodput.share is None or not goodput.wall_s:
        return ""
    hours = _gpu_hours(goodput)
    said = f"{percent(goodput.share)} of {duration(goodput.wall_s)}{hours} in productive steps"
    parts = ", ".join(_parts(goodput)) if goodput.share < NEAR_ALL else ""
    return f"{said}; {parts}" if parts else said


def _gpu_hours(goodput: GoodputSummary) -> str:
    """Returns the GPU-hours, and what of them was productive where that is another share than the
    wall time's: attempts had different numbers of GPUs."""
    if goodput.gpu_hours is None:
        return ""
    share, of_them = productive_share(goodput), ""
    if share is not None and abs(share - (goodput.share or 0.0)) >= MIN_SHARE:
        of_them = f", {percent(share)} of them productive"
    return f" ({goodput.gpu_hours:,.3g} GPU-hours{of_them})"


def productive_share(goodput: GoodputSummary) -> float | None:
    """Returns the share of the GPU-hours in productive steps, 0–1; `None` where the share of the
    wall time is not known either."""
    if not goodput.gpu_hours or goodput.productive_gpu_hours is None or goodput.share is None:
        return None
    return goodput.productive_gpu_hours / goodput.gpu_hours


def _parts(goodput: GoodputSummary) -> Iterator[str]:
    wall_s = goodput.wall_s or 0.0
    by_size = sorted(goodput.parts_s.items(), key=lambda part: -part[1])
    for name, spent_s in by_size:
        if name != RunPart.STEPS.value and spent_s >= MIN_SHARE * wall_s and name in _LABELS:
            yield f"{_LABELS[name]} {percent(spent_s / wall_s)}"


_LABELS = {part.value: entry.label.lower() for part, entry in RUN_PARTS.items()}


def analysed_words(section: SectionSummary) -> str:
    """Returns which attempts the means of a section cover, and why; empty where it is all."""
    window = section.global_.window
    if not window.attempts or not window.steps_left_out:
        return ""
    of = "attempt" if len(window.attempts) == 1 else "attempts"
    return (
        f"Only steps of {of} {', '.join(map(str, window.attempts))} are analysed "
        f"({count(len(section.groups.rows), 'rank')}): the {count(window.steps_left_out, 'step')} "
        "of other attempts were taken by another set of ranks, and are not compared with these"
    )


def attempt_lines(attempts: tuple[AttemptSummary, ...]) -> list[str]:
    """Returns a sentence for each attempt of a run that had several."""
    if len(attempts) <= MAX_ATTEMPTS:
        return [_numbered(each) for each in attempts]
    hidden = len(attempts) - MAX_ATTEMPTS
    half = MAX_ATTEMPTS // 2
    first, last = attempts[:half], attempts[-half:]
    return [
        *map(_numbered, first),
        f"… {count(hidden, 'attempt')} left out …",
        *map(_numbered, last),
    ]


def _numbered(attempt: AttemptSummary) -> str:
    return f"{attempt.number}: {attempt_words(attempt)}"


def attempt_words(attempt: AttemptSummary) -> str:
    """Returns what came of an attempt: its steps, why it ended, and what was lost."""
    return f"{'; '.join(_told(attempt))}."


def _told(attempt: AttemptSummary) -> Iterator[str]:
    resumed = attempt.resumed_step
    went_on = f", from step {count(resumed)} on" if resumed else ""
    ranks = "" if attempt.world_size is None else f" on {count(attempt.world_size, 'rank')}"
    steps = count(attempt.steps, "step") if attempt.steps else "no step"
    yield f"{steps}{ranks}{went_on}"
    if attempt.reason:
        yield attempt.reason
    if attempt.lost_s is not None:
        if not attempt.reason:
            yield "it is not known why it ended"
        yield f"{duration(attempt.lost_s)} lost"
        if attempt.redone_steps:
            yield f"{count(attempt.redone_steps, 'step')} done again"
        elif attempt.redone_steps is None:
            yield "steps done again: not measured"
