"""The bench's answer: the table, the confusion matrix, false alarms, and totals against targets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from benchmarks.faults.judge import LIVE_S, LIVE_STEPS, Judgement
from benchmarks.faults.scenario import Scenario

RIGHT_SHARE = 0.99
WHAT_IF_ERROR = 0.05
NOT_MEASURED = "n/a"
NOTHING_TO_MEASURE = "–"
HEALTHY = "healthy"

Rows = list[list[str]]


def report(judgements: Sequence[Judgement]) -> str:
    """Everything there is to say, as markdown that reads well in a terminal."""
    parts = [
        grid(table(judgements)),
        "Confusion matrix: what was planted (rows), what was said (columns)",
        grid(confusion(judgements)),
        "False alarms on healthy variants",
        *(false_alarms(judgements) or ["none"]),
        "Totals",
        grid([["what", "target", "measured", "met"], *map(_total_row, totals(judgements))]),
    ]
    return "\n\n".join(parts)


def grid(rows: Rows) -> str:
    """Rows as a markdown table, aligned; the first row is the head."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |"
        for row in rows
    ]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines)


# The table


def table(judgements: Sequence[Judgement]) -> Rows:
    """A line for each scenario, over its repeats."""
    rows = [["scenario", "truth", "said", "right", "rank", "place", "share", "live", "what-if", ""]]
    for scenario, runs in _by_scenario(judgements):
        rows.append(
            [
                scenario.name,
                _truth(scenario),
                _said(runs),
                _of(run.right for run in runs),
                _of_measured([run.rank_right for run in runs], scenario.truth.ranks is not None),
                _of_measured([run.place_right for run in runs], _has_place(scenario)),
                _share(scenario, runs),
                _live(scenario, runs),
                _what_if(scenario, runs),
                _remarks(runs),
            ]
        )
    return rows


def _by_scenario(judgements: Sequence[Judgement]) -> list[tuple[Scenario, list[Judgement]]]:
    found: dict[str, list[Judgement]] = {}
    for judgement in judgements:
        found.setdefault(judgement.scenario.name, []).append(judgement)
    return [(runs[0].scenario, runs) for runs in found.values()]


def _truth(scenario: Scenario) -> str:
    truth = scenario.truth
    if scenario.healthy:
        return HEALTHY
    words = [truth.kind, *(f"rank {rank}" for rank in truth.ranks or ()), truth.phase or ""]
    also = f" (+ {', '.join(truth.also)})" if truth.also else ""
    return " ".join(filter(None, words)) + also


def _said(runs: list[Judgement]) -> str:
    counts = Counter(_with_ranks(run) for run in runs)
    if len(counts) == 1:
        return next(iter(counts))
    return ", ".join(f"{said} ×{count}" for said, count in counts.most_common())


def _with_ranks(run: Judgement) -> str:
    if run.scenario.truth.ranks is None or run.ranks_said is None:
        return run.said
    return f"{run.said} rank {', '.join(map(str, run.ranks_said)) or '?'}"


def _has_place(scenario: Scenario) -> bool:
    truth = scenario.truth
    return any(known is not None for known in (truth.phase, truth.module, truth.step))


def _of(values: Iterable[bool]) -> str:
    values = list(values)
    return f"{sum(values)}/{len(values)}"


def _of_measured(values: list[bool | None], wanted: bool) -> str:
    """So many right of all; what was not measured is not right."""
    if not wanted:
        return NOTHING_TO_MEASURE
    if all(value is None for value in values):
        return NOT_MEASURED
    return _of(value is True for value in values)


def _share(scenario: Scenario, runs: list[Judgement]) -> str:
    if scenario.truth.share is None:
        return NOTHING_TO_MEASURE
    said = [run.share for run in runs if run.share is not None]
    shown = f"{median(said):.2f}" if said else NOT_MEASURED
    return f"{shown} (≈ {scenario.truth.share:.2f})"


def _live(scenario: Scenario, runs: list[Judgement]) -> str:
    if not scenario.truth.live:
        return NOTHING_TO_MEASURE
    seen = [run.live for run in runs if run.live is not None]
    if not seen:
        return NOT_MEASURED
    steps, seconds = median(live.steps for live in seen), median(live.seconds for live in seen)
    return f"{steps:.0f} steps, {seconds:.1f} s" + _partly(seen, runs)


def _what_if(scenario: Scenario, runs: list[Judgement]) -> str:
    if not scenario.truth.what_if:
        return NOTHING_TO_MEASURE
    errors = [run.what_if_error for run in runs if run.what_if_error is not None]
    if not errors:
        return NOT_MEASURED
    return f"{median(errors):.1%}" + _partly(errors, runs)


def _partly(measured: Sequence[object], runs: Sequence[object]) -> str:
    return "" if len(measured) == len(runs) else f" ({len(measured)} of {len(runs)})"


