"""What differs between the runs themselves, and what can still be compared."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from msgspec import structs

from traceml.compare.lineage import LineageComparison, compare_lineages
from traceml.compare.measured import Values, values
from traceml.compare.script_identity import ScriptIdentity, are_different, script_of
from traceml.compare.sides import Sides
from traceml.compare.terms import SAMPLE_TIME, STEP_TIME, Endpoint
from traceml.model.finding import Section
from traceml.model.metric import METRICS
from traceml.model.printable import one_line, shorten_middle
from traceml.summaries.record import Summary

SAME_SAMPLES = 0.02
"""A smaller last batch changes the mean batch size by less than this; another batch size by
more."""

MAX_SCRIPTS = 4
"""Named per side."""
MAX_PATH_CHARS = 120

_HOST_CLOCK = {metric.key: metric.on_host for metric in METRICS if metric.on_host}
"""The metrics that are on the host's clock, whichever clock the run was diagnosed on."""
_ANY_CLOCK = tuple(metric.key for metric in METRICS if metric.any_clock)

_Fact = Callable[[Summary], object]


def on_one_clock(sides: Sides) -> tuple[Sides, str | None]:
    """Returns the runs on a clock that all of them have, and which metrics were dropped for it."""
    known = {clock for run in sides.every_run if (clock := _clock(run)) is not None}
    if len(known) < 2:
        return sides, None
    by_host = all(_average(run).get("step_time_cpu_ms") is not None for run in sides.every_run)
    a, b = (tuple(_without_phases(run, by_host) for run in side) for side in (sides.a, sides.b))
    what = "by the host's clock" if by_host else "as they are: over many steps the clocks agree"
    said = _difference(sides, _clock) or f"{' and '.join(sorted(known))} within one side"
    return replace(sides, a=a, b=b), (
        f"Clock of the step times differs: {said}; phases are not compared, whole steps {what}."
    )


def _without_phases(run: Summary, by_host: bool) -> Summary:
    """Returns the run with only the metrics that mean the same on both clocks; the distribution of
    the steps is dropped, because it is on the run's own clock."""
    section = run.step_time
    if section is None:
        return run
    average = _average(run)
    kept = {name: average[name] for name in _ANY_CLOCK if name in average}
    if by_host:
        kept |= {name: average.get(source) for name, source in _HOST_CLOCK.items()}
    whole = structs.replace(section.global_, average=kept)
    return structs.replace(run, step_time=structs.replace(section, global_=whole), steps=None)


def _average(run: Summary) -> Values:
    return run.step_time.global_.average if run.step_time else {}


def fair_endpoint(sides: Sides) -> tuple[Endpoint, str | None]:
    """Returns step time where steps process the same number of samples, else time per sample; and a
    note."""
    a, b = ([_samples(run) for run in side] for side in (sides.a, sides.b))
    known = [size for size in (*a, *b) if size is not None]
    if len(known) < len(sides.every_run) or max(known) <= min(known) * (1 + SAME_SAMPLES):
        return STEP_TIME, None
    said = _difference(sides, lambda run: _rounded(_samples(run)))
    return SAMPLE_TIME, f"Samples per step differ: {said}"


def _samples(run: Summary) -> float | None:
    return values(Section.STEP_TIME, run).get("samples_per_step")


def _rounded(size: float | None) -> str | None:
    return None if size is None else f"{size:,.4g}"


def differences(sides: Sides) -> Iterator[str]:
    """Returns the differences between the runs that may explain a change."""
    if scripts := _other_scripts(sides):
        yield f"The runs are of different scripts: {scripts}."
    facts: tuple[tuple[str, _Fact], ...] = (
        ("World size", lambda run: run.meta.world_size or None),
        # A tool that saw no node writes 0: a run without any is none.
        ("Number of nodes", lambda run: run.meta.nodes_observed or None),
        ("Number of GPUs", lambda run: run.meta.gpus_observed),
        ("Schema version", lambda run: run.schema_version),
    )
    for what, fact in facts:
        said = _difference(sides, fact)
        if said:
            yield f"{what} differs: {said}."
    writers = _difference(sides, lambda run: run.producer.name or "another tool")
    if writers:
        yield f"The summaries were written by different tools: {writers}."
    unfinished = [
        side
        for side, runs in (("A", sides.a), ("B", sides.b))
        if any(run.exit_status for run in runs)
    ]
    if unfinished:
        yield f"Not every run of {' and '.join(unfinished)} ended well; see its own summary."


def _other_scripts(sides: Sides) -> str | None:
    """Returns the scripts of A and of B where some are shown to be different, between the sides or
    within one; of runs of one script the first one's path."""
    scripts: list[ScriptIdentity] = []
    shown: list[list[ScriptIdentity]] = []
    for side in (sides.a, sides.b):
        known = [script for run in side if (script := script_of(run.lineage)) is not None]
        for script in known:
            if all(are_different(script, other) for other in scripts):
                scripts.append(script)
        shown.append(
            [each for each in scripts if not all(are_different(each, run) for run in known)]
        )
    if len(scripts) < 2 or not all(shown):
        return None
    has_names = len({script.name for script in scripts}) == len(scripts)
    return " -> ".join(
        ", ".join(
            shorten_middle(one_line(each.name if has_names else each.path), MAX_PATH_CHARS)
            for each in side[:MAX_SCRIPTS]
        )
        for side in shown
    )


def _difference(sides: Sides, fact: _Fact) -> str | None:
    """Returns A's and B's value where they differ, between the sides or within one."""
    a, b = (
        {str(value) for run in side if (value := fact(run)) is not None}
        for side in (sides.a, sides.b)
    )
    if not a or not b or len(a | b) == 1:
        return None
    return " -> ".join(", ".join(sorted(side)[:4]) for side in (a, b))


def _clock(run: Summary) -> str | None:
    return run.step_time.global_.window.diagnosis_clock if run.step_time else None


def lineage(sides: Sides) -> LineageComparison:
    """Returns the differences in the runs' code, command, machine and data."""
    return compare_lineages(sides.a, sides.b)
