"""Holds what TraceML said of a run against the truth; what was not said is not measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.faults.runner import Onset, Outcome
from benchmarks.faults.scenario import Scenario, Truth

LIVE_STEPS = 30
LIVE_S = 5.0
"""A live finding is in time within this many steps or seconds of the onset."""
STEP_TOLERANCE = 2
"""A failure's step may be the last complete one, or the one in flight, counted from 0 or 1."""
NOTHING = "nothing"
"""What a run without a summary says."""

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Live:
    """How long after the onset the live finding was right."""

    steps: int
    seconds: float

    @property
    def in_time(self) -> bool:
        """Whether that was soon enough."""
        return self.steps <= LIVE_STEPS or self.seconds <= LIVE_S


@dataclass(frozen=True, slots=True)
class Judgement:
    """One run's verdict; `None` is not measured, or nothing to measure."""

    scenario: Scenario
    said: str
    severity: str | None = None
    right: bool = False
    """The top finding is of the right kind, and the kinds that explain it are there."""
    missing: tuple[str, ...] = ()
    """Kinds that should explain the top finding and are not there."""
    ranks_said: tuple[int, ...] | None = None
    rank_right: bool | None = None
    place_right: bool | None = None
    """Phase, module and step, where the truth knows them."""
    share: float | None = None
    live: Live | None = None
    what_if_error: float | None = None
    criticals: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    problem: str = ""
    """Why the run itself went otherwise than planned."""
    waited_s: float = 0.0
    """How long its trainings waited for their turn at a GPU."""


def judge(scenario: Scenario, outcome: Outcome, baseline: Outcome | None = None) -> Judgement:
    """The verdict on one run; the baseline is the same training without its fault."""
    problem = _problem(scenario, outcome)
    if outcome.summary is None:
        return Judgement(scenario, NOTHING, problem=problem or "no summary was written")
    truth, summary = scenario.truth, outcome.summary
    said = top_finding(summary)
    kind = str(said.get("kind", NOTHING))
    found = {str(issue.get("kind")) for issue in all_findings(summary)}
    missing = tuple(each for each in truth.also if each not in found)
    named = _ranks(said)
    return Judgement(
        scenario,
        kind,
        said.get("severity"),
        right=kind in truth.kinds and not missing and not problem,
        missing=missing,
        ranks_said=named,
        rank_right=None if truth.ranks is None or named is None else named == truth.ranks,
        place_right=_place_right(truth, said),
        share=said.get("share_pct"),
        live=live_delay(truth, outcome.live, outcome.onset) if truth.live else None,
        what_if_error=_what_if_error(truth, summary, baseline) if truth.what_if else None,
        criticals=_kinds_of(summary, "crit"),
        warnings=_kinds_of(summary, "warn"),
        problem=problem,
    )


def _problem(scenario: Scenario, outcome: Outcome) -> str:
    if scenario.gives_up_after_s is not None:
        return "" if outcome.onset else "the fault was never reached"
    if outcome.status is None:
        return f"ended after {scenario.timeout_s:.0f} s"
    if scenario.truth.exits_well and outcome.status != 0:
        return f"exit status {outcome.status}"
    if not scenario.truth.exits_well and outcome.status == 0:
        return "exit status 0, though it should have failed"
    return ""


# What was said


def top_finding(summary: Json) -> dict[str, Any]:
    """The first thing a reader is told: how the run failed, else the primary diagnosis.

    The primary diagnosis is completed by the same finding in its section, which knows ranks and
    phase.
    """
    failure = summary.get("failure")
    if failure:
        return dict(failure)
    primary = summary.get("primary_diagnosis") or {}
    section = summary.get(str(primary.get("section"))) or {}
    same = (issue for issue in section.get("issues", ()) if issue["kind"] == primary.get("kind"))
    return {**next(same, {}), **primary}


def all_findings(summary: Json) -> Iterator[Json]:
    """The failure, the primary diagnosis, and every issue of every section."""
    if summary.get("failure"):
        yield summary["failure"]
    if summary.get("primary_diagnosis"):
        yield summary["primary_diagnosis"]
    for section in summary.values():
        if isinstance(section, Mapping):
            issues = section.get("issues")
            yield from issues if isinstance(issues, list) else ()


def _kinds_of(summary: Json, severity: str) -> tuple[str, ...]:
    kinds = {
        str(each["kind"]) for each in all_findings(summary) if each.get("severity") == severity
    }
    return tuple(sorted(kinds))


def _ranks(finding: Json) -> tuple[int, ...] | None:
    """The ranks a finding names: `ranks` of an issue, `rank` of a failure."""
    if finding.get("ranks") is not None:
        return tuple(sorted(finding["ranks"]))
    return None if finding.get("rank") is None else (finding["rank"],)


def _place_right(truth: Truth, said: Json) -> bool | None:
    known = []
    if truth.phase is not None:
        known.append(said.get("phase") == truth.phase)
    if truth.module is not None:
        module = str(said.get("module"))  # a wrapper such as DDP puts its own name in front
        known.append(module == truth.module or f".{module}".endswith(f".{truth.module}"))
    if truth.step is not None:
        step = said.get("step")
        known.append(step is not None and abs(step - truth.step) <= STEP_TOLERANCE)
    return all(known) if known else None


# Live, and what if


def live_delay(truth: Truth, lines: tuple[Json, ...], onset: Onset | None) -> Live | None:
    """From the onset to the first live finding that was right."""
    if onset is None:
        return None
    for line in lines:
        if line["unix_s"] < onset.unix_s or line["kind"] not in truth.kinds:
            continue
        if truth.ranks is None or tuple(sorted(line.get("ranks") or ())) == truth.ranks:
            return Live(max(0, line["step"] - onset.step), line["unix_s"] - onset.unix_s)
    return None


def _what_if_error(truth: Truth, summary: Json, baseline: Outcome | None) -> float | None:
    """How far the predicted step time is from the one measured without the fault."""
    predicted = _predicted_ms(truth, summary)
    if predicted is None or baseline is None or baseline.summary is None:
        return None
    measured = step_time_ms(baseline.summary)
    return None if not measured else abs(predicted - measured) / measured


def _predicted_ms(truth: Truth, summary: Json) -> float | None:
    for entry in summary.get("what_if") or ():
        ranks = tuple(sorted(entry.get("ranks") or ()))
        if entry.get("kind") in truth.kinds and truth.ranks in (None, ranks):
            predicted: float | None = entry.get("predicted_step_time_ms")
            return predicted
    return None


def step_time_ms(summary: Json) -> float | None:
    """The mean step time after warm-up."""
    average = summary.get("step_time", {}).get("global", {}).get("average", {})
    found: float | None = average.get("step_time_ms")
    return found
