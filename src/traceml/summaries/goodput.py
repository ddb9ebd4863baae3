"""Goodput and the attempts of a run, as the summary holds them."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import structs

from traceml.diagnose.failure_words import attempt_reason
from traceml.facts.attempts import (
    Attempt,
    first_step_unix_s,
    last_step_unix_s,
    lost_s_by_attempt,
    redone_count,
    restart_count,
)
from traceml.facts.goodput import Goodput
from traceml.facts.stability import Failure
from traceml.model.failure import Death
from traceml.summaries.record import AttemptSummary, GoodputSummary, Summary
from traceml.summaries.tables import number

MAX_ATTEMPTS = 100
"""Of a job that was restarted all day, the first and the last ones are listed."""


def goodput_summary(found: Goodput | None, attempts: Sequence[Attempt]) -> GoodputSummary | None:
    """Returns what the wall time went to; `None` where no step was taken."""
    if found is None:
        return None
    return GoodputSummary(
        wall_s=number(found.wall_s),
        share=number(found.share),
        parts_s={part.value: round(spent_s, 6) for part, spent_s in found.parts_s.items()},
        gpu_hours=number(found.gpu_hours),
        productive_gpu_hours=number(found.productive_gpu_hours),
        restarts=restart_count(attempts),
        redone_steps=redone_count(attempts),
    )


def attempt_summaries(
    attempts: Sequence[Attempt], started_unix_s: float
) -> tuple[AttemptSummary, ...]:
    """Returns the attempts of a run that had several; empty for one."""
    if len(attempts) < 2:
        return ()
    lost_s = lost_s_by_attempt(attempts)
    found = [
        AttemptSummary(
            number=each.number,
            began_s=number(each.began_unix_s - started_unix_s),
            until_s=number(each.until_unix_s - started_unix_s),
            first_step_s=_since(started_unix_s, first_step_unix_s(each)),
            last_step_s=_since(started_unix_s, last_step_unix_s(each)),
            world_size=each.world_size,
            steps=each.steps,
            resumed_step=each.resumed_step,
            redone_steps=each.redone_steps,
            lost_s=number(lost_s.get(each.number)),
            is_restart=each.is_restart,
            kind=None if each.failure is None or each.is_regrouped else each.failure.kind.value,
            rank=None if each.is_regrouped else _rank(each.failure, each.first_to_leave),
            reason=attempt_reason(each),
        )
        for each in attempts
    ]
    if len(found) > MAX_ATTEMPTS:
        found = [*found[: MAX_ATTEMPTS // 2], *found[-MAX_ATTEMPTS // 2 :]]
    return tuple(found)


def with_goodput(
    summary: Summary, goodput: GoodputSummary | None, attempts: tuple[AttemptSummary, ...]
) -> Summary:
    """Returns the summary of a run's last steps with what its whole time went to."""
    return structs.replace(summary, goodput=goodput, attempts=attempts)


def _since(started_unix_s: float, unix_s: float | None) -> float | None:
    return None if unix_s is None else number(unix_s - started_unix_s)


def _rank(failure: Failure | None, left: Death | None) -> int | None:
    if failure is not None:
        return failure.rank
    return None if left is None else left.rank