def _remarks(runs: list[Judgement]) -> str:
    remarks = [run.problem for run in runs if run.problem]
    remarks += [f"{kind} not listed" for run in runs for kind in run.missing]
    return "; ".join(dict.fromkeys(remarks))


# The matrix and the alarms


def confusion(judgements: Sequence[Judgement]) -> Rows:
    """How often each kind was said of each true kind."""
    counts = Counter((_true_kind(run.scenario), run.said) for run in judgements)
    truths = list(dict.fromkeys(_true_kind(run.scenario) for run in judgements))
    said = {run.said for run in judgements}
    columns = [kind for kind in truths if kind in said]
    columns += sorted(said.difference(columns))
    rows = [["", *columns]]
    for truth in truths:
        cells = [str(counts[truth, kind] or "·") for kind in columns]
        rows.append([truth, *cells])
    return rows


def _true_kind(scenario: Scenario) -> str:
    return HEALTHY if scenario.healthy else scenario.truth.kind


def false_alarms(judgements: Sequence[Judgement]) -> list[str]:
    """A line for each healthy variant that was warned of."""
    lines = []
    for scenario, runs in _by_scenario([run for run in judgements if run.scenario.healthy]):
        for what, kinds in (
            ("critical", [kind for run in runs for kind in run.criticals]),
            ("warning", [kind for run in runs for kind in run.warnings]),
        ):
            for kind, count in Counter(kinds).items():
                lines.append(f"- {scenario.name}: {kind} ({what}) in {count} of {len(runs)}")
    return lines


# The totals


@dataclass(frozen=True, slots=True)
class Total:
    """A figure over all runs against its target; `None` where there was nothing to measure."""

    what: str
    target: str
    measured: str
    met: bool | None


def totals(judgements: Sequence[Judgement]) -> list[Total]:
    """What the bench as a whole says."""
    ranked = [run for run in judgements if run.scenario.truth.ranks is not None]
    placed = [run for run in judgements if _has_place(run.scenario)]
    healthy = [run for run in judgements if run.scenario.healthy]
    target = f"≥ {RIGHT_SHARE:.0%}"
    return [
        _rate("top finding right", target, [run.right for run in judgements]),
        _rate("rank right", target, [run.rank_right for run in ranked]),
        _rate("phase, module and step right", "–", [run.place_right for run in placed]),
        _alarms("healthy runs with a critical", "0", [run.criticals for run in healthy]),
        _alarms("healthy runs with a warning", "–", [run.warnings for run in healthy]),
        _live_total(judgements),
        _what_if_total(judgements),
    ]


def _rate(what: str, target: str, values: list[bool | None]) -> Total:
    if not values:
        return Total(what, target, NOT_MEASURED, None)
    right = sum(value is True for value in values)
    share = right / len(values)
    met = None if target == "–" else share >= RIGHT_SHARE
    return Total(what, target, f"{share:.1%} ({right} of {len(values)})", met)


def _alarms(what: str, target: str, alarms: list[tuple[str, ...]]) -> Total:
    if not alarms:
        return Total(what, target, NOT_MEASURED, None)
    count = sum(bool(kinds) for kinds in alarms)
    return Total(what, target, f"{count} of {len(alarms)}", None if target == "–" else count == 0)


def _live_total(judgements: Sequence[Judgement]) -> Total:
    what, target = "live finding right in time", f"within {LIVE_STEPS} steps or {LIVE_S:.0f} s"
    wanted = [run for run in judgements if run.scenario.truth.live]
    seen = [run.live for run in wanted if run.live is not None]
    if not seen:
        return Total(what, target, NOT_MEASURED, None)
    in_time = sum(live.in_time for live in seen)
    middle = f"median {median(live.steps for live in seen):.0f} steps"
    middle += f", {median(live.seconds for live in seen):.1f} s"
    return Total(what, target, f"{in_time} of {len(wanted)}; {middle}", in_time == len(wanted))


def _what_if_total(judgements: Sequence[Judgement]) -> Total:
    what, target = "what-if error", f"≤ {WHAT_IF_ERROR:.0%} median"
    wanted = [run for run in judgements if run.scenario.truth.what_if]
    errors = [run.what_if_error for run in wanted if run.what_if_error is not None]
    if not errors:
        return Total(what, target, NOT_MEASURED, None)
    middle = median(errors)
    measured = f"{middle:.1%} median, {max(errors):.1%} worst, {len(errors)} of {len(wanted)} runs"
    return Total(what, target, measured, middle <= WHAT_IF_ERROR)


def _total_row(total: Total) -> list[str]:
    met = NOTHING_TO_MEASURE if total.met is None else ("yes" if total.met else "no")
    return [total.what, total.target, total.measured, met]


def as_json(judgements: Sequence[Judgement]) -> dict[str, Any]:
    """The same for programs."""
    return {
        "runs": [asdict(judgement) for judgement in judgements],
        "totals": [asdict(total) for total in totals(judgements)],
    }
