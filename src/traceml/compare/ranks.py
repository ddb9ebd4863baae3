"""What changed between ranks: new stragglers, stragglers that are gone, a different skew."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from traceml.compare.measured import delta_of
from traceml.compare.record import RankChanges, StragglerRanks
from traceml.compare.sides import Sides
from traceml.summaries.record import Issue, Summary

_STRAGGLER = "STRAGGLER"
_Key = tuple[str, tuple[int, ...]]
"""What identifies a straggler: kind and ranks, regardless of the wording."""


def rank_changes(sides: Sides) -> RankChanges:
    """Returns the stragglers that only B has, those that only A has, and the change of skew."""
    before, after = _stragglers(sides.a), _stragglers(sides.b)
    return RankChanges(
        new=tuple(found for key, found in after.items() if key not in before),
        gone=tuple(found for key, found in before.items() if key not in after),
        skew_percent=delta_of(
            [_skew_percent(run) for run in sides.a], [_skew_percent(run) for run in sides.b], sides
        ),
    )


def _stragglers(runs: Sequence[Summary]) -> dict[_Key, StragglerRanks]:
    """Returns the stragglers that more than half of the runs report, as the first run words
    them."""
    seen: Counter[_Key] = Counter()
    found: dict[_Key, StragglerRanks] = {}
    for run in runs:
        stragglers = {(each.kind, each.ranks): each for each in map(_straggler, _issues(run))}
        seen.update(stragglers.keys())
        found = {**stragglers, **found}
    return {key: found[key] for key, times in seen.items() if 2 * times > len(runs)}


def _issues(run: Summary) -> list[Issue]:
    issues = run.step_time.issues if run.step_time else ()
    return [issue for issue in issues if issue.kind and issue.kind.endswith(_STRAGGLER)]


def _straggler(issue: Issue) -> StragglerRanks:
    kind = issue.kind or _STRAGGLER
    return StragglerRanks(kind, issue.status or kind, tuple(sorted(issue.ranks)))


def _skew_percent(run: Summary) -> float | None:
    if run.step_time is None or (run.meta.world_size or 1) < 2:
        return None
    whole = run.step_time.global_
    worst, median = (
        side["step_time_ms"].value if "step_time_ms" in side else None
        for side in (whole.worst, whole.median)
    )
    return None if worst is None or not median else 100 * (worst / median - 1)
